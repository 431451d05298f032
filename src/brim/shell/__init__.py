"""The shell: commands and plain language share one prompt.

app, door     the loop, and the way in; starting: how a shell comes to be; state: all that it has
asking        words to a model; calling, proposing: what it wants done; pursuing: by itself
running       the user's commands; conversation: what was said, on disk as it is said
lines/        what is typed: language or command, completion, the prompt
commands/     `:context` and the like
danger/       what a command could destroy; safety/: what was allowed, and secrets
terminal/     the user's own shell, on a PTY
drawing/      the only place that draws and asks
mcp/          tools of MCP servers
setup/        somebody to talk to: what runs here, what is missing, the first start
"""
