"""Conversation: a session that is written down as it happens.

What is said goes into the log before anything is done with it, so that a shell that is killed goes
on where it was. All else about a session (what was decided and learned) is written beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError, StoreError
from brim.fitting.flow import SummaryJob, run_flow
from brim.providers.summarizers import with_timeout
from brim.session.session import get_driver
from brim.session.summaries import call_summarizer
from brim.storage import ConversationEvent, ConversationState, replay_events

if TYPE_CHECKING:
    from brim.fitting.flow import Job
    from brim.session.driver import SessionDriver
    from brim.session.session import Session
    from brim.session.snapshots import Compaction
    from brim.session.summaries import Summarizer
    from brim.storage import ConversationStore

NO_RESULT: Final = "[brim] no result: the shell was ended before it came"
FROM_BRIM: Final = "_brim"
"""Marks a user's turn that brim itself has said, on the way to a goal."""
INCOMPLETE: Final = "_cut"
"""Marks an answer that broke off with its shell."""


@dataclass(slots=True)
class SavedConversation:
    """What is said in a shell, on disk as soon as it is said."""

    session: Session
    log: ConversationStore
    name: str
    recorded: int = 0
    """How many of the turns are on disk."""

    @property
    def driver(self) -> SessionDriver:
        """The internal interface of the session."""
        return get_driver(self.session)

    def say(self, words: str) -> None:
        """The user's words, after what commands have printed since the last ones."""
        self.session.user(words)
        self.keep()

    def urge(self, words: str) -> None:
        """Say something in the user's place, to let the model go on by itself."""
        self.session.user(words, **{FROM_BRIM: True})
        self.keep()

    def output(self, text: str, path: str | None = None) -> str:
        """What a command printed; it waits for the user's next words."""
        kept = self.session.add_output(text, path)
        if kept:
            self.keep(ConversationEvent.output(kept))
        return kept

    def recall(self, index: int) -> str:
        """Bring a turn back, as an output that waits."""
        kept = self.session.recall(index)
        self.keep(ConversationEvent("recall", {"index": index}), ConversationEvent.output(kept))
        return kept

    def drop_outputs(self) -> None:
        """Let what waits for the user's next words not go along with them."""
        self.driver.outputs = ()
        self.keep(ConversationEvent.rewind(len(self.session), ()))

    def result(self, call: str, text: str) -> None:
        """What a tool answered."""
        self.session.tool(call, text)
        self.keep()

    def keep(self, *events: ConversationEvent) -> None:
        """Write down the turns that are new, what else happened, and the state it led to."""
        turns = self.driver.copy_turns(self.recorded)
        said = [
            ConversationEvent.turn(place, turn) for place, turn in enumerate(turns, self.recorded)
        ]
        self.log.record(self.name, [*said, *events], self.driver.to_dict())
        self.recorded += len(turns)

    def close_calls(self, why: str) -> None:
        """Let no call of a tool wait for a result that will not come."""
        for call in self.driver.open_calls:
            self.session.tool(call, why)
        self.keep()

    def note(self, kind: str, **data: Any) -> None:
        """Write down something that changes nothing in the session."""
        self.log.record(self.name, [ConversationEvent(kind, data)])

    def draft(self, text: str) -> None:
        """Write down how far an answer has come."""
        self.log.save_draft(self.name, text)

    # Taking back

    def take_back(self, length: int) -> list[dict[str, Any]]:
        """Go on as if only the first turns had been said; the log keeps the others.

        What a user's turn took along waits again.
        """
        taken = self.session.rewind(length)
        outputs = [turn["_output"] for turn in taken if turn.get("_output")]
        self.driver.outputs = [*outputs, *self.driver.outputs]
        self.recorded = min(self.recorded, length)
        self.keep(ConversationEvent.rewind(length, self.driver.outputs))
        return taken

    def put_back(self, turns: Iterable[Mapping[str, Any]], waiting: Sequence[str]) -> None:
        """Say again what was taken back, and let wait what waited then."""
        for turn in turns:
            self.session.append(turn)
        self.driver.outputs = waiting
        self.keep(ConversationEvent.rewind(len(self.session), waiting))

    def last_exchange(self) -> int:
        """Where the last user's turn stands; raises where there is none."""
        turns = self.session.history
        for index in range(len(turns) - 1, -1, -1):
            if turns[index]["role"] == "user" and not turns[index].get(FROM_BRIM):
                return index
        raise InputError("nothing was said yet")

    def begin_anew(self, name: str) -> None:
        """Forget what was said, under another name; under the old one it is kept."""
        self.session.reset()
        self.log.unlock(self.name)
        self.name, self.recorded = name, 0
        self.keep()

    # Compaction

    def compact(self, compaction: Compaction, summarize: Summarizer) -> None:
        """Make an edit now, in such a way that it can be taken back."""
        limited = with_timeout(summarize)

        def answer(job: Job) -> object:
            return call_summarizer(limited, job) if isinstance(job, SummaryJob) else None

        flow = self.driver.compact(compaction)
        try:
            run_flow(flow, answer)
        except BaseException:
            flow.close()  # undoes the trim immediately
            raise
        self.keep(ConversationEvent("compact", {"before": compaction.before}))

    def uncompact(self) -> None:
        self.session.undo_compaction()
        self.keep(ConversationEvent("uncompact", {}))


def resume_conversation(
    log: ConversationStore, name: str, make: Callable[[dict[str, Any] | None], Session]
) -> SavedConversation:
    """A conversation as it stood when its shell ended, however that happened.

    `make` gives the session for a saved state with its turns, or a new one.
    """
    log.lock(name)
    state, draft = log.load_state(name)
    found = _fold_events(log, name)
    said = {"turns": found.turns, "waiting": found.pending_outputs}
    try:
        session = make(None if state is None else {**state, **said})
    except InputError:  # what was decided cannot be read; what was said can, and is what counts
        state, session = None, make(None)
    if state is None:
        for turn in found.turns:
            session.append(turn)
        get_driver(session).outputs = found.pending_outputs
    conversation = SavedConversation(session, log, name, len(session))
    _repair(conversation, draft)
    return conversation


def _fold_events(log: ConversationStore, name: str) -> ConversationState:
    try:
        return replay_events(log.events(name))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{name} cannot be read: {error!r}") from None


def _repair(conversation: SavedConversation, draft: str | None) -> None:
    """Keep what an answer had said, and let no call wait for a result that will not come."""
    session = conversation.session
    last = conversation.driver.copy_turns(len(session) - 1) if len(session) else []
    if draft and last and last[0]["role"] in ("user", "tool"):
        session.append({"role": "assistant", "content": draft, INCOMPLETE: True})
    conversation.close_calls(NO_RESULT)
