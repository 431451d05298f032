"""Commands about what is kept between runs, and what goes along with a request."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from brim.config import McpConfig
from brim.errors import InputError
from brim.session.summaries import format_transcript
from brim.shell.commands.meta_command import command, number
from brim.shell.context_blocks import (
    PROJECT_BLOCK,
    connect,
    disconnect,
    hide_tree,
    refresh_memory,
    show_tree,
)
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from rich.console import RenderableType

    from brim.shell.state import Shell

KIND = "fact"


@command("[add [KIND:] TEXT|list|forget N|clear]", arguments=("add", "list", "forget", "clear"))
def memory(shell: Shell, words: str) -> RenderableType:
    """Facts that are told to the model in every conversation.

    `add preference: answers in German` has a kind; without one it is a fact.
    """
    verb, _, rest = words.partition(" ")
    match verb:
        case "add" if not rest:
            raise InputError("say what to remember, as in :memory add my dog is called Rex")
        case "add":
            kind, colon, text = rest.partition(": ")
            named = bool(colon) and kind.isidentifier()
            shell.facts.add(kind if named else KIND, text if named else rest)
        case "forget":
            shell.facts.forget(number(rest, "fact to forget", example=":memory forget 2"))
        case "clear" if not rest:
            shell.facts.clear()
        case "list" | "" if not rest:
            pass
        case _:
            raise InputError(f"say add TEXT, list, forget N or clear, not {words!r}")
    refresh_memory(shell)
    return _list_facts(shell)


def _list_facts(shell: Shell) -> RenderableType:
    facts = shell.facts.all()
    if not facts:
        return "nothing is remembered; :memory add TEXT"
    table = Table.grid(padding=(0, 2))
    for index, fact in facts.items():
        table.add_row(str(index), Text(f"({fact.kind})", style="dim"), Text(sanitize(fact.text)))
    return table


@command("[DEPTH|off|refresh]", arguments=("off", "refresh"))
def tree(shell: Shell, words: str) -> RenderableType:
    """Show the project's files to the model: to a DEPTH, not at all, or read anew."""
    if words == "off":
        hide_tree(shell)
    else:
        is_depth = words not in ("", "refresh")
        depth = number(words, "depth", example=":tree 2", least=1) if is_depth else None
        show_tree(shell, depth)
    shell.keep("tree", words=words)
    files = shell.driver.prompt.blocks.get(PROJECT_BLOCK)
    return files or "the model is not shown the project's files"


@command("[connect NAME [COMMAND…|URL]|disconnect NAME|list]", arguments=lambda shell: _mcp(shell))
def mcp(shell: Shell, words: str) -> RenderableType:
    """Tools of MCP servers: connect one of the configuration, or any command or address."""
    verb, _, rest = words.partition(" ")
    name, _, target = rest.strip().partition(" ")
    match verb:
        case "connect" if name:
            connect(shell, name, _server(shell, name, target.strip()))
        case "disconnect" if name and not target:
            disconnect(shell, name)
        case "list" | "" if not rest:
            with shell.screen.waiting("connecting …"):
                shell.background.settle()
        case "connect" | "disconnect" if not name:
            raise InputError(f"say which server, as in :mcp {verb} files")
        case _:
            raise InputError(f"say connect NAME, disconnect NAME or list, not {words!r}")
    return _servers(shell)


def _mcp(shell: Shell) -> list[str]:
    connected = [state.name for state in shell.servers.states()]
    return [
        "list",
        *(f"connect {name}" for name in shell.config.mcp if name not in connected),
        *(f"disconnect {name}" for name in connected),
    ]


def _server(shell: Shell, name: str, target: str) -> McpConfig:
    if not target:
        if name not in shell.config.mcp:
            raise InputError(f"no MCP server is called {name}; give its command or its address")
        return shell.config.mcp[name]
    if target.startswith(("http://", "https://")):
        return McpConfig(url=target)
    program, *arguments = target.split()
    return McpConfig(command=program, args=tuple(arguments))


def _servers(shell: Shell) -> RenderableType:
    states = shell.servers.states()
    if not states:
        return "no MCP server is connected; :mcp connect NAME"
    table = Table.grid(padding=(0, 2))
    sizes = shell.offer.sizes if shell.offer else {}
    for state in states:
        tools = ", ".join(tool.name for tool in state.tools)
        size = f"{sizes.get(state.name, 0):,} tokens"
        table.add_row(Text(state.name, style="bold"), size, sanitize(tools or state.fault or ""))
    for left_out in shell.offer.left_out if shell.offer else ():
        table.add_row(Text("no room", style="yellow"), "", sanitize(left_out))
    return table


# Conversations


@command("[TITLE]")
def save(shell: Shell, words: str) -> RenderableType:
    """Give the conversation a title. It is on disk in any case, as it happens."""
    if words:
        shell.log.rename(shell.conversation.name, words)
    return f"saved as {shell.conversation.name}; `brim resume` goes on with it"


@command("[all]", arguments=("all",))
def sessions(shell: Shell, words: str) -> RenderableType:
    """List the conversations of this folder, or all."""
    saved = shell.log.list(None if words == "all" else shell.home, limit=30)
    if not saved:
        return "there is none yet"
    table = Table.grid(padding=(0, 2))
    for one in saved:
        day = datetime.fromtimestamp(one.updated).astimezone().strftime("%Y-%m-%d %H:%M")
        mark = "→" if one.id == shell.conversation.name else " "
        table.add_row(mark, one.id, day, f"{one.turns} turns", sanitize(one.title))
    return table


@command("[ID]", arguments=lambda shell: [one.id for one in shell.log.list(limit=30)])
def resume(shell: Shell, words: str) -> RenderableType:
    """Go on with another conversation: the last one of this folder, or that of an ID."""
    here = [one.id for one in shell.log.list(shell.home) if one.id != shell.conversation.name]
    if not words and not here:
        raise InputError("there is no other conversation in this folder; :sessions all lists all")
    name = shell.log.find(words).id if words else here[0]
    shell.resume(shell, name)
    tokens = f", {shell.session.tokens:,} tokens" if shell.budget else ""
    return f"{name}: {len(shell.session)} turns{tokens}"


@command("FILE", asks_for="say which file, as in :export talk.md")
def export(shell: Shell, words: str) -> RenderableType:
    """Write the conversation to a file: Markdown, or JSON where its name ends so."""
    path = _path(shell, words)
    turns = list(shell.session.history)
    text = json.dumps(turns, indent=2, ensure_ascii=False) if path.suffix == ".json" else None
    _write_new(path, f"{text or format_transcript(turns)}\n")
    return f"{len(turns)} turns are in {path}"


def _path(shell: Shell, words: str) -> Path:
    try:
        return (shell.folder / Path(words).expanduser()).resolve()
    except RuntimeError:  # ~ of somebody who is not there
        raise InputError(f"there is no folder {words.split('/')[0]}") from None


def _write_new(path: Path, text: str) -> None:
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise InputError(f"{path} is there already; give another name") from None
    with os.fdopen(file, "w", encoding="utf-8", errors="replace") as opened:
        opened.write(text)
