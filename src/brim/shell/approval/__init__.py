"""What keeps the user from harm beside `danger`: what was allowed, and secrets that stay here."""
