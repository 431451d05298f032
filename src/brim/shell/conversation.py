"""Conversation: a session that is written down as it happens.

What is said goes into the log before anything is done with it, so that a shell that is killed goes
on where it was. All else about a session (what was decided and learned) is written beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError
from brim.store import Event, folded

if TYPE_CHECKING:
    from brim.composing import Compaction
    from brim.plan import Plan
    from brim.session import Session
    from brim.store import Log

ENDED: Final = "[brim] no result: the shell was ended before it came"
CUT: Final = "_cut"
"""Marks an answer that broke off with its shell."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction that can be taken back."""

    length: int
    """How many turns there were."""
    summary: str | None
    """The summary before it."""


@dataclass(slots=True)
class Conversation:
    """What is said in a shell, on disk as soon as it is said."""

    session: Session
    log: Log
    name: str
    recorded: int = 0
    """How many of the turns are on disk."""
    compactions: list[Compacted] = field(default_factory=list)

    def say(self, words: str) -> None:
        """The user's words, after what commands have printed since the last ones."""
        self.session.user(words)
        self.keep()

    def output(self, text: str, path: str | None = None) -> str:
        """What a command printed; it waits for the user's next words."""
        kept = self.session.exec_output(text, path)
        if kept:
            self.keep(Event("output", {"text": kept}))
        return kept

    def recall(self, index: int) -> str:
        """Bring a turn back, as an output that waits."""
        kept = self.session.recall(index)
        self.keep(Event("recall", {"index": index}), Event("output", {"text": kept}))
        return kept

    def drop_outputs(self) -> None:
        """Let what waits for the user's next words not go along with them."""
        self.session.outputs = ()
        self.keep(Event("back", {"length": len(self.session), "waiting": []}))

    def result(self, call: str, text: str) -> None:
        """What a tool answered."""
        self.session.tool(call, text)
        self.keep()

    def keep(self, *events: Event) -> None:
        """Write down the turns that are new, what else happened, and the state it led to."""
        turns = self.session.since(self.recorded)
        said = [Event("turn", {"message": turn}) for turn in turns]
        self.log.record(self.name, [*said, *events], self.session.state())
        self.recorded += len(turns)

    def note(self, kind: str, **data: Any) -> None:
        """Write down something that changes nothing in the session."""
        self.log.record(self.name, [Event(kind, data)])

    def draft(self, text: str) -> None:
        """Write down how far an answer has come."""
        self.log.draft(self.name, text)

    # Taking back

    def take_back(self, length: int) -> list[dict[str, Any]]:
        """Go on as if only the first turns had been said; the log keeps the others.

        What a user's turn took along waits again.
        """
        taken = self.session.take_back(length)
        outputs = [turn["_output"] for turn in taken if turn.get("_output")]
        self.session.outputs = [*outputs, *self.session.outputs]
        self.compactions = [made for made in self.compactions if made.length <= length]
        self.recorded = min(self.recorded, length)
        waiting = list(self.session.outputs)
        self.keep(Event("back", {"length": length, "waiting": waiting}))
        return taken

    def last_exchange(self) -> int:
        """Where the last user's turn stands; raises where there is none."""
        turns = self.session.history
        users = [index for index, turn in enumerate(turns) if turn["role"] == "user"]
        if not users:
            raise InputError("nothing was said yet")
        return users[-1]

    def reset(self) -> None:
        self.session.reset()
        self.recorded = 0
        self.compactions.clear()
        self.keep(Event("reset", {}))

    # Compaction

    def compact(self, make: Callable[[Compaction], Plan], compaction: Compaction) -> Plan:
        """Make an edit now, in such a way that it can be taken back."""
        before = Compacted(len(self.session), self.session.summary)
        plan = make(compaction)
        self.compactions.append(before)
        self.keep(Event("compact", {"length": before.length, "summary": before.summary}))
        return plan

    @property
    def last_compaction(self) -> Compacted | None:
        """The last compaction, if nothing was said since."""
        last = self.compactions[-1] if self.compactions else None
        return last if last is not None and last.length == len(self.session) else None

    def uncompact(self) -> None:
        last = self.compactions.pop()
        self.session.uncompact(last.summary)
        self.keep(Event("uncompact", {}))


def resumed(log: Log, name: str, make: Callable[[dict[str, Any] | None], Session]) -> Conversation:
    """A conversation as it stood when its shell ended, however that happened.

    `make` gives the session for a saved state with its turns, or a new one.
    """
    log.hold(name)
    events = log.events(name)
    state, draft = log.state(name)
    found = folded(events)
    said = {"turns": found.turns, "waiting": found.waiting}
    session = make(None if state is None else {**state, **said})
    if state is None:
        for turn in found.turns:
            session.append(turn)
        session.outputs = found.waiting
    conversation = Conversation(session, log, name, len(session), _compactions(events))
    _mend(conversation, draft)
    return conversation


def _mend(conversation: Conversation, draft: str | None) -> None:
    """Keep what an answer had said, and let no call wait for a result that will not come."""
    session = conversation.session
    last = session.since(len(session) - 1) if len(session) else []
    if draft and last and last[0]["role"] in ("user", "tool"):
        session.append({"role": "assistant", "content": draft, CUT: True})
    for call in session.open_calls:
        session.tool(call, ENDED)
    if len(session) > conversation.recorded:
        conversation.keep()


def _compactions(events: Iterable[Event]) -> list[Compacted]:
    made: list[Compacted] = []
    for event in events:
        match event.kind:
            case "compact":
                made.append(Compacted(event.data["length"], event.data["summary"]))
            case "uncompact":
                made.pop()
            case "back":
                made = [one for one in made if one.length <= event.data["length"]]
            case "reset":
                made.clear()
            case _:
                pass
    return made
