"""Tool calls of a model: each is shown and run only as its user wants, and each gets a result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from brim.shell.harmless import harmless
from brim.shell.mcp_tools import Result
from brim.shell.proposing import YES, judged

if TYPE_CHECKING:
    from brim.messages import Call
    from brim.shell.mcp_tools import Tool
    from brim.shell.state import Shell

SKIPPED: Final = Result("[brim] skipped by user", is_error=True)
STOPPED: Final = Result("[brim] stopped by user", is_error=True)
COMMANDS: Final = ("command", "cmd", "script", "shell", "bash")
"""Arguments that hold a shell command, whatever the tool is called."""
WORDS: Final = ("args", "arguments", "argv")
"""And those that may hold the rest of its words."""
SHOWN: Final = 400
"""Characters of a call and of its result that are shown."""


def answer_calls(shell: Shell, calls: Sequence[Call], *, by_itself: bool = False) -> bool:
    """Give each call its result; False where the user wants to be asked before it goes on."""
    stopped = False
    for call in calls:
        try:
            result = STOPPED if stopped else _result(shell, call, by_itself=by_itself)
        except KeyboardInterrupt:
            result, stopped = STOPPED, True
        masked = shell.masker.masked(result.text)
        if masked.found:
            shell.screen.notice(f"hidden from the model: {', '.join(masked.found)}")
        shell.conversation.result(call.id, masked.text)
        _show_result(shell, result)
    return not stopped


def _result(shell: Shell, call: Call, *, by_itself: bool) -> Result:
    tool = next((tool for tool in shell.servers.tools if tool.offered == call.name), None)
    if tool is None:
        return Result(f"[brim] there is no tool {call.name}", is_error=True)
    arguments = _arguments(call)
    if arguments is None:
        return Result("[brim] the arguments are no JSON object", is_error=True)
    if not _is_wanted(shell, tool, arguments, by_itself=by_itself):
        return SKIPPED
    with shell.screen.waiting(f"{tool.name} …"):
        return shell.servers.call(call.name, arguments)


def _arguments(call: Call) -> dict[str, Any] | None:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _is_wanted(shell: Shell, tool: Tool, arguments: Mapping[str, Any], *, by_itself: bool) -> bool:
    """Whether the user wants the call made; what destroys something needs a typed yes."""
    commands = _commands(arguments)
    dangers = _dangers(shell, tool, commands)
    # A command is shown to its end: what is said yes to must have been seen.
    said = json.dumps(arguments, ensure_ascii=False)
    _show_call(shell, tool, harmless(said) if commands else _short(said), dangers)
    server = shell.config.mcp.get(tool.server)
    allowed = server is not None and tool.name in server.allow
    allowed = allowed or shell.rules.allows_tool(tool.server, tool.name)
    if not dangers and (by_itself or shell.yes or allowed):
        return True
    answer = _answer(shell, dangers)
    shell.note(
        "asked",
        tool=tool.offered,
        arguments=dict(arguments),
        destructive=dangers,
        answer=answer,
    )
    if answer == "interrupt":
        raise KeyboardInterrupt
    if answer == "always":
        shell.allow(shell.rules.allowing_tool(tool.server, tool.name))
    return answer in ("run", "always")


def _answer(shell: Shell, dangers: Sequence[str]) -> str:
    try:
        return _said(shell, dangers)
    except KeyboardInterrupt:
        return "interrupt"


def _said(shell: Shell, dangers: Sequence[str]) -> str:
    if shell.is_script:
        shell.screen.notice("nobody is there to say yes, so it was skipped")
        return "skip"
    if dangers:
        said = shell.screen.ask("destructive. type yes to call it, or [s]kip: ").lower()
        return "run" if said == YES else "skip"
    while True:
        said = shell.screen.ask("call it? [y]es, [s]kip, [a]lways: ").lower()
        for answer, words in (
            ("run", ("y", "yes")),
            ("skip", ("", "s", "skip", "n", "no")),
            ("always", ("a", "always")),
        ):
            if said in words:
                return answer


def _dangers(shell: Shell, tool: Tool, commands: Sequence[str]) -> list[str]:
    """What the call could destroy: as its server says, or as a command in it reads."""
    found = ["its server says that it destroys or overwrites"] if tool.is_destructive else []
    for command in commands:
        found += [finding.why for finding in judged(shell, command).findings]
    return list(dict.fromkeys(found))


def _commands(arguments: Mapping[str, Any]) -> list[str]:
    """The shell commands among the arguments, however deep: whole, or word by word."""
    found: list[str] = []
    words = [word for name in WORDS for word in _texts(arguments.get(name))]
    for name, value in arguments.items():
        if name.lower() in COMMANDS and (texts := _texts(value)):
            found += [text for text in texts if " " in text]
            if isinstance(value, list) or words:
                found.append(shlex.join([*texts, *words]))
            elif " " not in texts[0]:
                found.append(texts[0])
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                found += _commands(inner)
    return found


def _texts(value: object) -> list[str]:
    given = value if isinstance(value, list) else [value]
    return [text for text in given if isinstance(text, str)]


def _show_call(shell: Shell, tool: Tool, said: str, dangers: Sequence[str]) -> None:
    style = "bold red" if dangers else "bold"
    name = harmless(f"{tool.server}: {tool.name} ")
    shell.screen.show(Text.assemble(("⚙ ", "dim"), (name, style), (said, "dim")))
    for danger in dangers:
        shell.screen.show(Text.assemble(("  ⚠ ", "red"), harmless(danger)))


def _show_result(shell: Shell, result: Result) -> None:
    style = "dim red" if result.is_error else "dim"
    shell.screen.show(Text(f"  → {_short(result.text)}", style=style))


def _short(text: str) -> str:
    text = harmless(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"
