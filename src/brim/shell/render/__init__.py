"""Output: replies, the status line, `:context` and `:cost`."""
