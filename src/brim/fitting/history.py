"""History and HistoryView: messages grouped into units, and what a trim sees of them.

A *unit* is the smallest thing that can be dropped: a step (an assistant message with the results
of the tools that it called) or any other message. System messages belong to no unit: they are
always sent, and units are neighbours across them. A tool result belongs to the nearest assistant
message with calls before it. A result elsewhere is an orphan, and a step that the conversation
left before all results arrived has unanswered calls; both are *defects*.

A history only grows, and everything here depends only on earlier messages: what is true of a
prefix stays true. Most histories fit as they are and only need counts, so messages are grouped
into units when the first trim needs them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple, NewType, TypeAlias, cast

from brim.fitting.clip import ClipCache, reports_error
from brim.fitting.message_search import MessageSearch
from brim.fitting.search import PassageCache
from brim.messages import Message
from brim.tokens import Counter
from brim.wire.notes import MASK, is_marked

MessageIndex = NewType("MessageIndex", int)
"""A position among the messages of a history."""
UnitIndex = NewType("UnitIndex", int)
"""A position among the units of a history."""
NO_UNIT: Final = UnitIndex(-1)
"""In place of an index: there is no such unit."""

ORPHAN: Final = "a result without its call"
UNANSWERED: Final = "a call without its result"
TASK_STEPS: Final = 4
"""The average number of steps from which on the exchanges before the last are finished tasks."""
STEP_TEXT: Final = 400
"""The tokens that the text of an earlier step of a task is clipped to; its calls stay whole."""
NEWEST_OUTPUTS: Final = 3
"""The number of newest outputs that are protected, if they take at most a quarter of the limit."""

_ROLE: Final = attrgetter("role")
_CALLS: Final = attrgetter("calls")
_IS_SKIPPED: Final = attrgetter("skipped")


class RequestPoint(NamedTuple):
    """A place in the history at which a request may have been sent."""

    messages: MessageIndex
    """The number of messages before it."""
    units: UnitIndex
    """The number of units before it."""


_Indices: TypeAlias = "list[MessageIndex]"


class CountedMessages:
    """Messages with their token counts, without the counter: a value, and a part of each plan.

    The lists belong to a history that only grows; a value is its first `length` messages.
    """

    def __init__(
        self,
        messages: list[Message],
        token_sums: list[int],
        system_messages: list[MessageIndex],
        skipped_messages: list[MessageIndex],
        length: int | None = None,
        passage_cache: PassageCache | None = None,
    ) -> None:
        self.messages = messages
        self.token_sums = token_sums
        """Running totals: messages i up to j take `token_sums[j] - token_sums[i]` tokens."""
        self.system_messages = system_messages
        """The system messages; those of a history, as far as it is grouped."""
        self.skipped_messages = skipped_messages
        """The messages that are never sent: empty replies."""
        self._length = length
        self.passage_cache = passage_cache or PassageCache()
        """For searches; a history shares it with its values."""

    def __len__(self) -> int:
        return len(self.messages) if self._length is None else self._length

    def _copy_lists(self) -> tuple[list[Message], list[int], _Indices, _Indices]:
        length = len(self)
        systems, skipped = self.system_messages, self.skipped_messages
        return (
            self.messages[:length],
            self.token_sums[: length + 1],
            systems[: bisect_left(systems, length)],
            skipped[: bisect_left(skipped, length)],
        )

    def __reduce__(self) -> tuple[object, ...]:
        return CountedMessages, (*self._copy_lists(), len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CountedMessages):
            return NotImplemented
        return self is other or self._copy_lists()[:2] == other._copy_lists()[:2]

    __hash__ = None  # type: ignore[assignment]  # it grows

    def first(self, length: int) -> CountedMessages:
        """Return the first messages as a value."""
        lists = self.messages, self.token_sums, self.system_messages, self.skipped_messages
        return CountedMessages(*lists, length, self.passage_cache)

    def is_of(self, history: CountedMessages) -> bool:
        """Whether these are the first messages of a history."""
        return self.messages is history.messages

    def tokens(self, index: int) -> int:
        """Return the tokens of a message."""
        return self.token_sums[index + 1] - self.token_sums[index]

    def systems_between(self, start: int, stop: int) -> list[MessageIndex]:
        """Return the system messages from `start` up to `stop`."""
        systems = self.system_messages
        return systems[bisect_left(systems, start) : bisect_left(systems, stop)]

    def count_turns(self, start: int, stop: int) -> int:
        """Return the number of messages that are neither system nor skipped messages."""
        skipped = self.skipped_messages
        count = stop - start - len(self.systems_between(start, stop))
        return count - (bisect_left(skipped, stop) - bisect_left(skipped, start))


def unit_range(start: int, stop: int) -> Sequence[UnitIndex]:
    """Return the units from `start` up to `stop`."""
    return cast("Sequence[UnitIndex]", range(start, stop))


class Unit:
    """A step, or a message outside of steps. A step grows until its calls are answered."""

    __slots__ = ("defect", "last", "pending", "priority", "role", "start", "steps", "user")

    def __init__(self, start: MessageIndex, message: Message, user: UnitIndex, steps: int) -> None:
        self.start = start
        """Its first message."""
        self.last = start
        """Its last message; system messages may lie between."""
        self.role = message.role
        self.user = user
        """The user unit that it answers, `NO_UNIT` before the first; a user unit is its own."""
        self.steps = steps
        """The number of steps that call tools, up to and including this unit."""
        self.pending = [call.id for call in message.calls] if message.calls else []
        """The IDs of its calls that have no result yet."""
        self.priority = message.priority
        self.defect = ""
        """Why a provider would reject it; empty if it is well formed."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a single assistant message, without results."""
        return self.role == "assistant" and self.last == self.start


