"""Meta commands about what is kept between runs, and what is sent with every request."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from brim.config import McpConfig, open_private
from brim.errors import InputError
from brim.session.summaries import format_transcript
from brim.shell.commands.meta_command import command, parse_number
from brim.shell.render.sanitize import sanitize
from brim.shell.session_setup import (
    PROJECT_BLOCK,
    fit_blocks,
    hide_tree,
    load_memory,
    offer_tools,
    show_tree,
    switch_conversation,
)
from brim.shell.state import Shell

KIND = "fact"


@command("[add [KIND:] TEXT|list|forget N|clear]", arguments=("add", "list", "forget", "clear"))
def memory(shell: Shell, argument: str) -> RenderableType:
    """Facts that are sent to the model in every conversation.

    `add preference: answers in German` sets a kind; the default kind is "fact".
    """
    facts = shell.storage.facts
    verb, _, rest = argument.partition(" ")
    match verb:
        case "add" if not rest:
            raise InputError("The fact is missing. Example: :memory add my dog is called Rex")
        case "add":
            kind, colon, text = rest.partition(": ")
            has_kind = bool(colon) and kind.isidentifier()
            facts.add(kind if has_kind else KIND, text if has_kind else rest)
        case "forget":
            facts.forget(parse_number(rest, "fact to forget", example=":memory forget 2"))
        case "clear" if not rest:
            facts.clear()
        case "list" | "" if not rest:
            pass
        case _:
            raise InputError(
                f"Unknown argument: {argument!r}. Use add TEXT, list, forget N or clear."
            )
    load_memory(shell)
    fit_blocks(shell)
    shell.save("memory")
    return _list_facts(shell)


def _list_facts(shell: Shell) -> RenderableType:
    facts = shell.storage.facts.all()
    if not facts:
        return "no facts; add one with :memory add TEXT"
    table = Table.grid(padding=(0, 2))
    for index, fact in facts.items():
        table.add_row(str(index), Text(f"({fact.kind})", style="dim"), Text(sanitize(fact.text)))
    return table


@command("[DEPTH|off|refresh]", arguments=("off", "refresh"))
def tree(shell: Shell, argument: str) -> RenderableType:
    """Show the model the project's files down to DEPTH, hide them, or read them again."""
    if argument == "off":
        hide_tree(shell)
    else:
        has_depth = argument not in ("", "refresh")
        depth = parse_number(argument, "depth", example=":tree 2", least=1) if has_depth else None
        show_tree(shell, shell.project.scan(depth))
    shell.save("tree", words=argument)
    files = shell.driver.prompt.blocks.get(PROJECT_BLOCK)
    return files or "the model does not see the project's files"


@command("[connect NAME [COMMAND…|URL]|disconnect NAME|list]", arguments=lambda shell: _mcp(shell))
def mcp(shell: Shell, argument: str) -> RenderableType:
    """Tools of MCP servers: connect a configured server, or any command or URL."""
    verb, _, rest = argument.partition(" ")
    name, _, target = rest.strip().partition(" ")
    match verb:
        case "connect" if name:
            config = _server_config(shell, name, target.strip())
            with shell.screen.waiting(f"connecting to {name} …"):
                shell.tools.servers.connect(name, config)
            offer_tools(shell)
        case "disconnect" if name and not target:
            shell.tools.servers.disconnect(name)
            offer_tools(shell)
        case "list" | "" if not rest:
            with shell.screen.waiting("connecting …"):
                shell.background.settle()
        case "connect" | "disconnect" if not name:
            raise InputError(f"The server's name is missing. Example: :mcp {verb} files")
        case _:
            raise InputError(
                f"Unknown argument: {argument!r}. Use connect NAME, disconnect NAME or list."
            )
    return _list_servers(shell)


def _mcp(shell: Shell) -> list[str]:
    connected = [state.name for state in shell.tools.servers.states()]
    return [
        "list",
        *(f"connect {name}" for name in shell.config.mcp if name not in connected),
        *(f"disconnect {name}" for name in connected),
    ]


def _server_config(shell: Shell, name: str, target: str) -> McpConfig:
    if not target:
        if name not in shell.config.mcp:
            raise InputError(f"MCP server not configured: {name}. Add its command or URL.")
        return shell.config.mcp[name]
    if target.startswith(("http://", "https://")):
        return McpConfig(url=target)
    program, *arguments = target.split()
    return McpConfig(command=program, args=tuple(arguments))


def _list_servers(shell: Shell) -> RenderableType:
    states, offer = shell.tools.servers.states(), shell.tools.current
    if not states:
        return "no MCP server is connected; use :mcp connect NAME"
    table = Table.grid(padding=(0, 2))
    sizes = offer.sizes if offer else {}
    for state in states:
        tools = ", ".join(tool.name for tool in state.tools)
        size = f"{sizes.get(state.name, 0):,} tokens"
        table.add_row(Text(state.name, style="bold"), size, sanitize(tools or state.error or ""))
    for left_out in offer.left_out if offer else ():
        table.add_row(Text("too large", style="yellow"), "", sanitize(left_out))
    return table


# Conversations


@command("[TITLE]")
def save(shell: Shell, title: str) -> RenderableType:
    """Give the conversation a title. It is always saved as it happens."""
    name = shell.conversation.name
    if title:
        shell.storage.conversations.rename(name, title)
    return f"saved as {name}; continue it with `brim resume`"


@command("[all]")
def sessions(shell: Shell, argument: str) -> RenderableType:
    """List the conversations of this folder, or all."""
    saved = shell.storage.conversations.list(None if argument == "all" else shell.home, limit=30)
    if not saved:
        return "no conversations yet"
    table = Table.grid(padding=(0, 2))
    for one in saved:
        day = datetime.fromtimestamp(one.updated).astimezone().strftime("%Y-%m-%d %H:%M")
        mark = "→" if one.id == shell.conversation.name else " "
        table.add_row(mark, one.id, day, f"{one.turns} turns", sanitize(one.title))
    return table


@command(
    "[ID]", arguments=lambda shell: [one.id for one in shell.storage.conversations.list(limit=30)]
)
def resume(shell: Shell, name: str) -> RenderableType:
    """Continue another conversation: the last one of this folder, or the one with this ID."""
    log, current = shell.storage.conversations, shell.conversation.name
    here = [one.id for one in log.list(shell.home) if one.id != current]
    if not name and not here:
        raise InputError(
            "There is no other conversation in this folder. List all with `:sessions all`."
        )
    name = log.find(name).id if name else here[0]
    switch_conversation(shell, name)
    tokens = f", {shell.session.tokens:,} tokens" if shell.budget else ""
    return f"{name}: {len(shell.session)} turns{tokens}"


@command("FILE", missing="The file name is missing. Example: :export chat.md")
def export(shell: Shell, file: str) -> RenderableType:
    """Write the conversation to a new file: Markdown, or JSON if its name ends with .json."""
    try:
        path = (shell.folder / Path(file).expanduser()).resolve()
    except RuntimeError:  # ~ of an unknown user
        raise InputError(f"Folder not found: {file.split('/')[0]}.") from None
    turns = list(shell.session.history)
    text = json.dumps(turns, indent=2, ensure_ascii=False) if path.suffix == ".json" else None
    try:
        with open(path, "x", encoding="utf-8", errors="replace", opener=open_private) as opened:
            opened.write(f"{text or format_transcript(turns)}\n")
    except FileExistsError:
        raise InputError(f"File already exists: {path}. Choose another name.") from None
    return f"wrote {len(turns)} turns to {path}"
