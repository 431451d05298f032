"""What is part of every request: the system prompt, facts, the project's files, and tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from brim.session.summaries import CHARS_PER_TOKEN
from brim.session.system_prompt import format_facts
from brim.shell.proposals import DEFAULT_PROMPT, RULE, TOOLS_RULE

if TYPE_CHECKING:
    from brim.config import McpConfig
    from brim.shell.mcp.tools import ModelKey
    from brim.shell.state import Shell

BLOCK_SHARE: Final = 0.15
"""Share of the limit that the facts, and the project's files, may take."""
TOOLS_SHARE: Final = 0.5
"""Share of the limit that tool definitions may take."""
MEMORY_BLOCK: Final = "background"
PROJECT_BLOCK: Final = "project"
"""Names of blocks in the system prompt."""


def system_prompt(shell: Shell, base: str | None = None) -> str:
    """Return the system prompt; it always contains the rule for commands."""
    base = base or shell.config.shell.prompt or DEFAULT_PROMPT
    return "\n\n".join([base, RULE, *([TOOLS_RULE] if shell.session.tools else [])])


def refresh_memory(shell: Shell) -> None:
    """Update the facts in the system prompt."""
    shell.memory = tuple(shell.storage.facts.all().values())
    _write_memory(shell, _memory_chars(shell))
    shell.save("memory")


def attach_memory(shell: Shell) -> None:
    """Put the facts into the system prompt of a session that was created or resumed."""
    shell.memory = tuple(shell.storage.facts.all().values())
    _write_memory(shell, shell.config.memory.inject_max_chars)


def _write_memory(shell: Shell, max_chars: int) -> None:
    shell.driver.prompt.blocks[MEMORY_BLOCK] = format_facts(shell.memory, max_chars)


def _memory_chars(shell: Shell) -> int:
    room = int(shell.limit * BLOCK_SHARE)
    return min(shell.config.memory.inject_max_chars, room * CHARS_PER_TOKEN)


# Project files


def show_tree(shell: Shell, depth: int | None = None) -> None:
    """Read the project's files again, and show them to the model."""
    shell.project.show(shell.project.scan(depth))
    fit_blocks(shell)


def hide_tree(shell: Shell) -> None:
    shell.project.hide()
    shell.driver.prompt.blocks[PROJECT_BLOCK] = ""


def read_tree(shell: Shell) -> None:
    """Start reading the project's files; the model sees them from its next request on."""
    if shell.project.root is None:
        return

    def show(text: str) -> None:
        shell.project.show(text)
        fit_blocks(shell)

    shell.background.start(shell.project.scan, show)


def fit_blocks(shell: Shell) -> None:
    """Limit facts, files and tools to their share of the window."""
    blocks, room = shell.driver.prompt.blocks, int(shell.limit * BLOCK_SHARE)
    _write_memory(shell, _memory_chars(shell))
    if not shell.project.is_shown and blocks.get(PROJECT_BLOCK) and shell.project.root:
        shell.project.show(blocks[PROJECT_BLOCK])  # of a resumed conversation
    if shell.project.is_shown:
        count = shell.driver.count_text
        blocks[PROJECT_BLOCK] = shell.project.text_for(_model_key(shell), count, room)
    if shell.tools.current is not None:
        offer_tools(shell)


def _model_key(shell: Shell) -> ModelKey:
    return shell.driver.profile.name, shell.budget.window if shell.budget else 0


# Tools


def connect_configured(shell: Shell) -> None:
    """Start connecting the MCP servers of the configuration."""
    for name, config in shell.config.mcp.items():

        def failed(error: Exception, name: str = name) -> None:
            message = f"MCP server {name} is not connected: {error}"
            shell.screen.warn(shell.secrets.mask(message).text)

        shell.background.start(
            partial(shell.tools.servers.connect, name, config),
            lambda _tools: offer_tools(shell),
            failed,
        )


def connect(shell: Shell, name: str, config: McpConfig) -> None:
    """Connect an MCP server, and offer the tools that fit."""
    with shell.screen.waiting(f"connecting to {name} …"):
        shell.tools.servers.connect(name, config)
    offer_tools(shell)


def disconnect(shell: Shell, name: str) -> None:
    shell.tools.servers.disconnect(name)
    offer_tools(shell)


def offer_tools(shell: Shell) -> None:
    """Offer the model the tools that fit, and warn about the others."""
    session, tools = shell.session, shell.tools
    room, size = int(shell.limit * TOOLS_SHARE), shell.driver.profile.counter().tools
    is_new = tools.choose(_model_key(shell), room=room, size=size)
    offer = tools.current
    assert offer is not None
    if not is_new and bool(offer.offered) == bool(session.tools):
        return
    session.tools = offer.definitions
    session.system = system_prompt(shell)
    if shell.budget is not None:  # more may fit once the window is known
        for name in offer.left_out:
            warning = f"tool does not fit and is not offered: {name}"
            if shell.notices.is_new(warning):
                shell.screen.warn(warning)
    shell.save("tools", servers=list(offer.sizes), left_out=list(offer.left_out))