class History(CountedMessages):
    """The messages of a conversation with their token counts. It only grows.

    Attributes that refer to units are valid after `group()`, for the messages added before it.
    """

    def __init__(self, counter: Counter, pins: Iterable[int] = (), mask: str = MASK) -> None:
        super().__init__([], [0], [], [])
        self.counter = counter
        self.mask = mask
        """The text that replaces a masked output."""
        self.has_steps = False
        """Whether there are calls or results; only these can be defective."""
        self.pins = frozenset(pins)
        """The messages that the caller pinned by index."""
        self.unit_of: list[UnitIndex] = []
        """The unit of each grouped message; `NO_UNIT` for system and skipped messages."""
        self.unknown_roles: list[int] = []
        """The messages whose role is unknown."""

    def _begin_groups(self) -> None:
        self.system_token_sums: list[int] = [0]
        """Running totals of the system messages alone."""
        self.output_tokens: list[int] = []
        """Tokens of each message's tool outputs."""
        self.output_messages: list[MessageIndex] = []
        """The messages with tool output."""
        self.marked_messages: set[MessageIndex] = set()
        """The messages whose text was clipped or masked by brim before."""
        self.long_texts: dict[MessageIndex, int] = {}
        """The tokens of the texts of steps that are long enough to be clipped."""
        self._errors: dict[MessageIndex, bool] = {}
        self.thinking_messages: list[MessageIndex] = []
        self.units: list[Unit] = []
        self.user_units: list[UnitIndex] = []
        self.task_units: list[UnitIndex] = []
        """The user units that begin an exchange: not the text that follows results."""
        self.defective_units: list[UnitIndex] = []
        self.pinned_units: list[UnitIndex] = []
        """The units with a pinned message."""
        self.request_points: list[RequestPoint] = []
        self.prioritized_messages: list[MessageIndex] = []
        """The messages with a priority other than 0."""

    @cached_property
    def clip_cache(self) -> ClipCache:
        return ClipCache(self.counter)

    @cached_property
    def _search(self) -> MessageSearch:
        return MessageSearch()

    def rank_units(self, query: str, stop: int) -> Sequence[UnitIndex]:
        """Return the units before message `stop` that match a query, best first.

        Each message is read once.
        """
        self._search.extend(self.messages)
        return cast("Sequence[UnitIndex]", self._search.rank_units(query, stop, self.unit_of))

    @property
    def end(self) -> RequestPoint:
        """The point after the last message."""
        self.group()
        return RequestPoint(MessageIndex(len(self.messages)), UnitIndex(len(self.units)))

    @property
    def turn_count(self) -> int:
        """The number of messages, not counting system and skipped messages."""
        self.group()
        return self.count_turns(0, len(self.messages))

    @property
    def sendable(self) -> Sequence[int]:
        """All messages except skipped ones."""
        indices = range(len(self.messages))
        if not self.skipped_messages:
            return indices
        skipped = set(self.skipped_messages)
        return [index for index in indices if index not in skipped]

    def tokens_between(self, start: int, stop: int) -> int:
        """Return the tokens of the messages from `start` up to `stop`, without system messages."""
        tokens = self.token_sums[stop] - self.token_sums[start]
        return tokens - (self.system_token_sums[stop] - self.system_token_sums[start])

    def unit_tokens(self, unit: UnitIndex) -> int:
        return self.tokens_between(self.units[unit].start, self.units[unit].last + 1)

    def unit_tokens_between(self, start: UnitIndex, stop: UnitIndex) -> int:
        """Return the tokens of the units from `start` up to `stop`, which must exist."""
        return self.tokens_between(self.units[start].start, self.units[stop].start)

    def members(self, unit: UnitIndex) -> list[int]:
        """Return the messages of a unit."""
        start, stop = self.units[unit].start, self.units[unit].last + 1
        return [index for index in range(start, stop) if self.unit_of[index] == unit]

    def find_user(self, unit: int) -> UnitIndex | None:
        """Return the first user unit from `unit` on; None if there is none."""
        place = bisect_left(self.user_units, unit)
        return self.user_units[place] if place < len(self.user_units) else None

    def age(self, index: int, units: int) -> int:
        """Return the number of steps after the step of a message, within the first `units`."""
        return self.units[units - 1].steps - self.units[self.unit_of[index]].steps

    def is_pinned(self, index: int) -> bool:
        return self.messages[index].pin or index in self.pins

    def reports_error(self, index: MessageIndex) -> bool:
        """Return whether the output of a message reports an error."""
        known = self._errors.get(index)
        if known is None:
            known = any(map(reports_error, self.messages[index].outputs))
            self._errors[index] = known
        return known

    def extend(self, messages: Sequence[Message]) -> None:
        """Add messages; none of them if one cannot be counted."""
        count = self.counter.message
        counts: Iterable[int] = map(count, messages)
        has_skipped = any(map(_IS_SKIPPED, messages))
        if has_skipped:
            counts = [0 if message.skipped else count(message) for message in messages]
        self.token_sums[-1:] = accumulate(counts, initial=self.token_sums[-1])
        if has_skipped:
            skipped = (i for i, message in enumerate(messages, len(self)) if message.skipped)
            self.skipped_messages += map(MessageIndex, skipped)
        roles = {*map(_ROLE, messages)}
        if "other" in roles:
            numbered = enumerate(messages, len(self))
            self.unknown_roles += [index for index, message in numbered if message.role == "other"]
        self.messages += messages
        if not self.has_steps:
            self.has_steps = "tool" in roles or any(map(_CALLS, messages))

    def group(self) -> None:
        """Group the messages added since the last call into units."""
        if not self.unit_of:
            self._begin_groups()
        new = range(len(self.unit_of), len(self.messages))
        for index in cast("Sequence[MessageIndex]", new):
            self._group_message(index, self.messages[index])

    def _group_message(self, index: MessageIndex, message: Message) -> None:
        role, system_tokens = message.role, self.system_token_sums[-1]
        if role == "system":
            system_tokens += self.tokens(index)
        self.system_token_sums.append(system_tokens)
        if message.skipped:
            self.output_tokens.append(0)
            self.unit_of.append(NO_UNIT)
            return
        if message.is_text_only and not message.priority:
            self.output_tokens.append(0)
        else:
            self._index_parts(index, message)
        if role == "system":
            self.system_messages.append(index)
            self.unit_of.append(NO_UNIT)
        elif role == "tool":
            self._add_result(index, message)
        else:
            self._begin_unit(index, message)
            if role == "user":
                self._add_request_point(index)

    def _index_parts(self, index: MessageIndex, message: Message) -> None:
        """Record which parts that a pass may look for a message has."""
        tokens = 0
        if message.outputs:
            for text in message.outputs:
                tokens += self.counter.text(text)
                if is_marked(text, self.mask):
                    self.marked_messages.add(index)
            self.output_messages.append(index)
        elif message.has_step_text and len(message.words[0]) > STEP_TEXT:
            self._index_step_text(index, message.words[0])
        self.output_tokens.append(tokens)
        if message.thinking:
            self.thinking_messages.append(index)
        if message.priority:
            self.prioritized_messages.append(index)

    def _index_step_text(self, index: MessageIndex, text: str) -> None:
        if is_marked(text, self.mask):
            self.marked_messages.add(index)
        elif (tokens := self.counter.text(text)) > STEP_TEXT:
            self.long_texts[index] = tokens

    def _add_result(self, index: MessageIndex, message: Message) -> None:
        unit = self.units[-1] if self.units else None
        if unit is None or message.answers not in unit.pending:
            self._begin_unit(index, message, defect=ORPHAN)
            return
        unit.pending.remove(message.answers)
        unit.last = index
        unit.priority = max(unit.priority, message.priority)
        number = UnitIndex(len(self.units) - 1)
        self.unit_of.append(number)
        if self.is_pinned(index) and self.pinned_units[-1:] != [number]:
            self.pinned_units.append(number)
        if not unit.pending:
            self._add_request_point(index)

    def _add_request_point(self, index: MessageIndex) -> None:
        point = RequestPoint(MessageIndex(index + 1), UnitIndex(len(self.units)))
        self.request_points.append(point)

    def _begin_unit(self, index: MessageIndex, message: Message, defect: str = "") -> None:
        number = UnitIndex(len(self.units))
        before = self.units[-1] if self.units else None
        if before is not None and before.pending and not before.defect:
            before.defect = UNANSWERED
            self.defective_units.append(UnitIndex(number - 1))
        user = number if message.role == "user" else before.user if before else NO_UNIT
        steps = (before.steps if before else 0) + bool(message.calls)
        unit = Unit(index, message, user, steps)
        self.units.append(unit)
        self.unit_of.append(number)
        if message.role == "user":
            self.user_units.append(number)
            if not message.follows_results:
                self.task_units.append(number)
        if defect:
            unit.defect = defect
            self.defective_units.append(number)
        if message.pin or index in self.pins:
            self.pinned_units.append(number)


