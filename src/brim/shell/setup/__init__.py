"""Somebody to talk to: what runs here, what is missing, and the first start."""
