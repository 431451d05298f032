"""The account store in Redis and Valkey."""
