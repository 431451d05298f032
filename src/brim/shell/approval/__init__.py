"""Approvals that the user gave, and redaction of secrets."""
