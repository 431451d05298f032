"""Tool calls of a model: each is shown, run if the user agrees, and gets a result."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from brim.messages import Call
from brim.shell.approval.allow_rules import LISTS
from brim.shell.mcp.tools import Tool, ToolResult
from brim.shell.proposals import assess_risk
from brim.shell.render.sanitize import sanitize
from brim.shell.render.screen import Answer
from brim.shell.state import Shell

SKIPPED: Final = ToolResult("[brim] The user skipped this call.", is_error=True)
STOPPED: Final = ToolResult("[brim] The user stopped this call.", is_error=True)
MAX_SHOWN: Final = 400
"""Characters shown of a call and of its result."""


def answer_calls(shell: Shell, calls: Sequence[Call], *, autonomous: bool = False) -> bool:
    """Give each call a result; return False if the user pressed Ctrl-C."""
    stopped = False
    for call in calls:
        try:
            result = STOPPED if stopped else _run_call(shell, call, autonomous=autonomous)
        except KeyboardInterrupt:
            result, stopped = STOPPED, True
        masked = shell.secrets.mask(result.text)
        if masked.found:
            shell.screen.notice(f"hidden from the model: {', '.join(masked.found)}")
        shell.conversation.add_result(call.id, masked.text)
        style = "dim red" if result.is_error else "dim"
        shell.screen.show(Text(f"  → {_shorten(result.text)}", style=style))
    return not stopped


def _run_call(shell: Shell, call: Call, *, autonomous: bool) -> ToolResult:
    servers = shell.tools.servers
    tool = next((tool for tool in servers.tools if tool.offered == call.name), None)
    if tool is None:
        return ToolResult(f"[brim] There is no tool {call.name}.", is_error=True)
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return ToolResult("[brim] The arguments are not a JSON object.", is_error=True)
    if not _is_approved(shell, tool, arguments, autonomous=autonomous):
        return SKIPPED
    with shell.screen.waiting(f"{tool.name} …"):
        return servers.call(call.name, arguments)


def _is_approved(
    shell: Shell, tool: Tool, arguments: Mapping[str, Any], *, autonomous: bool
) -> bool:
    """Return whether the call may run; ask the user unless it is allowed and not destructive."""
    dangers = _find_dangers(shell, tool, find_commands(arguments))
    allowed = not dangers and _is_allowed(shell, tool, autonomous=autonomous)
    # The user must see all of what they approve.
    text = json.dumps(arguments, ensure_ascii=False)
    _show_call(shell, tool, _shorten(text) if allowed else sanitize(text), dangers)
    if allowed:
        return True
    question = "call it? [y]es, [s]kip, [a]lways: "
    offered: tuple[Answer, ...] = ("run", "skip", "always")
    if dangers:
        question, offered = "destructive. type yes to call it, or [s]kip: ", ("run", "skip")
    answer = shell.screen.confirm(question, offered=offered, is_destructive=bool(dangers))
    shell.record(
        "asked",
        tool=tool.offered,
        arguments=shell.secrets.mask(text).text,
        destructive=dangers,
        answer=answer,
    )
    if answer == "interrupt":
        raise KeyboardInterrupt
    if answer == "always":
        shell.approvals.allow(lambda rules: rules.with_tool(tool.server, tool.name))
    return answer in ("run", "always")


def _is_allowed(shell: Shell, tool: Tool, *, autonomous: bool) -> bool:
    """Return whether no question is needed: a rule allows the tool, or it changes nothing.

    A tool without hints from its server counts as destructive.
    """
    server = shell.config.mcp.get(tool.server)
    if server is not None and tool.name in server.allow:
        return True
    if shell.approvals.rules.allows_tool(tool.server, tool.name):
        return True
    is_safe = tool.is_read_only or tool.is_destructive is False
    return (autonomous or shell.options.yes) and is_safe


def _find_dangers(shell: Shell, tool: Tool, commands: Sequence[str]) -> list[str]:
    """Return what the call could destroy, by its server's hint or by a command in its arguments."""
    found = ["its server marks it as destructive"] if tool.is_destructive else []
    for command in commands:
        found += [finding.why for finding in assess_risk(shell, command).findings]
    return list(dict.fromkeys(found))


def _show_call(shell: Shell, tool: Tool, arguments: str, dangers: Sequence[str]) -> None:
    style = "bold red" if dangers else "bold"
    name = sanitize(f"{tool.server}: {tool.name} ")
    shell.screen.show(Text.assemble(("⚙ ", "dim"), (name, style), (arguments, "dim")))
    for danger in dangers:
        shell.screen.show(Text.assemble(("  ⚠ ", "red"), sanitize(danger)))


def _shorten(text: str) -> str:
    text = sanitize(text)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text):,} characters)"


_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def find_commands(arguments: Mapping[str, Any]) -> list[str]:
    """Return every text in the arguments that could be run, at any depth."""
    return list(dict.fromkeys(_find_in_mapping(arguments, is_command=False)))


def _find_in_mapping(arguments: Mapping[str, Any], *, is_command: bool) -> Iterator[str]:
    """`is_command` says that the enclosing name marks everything inside as a command."""
    words: list[str] = []
    for name, value in arguments.items():
        about = {word.lower() for word in _WORDS.findall(name)}
        if is_command or not about.isdisjoint(LISTS["command_arguments"]):
            yield from _find_in_value(value, is_command=True)
            words += _texts(value)
        elif not about.isdisjoint(LISTS["rest_arguments"]):
            yield from _find_in_value(value, is_command=False)
            words += _texts(value)
        else:
            yield from _find_in_value(value, is_command=False)
    if len(words) > 1:
        yield shlex.join(words)
        yield " ".join(words)


def _find_in_value(value: Any, *, is_command: bool) -> Iterator[str]:
    match value:
        case str():
            if is_command:
                yield value
        case Mapping():
            yield from _find_in_mapping(value, is_command=is_command)
        case Sequence():
            texts = _texts(value)
            if texts and is_command:
                yield shlex.join(texts)
                yield from (text for text in texts if any(map(str.isspace, text)))
            for inner in value:
                if not isinstance(inner, str):
                    yield from _find_in_value(inner, is_command=is_command)
        case _:
            pass


def _texts(value: Any) -> list[str]:
    """Return the texts in an argument."""
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
