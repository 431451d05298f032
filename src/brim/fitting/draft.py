"""Draft: a plan under construction, which passes change.

Every change needs a reason, and the token count is always up to date: a pass reads
`draft.excess`, drops or changes something, and the count follows. The history itself does not
change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from brim.fitting.clip import TextLines
from brim.fitting.history import (
    History,
    HistoryView,
    MessageIndex,
    RequestPoint,
    UnitIndex,
    unit_range,
)
from brim.fitting.plan import ChangedMessage, DroppedRun, Outcome, compute_id
from brim.fitting.search import find_names, read_texts
from brim.fitting.trim import (
    NAMED_TASKS,
    TASK_NAME_LENGTHS,
    TASK_NAME_TOKENS,
    FloorSums,
    UnitRun,
)
from brim.messages import Message
from brim.wire.notes import ID, Note, brief_gap_note, fill_id, gap_note, name_tasks, range_note

NAME_TOKENS: Final = 30
"""The most tokens that the names in a note take."""
NAMED_MESSAGES: Final = 50
"""The most messages of a gap that are read for names."""
_KEPT = b"\x01"
_NoteRole: TypeAlias = Literal["user", "assistant", "paragraph"]


class _Gap(NamedTuple):
    """A gap, or several that share a note, and how much is missing there."""

    place: tuple[MessageIndex, _NoteRole] | None
    """Where the note goes and its role; None if there is no place for one."""
    first: int
    last: int
    """The first and the last message that is missing."""
    messages: int
    tokens: int
    tasks: frozenset[UnitIndex]
    """The user units of the finished tasks of which something is missing."""
    is_finished: bool
    """Whether nothing else is missing."""

    def merge(self, other: _Gap) -> _Gap:
        """Return both as one, at the place of this gap if it has one."""
        return _Gap(
            self.place or other.place,
            min(self.first, other.first),
            max(self.last, other.last),
            self.messages + other.messages,
            self.tokens + other.tokens,
            self.tasks | other.tasks,
            self.is_finished and other.is_finished,
        )


class Draft:
    """What is to be sent of a history up to a point."""

    def __init__(
        self,
        view: HistoryView,
        floors: FloorSums,
        target: int,
        *,
        notes: bool = False,
        brief: bool = False,
        recall_hint: str = "",
    ) -> None:
        self.view = view
        self.history: History = view.history
        self.floors = floors
        self.target = target
        """The tokens that passes reduce the draft to: the limit, or a low-water mark."""
        self.tokens = view.tokens
        self.changes: dict[int, ChangedMessage] = {}
        self.notes: list[Note] = []
        self.optional_notes = notes
        """Whether gaps get a note even if no rule requires one."""
        self._brief = brief
        self._recall_hint = recall_hint
        self._summary = ""
        self.required = self._required_at_trim = view.required_units()
        """The units that are never dropped."""
        self._last_user = view.last_user
        self._task_start = view.task_start
        self.newest_outputs = frozenset(view.newest_outputs())
        """The messages whose outputs are changed last."""
        self.keep_recent = view.keep_recent
        self._kept = bytearray(_KEPT) * view.units
        self._dropped: list[tuple[UnitIndex, UnitIndex, str]] = []
        self._has_new_gaps = False
        self._names: dict[tuple[int, int], list[str]] = {}
        """The names at gaps whose notes were written before."""
        self.trimmed_units = view.units
        """The number of units that its trim saw; later units are complete."""

    # Reading

    @property
    def limit(self) -> int:
        return self.view.limit

    @property
    def excess(self) -> int:
        """The tokens above the target; 0 or less once it is reached."""
        return self.tokens - self.target

    @property
    def turn_count(self) -> int:
        """The number of messages that are sent, not counting system messages."""
        spans = [self._span(*run) for run in self._kept_runs()]
        notes = sum(note.role != "paragraph" for note in self.notes)
        return notes + sum(self.history.count_turns(*span) for span in spans)

    def droppable_units(self, held: Collection[UnitIndex] = ()) -> list[UnitIndex]:
        """Return the kept units that may be dropped, lowest priority and oldest first."""
        units = [unit for run in self._kept_runs() for unit in unit_range(*run)]
        units = [unit for unit in units if unit not in self.required and unit not in held]
        if self.view.has_priorities:
            units.sort(key=lambda unit: self.history.units[unit].priority)
        return units

    @property
    def outputs(self) -> list[MessageIndex]:
        """The messages whose outputs may be changed, lowest priority and oldest first.

        Not the open step, pinned messages, and outputs that brim clipped or masked before.
        """
        open_unit, unit_of = self.view.open_unit, self.history.unit_of
        marked = self.history.marked_messages
        kept = self._find_changeable(self.history.output_messages)
        return [i for i in kept if unit_of[i] != open_unit and i not in marked]

    @property
    def old_outputs(self) -> list[MessageIndex]:
        """`outputs` without the newest ones and those of the last `keep_recent` units."""
        recent = self.view.units - self.keep_recent
        unit_of = self.history.unit_of
        return [i for i in self.outputs if i not in self.newest_outputs and unit_of[i] < recent]

    @property
    def old_texts(self) -> list[MessageIndex]:
        """The steps with a long text whose output is not among the newest ones."""
        history, unit_of = self.history, self.history.unit_of
        newest = {unit_of[index] for index in self.newest_outputs} | {self.view.open_unit}
        recent = self.view.units - self.keep_recent
        kept = self._find_changeable([*history.long_texts])
        return [i for i in kept if unit_of[i] < recent and unit_of[i] not in newest]

    @property
    def open_outputs(self) -> list[MessageIndex]:
        """The messages with outputs in the open step."""
        open_unit, unit_of = self.view.open_unit, self.history.unit_of
        kept = self._find_changeable(self.history.output_messages)
        return [i for i in kept if unit_of[i] == open_unit]

    @property
    def kept_outputs(self) -> list[MessageIndex]:
        """All kept messages with outputs, oldest first."""
        return self._find_kept(self.history.output_messages)

    @property
    def old_thinking(self) -> list[MessageIndex]:
        """The messages whose thinking may be removed: all except those of the open step."""
        open_unit, unit_of = self.view.open_unit, self.history.unit_of
        kept = self._find_changeable(self.history.thinking_messages)
        return [i for i in kept if unit_of[i] != open_unit]

    def _find_changeable(self, indices: Sequence[MessageIndex]) -> list[MessageIndex]:
        """Return those messages that are kept and not pinned, lowest priority first."""
        history = self.history
        kept = [index for index in self._find_kept(indices) if not history.is_pinned(index)]
        if self.view.has_priorities:
            kept.sort(key=lambda index: history.messages[index].priority)
        return kept

    def _find_kept(self, indices: Sequence[MessageIndex]) -> list[MessageIndex]:
        kept: list[MessageIndex] = []
        for run in self._kept_runs():
            first, last = self._span(*run)
            kept += indices[bisect_left(indices, first) : bisect_left(indices, last)]
        return kept

    def _kept_runs(self) -> Iterator[UnitRun]:
        stop = 0
        while (start := self._kept.find(_KEPT, stop)) >= 0:
            stop = self._kept.find(0, start)
            stop = len(self._kept) if stop < 0 else stop
            yield UnitIndex(start), UnitIndex(stop)

    def has_answers(self, user: UnitIndex) -> bool:
        """Return whether a unit that answers a user unit is kept."""
        after = self.history.find_user(user + 1)
        stop = self.view.units if after is None else min(after, self.view.units)
        return self._kept.find(_KEPT, user + 1, stop) >= 0

    def recent_units(self) -> set[UnitIndex]:
        """Return the last `keep_recent` units, which are dropped last."""
        return self.view.recent_units(self.view.invalid_units()) if self.keep_recent else set()

    def message(self, index: int) -> Message:
        """Return a message as it is to be sent."""
        change = self.changes.get(index)
        return change.message if change else self.history.messages[index]

    def message_tokens(self, index: int) -> int:
        """Return the tokens of a message as it is to be sent."""
        change = self.changes.get(index)
        return change.tokens if change else self.history.tokens(index)

    def output_tokens(self, index: int) -> int:
        """Return the tokens of a message's outputs as they are to be sent."""
        if index in self.changes:
            return sum(map(self.history.counter.text, self.changes[index].message.outputs))
        return self.history.output_tokens[index]

    def clippable_tokens(self, index: MessageIndex) -> int:
        """Return the tokens of what `clip` can clip, as it is to be sent."""
        if index in self.changes:
            return sum(map(self.history.counter.text, self.changes[index].message.clippable))
        return self._whole_tokens(index)

    def _whole_tokens(self, index: MessageIndex) -> int:
        return self.history.long_texts.get(index) or self.history.output_tokens[index]

    def output_lines(self, index: int) -> TextLines:
        """Return the original output of a message, in lines."""
        return self.history.clip_cache.lines("\n".join(self.history.messages[index].outputs))

    # Changing

    def release(self) -> None:
        """Allow to drop or change protected units; only required ones are safe now."""
        self.newest_outputs = frozenset()
        self.keep_recent = 0

    def drop(self, start: int, stop: int, reason: str) -> None:
        """Drop the units from `start` up to `stop`, except required ones."""
        for unit in sorted(self.required):
            if start <= unit < stop:
                self._drop_run(start, unit, reason)
                start = unit + 1
        self._drop_run(start, stop, reason)

    def drop_unit(self, unit: int, reason: str) -> None:
        """Drop a unit, unless it is required."""
        self.drop(unit, unit + 1, reason)

    def drop_runs(self, runs: Iterable[UnitRun], reason: str) -> None:
        for start, stop in runs:
            self.drop(start, stop, reason)

    def _drop_run(self, first: int, stop: int, reason: str) -> None:
        while (first := self._kept.find(_KEPT, first, max(first, stop))) >= 0:
            end = self._kept.find(0, first, stop)
            end = stop if end < 0 else end
            self._kept[first:end] = bytes(end - first)
            self._has_new_gaps = True
            start, first = UnitIndex(first), end
            self._dropped.append((start, UnitIndex(end), reason))
            self.tokens -= self._remove_changes(*self._span(start, UnitIndex(end)))

    def _remove_changes(self, first: int, last: int) -> int:
        """Forget the changes of messages that are dropped; return the tokens that they took."""
        tokens = self.history.tokens_between(first, last)
        for index in [index for index in self.changes if first <= index < last]:
            tokens += self.changes.pop(index).tokens - self.history.tokens(index)
        return tokens

    def _span(self, start: UnitIndex, stop: UnitIndex) -> tuple[MessageIndex, MessageIndex]:
        """Return the first message of a run of units, and the one after its last."""
        units = self.history.units
        last = units[stop].start if stop < len(self._kept) else self.view.messages
        return units[start].start, last

    def change(self, index: int, message: Message, outcome: Outcome, reason: str) -> bool:
        """Send a message in another form; return False, and change nothing, if not smaller."""
        tokens = self.history.counter.message(message)
        return self._change(index, ChangedMessage(message, tokens, outcome, reason))

    def _change(self, index: int, change: ChangedMessage) -> bool:
        before = self.message_tokens(index)
        if change.tokens >= before:
            return False
        self.tokens += change.tokens - before
        self.changes[index] = change
        if self.notes and any(note.at == index for note in self.notes):
            self._has_new_gaps = True
        return True

    def clip(
        self,
        index: MessageIndex,
        cap: int,
        reason: str,
        *,
        text: str | None = None,
        close: float | None = None,
    ) -> bool:
        """Clip a message's outputs or step text, or `text` in their place, to `cap` tokens.

        The original text is clipped each time, so that the mark says how much of it is missing.
        """
        message, history = self.message(index), self.history
        request = (message, cap, reason, text, close)
        known = history.clip_cache.last.get(index)
        if known is None or known[0] != request:
            whole = "\n".join(history.messages[index].clippable)
            size = self._whole_tokens(index)
            if text is None:
                text = whole
            elif whole:
                size = size * len(text) // len(whole)
            clip_message = history.clip_cache.clip_message
            clipped, tokens = clip_message(message, text, size, max(cap, 0), close=close)
            known = request, ChangedMessage(clipped, tokens, "clipped", reason)
            history.clip_cache.last[index] = known
        return self._change(index, known[1])

    def replace_outputs(self, index: int, text: str, outcome: Outcome, reason: str) -> bool:
        """Send another text in place of a message's outputs."""
        return self.change(index, self.message(index).with_outputs((text,)), outcome, reason)

    # Notes at gaps

    def repair_gaps(self, since: int = 0) -> None:
        """Separate messages that must not be neighbours, and write the notes at the gaps.

        Only gaps from unit `since` on are repaired; earlier notes stay as they are.
        """
        if not self._has_new_gaps:
            return
        if not self._brief:  # otherwise they stay, with a note between them
            for start, stop in list(self._gaps(since)):
                self._separate_assistants(start, stop)
        first = self.history.units[since].start if since else 0
        earlier = [note for note in self.notes if note.at < first]
        self.clear_notes()
        self.notes = earlier + self._write_notes(since)
        self.tokens += sum(note.tokens for note in self.notes)
        self._has_new_gaps = False

    def clear_notes(self) -> None:
        """Remove the notes; `repair_gaps` writes them again."""
        self.tokens -= sum(note.tokens for note in self.notes)
        self.notes = []
        self._has_new_gaps = True

    def remove_optional_notes(self) -> None:
        """Keep only the notes that a rule requires."""
        self.optional_notes = False
        self.clear_notes()
        self.repair_gaps()

    def set_summary(self, summary: str) -> None:
        """Add a summary of the dropped messages to the first note; an empty text removes it."""
        if summary != self._summary:
            self._summary = summary
            self.clear_notes()
            self.repair_gaps()

    def _gaps(self, stop: int = 0) -> Iterator[UnitRun]:
        """Yield the runs of dropped units, from `stop` on."""
        while (start := self._kept.find(0, stop)) >= 0:
            stop = self._kept.find(_KEPT, start)
            stop = len(self._kept) if stop < 0 else stop
            yield UnitIndex(start), UnitIndex(stop)

    def _separate_assistants(self, start: int, stop: int) -> None:
        """Drop plain assistant messages before a gap that ends at another assistant message."""
        units = self.history.units
        if stop == len(self._kept) or units[stop].role != "assistant":
            return
        while start > 0 and units[start - 1].is_plain and start - 1 not in self.required:
            self._drop_run(start - 1, start, "would be next to another assistant message")
            start = self._kept.rfind(_KEPT, 0, start) + 1

    def _write_notes(self, since: int) -> list[Note]:
        """Return the notes at the gaps from unit `since` on.

        A gap without a place for a note is added to the note before it; if it is the first, to
        the next. After a trim it is not: that note has been sent already.
        """
        gaps: list[_Gap] = []
        may_merge = self.optional_notes and not since
        for run in self._gaps(since):
            gap = self._measure_gap(*run)
            last = gaps[-1].place if gaps else None
            shares = gap.place[0] == last[0] if gap.place and last else may_merge
            if gaps and shares:
                gap = gaps.pop().merge(gap)
            if gap.place or (may_merge and gap.tasks):
                gaps.append(gap)
        texts = list(map(self._write_gap_note, gaps))
        if texts and not since and self._summary:
            texts[0] += f"\n{self._summary}"
        return [
            self._build_note(*gap.place, text)
            for gap, text in zip(gaps, texts, strict=True)
            if gap.place
        ]

    def _write_gap_note(self, gap: _Gap) -> str:
        if self._brief:
            return brief_gap_note(gap.messages)
        tasks = self._name_tasks(gap)
        if not self._recall_hint or not self.optional_notes:
            return gap_note(gap.messages, gap.tokens, tasks)
        key = gap.first, gap.last
        if (names := self._names.get(key)) is None:
            names = self._names[key] = self._find_names(gap)
        return range_note(gap.first, gap.last, gap.tokens, tasks, names, self._hint)

    @cached_property
    def _hint(self) -> str:
        """The hint with the id of what was trimmed, which stays the same until the next trim."""
        hint = self._recall_hint
        if ID not in hint:
            return hint
        return fill_id(hint, compute_id(self.history.messages[: self.view.messages]))

    def _find_names(self, gap: _Gap) -> list[str]:
        """Return the most distinctive names in what is missing at a gap."""
        messages, count = self.history.messages, self.history.counter.text
        step = 1
        while gap.last - gap.first >= NAMED_MESSAGES * step:
            step *= 3  # the next, larger gap then reads the same messages, of both speakers
        read = messages[gap.first + -gap.first % step : gap.last + 1 : step]
        missing = (message for message in read if message.role != "system")
        found = find_names(text for message in missing for text in read_texts(message))
        while found and count(", ".join(found)) > NAME_TOKENS:
            found.pop()
        return found

    def _measure_gap(self, start: UnitIndex, stop: UnitIndex) -> _Gap:
        first, last = self._span(start, stop)
        return _Gap(
            self._find_note_place(start, stop),
            first,
            last - 1,
            self.history.count_turns(first, last),
            self.history.tokens_between(first, last),
            frozenset() if self._brief else self._find_tasks(start, stop),
            stop <= self._task_start,
        )

    def _find_tasks(self, start: UnitIndex, stop: UnitIndex) -> frozenset[UnitIndex]:
        """Return the finished tasks of which units from `start` up to `stop` are a part."""
        tasks = self.history.task_units
        covered = tasks[max(0, bisect_right(tasks, start) - 1) : bisect_left(tasks, stop)]
        return frozenset(task for task in covered if task < self._task_start)

    def _name_tasks(self, gap: _Gap) -> str:
        """Return a phrase with the names of the newest finished tasks that a gap covers."""
        if not self.optional_notes or not gap.tasks:
            return ""
        history, newest = self.history, sorted(gap.tasks)[-NAMED_TASKS:]
        texts = [" ".join(history.messages[history.units[unit].start].words) for unit in newest]
        for length in TASK_NAME_LENGTHS:
            names = name_tasks(len(gap.tasks), texts, length, is_all=gap.is_finished)
            if history.counter.text(names) <= TASK_NAME_TOKENS:
                break
        return names

    def _find_note_place(
        self, start: UnitIndex, stop: UnitIndex
    ) -> tuple[MessageIndex, _NoteRole] | None:
        """Return where the note at a gap goes and its role; None if there is no note.

        Two user or two assistant messages need one between them. An optional note ends the
        message before the gap, if that is not required.
        """
        if stop == len(self._kept):
            return None
        after = self.history.units[stop]
        if start == 0 and self._brief and after.role == "assistant":
            return after.start, "user"
        if start == 0:
            return self._find_task_after(stop)
        before = self.history.units[start - 1]
        if before.role == after.role == "user":
            return after.start, "assistant"
        if before.is_plain and after.role == "assistant":
            return after.start, "user"
        last = UnitIndex(start - 1)
        is_allowed = last not in self.required or self._may_end_with_summary(last)
        has_valid = not all(self.history.units[unit].defect for unit in range(start, stop))
        if self.optional_notes and is_allowed and has_valid:
            return before.last, "paragraph"
        return None

    def _find_task_after(self, stop: UnitIndex) -> tuple[MessageIndex, _NoteRole] | None:
        """Return the place of a note about the first tasks: the user message of the next one."""
        is_finished = self.optional_notes and stop <= self._task_start
        is_allowed = stop not in self.required or self._may_end_with_summary(stop)
        if is_finished and is_allowed and self.history.units[stop].role == "user":
            return self.history.units[stop].start, "paragraph"
        return None

    def _may_end_with_summary(self, unit: UnitIndex) -> bool:
        """Return whether a required unit may end with a summary.

        Only the last user message at the time of the trim: an agent's run often has no other.
        """
        pinned = any(map(self.history.is_pinned, self.history.members(unit)))
        return bool(self._summary) and unit == self._last_user and not pinned

    def _build_note(self, at: int, role: _NoteRole, text: str) -> Note:
        count = self.history.counter.message
        if role == "paragraph":
            tokens = count(self.message(at).with_paragraph(text)) - self.message_tokens(at)
        else:
            tokens = count(Message(role, words=(text,)))
        return Note(text, tokens, at, role)

    # Growing, while no trim is due

    def extend(self, point: RequestPoint) -> None:
        """Add the messages up to a later point; drop defective ones, but nothing else."""
        before = self.view
        if point.messages == before.messages:
            return
        self.view = before.at(point)
        sums = self.history.token_sums
        self.tokens += sums[point.messages] - sums[before.messages]
        self._kept.extend(_KEPT * (point.units - before.units))
        if self.history.defective_units:
            self._summary = ""
        self.required = self._required_at_trim | self.view.required_units()
        for unit in self.view.defective_units(since=before.units - 1):
            self._drop_run(unit, unit + 1, self.history.units[unit].defect)
        if self._kept.find(0, self.trimmed_units) >= 0:
            self._has_new_gaps = True
            self.repair_gaps(since=self.trimmed_units)

    # Result

    def dropped_runs(self) -> list[DroppedRun]:
        """Return the runs of messages that are dropped, in order."""
        runs = sorted(self._dropped)
        return [DroppedRun(*self._span(start, stop), reason) for start, stop, reason in runs]

    def sent_indices(self) -> list[int]:
        """Return the messages that are sent, in order."""
        sent: list[int] = []
        done = 0
        for start, stop in self._gaps():
            first, last = self._span(start, stop)
            sent.extend(range(done, first))
            sent.extend(self.history.systems_between(first, last))
            done = last
        sent.extend(range(done, self.view.messages))
        if not self.history.skipped_messages:
            return sent
        skipped = set(self.history.skipped_messages)
        return [index for index in sent if index not in skipped]
