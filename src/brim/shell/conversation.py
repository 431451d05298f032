"""A session that is saved as it happens.

Messages are written to the store before anything else is done with them, so that a shell that was
killed can be resumed. The rest of the session's state is saved next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brim.errors import InputError, StoreError
from brim.fitting.summarizer import Summarizer, run_with_summarizer
from brim.providers.summarizers import with_timeout
from brim.session.composer_state import Compaction
from brim.session.driver import SessionDriver
from brim.session.session import Session, get_driver
from brim.storage import (
    ConversationEvent,
    ConversationState,
    ConversationStore,
    SpendAccount,
    replay_events,
)

NO_RESULT: Final = "[brim] No result: the shell ended before the call finished."
KILLED: Final = "$ {command}\n[brim] No output: the shell was killed while this ran."
FROM_BRIM: Final = "_brim"
"""Marks a user turn that brim itself wrote in goal mode."""
FILES: Final = "_files"
"""Mark of a user turn: the versions of its files by their references."""
RECORDED: Final = "recorded"
"""Field of the saved state: the last call that its ledger contains."""
INCOMPLETE: Final = "_cut"
"""Marks a reply that was interrupted together with its shell."""


@dataclass(slots=True)
class SavedConversation:
    """A session and its copy on disk."""

    session: Session
    log: ConversationStore
    name: str
    saved_turns: int = 0
    """Number of turns that are on disk."""
    account: SpendAccount | None = None
    """Where its calls are recorded."""
    recorded: int = 0
    """The number of the last call in the account that the saved ledger contains."""

    @property
    def driver(self) -> SessionDriver:
        """The internal interface of the session."""
        return get_driver(self.session)

    @property
    def created(self) -> float:
        """When it began, in seconds since the epoch."""
        return self.log.find(self.name).created

    def add_message(
        self,
        content: str | Sequence[Mapping[str, object]],
        *,
        from_brim: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Add a message of the user, or on their behalf, with the output that waits for it.

        `files` are the versions of the files that it attaches.
        """
        marks = {FROM_BRIM: True} if from_brim else {}
        self.session.user(content, **marks, **({FILES: dict(files)} if files else {}))
        self.save()

    def add_output(self, text: str, path: str | None = None) -> str:
        """Add command output, which waits for the user's next message."""
        kept = self.session.add_output(text, path)
        if kept:
            self.save(ConversationEvent.output(kept))
        return kept

    def recall(self, index: int) -> str:
        """Add an earlier turn as output that waits for the next message."""
        kept = self.session.recall(index)
        self.save(ConversationEvent("recall", {"index": index}), ConversationEvent.output(kept))
        return kept

    def drop_outputs(self) -> None:
        """Remove the output that waits for the user's next message."""
        self.driver.outputs = ()
        self.save(ConversationEvent.rewind(len(self.session), ()))

    def add_result(self, call: str, text: str) -> None:
        """Add the result of a tool call."""
        self.session.tool(call, text)
        self.save()

    def close_calls(self, reason: str) -> None:
        """Give every open tool call this text as its result."""
        for call in self.driver.open_calls:
            self.session.tool(call, reason)
        self.save()

    # Saving

    def save(self, *events: ConversationEvent) -> None:
        """Write the new turns, these events and the resulting state."""
        turns = self.driver.copy_turns(self.saved_turns)
        new = [
            ConversationEvent.turn(place, turn)
            for place, turn in enumerate(turns, self.saved_turns)
        ]
        if self.account is not None:
            self.recorded = self.account.last
        state = {**self.driver.to_dict(), RECORDED: self.recorded}
        self.log.record(self.name, [*new, *events], state)
        self.saved_turns += len(turns)

    def charge_to(self, account: SpendAccount) -> None:
        """Record calls in this account, and add those that a killed shell did not save."""
        account.restore(self.session.ledger, self.recorded)
        self.account = account

    def record(self, kind: str, **data: Any) -> None:
        """Record an event that does not change the session."""
        self.log.record(self.name, [ConversationEvent(kind, data)])

    def save_draft(self, text: str) -> None:
        """Save an incomplete reply."""
        self.log.save_draft(self.name, text)

    # Undo

    def rewind(self, length: int) -> list[dict[str, Any]]:
        """Remove the turns from `length` on and return them; the store keeps them.

        Output that was part of a removed turn waits for the next message again.
        """
        removed = self.session.rewind(length)
        outputs = [str(turn["_output"]) for turn in removed if turn.get("_output")]
        self.driver.outputs = (*outputs, *self.driver.outputs)
        self.saved_turns = min(self.saved_turns, length)
        self.save(ConversationEvent.rewind(length, self.driver.outputs))
        return removed

    def restore(self, turns: Iterable[Mapping[str, Any]], waiting: Sequence[str]) -> None:
        """Add removed turns again, and restore the output that waited then."""
        for turn in turns:
            self.session.append(turn)
        self.driver.outputs = tuple(waiting)
        self.save(ConversationEvent.rewind(len(self.session), waiting))

    def last_exchange(self) -> int:
        """Return the index of the user's last turn; raise InputError if there is none."""
        turns = self.session.history
        for index in range(len(turns) - 1, -1, -1):
            if turns[index]["role"] == "user" and not turns[index].get(FROM_BRIM):
                return index
        raise InputError("There are no messages yet.")

    def start_new(self, name: str) -> None:
        """Start an empty conversation under a new name; the old one stays on disk."""
        self.session.reset()
        self.log.unlock(self.name)
        self.name, self.saved_turns = name, 0
        if self.account is not None:
            self.account.session = name
        self.save()

    # Compaction

    def compact(self, compaction: Compaction, summarize: Summarizer) -> None:
        """Trim the history now, in a way that can be undone."""
        run_with_summarizer(self.driver.composer.compact(compaction), with_timeout(summarize))
        self.save(ConversationEvent("compact", {"before": compaction.before}))

    def undo_compaction(self) -> None:
        self.session.undo_compaction()
        self.save(ConversationEvent("uncompact", {}))


def resume_conversation(
    log: ConversationStore, name: str, make: Callable[[dict[str, Any] | None], Session]
) -> SavedConversation:
    """Return a conversation as it was when its shell ended, even if the shell was killed.

    `make` builds a session from a saved state with its turns, or a new one from None.
    """
    log.lock(name)
    state, draft = log.load_state(name)
    found = _replay(log, name)
    turns = {"turns": found.turns, "waiting": found.pending_outputs}
    try:
        session = make(None if state is None else {**state, **turns})
    except InputError:  # the state is invalid, but the messages are not
        state, session = None, make(None)
    if state is None:
        for turn in found.turns:
            session.append(turn)
        get_driver(session).outputs = tuple(found.pending_outputs)
    conversation = SavedConversation(session, log, name, len(session))
    conversation.recorded = (state or {}).get(RECORDED, 0)
    _repair(conversation, draft)
    if found.running is not None:
        conversation.add_output(KILLED.format(command=found.running))
    return conversation


def _replay(log: ConversationStore, name: str) -> ConversationState:
    try:
        return replay_events(log.events(name))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"Conversation {name} cannot be read: {error!r}.") from None


def _repair(conversation: SavedConversation, draft: str | None) -> None:
    """Keep an interrupted reply, and close tool calls that will never get a result."""
    session = conversation.session
    last = conversation.driver.copy_turns(len(session) - 1) if len(session) else []
    if draft and last and last[0]["role"] in ("user", "tool"):
        session.append({"role": "assistant", "content": draft, INCOMPLETE: True})
    conversation.close_calls(NO_RESULT)
