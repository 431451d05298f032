"""Draft: a plan in the making, the one thing that passes change.

Nothing in it can be changed without giving a reason, and it always knows what it takes: a pass
asks `draft.excess`, drops or edits, and the sum follows. What was said is not touched; a draft
only notes what is to become of it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, TypeAlias

from brim.fitting.plan import ChangedMessage, DroppedRun, Note
from brim.messages import Message
from brim.wire.notes import gap_note

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from brim.fitting.clip import TextLines
    from brim.fitting.droppable import FloorSums, UnitRun
    from brim.fitting.edit_view import HistoryView
    from brim.fitting.eviction import Eviction
    from brim.fitting.history import History
    from brim.fitting.plan import Outcome

_ALIVE = b"\x01"
_NoteRole: TypeAlias = Literal["user", "assistant", "paragraph"]


class Draft:
    """What is to be sent of a history up to a point."""

    def __init__(
        self,
        scope: HistoryView,
        floors: FloorSums,
        target: int,
        *,
        notes: bool = False,
        outline: Eviction | None = None,
    ) -> None:
        self.scope = scope
        self.history: History = scope.history
        self.floors = floors
        self.target = target
        """What passes cut down to: the limit, or a mark below it."""
        self.outline = outline
        """Which units leave, where that was worked out before."""
        self.tokens = scope.total
        self.edits: dict[int, ChangedMessage] = {}
        self.notes: list[Note] = []
        self.wants_notes = notes
        """Whether a gap is told of even where no rule asks for it."""
        self._summary = ""
        self.hard = self._hard_before = scope.hard()
        self._last_user = scope.last_user
        self.newest = frozenset(scope.newest_outputs())
        """The messages whose outputs are given up last."""
        self.keep_recent = scope.keep_recent
        self._alive = bytearray(_ALIVE) * scope.units
        self._dropped: list[tuple[int, int, str]] = []
        self._dirty = False
        self._cuts = scope.history.cuts
        self.edited = scope.units
        """The units that its cuts were made among; what came later is whole."""

    # What there is

    @property
    def limit(self) -> int:
        return self.scope.limit

    @property
    def excess(self) -> int:
        """How many tokens are still too many; at most 0 when the target is reached."""
        return self.tokens - self.target

    @property
    def turns(self) -> int:
        """How many messages go out, system turns not counted."""
        spans = [self._span(*run) for run in self._runs()]
        own = sum(note.role != "paragraph" for note in self.notes)
        return own + sum(b - a - len(self.history.systems_between(a, b)) for a, b in spans)

    def loose(self, held: Collection[int] = ()) -> list[int]:
        """The units that are still there and may leave, lowest priority and oldest first."""
        units = [unit for start, stop in self._runs() for unit in range(start, stop)]
        units = [unit for unit in units if unit not in self.hard and unit not in held]
        if self.scope.ranked:
            units.sort(key=lambda unit: self.history.units[unit].priority)
        return units

    @property
    def outputs(self) -> list[int]:
        """The messages whose outputs may be cut, lowest priority and oldest first.

        Not among them: the open step, pins, and what brim has cut before.
        """
        open_unit, unit_of = self.scope.open_unit, self.history.unit_of
        marked = self.history.marked
        kept = self._carrying(self.history.outputs)
        return [i for i in kept if unit_of[i] != open_unit and i not in marked]

    @property
    def old_outputs(self) -> list[int]:
        """The same without the newest and without those of the last `keep_recent` units."""
        recent = self.scope.units - self.keep_recent
        unit_of = self.history.unit_of
        return [i for i in self.outputs if i not in self.newest and unit_of[i] < recent]

    @property
    def open_outputs(self) -> list[int]:
        open_unit, unit_of = self.scope.open_unit, self.history.unit_of
        return [i for i in self._carrying(self.history.outputs) if unit_of[i] == open_unit]

    @property
    def kept_outputs(self) -> list[int]:
        """All messages with outputs that are still there, oldest first."""
        return self._kept_of(self.history.outputs)

    @property
    def thoughts(self) -> list[int]:
        """The messages with thinking that may go: all but those of the open step."""
        open_unit, unit_of = self.scope.open_unit, self.history.unit_of
        return [i for i in self._carrying(self.history.thoughts) if unit_of[i] != open_unit]

    def _carrying(self, indices: Sequence[int]) -> list[int]:
        """Those of some messages that are kept and not pinned, lowest priority first."""
        history = self.history
        kept = [index for index in self._kept_of(indices) if not history.is_pinned(index)]
        if self.scope.ranked:
            kept.sort(key=lambda index: history.messages[index].priority)
        return kept

    def _kept_of(self, indices: Sequence[int]) -> list[int]:
        kept: list[int] = []
        for run in self._runs():
            first, last = self._span(*run)
            kept += indices[bisect_left(indices, first) : bisect_left(indices, last)]
        return kept

    def _runs(self) -> Iterator[UnitRun]:
        """The runs of units that are still there."""
        stop = 0
        while (start := self._alive.find(_ALIVE, stop)) >= 0:
            stop = self._alive.find(0, start)
            stop = len(self._alive) if stop < 0 else stop
            yield start, stop

    def has_answers(self, user: int) -> bool:
        """Whether anything is kept that answers a user turn."""
        after = self.history.next_user(user + 1)
        stop = self.scope.units if after is None else min(after, self.scope.units)
        return self._alive.find(_ALIVE, user + 1, stop) >= 0

    def release(self) -> None:
        """Give up what was protected: from here on only the hard parts are."""
        self.newest = frozenset()
        self.keep_recent = 0

    def recent(self) -> set[int]:
        """The last `keep_recent` units, which leave last."""
        return self.scope.recent(self.scope.gone()) if self.keep_recent else set()

    def message(self, index: int) -> Message:
        """A message as it stands in the draft."""
        edit = self.edits.get(index)
        return edit.message if edit else self.history.messages[index]

    def message_tokens(self, index: int) -> int:
        edit = self.edits.get(index)
        return edit.tokens if edit else self.history.tokens(index)

    def output_tokens(self, index: int) -> int:
        if index in self.edits:
            return sum(map(self.history.counter.text, self.edits[index].message.outputs))
        return self.history.output_sizes[index]

    # What can be done

    def drop(self, start: int, stop: int, reason: str) -> None:
        """Leave out the units of a run that are still there and not hard."""
        for unit in sorted(self.hard):
            if start <= unit < stop:
                self._drop_run(start, unit, reason)
                start = unit + 1
        self._drop_run(start, stop, reason)

    def drop_all(self, runs: Iterable[UnitRun], reason: str) -> None:
        for start, stop in runs:
            self.drop(start, stop, reason)

    def _drop_run(self, start: int, stop: int, reason: str) -> None:
        while (start := self._alive.find(_ALIVE, start, max(start, stop))) >= 0:
            end = self._alive.find(0, start, stop)
            end = stop if end < 0 else end
            self._alive[start:end] = bytes(end - start)
            self._dirty = True
            self._dropped.append((start, end, reason))
            self.tokens -= self._run_tokens(start, end)
            start = end

    def _run_tokens(self, start: int, stop: int) -> int:
        first, last = self._span(start, stop)
        tokens = self._plain_tokens(first, last)
        for index in [index for index in self.edits if first <= index < last]:
            tokens += self.edits.pop(index).tokens - self.history.tokens(index)
        return tokens

    def _span(self, start: int, stop: int) -> UnitRun:
        """The messages of a run of units."""
        units = self.history.units
        last = units[stop].start if stop < len(self._alive) else self.scope.messages
        return units[start].start, last

    def edit(self, index: int, message: Message, outcome: Outcome, reason: str) -> bool:
        """Send a message in another form; refused where that is not smaller."""
        tokens = self.history.counter.message(message)
        before = self.message_tokens(index)
        if tokens >= before:
            return False
        self.tokens += tokens - before
        self.edits[index] = ChangedMessage(message, tokens, outcome, reason)
        if any(note.at == index for note in self.notes):
            self._dirty = True
        return True

    def clip(
        self,
        index: int,
        cap: int,
        reason: str,
        *,
        text: str | None = None,
        close: float | None = None,
    ) -> bool:
        """Cut a message's outputs, or `text` in their place, to at most `cap` tokens.

        What is cut is what came in, however often: so the mark says how much is missing of it.
        """
        message = self.message(index)
        whole = "\n".join(self.history.messages[index].outputs)
        size = self.history.output_sizes[index]
        if text is None:
            text = whole
        elif whole:
            size = size * len(text) // len(whole)
        clipped = self._cuts.clip(text, size, max(cap, 0), close)
        return self.edit(index, message.with_outputs((clipped,)), "clipped", reason)

    def lines(self, index: int) -> TextLines:
        """The output of a message as it came in, in lines."""
        return self._cuts.lines("\n".join(self.history.messages[index].outputs))

    def replace_outputs(self, index: int, text: str, outcome: Outcome, reason: str) -> bool:
        """Put another text in place of a message's outputs."""
        return self.edit(index, self.message(index).with_outputs((text,)), outcome, reason)

    # What becomes of the neighbours of what left

    def mend(self, since: int = 0) -> None:
        """Put right what drops have brought side by side, and say what was left out there.

        Only what stands from the unit `since` on is looked at; the notes before it stay.
        """
        if not self._dirty:
            return
        for start, stop in list(self._gaps(since)):
            self._part_assistants(start, stop)
        first = self.history.units[since].start if since else 0
        earlier = [note for note in self.notes if note.at < first]
        self.forget_notes()
        self.notes = earlier + self._notes(since)
        self.tokens += sum(note.tokens for note in self.notes)
        self._dirty = False

    def forget_notes(self) -> None:
        """Take back what is said at the gaps, until they are mended again."""
        self.tokens -= sum(note.tokens for note in self.notes)
        self.notes = []
        self._dirty = True

    def forgo_notes(self) -> None:
        """Say nothing at a gap but where a rule asks for it."""
        self.wants_notes = False
        self.forget_notes()
        self.mend()

    def tell(self, summary: str) -> None:
        """Say at the first gap what was left out there; the empty text takes it back."""
        if summary != self._summary:
            self._summary = summary
            self.forget_notes()
            self.mend()

    def _gaps(self, stop: int = 0) -> Iterator[UnitRun]:
        """The runs of units that are gone, each as long as it is."""
        while (start := self._alive.find(0, stop)) >= 0:
            stop = self._alive.find(_ALIVE, start)
            stop = len(self._alive) if stop < 0 else stop
            yield start, stop

    def _part_assistants(self, start: int, stop: int) -> None:
        """Two assistant turns must not meet: the earlier plain one leaves too."""
        units = self.history.units
        if stop == len(self._alive) or units[stop].role != "assistant":
            return
        while start > 0 and units[start - 1].plain and start - 1 not in self.hard:
            self._drop_run(start - 1, start, "would stand beside another assistant turn")
            start = self._alive.rfind(_ALIVE, 0, start) + 1

    def _notes(self, since: int) -> list[Note]:
        """What is said at the gaps; where nothing may be said, the gap before says it too.

        Not so behind an edit: what was said there has been sent.
        """
        told: list[tuple[int, _NoteRole, int, int]] = []
        for start, stop in self._gaps(since):
            first, last = self._span(start, stop)
            messages = last - first - len(self.history.systems_between(first, last))
            tokens = self._plain_tokens(first, last)
            if place := self._place_of_note(start, stop):
                told.append((*place, messages, tokens))
            elif told and self.wants_notes and not since:
                at, role, more_messages, more_tokens = told.pop()
                told.append((at, role, messages + more_messages, tokens + more_tokens))
        texts = [gap_note(*sizes) for _, _, *sizes in told]
        if texts and not since and self._summary:
            texts[0] += f"\n{self._summary}"
        return [
            self._note(at, role, text) for (at, role, *_), text in zip(told, texts, strict=True)
        ]

    def _place_of_note(self, start: int, stop: int) -> tuple[int, _NoteRole] | None:
        """Where a gap is told of: where a rule asks for it or, on wish, behind what is not hard."""
        if start == 0 or stop == len(self._alive):
            return None
        before, after = self.history.units[start - 1], self.history.units[stop]
        if before.role == after.role == "user":
            return after.start, "assistant"
        if before.plain and after.role == "assistant":
            return after.start, "user"
        wanted = self.wants_notes and (start - 1 not in self.hard or self._may_tell(start - 1))
        if wanted and not all(self.history.units[unit].fault for unit in range(start, stop)):
            return before.last, "paragraph"
        return None

    def _may_tell(self, unit: int) -> bool:
        """A summary may close what was the last user turn: an agent's run often has no other."""
        pinned = any(map(self.history.is_pinned, self.history.members(unit)))
        return bool(self._summary) and unit == self._last_user and not pinned

    def _note(self, at: int, role: _NoteRole, text: str) -> Note:
        count = self.history.counter.message
        if role == "paragraph":
            tokens = count(self.message(at).with_paragraph(text)) - self.message_tokens(at)
        else:
            tokens = count(Message(role, words=(text,)))
        return Note(text, tokens, at, role)

    def _plain_tokens(self, first: int, last: int) -> int:
        """What messages take as they came in, without the system turns among them."""
        sizes, systems = self.history.sizes, self.history.system_sizes
        return sizes[last] - sizes[first] - (systems[last] - systems[first])

    # A draft goes on while nothing is due

    def grow(self, units: int, messages: int) -> None:
        """Take in what was said since; what comes in wrong is left out, nothing else is cut."""
        before = self.scope
        if messages == before.messages:
            return
        self.scope = before.up_to(units, messages)
        self.tokens += self.history.sizes[messages] - self.history.sizes[before.messages]
        self._alive.extend(_ALIVE * (units - before.units))
        if self.history.faults:
            self._summary = ""
        self.hard = self._hard_before | self.scope.hard()
        for unit in self.scope.faults(since=before.units - 1):
            self._drop_run(unit, unit + 1, self.history.units[unit].fault)
        if self._alive.find(0, self.edited) >= 0:
            self._dirty = True
            self.mend(since=self.edited)

    # What comes out

    def drops(self) -> list[DroppedRun]:
        return [
            DroppedRun(*self._span(start, stop), reason)
            for start, stop, reason in sorted(self._dropped)
        ]

    def kept(self) -> list[int]:
        """The messages that go out, in order."""
        kept: list[int] = []
        done = 0
        for start, stop in self._gaps():
            first, last = self._span(start, stop)
            kept.extend(range(done, first))
            kept.extend(self.history.systems_between(first, last))
            done = last
        kept.extend(range(done, self.scope.messages))
        return kept
