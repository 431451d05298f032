"""What is seen: answers while they come, the status line, `:context` and `:cost`."""
