"""The shell: commands and plain language share one prompt.

app, door     the loop, and the way in; starting: how a shell comes to be; state: all that it has
asking        words to a model; calling, proposing: what it wants done; pursuing: by itself
confirming    the one question before something is done; asides: questions beside the conversation
running       the user's commands; conversation: what was said, on disk as it is said
attaching     what goes along: facts, the project's tree, tools; models: who can be talked to
background    work while the user thinks; warming: getting a model ready
lines/        what is typed: language or command, completion, the prompt
commands/     `:context` and the like
danger/       what a command could destroy; safety/: what was allowed, and secrets
terminal/     the user's own shell, on a PTY
drawing/      what is seen: answers, the status line, `:context` and `:cost`
mcp/          tools of MCP servers
setup/        somebody to talk to: what runs here, what is missing, the first start
"""
