"""What goes along with every request: facts, the project's tree, and tools."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from brim.errors import InputError
from brim.session.summaries import CHARS_PER_TOKEN
from brim.session.system_prompt import format_facts
from brim.shell.mcp.offer import choose_tools
from brim.shell.project_tree import ProjectTree, build_tree

if TYPE_CHECKING:
    from pathlib import Path

    from brim.config import McpConfig
    from brim.shell.mcp.offer import ToolOffer
    from brim.shell.state import Shell

MEMORY_BLOCK: Final = "background"
PROJECT_BLOCK: Final = "project"
BLOCK_SHARE: Final = 0.15
"""What the facts, and the project's files, may take of the limit."""
WHOLE: Final = ("", 0)
"""In the place of a model: the files as they were read."""
LEAST: Final = 60
"""Characters below which a tree says nothing."""
TOOLS_SHARE: Final = 0.5
"""What the definitions of tools may take of the limit."""


def refresh_memory(shell: Shell) -> None:
    """Let the model know the facts as they are now."""
    shell.memory = tuple(shell.facts.all().values())
    _write_memory(shell, _memory_chars(shell))
    shell.keep("memory")


def attach_memory(shell: Shell) -> None:
    """Put the facts into the system text of a session that was created or resumed."""
    shell.memory = tuple(shell.facts.all().values())
    _write_memory(shell, shell.config.memory.inject_max_chars)


def _write_memory(shell: Shell, max_chars: int) -> None:
    shell.driver.prompt.blocks[MEMORY_BLOCK] = format_facts(shell.memory, max_chars)


def _memory_chars(shell: Shell) -> int:
    room = int(shell.limit * BLOCK_SHARE)
    return min(shell.config.memory.inject_max_chars, room * CHARS_PER_TOKEN)


def show_tree(shell: Shell, depth: int | None = None) -> None:
    """Read the project's files anew, and show them to the model."""
    if shell.project is None:
        raise InputError("a home folder is no project; its files are not shown")
    settings = shell.config.project
    shell.depth = depth or settings.depth
    shell.files = {WHOLE: _build_tree(shell.project, shell.depth, settings.max_chars).text}
    fit_blocks(shell)


def hide_tree(shell: Shell) -> None:
    shell.files = None
    shell.driver.prompt.blocks[PROJECT_BLOCK] = ""


def read_tree(shell: Shell) -> None:
    """Begin to read the project's files; the model is shown them from its next request on."""
    settings, root = shell.config.project, shell.project
    if root is None:
        return
    shell.depth = settings.depth

    def show(found: ProjectTree) -> None:
        shell.files = {WHOLE: found.text}
        fit_blocks(shell)

    shell.background.start(lambda: _build_tree(root, settings.depth, settings.max_chars), show)


def fit_blocks(shell: Shell) -> None:
    """Let facts, files and tools take no more than their share of a small window."""
    blocks, room = shell.driver.prompt.blocks, int(shell.limit * BLOCK_SHARE)
    _write_memory(shell, _memory_chars(shell))
    if shell.files is None and blocks.get(PROJECT_BLOCK) and shell.project:
        shell.files = {WHOLE: blocks[PROJECT_BLOCK]}
    if shell.files is not None:
        model = _model_key(shell)
        if model not in shell.files:
            shell.files[model] = _fit_tree(shell, shell.files[WHOLE], room)
        blocks[PROJECT_BLOCK] = shell.files[model]
    if shell.offer is not None:
        offer_tools(shell)


def _model_key(shell: Shell) -> tuple[str, int]:
    """Who is asked, and its window: what was once fitted to them stays as it is.

    Their limit moves as is learned how they count, and would change the beginning of requests.
    """
    return shell.driver.profile.name, shell.budget.window if shell.budget else 0


def _fit_tree(shell: Shell, text: str, room: int) -> str:
    """As much of the project's files as there is room for."""
    chars = shell.config.project.max_chars
    while text and shell.project and shell.driver.count_text(text) > room:
        chars = chars * 2 // 3
        text = _build_tree(shell.project, shell.depth, chars).text if chars > LEAST else ""
    return text


def _build_tree(root: Path, depth: int, max_chars: int) -> ProjectTree:
    return build_tree(root, depth=depth, max_chars=max_chars)


def connect_configured(shell: Shell) -> None:
    """Begin to connect the servers of the configuration."""
    for name, config in shell.config.mcp.items():

        def failed(error: Exception, name: str = name) -> None:
            shell.screen.warn(shell.masker.mask(f"{name} is not connected: {error}").text)

        shell.background.start(
            partial(shell.servers.connect, name, config), lambda _tools: offer_tools(shell), failed
        )


def connect(shell: Shell, name: str, config: McpConfig) -> None:
    """Start or reach an MCP server, and offer its tools as far as they fit."""
    with shell.screen.waiting(f"connecting to {name} …"):
        shell.servers.connect(name, config)
    offer_tools(shell)


def disconnect(shell: Shell, name: str) -> None:
    shell.servers.disconnect(name)
    offer_tools(shell)


def offer_tools(shell: Shell) -> None:
    """Offer what there is and fits the model, and name what does not."""
    session, tools, model = shell.session, shell.servers.tools, _model_key(shell)
    if tools != shell.offered_from:
        shell.offers.clear()
        shell.offered_from = tools
    if model not in shell.offers:
        room = int(shell.limit * TOOLS_SHARE)
        shell.offers[model] = choose_tools(
            tools, room=room, size=shell.driver.profile.counter().tools
        )
    made = shell.offers[model]
    if made is shell.offer and bool(made.offered) == bool(session.tools):
        return
    shell.offer = made
    session.tools = made.definitions
    session.system = shell.base_prompt()
    if shell.budget is not None:  # where no window is known yet, more may fit
        _warn_unoffered(shell, made)
    shell.keep("tools", servers=list(made.sizes), left_out=list(made.left_out))


def _warn_unoffered(shell: Shell, made: ToolOffer) -> None:
    for name in made.left_out:
        warning = f"not offered, because it does not fit: {name}"
        if warning not in shell.told:
            shell.told.add(warning)
            shell.screen.warn(warning)
