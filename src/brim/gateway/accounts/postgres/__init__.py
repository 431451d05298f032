"""The account store in postgres."""
