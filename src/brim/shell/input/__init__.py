"""What is typed: language or command, completion, the prompt."""
