"""The account store in redis."""
