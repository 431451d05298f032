"""The shell: commands and plain language share one prompt.

app         the loop: a line, what it is, what is done about it
state       all that a running shell has
starting    how it comes to be; first: where nothing is configured
asking      words to a model; proposing, calling: what it wants done; pursuing: by itself
running     the user's commands, in the user's own shell (terminal)
classify    language or command; danger: what a command could destroy
commands    `:context` and the like
screen      the only place that draws and asks; prompt: where lines are typed
"""
