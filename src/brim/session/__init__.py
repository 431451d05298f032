"""A conversation that grows: its turns, the next request, summaries, usage and cost."""
