"""Meta commands that change the conversation."""

from __future__ import annotations

from rich.console import RenderableType

from brim.errors import BrimError, InputError
from brim.session.session import COMPACT_SHARE
from brim.shell.attachments import read_text
from brim.shell.chat import ask_again, show_warnings
from brim.shell.commands.inspect import list_outcomes
from brim.shell.commands.meta_command import command, parse_number
from brim.shell.edit_proposals import undo_edit
from brim.shell.goal_mode import pursue
from brim.shell.session_setup import preload_model
from brim.shell.state import FITTING_CHOICE, Shell
from brim.wire.template_rules import describe_rules


@command("[NAME]", arguments=lambda shell: shell.models.names)
def model(shell: Shell, name: str) -> RenderableType:
    """Continue with another model, or show the current one.

    Counts, window and price change with it; the conversation stays the same.
    """
    models = shell.models
    if name:
        models.choice(name)
        models.current = name
        shell.use_model(name)
        shell.save("model", name=name)
        preload_model(shell)
    budget = shell.budget
    window = f", {budget.window:,} tokens" if budget else ""
    profile = shell.driver.profile
    rules, source = profile.rules(), profile.template_source
    template = "" if rules.free else f"\ntemplate ({source}): {describe_rules(rules)}"
    return f"{models.current}{window} · {models.describe_endpoint(models.current)}{template}"


@command(aliases=("new", "clear"))
def reset(shell: Shell, _argument: str) -> RenderableType:
    """Start a new conversation; system prompt, memory, project files and totals stay.

    The old conversation stays on disk: continue it with :resume. To clear the screen, type `clear`
    without a colon, which runs in your shell.
    """
    old = shell.conversation.name
    name = shell.storage.conversations.create(shell.home, shell.models.current)
    shell.conversation.start_new(name)
    return f"new conversation; continue {old} with :resume"


@command("[FOCUS]")
def compact(shell: Shell, focus: str) -> RenderableType:
    """Replace the older half of the conversation by a summary; :undo reverts it.

    The effect is shown before you confirm it. FOCUS tells the model what the summary should cover.
    """
    shell.wait_for_window()
    planned = shell.driver.plan_compaction(COMPACT_SHARE, with_summary=True)
    shell.screen.show(f"{planned.before:,} → {planned.plan}, plus a summary")
    question = "compact? [y]es, [n]o: "
    if not shell.options.yes and shell.screen.ask(question).lower() not in ("y", "yes"):
        return "nothing was changed"
    with shell.screen.waiting("summarizing …"):
        models = shell.models
        summarizer = models.build_summarizer(models.current, shell.session, focus or None)
        shell.conversation.compact(planned, summarizer)
    show_warnings(shell)
    summary = shell.session.summary or "(no summary: the model's was not shorter)"
    tokens = f"{planned.before:,} → {shell.session.tokens:,} tokens"
    return f"{tokens}\n\n{summary}\n\n:undo reverts it"


@command()
def undo(shell: Shell, _argument: str) -> RenderableType:
    """Undo the last change of files or compaction; without one since, remove the last exchange."""
    conversation = shell.conversation
    if (undone := undo_edit(shell)) is not None:
        return undone
    if shell.driver.composer.is_compacted:
        conversation.undo_compaction()
        shell.wait_for_window()
        return f"compaction undone; {shell.session.tokens:,} tokens"
    removed = conversation.rewind(conversation.last_exchange())
    text = " ".join(str(removed[0]["content"]).split())
    start = text if len(text) <= 60 else text[:59] + "…"
    return f"removed {len(removed)} turns, from {start!r}"


@command()
def retry(shell: Shell, _argument: str) -> None:
    """Remove the last reply, and ask again."""
    if not ask_again(shell) and shell.options.is_script:
        raise InputError("There is no new reply.")


@command()
def edit(shell: Shell, _argument: str) -> None:
    """Edit the last message in the prompt; when sent, it replaces the old one."""
    index = shell.conversation.last_exchange()
    message = read_text(shell.driver.copy_turns(index)[0])
    shell.input.replace_from(index, shell.as_language(message))


@command("[N|off N]")
def pin(shell: Shell, argument: str) -> RenderableType:
    """Never trim turn N (see :history for numbers); `off N` unpins it.

    Without a number, show the pinned turns.
    """
    session = shell.session
    off, _, rest = argument.partition(" ")
    if off == "off":
        index = parse_number(rest, "turn to unpin", example=":pin off 3")
        session.unpin(index)
        shell.save("unpin", index=index)
    elif argument:
        index = parse_number(argument, "turn to pin", example=":pin 3")
        session.pin(index)
        shell.save("pin", index=index)
    pins = ", ".join(map(str, session.pins))
    return f"pinned: {pins}" if pins else "no turn is pinned"


@command("N")
def recall(shell: Shell, argument: str) -> RenderableType:
    """Send turn N (see :history for numbers) again with your next message."""
    index = parse_number(argument, "turn", example=":recall 3")
    if index < len(shell.session) and index not in list_outcomes(shell):
        raise InputError(f"Turn {index} is still sent, so there is nothing to recall.")
    kept = shell.conversation.recall(index)
    return f"{shell.driver.count_text(kept):,} tokens will be sent with your next message"


@command("[drop]")
def output(shell: Shell, argument: str) -> RenderableType:
    """Show what will be sent with your next message: command output and recalled turns.

    `drop` discards it.
    """
    if argument == "drop":
        shell.conversation.drop_outputs()
    return shell.driver.joined_outputs or "nothing waits for your next message"


@command("[on|off]", name="rolling", aliases=("rolling-context",))
def set_rolling(shell: Shell, argument: str) -> RenderableType:
    """Switch fitting on or off for every policy, or to the other state; saved across runs.

    If fitting is off, nothing is ever trimmed: a request that does not fit fails.
    """
    is_on = argument == "on" if argument else not shell.session.trim
    shell.session.trim = is_on
    shell.storage.facts.save_setting(FITTING_CHOICE, is_on)
    if is_on:
        return f"Fitting is on (policy {shell.config.context.policy})."
    return "Fitting is off: a request that does not fit will fail. Use `:rolling on`."


@command(
    "TEXT", aliases=("norris",), missing="The goal is missing. Example: :goal make the tests pass"
)
def goal(shell: Shell, text: str) -> None:
    """Let the model work towards a goal on its own; Ctrl-C stops it.

    Commands run without a question unless they are destructive, and so do tools that are allowed or
    known to be safe. It ends when the model reports that the goal is reached or that it is blocked,
    or at a limit of the configuration (goal.*).
    """
    if not pursue(shell, text) and shell.options.is_script:
        raise BrimError("The goal was not reached.")


@command("[CODE]", name="quit", aliases=("exit", "q"))
def quit_(shell: Shell, argument: str) -> None:
    """Leave. The conversation is saved: continue it with `brim resume`.

    A script that leaves with a CODE other than 0 fails.
    """
    code = parse_number(argument, "exit code", example=":quit 1") if argument else 0
    shell.ended = True
    if code and shell.options.is_script:
        raise BrimError(f"The script left with exit code {code}.")
