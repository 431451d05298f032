"""Commands that change the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.errors import BrimError, InputError
from brim.session.session import COMPACT_SHARE
from brim.shell.chat import ask_again
from brim.shell.commands.meta_command import command, number
from brim.shell.preload import preload_model
from brim.shell.side_requests import build_summarizer
from brim.shell.state import FITTING_CHOICE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from brim.shell.state import Shell


@command("[NAME]", arguments=lambda shell: shell.models.names)
def model(shell: Shell, words: str) -> RenderableType:
    """Go on with another model, or show which one it is.

    Counts, window and price follow; the conversation stays as it is.
    """
    if words:
        shell.models.choice(words)
        shell.name = words
        shell.turn_to(words)
        shell.keep("model", name=words)
        preload_model(shell)
    budget = shell.budget
    window = f", {budget.window:,} tokens" if budget else ""
    return f"{shell.name}{window} · {shell.models.endpoint(shell.name)}"


@command(aliases=("new", "clear"))
def reset(shell: Shell, _words: str) -> RenderableType:
    """Begin a new conversation; prompt, memory, project and totals stay.

    The old one is kept on disk: :resume goes on with it. The screen stays as it is, too: `clear`
    without a sign before it is your shell's, and clears that.
    """
    old = shell.conversation.name
    shell.conversation.begin_anew(shell.log.create(shell.home, shell.name))
    return f"a new conversation begins; {old} is kept, and :resume goes on with it"


@command("[FOCUS]")
def compact(shell: Shell, words: str) -> RenderableType:
    """Leave out the older half of the conversation now, and sum it up; :undo takes it back.

    It is shown before it is made. FOCUS says what the summary is about above all.
    """
    shell.learn_window()
    planned = shell.driver.plan_compaction(COMPACT_SHARE, with_summary=True)
    shell.screen.show(f"{planned.before:,} → {planned.plan}, with room for a summary")
    if not shell.yes and shell.screen.ask("compact? [y]es, [n]o: ").lower() not in ("y", "yes"):
        return "nothing was changed"
    with shell.screen.waiting("summing up …"):
        shell.conversation.compact(planned, build_summarizer(shell, shell.name, words or None))
    summary = shell.session.summary or "(there is no summary: the model gave none that was shorter)"
    tokens = f"{planned.before:,} → {shell.session.tokens:,} tokens"
    return f"{tokens}\n\n{summary}\n\n:undo takes it back"


@command()
def undo(shell: Shell, _words: str) -> RenderableType:
    """Take back the last compaction or, if there was none since, the last exchange."""
    conversation = shell.conversation
    if shell.driver.is_compacted:
        conversation.uncompact()
        shell.learn_window()
        return f"the compaction is taken back; {shell.session.tokens:,} tokens"
    taken = conversation.take_back(conversation.last_exchange())
    return f"taken back: {len(taken)} turns, from {_preview(taken[0]['content'])}"


def _preview(content: object) -> str:
    words = " ".join(str(content).split())
    return repr(words if len(words) <= 60 else words[:59] + "…")


@command()
def retry(shell: Shell, _words: str) -> None:
    """Take back the last answer, and ask again."""
    if not ask_again(shell) and shell.is_script:
        raise InputError("there is no other answer")


@command()
def edit(shell: Shell, _words: str) -> None:
    """Put the last words into the prompt, to be changed; sent, they take their place."""
    shell.replaces = shell.conversation.last_exchange()
    words = shell.driver.copy_turns(shell.replaces)[0]["content"]
    shell.next_text = shell.as_language(str(words))


@command("[N|off N]")
def pin(shell: Shell, words: str) -> RenderableType:
    """Never leave out turn N (:history has the numbers); `off N` lets go of it.

    Without a number, show what is pinned.
    """
    session = shell.session
    off, _, rest = words.partition(" ")
    if off == "off":
        index = number(rest, "turn to let go of", example=":pin off 3")
        session.unpin(index)
        shell.keep("unpin", index=index)
    elif words:
        index = number(words, "turn to pin", example=":pin 3")
        session.pin(index)
        shell.keep("pin", index=index)
    pins = ", ".join(map(str, session.pins))
    return f"pinned: {pins}" if pins else "nothing is pinned"


@command("N")
def recall(shell: Shell, words: str) -> RenderableType:
    """Bring back turn N (:history has the numbers): it goes along with your next words."""
    kept = shell.conversation.recall(number(words, "turn", example=":recall 3"))
    return f"{shell.driver.count_text(kept):,} tokens go along with your next words"


@command("[drop]", arguments=("drop",))
def output(shell: Shell, words: str) -> RenderableType:
    """Show what goes along with your next words: what commands printed, and what you recalled.

    `drop` lets it not go along.
    """
    if words == "drop":
        shell.conversation.drop_outputs()
    return shell.driver.joined_outputs or "nothing waits for your next words"


@command("[on|off]", aliases=("rolling-context",), arguments=("on", "off"))
def rolling(shell: Shell, words: str) -> RenderableType:
    """Switch fitting on or off, whatever the policy; kept across runs.

    Off, what does not fit is an error, and nothing is ever left out.
    """
    if words:
        wanted = words == "on"
        shell.session.trim = wanted
        shell.facts.save_setting(FITTING_CHOICE, wanted)
    if shell.session.trim:
        return f"fitting is on (policy {shell.config.context.policy})"
    return "fitting is off: what does not fit is an error"


@command(
    "TEXT",
    aliases=("norris",),
    asks_for="say what the goal is, as in :goal make the tests pass",
)
def goal(shell: Shell, words: str) -> None:
    """Let the model work towards a goal by itself; Ctrl-C ends it.

    It runs commands without asking, but for destructive ones, and tools that are allowed or known
    to be harmless, until it says that the goal is reached or that it cannot go on, or until a
    limit of the configuration (goal) ends it.
    """
    from brim.shell.goal_mode import pursue

    if not pursue(shell, words) and shell.is_script:
        raise BrimError("the goal was not reached")


@command("[CODE]", name="quit", aliases=("exit", "q"))
def quit_(shell: Shell, words: str) -> None:
    """Leave. The conversation is kept; `brim resume` goes on with it.

    A script that leaves with a CODE other than 0 has failed.
    """
    code = number(words, "exit code", example=":quit 1") if words else 0
    shell.ended = True
    if code and shell.is_script:
        raise BrimError(f"the script left with exit code {code}")
