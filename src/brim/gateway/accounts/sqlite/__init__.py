"""The account store in sqlite."""