class HistoryView:
    """A history up to a point, and the room for it: all that a trim depends on. It is a value.

    What every trim reads is computed once: `benchmarks.scale`.
    """

    __slots__ = (
        *("base", "first_user", "history", "is_chat", "keep_recent", "last_user", "limit"),
        *("messages", "open_unit", "task_start", "units"),
    )

    def __init__(
        self, history: History, point: RequestPoint, base: int, limit: int, keep_recent: int
    ) -> None:
        self.history = history
        self.messages, self.units = point
        """The number of messages and of units."""
        self.base = base
        """Tokens of the request's framing, its tools and its separate system text."""
        self.limit = limit
        self.keep_recent = keep_recent
        users = history.user_units
        place = bisect_left(users, self.units) - 1
        self.first_user = users[0] if place >= 0 else NO_UNIT
        """The first user unit, or `NO_UNIT`."""
        self.last_user = users[place] if place >= 0 else NO_UNIT
        """The last user unit, or `NO_UNIT`."""
        self.open_unit = self._find_open_unit()
        """The last step, if the model has not replied to it yet; otherwise `NO_UNIT`."""
        exchanges = bisect_left(history.task_units, self.units) - 1
        self.task_start = self._find_task_start(exchanges)
        """The first unit of the current task; 0 if no finished tasks precede it."""
        self.is_chat = exchanges > 0 and not self.task_start
        """Whether there are several exchanges that are not tasks."""

    def _find_open_unit(self) -> UnitIndex:
        """User text in the same message as the results leaves the step open: clients add reminders
        there, and the model has not seen the results either.
        """
        units, last = self.history.units, self.units - 1
        if last > 0 and self.history.messages[units[last].start].follows_results:
            step = units[last - 1]
            if step.user >= 0 and not step.defect:
                last -= 1
        return UnitIndex(last) if last >= 0 and units[last].role == "assistant" else NO_UNIT

    def _find_task_start(self, exchanges: int) -> UnitIndex:
        """In a chat, with fewer steps per exchange, early messages state facts and do not finish.

        Priorities take precedence over tasks.
        """
        if exchanges < 1 or self.has_priorities:
            return UnitIndex(0)
        last = self.history.task_units[exchanges]
        return last if self.history.units[last].steps >= TASK_STEPS * exchanges else UnitIndex(0)

    @property
    def point(self) -> RequestPoint:
        return RequestPoint(self.messages, self.units)

    def at(self, point: RequestPoint) -> HistoryView:
        """Return the same view of another point."""
        return HistoryView(self.history, point, self.base, self.limit, self.keep_recent)

    def within(self, limit: int) -> HistoryView:
        """Return the same view with another limit."""
        return HistoryView(self.history, self.point, self.base, limit, self.keep_recent)

    @property
    def tokens(self) -> int:
        """Tokens of a request with all messages."""
        return self.base + self.history.token_sums[self.messages]

    @property
    def has_priorities(self) -> bool:
        """Whether any message has a priority other than 0."""
        prioritized = self.history.prioritized_messages
        return bool(prioritized) and prioritized[0] < self.messages

    @property
    def last_users(self) -> set[UnitIndex]:
        """The last user unit and, if it is another, the one that the open step answers."""
        step = self.open_unit
        return {self.last_user, self.history.units[step].user if step >= 0 else NO_UNIT} - {NO_UNIT}

    def required_units(self) -> set[UnitIndex]:
        """Return the units that are never dropped: pins, last user, open step, last unit."""
        history, last = self.history, UnitIndex(self.units - 1)
        required = {*self.last_users, self.open_unit, last}
        if history.pinned_units:
            pinned = history.pinned_units[: bisect_left(history.pinned_units, self.units)]
            required.update(pinned, self.users_of(pinned))
        return required.difference((NO_UNIT,), self.defective_units(since=last))

    def _is_pinned(self, unit: UnitIndex) -> bool:
        pinned = self.history.pinned_units
        place = bisect_left(pinned, unit)
        return place < len(pinned) and pinned[place] == unit

    def invalid_units(self) -> set[UnitIndex]:
        """Return the units that a provider would reject: defects, and units before a user's."""
        if self.first_user <= 0 and not self.history.defective_units:
            return set()
        before_user = unit_range(0, max(self.first_user, 0))
        unpinned = (unit for unit in before_user if not self._is_pinned(unit))
        return {*self.defective_units(), *unpinned}

    def defective_units(self, since: int = 0) -> list[UnitIndex]:
        """Return the results without call and the calls without result, except pinned ones."""
        if not (defective := self.history.defective_units):
            return []
        defective = defective[bisect_left(defective, since) : bisect_left(defective, self.units)]
        return [unit for unit in defective if not self._is_pinned(unit)]

    def users_of(self, units: Iterable[UnitIndex]) -> list[UnitIndex]:
        """Return the user units that stay because their answers do."""
        users = (self.history.units[unit].user for unit in units)
        return [user for user in users if user >= 0]

    def newest_outputs(self) -> list[MessageIndex]:
        """Return the messages with the newest outputs that take at most a quarter of the limit."""
        history = self.history
        if not history.output_messages:
            return []
        newest: list[MessageIndex] = []
        room = self.limit // 4
        place = bisect_left(history.output_messages, self.messages)
        while place > 0 and len(newest) < NEWEST_OUTPUTS:
            place -= 1
            index = history.output_messages[place]
            unit = history.unit_of[index]
            if history.units[unit].defect or unit < self.first_user:
                continue  # dropped in any case
            room -= history.output_tokens[index]
            if room < 0:
                break
            newest.append(index)
        return newest

    def protected_units(self, invalid: Collection[UnitIndex]) -> set[UnitIndex]:
        """Return the units dropped last: those of the newest outputs and the recent ones."""
        recent = self.recent_units(invalid)
        if not (newest := self.newest_outputs()):
            return recent
        units = {self.history.unit_of[index] for index in newest}
        return recent | self._with_users(units.difference(invalid), invalid)

    def recent_units(self, invalid: Collection[UnitIndex]) -> set[UnitIndex]:
        """Return the last `keep_recent` units and the user units that they answer."""
        if not self.keep_recent:
            return set()
        recent = unit_range(max(0, self.units - self.keep_recent), self.units)
        return self._with_users({*recent} - {*invalid}, invalid)

    def _with_users(self, units: set[UnitIndex], invalid: Collection[UnitIndex]) -> set[UnitIndex]:
        return units | {user for user in self.users_of(units) if user not in invalid}
