"""The account store in SQLite."""
