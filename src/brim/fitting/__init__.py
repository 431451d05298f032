"""The engine: decides what a request keeps so that it fits the model's context window."""
