"""The interactive shell: commands and plain language share one prompt.

main             entry point: opens everything a shell needs, then reads and runs lines
state            Shell: the parts of a running shell, each owning its own transitions
chat             sends a message to a model and shows the reply; goal_mode: repeats that until done
tool_calls       tool calls of a model; proposals: commands that a model proposes
run_command      runs a command in the user's own shell
conversation     a session that is saved as it happens
session_setup    builds and switches sessions, with facts, project files and tools
model_clients    the configured models, their connections, and the rules that choose one
background       work in threads while the user types; prompt_state: what the prompt shows
input/           the prompt: classification, completion, key bindings
commands/        meta commands such as `:context`
risk/            what a command may do; approval/: remembered permissions, secrets
sandbox          where commands of goal mode run; sandbox_child: the program that enters it
terminal/        the user's shell on a pseudo-terminal
render/          output: replies, the status line, `:context`, `:cost`
mcp/             tools of MCP servers
setup/           model discovery, the first start, `brim doctor`
"""
