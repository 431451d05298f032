"""The gateway: fits every request into its model's context window and its key's caps.

Start at `asgi` (which path leads to which handler), `completion` (one request from its first byte
to its actual cost) and `accounts/` (keys, caps, reservations and the ledger).
docs/architecture.md follows a request through the modules.

Formats are not translated: a body is sent in the format in which it was received.
"""
