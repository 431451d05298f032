"""The prompt: classification of lines, completion, key bindings."""
