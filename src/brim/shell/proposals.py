"""Commands that a model proposes: each is shown, judged, and run only as its user wants.

A destructive one needs a typed yes, whatever was allowed before and whoever sits there.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from rich.text import Text

from brim.errors import BrimError, InputError
from brim.shell.approval.allow_rules import AllowRules, suggest_prefix
from brim.shell.confirm import confirm
from brim.shell.render.sanitize import sanitize
from brim.shell.risk import assess
from brim.shell.run_command import run
from brim.shell.side_requests import ask_separately

if TYPE_CHECKING:
    from brim.shell.confirm import Answer
    from brim.shell.risk import Assessment
    from brim.shell.state import Shell


PREFIX: Final = "CMD: "

DEFAULT_PROMPT: Final = "You help somebody at a terminal. Answer briefly."
RULE: Final = (
    f"To run a shell command, write it on a line of its own that begins with exactly `{PREFIX}`, "
    "without quotes or markup around it:\n"
    f"{PREFIX}df -h\n"
    "The user confirms each one, and you see its output next; do not make it up. Without such a "
    "line nothing is run."
)
"""Always in the system text, whatever the base prompt is."""
TOOLS_RULE: Final = (
    f"Where a tool does what is needed, call it; `{PREFIX}` lines are for all other work on this "
    "machine. Never do one thing both ways."
)
"""Added when tools are on offer."""


def commands_in(answer: str) -> tuple[str, ...]:
    """What stands behind `CMD: ` at the beginning of a line, in order, also in code blocks.

    A line is what ends with a line feed; nothing else can hide the beginning of a command. Half
    a character, which no shell can be told, becomes a sign for one.
    """
    whole = answer.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    lines = (line for line in whole.split("\n") if line.startswith(PREFIX))
    commands = (line.removeprefix(PREFIX).strip() for line in lines)
    return tuple(command for command, _ in groupby(filter(None, commands)))


EXPLAIN: Final = (
    "Explain this shell command in a few plain sentences: what it does, what it changes, and what "
    "could go wrong.\n\n{command}"
)
SKIPPED: Final = "[brim] `{command}` skipped by user"
NOT_RUN: Final = "[brim] `{command}` was not run: {why}"


def offer_commands(shell: Shell, answer: str, *, by_itself: bool = False) -> bool:
    """Offer the commands of an answer, one by one; False where the user pressed Ctrl-C.

    `by_itself`: what is not destructive runs without a question, as in goal mode.
    """
    stopped = interrupted = ran = False
    for command in commands_in(answer):
        wanted = None
        try:
            if not stopped:
                wanted = _choose_command(shell, command, by_itself=by_itself, asks=interrupted)
            if wanted and not _run(shell, wanted):
                interrupted = True
        except KeyboardInterrupt:
            stopped = interrupted = True
        stopped = stopped or wanted is None or (by_itself and interrupted)
        if not wanted:
            shell.conversation.output(SKIPPED.format(command=command))
        ran |= bool(wanted)
    if ran and not by_itself and not shell.is_script:
        shell.screen.notice("the output goes along with your next words")
    return not interrupted


def _run(shell: Shell, command: str) -> bool:
    """Run a command that is wanted; False where the user stopped it."""
    try:
        return not run(shell, command, by="model").is_interrupted
    except InputError as error:
        shell.fail(error)
        shell.conversation.output(NOT_RUN.format(command=command, why=error))
        return True


def _choose_command(shell: Shell, command: str, *, by_itself: bool, asks: bool) -> str | None:
    """The command that is to run; empty: not this one; None: not the next ones either.

    `asks` whatever is allowed: the user has just stopped the one before.
    """
    while True:
        verdict = assess_risk(shell, command)
        _show(shell, command, verdict)
        unasked = by_itself or shell.yes or shell.rules.allows_command(command)
        if unasked and not asks and not verdict.is_destructive:
            return command
        answer = _ask_user(shell, command, verdict)
        shell.note(
            "asked",
            command=shell.masker.mask(command).text,
            destructive=[finding.why for finding in verdict.findings],
            answer=answer,
        )
        match answer:
            case "run":
                return command
            case "skip":
                return ""
            case "stop":
                return None
            case "interrupt":
                raise KeyboardInterrupt
            case "edit":
                command = shell.screen.ask("command: ", sanitize(command)) or command
            case "explain":
                _explain(shell, command)
            case "always":
                prefix = suggest_prefix(command)
                assert prefix is not None  # else it was not on offer
                shell.allow(partial(AllowRules.with_command, prefix=prefix))
                return command


def assess_risk(shell: Shell, command: str) -> Assessment:
    """What a command could destroy, as things stand in the user's shell."""
    terminal = shell.terminal
    return assess(
        command,
        variables=terminal.variables(),
        folder=terminal.folder,
        aliases=terminal.aliases(),
    )


def _show(shell: Shell, command: str, verdict: Assessment) -> None:
    style = "bold red" if verdict.is_destructive else "bold"
    shell.screen.gap()
    shell.screen.show(Text.assemble(("$ ", "dim"), (sanitize(command), style)))
    for finding in verdict.findings:
        about = Text.assemble(("  ⚠ ", "red"), (sanitize(finding.text), "red"), ": ")
        shell.screen.show(about.append(sanitize(finding.why)))


def _ask_user(shell: Shell, command: str, verdict: Assessment) -> Answer:
    prefix = None if verdict.is_destructive else suggest_prefix(command)
    always: tuple[Answer, ...] = ("always",) if prefix else ()
    return confirm(
        shell,
        _question(verdict, prefix),
        offered=("run", "edit", "skip", "explain", "stop", *always),
        is_destructive=verdict.is_destructive,
    )


def _question(verdict: Assessment, prefix: str | None) -> str:
    if verdict.is_destructive:
        return "destructive. type yes to run it, or [e]dit, [s]kip, e[x]plain, [q]uit: "
    always = f", [a]lways `{prefix}`" if prefix else ""
    return f"run it? [y]es, [e]dit, [s]kip, e[x]plain{always}, [q]uit: "


def _explain(shell: Shell, command: str) -> None:
    try:
        shell.screen.show(ask_separately(shell, EXPLAIN.format(command=command)))
    except KeyboardInterrupt:
        shell.screen.notice("stopped")
    except BrimError as error:
        shell.fail(error)
