"""Tools of MCP servers: connect, list, call, and offer those that fit."""
