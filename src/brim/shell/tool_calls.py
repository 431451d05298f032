"""Tool calls of a model: each is shown and run only as its user wants, and each gets a result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from brim.shell.approval.arguments import find_commands
from brim.shell.confirm import confirm
from brim.shell.mcp.tools import ToolResult
from brim.shell.proposals import assess_risk
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from brim.messages import Call
    from brim.shell.confirm import Answer
    from brim.shell.mcp.tools import Tool
    from brim.shell.state import Shell

SKIPPED: Final = ToolResult("[brim] skipped by user", is_error=True)
STOPPED: Final = ToolResult("[brim] stopped by user", is_error=True)
MAX_SHOWN: Final = 400
"""Characters of a call and of its result that are shown."""


def answer_calls(shell: Shell, calls: Sequence[Call], *, by_itself: bool = False) -> bool:
    """Give each call its result; False where the user wants to be asked before it goes on."""
    stopped = False
    for call in calls:
        try:
            result = STOPPED if stopped else _run_call(shell, call, by_itself=by_itself)
        except KeyboardInterrupt:
            result, stopped = STOPPED, True
        masked = shell.masker.mask(result.text)
        if masked.found:
            shell.screen.notice(f"hidden from the model: {', '.join(masked.found)}")
        shell.conversation.result(call.id, masked.text)
        _show_result(shell, result)
    return not stopped


def _run_call(shell: Shell, call: Call, *, by_itself: bool) -> ToolResult:
    tool = next((tool for tool in shell.servers.tools if tool.offered == call.name), None)
    if tool is None:
        return ToolResult(f"[brim] there is no tool {call.name}", is_error=True)
    arguments = _parse_arguments(call)
    if arguments is None:
        return ToolResult("[brim] the arguments are no JSON object", is_error=True)
    if not _is_approved(shell, tool, arguments, by_itself=by_itself):
        return SKIPPED
    with shell.screen.waiting(f"{tool.name} …"):
        return shell.servers.call(call.name, arguments)


def _parse_arguments(call: Call) -> dict[str, Any] | None:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _is_approved(
    shell: Shell, tool: Tool, arguments: Mapping[str, Any], *, by_itself: bool
) -> bool:
    """Whether the user wants the call made; what destroys something needs a typed yes."""
    commands = find_commands(arguments)
    dangers = _find_dangers(shell, tool, commands)
    unasked = not dangers and _is_allowed(shell, tool, by_itself=by_itself)
    # What is said yes to must have been seen to its end.
    said = json.dumps(arguments, ensure_ascii=False)
    _show_call(shell, tool, _short(said) if unasked else sanitize(said), dangers)
    if unasked:
        return True
    answer = _ask_user(shell, dangers)
    shell.note(
        "asked",
        tool=tool.offered,
        arguments=shell.masker.mask(said).text,
        destructive=dangers,
        answer=answer,
    )
    if answer == "interrupt":
        raise KeyboardInterrupt
    if answer == "always":
        shell.allow(lambda rules: rules.with_tool(tool.server, tool.name))
    return answer in ("run", "always")


def _is_allowed(shell: Shell, tool: Tool, *, by_itself: bool) -> bool:
    """Whether nobody needs to be asked: by a rule of the user's, or because it changes nothing.

    A server that says nothing of a tool may destroy something with it.
    """
    server = shell.config.mcp.get(tool.server)
    if server is not None and tool.name in server.allow:
        return True
    is_safe = tool.is_read_only or tool.is_destructive is False
    return shell.rules.allows_tool(tool.server, tool.name) or ((by_itself or shell.yes) and is_safe)


def _ask_user(shell: Shell, dangers: Sequence[str]) -> Answer:
    if dangers:
        question = "destructive. type yes to call it, or [s]kip: "
        return confirm(shell, question, offered=("run", "skip"), is_destructive=True)
    question = "call it? [y]es, [s]kip, [a]lways: "
    return confirm(shell, question, offered=("run", "skip", "always"), is_destructive=False)


def _find_dangers(shell: Shell, tool: Tool, commands: Sequence[str]) -> list[str]:
    """What the call could destroy: as its server says, or as a command in it reads."""
    found = ["its server says that it destroys or overwrites"] if tool.is_destructive else []
    for command in commands:
        found += [finding.why for finding in assess_risk(shell, command).findings]
    return list(dict.fromkeys(found))


def _show_call(shell: Shell, tool: Tool, said: str, dangers: Sequence[str]) -> None:
    style = "bold red" if dangers else "bold"
    name = sanitize(f"{tool.server}: {tool.name} ")
    shell.screen.show(Text.assemble(("⚙ ", "dim"), (name, style), (said, "dim")))
    for danger in dangers:
        shell.screen.show(Text.assemble(("  ⚠ ", "red"), sanitize(danger)))


def _show_result(shell: Shell, result: ToolResult) -> None:
    style = "dim red" if result.is_error else "dim"
    shell.screen.show(Text(f"  → {_short(result.text)}", style=style))


def _short(text: str) -> str:
    text = sanitize(text)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text):,} characters)"
