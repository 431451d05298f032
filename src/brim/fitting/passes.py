"""Passes: each makes a draft smaller in one way and records why.

A pass is a function that changes a draft. `run_passes` applies passes in order until the draft
reaches its target, so their order is the policy: the cheapest loss first. Most passes work item
by item, oldest first, and stop when the target is reached. Configure a pass with
`functools.partial`, or write your own with the methods of `Draft`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from brim.fitting.clip import LARGEST_MARK
from brim.fitting.draft import NAME_TOKENS, Draft
from brim.fitting.history import STEP_TEXT, MessageIndex, UnitIndex
from brim.fitting.trim import DroppableUnits, Trim, count_held, find_oldest_runs
from brim.tokens import Counter
from brim.wire.notes import fill_id, fill_mask, gap_note, range_note

Pass = Callable[[Draft], None]

CLIP_ROUNDS: Final = (1_000, 500, 250, 60)
"""In a chat: the tokens that old outputs are clipped to, one round after the other."""
_LARGEST_NOTE: Final = gap_note(1_000_000, 1_000_000_000)


def run_passes(draft: Draft, passes: Sequence[Pass], *, first: Sequence[Pass] = ()) -> None:
    """Apply passes in order until the target is reached; those of `first` in any case.

    Units that a provider would reject are dropped before.
    """
    for unit in sorted(draft.view.invalid_units()):
        defect = draft.history.units[unit].defect
        draft.drop_unit(unit, defect or "before the first user message")
    for apply in first:
        apply(draft)
    for apply in passes:
        draft.repair_gaps()
        if draft.excess <= 0:
            break
        apply(draft)
    draft.repair_gaps()


def drop_thinking(draft: Draft) -> None:
    """Remove the thinking of earlier steps; that of the open step is never changed."""
    for index in draft.old_thinking:
        if draft.excess <= 0:
            return
        message = draft.message(index).without_thinking()
        draft.change(index, message, "clipped", "thinking of an earlier step")


# Dropping units


def count_gap_note(counter: Counter, recall_hint: str = "") -> int:
    """Return the most tokens that the note at a gap takes, without a summary."""
    if recall_hint:
        largest = range_note(1_000_000, 1_000_000, 1_000_000_000, "", (), fill_id(recall_hint))
        return counter.text(largest) + NAME_TOKENS + 8
    return counter.text(_LARGEST_NOTE) + 8


def count_clip_mark(counter: Counter) -> int:
    """Return the most tokens that the mark of a clipped output takes."""
    return counter.text(LARGEST_MARK)


def drop_trimmed(draft: Draft, trim: Trim) -> None:
    """Drop the units that a trim chose: finished tasks, and the middle of the rest."""
    start = trim.view.task_start
    rest = "middle of the history" if trim.view.is_chat else "middle of the current task"
    for run in trim.dropped:
        draft.drop_runs([run], "finished task" if run[1] <= start else rest)
    if trim.released:
        draft.release()


def drop_unavoidable(draft: Draft) -> None:
    """Drop the oldest units that would not fit even if all outputs were masked."""
    if draft.view.has_priorities:
        return
    invalid, recent = draft.view.invalid_units(), draft.recent_units()
    held = (draft.required | recent) - invalid
    units = DroppableUnits(draft.floors, draft.view.units, held, invalid)
    least = count_held(draft.view, draft.floors, held, recent) + units.total
    if least > draft.target:
        runs = find_oldest_runs(draft.history, units, least - draft.target)
        draft.drop_runs(runs, "oldest first")


def drop_oldest(draft: Draft) -> None:
    """Drop units, oldest first; a user unit goes with the last of its answers."""
    _drop_until(lambda: draft.excess <= 0, draft, draft.recent_units(), "oldest first")


def drop_turns(draft: Draft, most: int) -> None:
    """Drop the oldest units until at most `most` turns remain; required units stay."""
    _drop_until(lambda: draft.turn_count <= most, draft, (), f"more than {most} turns")


def _drop_until(
    is_done: Callable[[], bool], draft: Draft, held: Collection[UnitIndex], reason: str
) -> None:
    """Drop units in order until done. The notes at the gaps are written only near the end."""
    units = draft.history.units
    is_near = False
    draft.clear_notes()
    for unit in draft.droppable_units(held):
        is_near = is_near or is_done()
        if is_near:
            draft.repair_gaps()
            if is_done():
                return
        user = units[unit].user
        if unit == user and draft.has_answers(unit):
            continue
        draft.drop_unit(unit, reason)
        if 0 <= user != unit and user not in held and not draft.has_answers(user):
            draft.drop_unit(user, reason)


def relax_to_limit(draft: Draft) -> None:
    """Aim for the limit instead of the low-water mark, without optional notes if needed."""
    draft.target = draft.limit
    if draft.excess > 0:
        draft.remove_optional_notes()


def release_protected(draft: Draft) -> None:
    """Allow later passes to drop and change protected units."""
    draft.release()


# Clipping and masking outputs


def clip_large(draft: Draft, over: int = 2_000) -> None:
    """Clip outputs of more than `over` tokens to that size."""
    for index in draft.old_outputs:
        if draft.excess <= 0:
            return
        size = draft.output_tokens(index)
        if size > over:
            draft.clip(index, max(over, size - draft.excess), f"output over {over:,} tokens")


def mask_old(
    draft: Draft, after: int = 5, smallest: int = 100, *, keep_errors: bool = True
) -> None:
    """Mask outputs from more than `after` steps ago, except small ones and reported errors."""
    for index in draft.old_outputs:
        if draft.excess <= 0:
            return
        if draft.history.age(index, draft.view.units) <= after:
            continue
        if draft.output_tokens(index) < smallest:
            continue
        if keep_errors and draft.history.reports_error(index):
            continue
        _mask(draft, index, f"output of more than {after} steps ago")


def mask_rest(draft: Draft) -> None:
    """Mask all other outputs, those that report an error last."""
    errors = []
    for index in draft.old_outputs:
        if draft.excess <= 0:
            return
        if draft.history.reports_error(index):
            errors.append(index)
        else:
            _mask(draft, index, "output of an earlier step")
    for index in errors:
        if draft.excess <= 0:
            return
        _mask(draft, index, "output of an earlier step that reports an error")


def _mask(draft: Draft, index: MessageIndex, reason: str) -> None:
    """Mask an output, or clip it if that is enough to reach the target."""
    history = draft.history
    change = draft.changes.get(index)
    if change is not None and change.outcome == "masked":
        return
    age = history.age(index, draft.view.units)
    text = fill_mask(history.mask, age, history.output_tokens[index])
    room = draft.output_tokens(index) - draft.excess
    if room > history.counter.text(text):
        draft.clip(index, room, reason, close=0.98)
    if draft.excess > 0:
        draft.replace_outputs(index, text, "masked", reason)


def remove_repeats(draft: Draft, *, then_clip: bool = True) -> None:
    """Remove lines that a later output repeats, then clip as `clip_old` does.

    The tokens of a text without its repeated lines are estimated from its length, so that only
    the text that stays is ever counted.
    """
    outputs = draft.old_outputs
    sizes = {index: draft.output_tokens(index) for index in outputs}
    shorter = {}
    excess = draft.excess
    for index, text in _find_repeats(draft, outputs):
        guess = sizes[index] * len(text) // max(1, sum(map(len, draft.message(index).outputs)))
        excess -= sizes[index] - guess
        sizes[index] = guess
        shorter[index] = text
        if excess <= 0:
            break
    caps = _choose_caps(draft, sizes, excess) if then_clip else {}
    for index, text in shorter.items():
        if index not in caps:
            draft.replace_outputs(index, text, "clipped", "lines repeated later")
    _clip_to(draft, caps, shorter)


def _find_repeats(
    draft: Draft, outputs: Sequence[MessageIndex]
) -> Iterator[tuple[MessageIndex, str]]:
    """Yield the outputs with lines that a later output repeats, without these lines."""
    repeated = {}
    later: set[str] = set()
    for index in reversed(draft.kept_outputs):
        own = draft.output_lines(index).significant
        if not own.isdisjoint(later):
            repeated[index] = own & later
        later |= own
    for index in outputs:
        if index in repeated:
            text = draft.output_lines(index).without(repeated[index])
            if text is not None:
                yield index, text


def clip_old(draft: Draft) -> None:
    """Clip old outputs, and in a task also the long texts of old steps.

    In a chat, whose outputs state facts, all of them keep some text: they are clipped in rounds.
    In a task the clips that save the most come first, an output to a mark and a text to
    `STEP_TEXT` tokens, so that small ones stay whole.
    """
    sizes = {index: draft.output_tokens(index) for index in draft.old_outputs}
    _clip_to(draft, _choose_caps(draft, sizes, draft.excess), {})


def _clip_to(
    draft: Draft, caps: Mapping[MessageIndex, int], texts: Mapping[MessageIndex, str]
) -> None:
    """Clip messages to their caps, the last one only as far as needed."""
    if not caps:
        return
    *others, last = caps
    for index in others:
        draft.clip(index, caps[index], _clip_reason(draft, index), text=texts.get(index))
    room = max(draft.clippable_tokens(last) - draft.excess, caps[last])
    draft.clip(last, room, _clip_reason(draft, last), text=texts.get(last), close=0.85)


def _clip_reason(draft: Draft, index: MessageIndex) -> str:
    return "long text of an old step" if index in draft.history.long_texts else "old output"


def _choose_caps(
    draft: Draft, outputs: Mapping[MessageIndex, int], excess: int
) -> dict[MessageIndex, int]:
    """Return the cap of each message to clip; the one that reaches the target comes last.

    `outputs` are the sizes of the outputs that may be clipped.
    """
    now = dict(outputs)
    if draft.view.is_chat:
        clips = [(index, cap) for cap in CLIP_ROUNDS for index in now]
    else:
        now |= {index: draft.clippable_tokens(index) for index in draft.old_texts}
        clips = _order_task_clips(draft, now)
    chosen: dict[MessageIndex, int] = {}
    for index, cap in clips:
        if excess <= 0:
            break
        if now[index] > cap:
            excess -= now[index] - cap
            now[index] = cap
            chosen.pop(index, None)
            chosen[index] = cap
    return chosen


def _order_task_clips(
    draft: Draft, sizes: Mapping[MessageIndex, int]
) -> list[tuple[MessageIndex, int]]:
    """Return the caps of the messages of a task, lowest priority and largest saving first."""
    history, mark = draft.history, count_clip_mark(draft.history.counter)
    caps = {index: STEP_TEXT if index in history.long_texts else mark for index in sizes}

    def key(index: MessageIndex) -> tuple[int, int]:
        return history.messages[index].priority, caps[index] - sizes[index]

    return [(index, caps[index]) for index in sorted(sizes, key=key)]


def clip_open(draft: Draft) -> None:
    """Clip the outputs of the open step to a common cap, only as far as the limit requires."""
    excess = draft.tokens - draft.limit
    sizes = {index: draft.output_tokens(index) for index in draft.open_outputs}
    if excess <= 0 or not sizes:
        return
    cap = find_common_cap(list(sizes.values()), sum(sizes.values()) - excess)
    for index, size in sizes.items():
        if size > cap:
            draft.clip(index, cap, "newest output, no room for all of it", close=0.98)


def find_common_cap(sizes: Sequence[int], room: int) -> int:
    """Return the cap with which the sizes take at most `room` in total."""
    remaining = room
    for place, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - place)
        if size > share:
            return max(share, 0)
        remaining -= size
    return max(sizes, default=0)
