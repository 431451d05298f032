"""Commands that a model proposes: found in its reply, shown, assessed, and run if the user agrees.

A read-only command runs without a question, a destructive one always needs a typed "yes". All
others are asked about, unless their prefix is allowed; in goal mode they run in a sandbox instead.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Final

from rich.text import Text

from brim.errors import BrimError, InputError
from brim.shell.approval.allow_rules import AllowRules, suggest_prefix
from brim.shell.prompt_texts import PREFIX
from brim.shell.render.sanitize import sanitize
from brim.shell.render.screen import Answer
from brim.shell.risk import Assessment, assess
from brim.shell.run_command import run
from brim.shell.sandbox import Sandbox
from brim.shell.state import Shell

EXPLAIN: Final = (
    "Explain this shell command in a few plain sentences: what it does, what it changes, and what "
    "could go wrong.\n\n{command}"
)
SKIPPED: Final = "[brim] The user skipped `{command}`."
NOT_RUN: Final = "[brim] `{command}` was not run: {why}"


def find_proposed_commands(reply: str) -> tuple[str, ...]:
    """Return the commands after `CMD: ` at the start of a line, in order, also in code blocks.

    Only a line feed ends a line, so that no other character can hide a command. Lone surrogates,
    which cannot be sent to a shell, become replacement characters.
    """
    whole = reply.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    lines = (line for line in whole.split("\n") if line.startswith(PREFIX))
    commands = (line.removeprefix(PREFIX).strip() for line in lines)
    return tuple(command for command, _ in groupby(filter(None, commands)))


def offer_commands(shell: Shell, reply: str, *, autonomous: bool = False) -> bool:
    """Offer the commands of a reply one by one; return False if the user pressed Ctrl-C.

    In goal mode (`autonomous`), commands that are not destructive run in a sandbox if there is one.
    """
    stopped = interrupted = ran = False
    for command in find_proposed_commands(reply):
        chosen = sandbox = None
        try:
            if not stopped:
                chosen, sandbox = _choose_command(
                    shell, command, autonomous=autonomous, asks=interrupted
                )
            if chosen and not _run(shell, chosen, sandbox):
                interrupted = True
        except KeyboardInterrupt:
            stopped = interrupted = True
        stopped = stopped or chosen is None or (autonomous and interrupted)
        if not chosen:
            shell.conversation.add_output(SKIPPED.format(command=command))
        ran |= bool(chosen)
    if ran and not autonomous and not shell.options.is_script:
        shell.screen.notice("the output will be sent with your next message")
    return not interrupted


def _run(shell: Shell, command: str, sandbox: Sandbox | None) -> bool:
    """Run a command; return False if the user interrupted it."""
    try:
        return not run(shell, command, by="model", sandbox=sandbox).is_interrupted
    except InputError as error:
        shell.show_error(error)
        shell.conversation.add_output(NOT_RUN.format(command=command, why=error))
        return True


def _choose_command(
    shell: Shell, command: str, *, autonomous: bool, asks: bool
) -> tuple[str | None, Sandbox | None]:
    """Return the command to run, and where: empty to skip it, None to skip the rest too.

    `asks` even if the command is allowed: the user has just interrupted the previous one.
    """
    while True:
        assessment = assess_risk(shell, command)
        _show(shell, command, assessment)
        is_other = not assessment.is_read_only and not assessment.is_destructive
        if not asks and is_other and autonomous and shell.sandbox is not None:
            return command, shell.sandbox
        if not asks and _is_allowed(shell, command, assessment):
            return command, None
        answer = _ask_user(shell, command, assessment)
        shell.record(
            "asked",
            command=shell.secrets.mask(command).text,
            destructive=[finding.why for finding in assessment.findings],
            answer=answer,
        )
        match answer:
            case "run":
                return command, None
            case "skip":
                return "", None
            case "stop":
                return None, None
            case "interrupt":
                raise KeyboardInterrupt
            case "edit":
                command = shell.screen.ask("command: ", sanitize(command)) or command
            case "explain":
                _explain(shell, command)
            case "always":
                prefix = suggest_prefix(command)
                assert prefix is not None  # "always" is only offered if there is one
                shell.approvals.allow(partial(AllowRules.with_command, prefix=prefix))
                return command, None


def _is_allowed(shell: Shell, command: str, assessment: Assessment) -> bool:
    """Return whether a command runs in the user's shell without a question.

    No rule covers a file that may have changed in this conversation: the model may have written it.
    """
    if assessment.is_destructive or assessment.is_read_only:
        return assessment.is_read_only
    is_ruled = shell.options.yes or shell.approvals.rules.allows_command(command)
    return is_ruled and not assessment.runs_changed_file


def assess_risk(shell: Shell, command: str) -> Assessment:
    """Assess a command with the current variables, aliases and folder of the user's shell."""
    terminal = shell.terminal
    return assess(
        command,
        variables=terminal.variables(),
        folder=terminal.folder,
        aliases=terminal.aliases(),
        functions=terminal.functions(),
        project=shell.project.root,
        since=shell.conversation.created,
        is_fish=terminal.is_fish,
    )


def _show(shell: Shell, command: str, assessment: Assessment) -> None:
    style = "bold red" if assessment.is_destructive else "bold"
    shell.screen.gap()
    shell.screen.show(Text.assemble(("$ ", "dim"), (sanitize(command), style)))
    for finding in assessment.findings:
        line = Text.assemble(("  ⚠ ", "red"), (sanitize(finding.text), "red"), ": ")
        shell.screen.show(line.append(sanitize(finding.why)))


def _ask_user(shell: Shell, command: str, assessment: Assessment) -> Answer:
    prefix = None if assessment.is_destructive else suggest_prefix(command)
    always: tuple[Answer, ...] = ("always",) if prefix else ()
    return shell.screen.confirm(
        _question(assessment, prefix),
        offered=("run", "edit", "skip", "explain", "stop", *always),
        is_destructive=assessment.is_destructive,
    )


def _question(assessment: Assessment, prefix: str | None) -> str:
    if assessment.is_destructive:
        return "destructive. type yes to run it, or [e]dit, [s]kip, e[x]plain, [q]uit: "
    always = f", [a]lways `{prefix}`" if prefix else ""
    return f"run it? [y]es, [e]dit, [s]kip, e[x]plain{always}, [q]uit: "


def _explain(shell: Shell, command: str) -> None:
    models = shell.models
    try:
        with shell.screen.waiting(f"{models.current} …"):
            reply = models.ask_separately(EXPLAIN.format(command=command), shell.session)
        shell.screen.show(reply)
    except KeyboardInterrupt:
        shell.screen.notice("stopped")
    except BrimError as error:
        shell.show_error(error)
