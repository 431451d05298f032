"""The account store in PostgreSQL."""
