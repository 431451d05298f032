"""Provider formats: bodies are read into messages and written back according to a plan."""
