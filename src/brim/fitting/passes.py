"""The passes: each makes a draft smaller in one way, and says why.

A pass is a function that changes a draft. `run` applies passes in order until the draft has
reached its target, so their order is the policy: the cheapest loss first. Most passes work item
by item, oldest first, and stop at the edit that reaches the target. Configure one with
`functools.partial`; write your own with what a `Draft` offers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from brim.fitting.draft import Draft
from brim.fitting.droppable import DroppableUnits, find_oldest_runs
from brim.fitting.eviction import choose_evictions, count_held
from brim.wire.notes import fill_mask, gap_note

if TYPE_CHECKING:
    from brim.tokens import Counter

Pass = Callable[[Draft], None]

CLIP_ROUNDS: Final = (1_000, 500, 250, 120)
"""What old outputs are clipped to, one round after the other."""
_LARGEST_NOTE: Final = gap_note(1_000_000, 1_000_000_000)


def run_passes(passes: Sequence[Pass], draft: Draft, *, first: Sequence[Pass] = ()) -> None:
    """Apply the passes in order until the target is reached; those of `first` in any case."""
    drop_faults(draft)
    for apply in first:
        apply(draft)
    for apply in passes:
        draft.mend()
        if draft.excess <= 0:
            break
        apply(draft)
    draft.mend()


def drop_faults(draft: Draft) -> None:
    """What the model would not accept goes before anything else, and with it all before a user."""
    units = draft.history.units
    for unit in sorted(draft.scope.gone()):
        reason = units[unit].fault or "stands before the first user turn"
        draft.drop(unit, unit + 1, reason)


def drop_thinking(draft: Draft) -> None:
    """Thinking of old steps goes first; that of the open step is never touched."""
    for index in draft.thoughts:
        if draft.excess <= 0:
            return
        message = draft.message(index).without_thinking()
        draft.edit(index, message, "clipped", "thinking of an earlier step")


# Units that leave


def count_gap_note(counter: Counter) -> int:
    """Room for what is said at a gap, whatever numbers it will hold."""
    return counter.text(_LARGEST_NOTE) + 8


def drop_middle(draft: Draft) -> None:
    """Units leave from the middle outward, where clipping what is old would not be enough."""
    found = draft.outline
    if found is None:
        note = count_gap_note(draft.history.counter)
        found = choose_evictions(draft.scope, draft.floors, draft.target, note)
    draft.drop_all(found.runs, "middle of the history")
    if found.released:
        draft.release()


def drop_unavoidable(draft: Draft) -> None:
    """The oldest units that would have to leave even if all else were cut; by arithmetic alone."""
    if draft.scope.ranked:
        return
    gone, recent = draft.scope.gone(), draft.recent()
    held = (draft.hard | recent) - gone
    mass = DroppableUnits(draft.floors, draft.scope.units, held, gone)
    least = count_held(draft.scope, draft.floors, held, recent) + mass.total
    if least > draft.target:
        runs = find_oldest_runs(draft.history, mass, least - draft.target)
        draft.drop_all(runs, "oldest first")


def drop_oldest(draft: Draft) -> None:
    """Units leave, oldest first, a user turn with the last of its answers."""
    _drop_until(lambda: draft.excess <= 0, draft, draft.recent(), "oldest first")


def drop_turns(draft: Draft, most: int) -> None:
    """The oldest units leave until at most so many turns are there; never the hard ones."""
    _drop_until(lambda: draft.turns <= most, draft, (), f"more than {most} turns")


def _drop_until(done: Callable[[], bool], draft: Draft, held: Collection[int], reason: str) -> None:
    """Drop units in order. What is said at the gaps is worked out only when the end is near."""
    units = draft.history.units
    near = False
    draft.forget_notes()
    for unit in draft.loose(held):
        near = near or done()
        if near:
            draft.mend()
            if done():
                return
        user = units[unit].user
        if unit == user and draft.has_answers(unit):
            continue
        draft.drop(unit, unit + 1, reason)
        if 0 <= user != unit and user not in held and not draft.has_answers(user):
            draft.drop(user, user + 1, reason)


def relax_to_limit(draft: Draft) -> None:
    """From here on only the limit counts, and no longer a mark below it, nor a note on wish."""
    draft.target = draft.limit
    if draft.excess > 0:
        draft.forgo_notes()


def release_protected(draft: Draft) -> None:
    """From here on, what was protected may be cut like the rest."""
    draft.release()


# Outputs that are cut


def clip_large(draft: Draft, over: int = 2_000) -> None:
    """Outputs larger than that are clipped to it."""
    for index in draft.old_outputs:
        if draft.excess <= 0:
            return
        size = draft.output_tokens(index)
        if size > over:
            draft.clip(index, max(over, size - draft.excess), f"output over {over:,} tokens")


def mask_old(draft: Draft, after: int = 5, smallest: int = 100) -> None:
    """Outputs of more than so many steps ago are masked, but for small ones and errors."""
    for index in draft.old_outputs:
        if draft.excess <= 0:
            return
        if draft.history.age(index, draft.scope.units) <= after:
            continue
        if draft.output_tokens(index) < smallest or draft.history.reports_error(index):
            continue
        _mask(draft, index, f"output of more than {after} steps ago")


def mask_rest(draft: Draft) -> None:
    """All other outputs are masked, those that report an error last."""
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


def _mask(draft: Draft, index: int, reason: str) -> None:
    """Mask an output, or clip it to the room where masking would take more than needed."""
    history = draft.history
    edit = draft.edits.get(index)
    if edit is not None and edit.outcome == "masked":
        return
    whole = history.output_sizes[index]
    text = fill_mask(history.mask, history.age(index, draft.scope.units), whole)
    room = draft.output_tokens(index) - draft.excess
    if room > history.counter.text(text):
        draft.clip(index, room, reason, close=0.98)
    if draft.excess > 0:
        draft.replace_outputs(index, text, "masked", reason)


def clean_outputs(draft: Draft, caps: Sequence[int] = CLIP_ROUNDS) -> None:
    """Lines that a later output repeats leave the earlier one; then the rounds of clipping.

    What a text takes without its repeated lines is first guessed by its length, so that only
    what stays of it is ever counted.
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
    _clip_to(draft, _choose_caps(sizes, excess, caps), shorter)
    for index, text in shorter.items():
        if index not in draft.edits:
            draft.replace_outputs(index, text, "clipped", "lines that come again later")


def _find_repeats(draft: Draft, outputs: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Those outputs, oldest first, of which lines come again in a later one; without these."""
    repeated = {}
    later: set[str] = set()
    for index in reversed(draft.kept_outputs):
        own = draft.lines(index).telling
        if not own.isdisjoint(later):
            repeated[index] = own & later
        later |= own
    for index in outputs:
        if index in repeated:
            text = draft.lines(index).without(repeated[index])
            if text is not None:
                yield index, text


def clip_rounds(draft: Draft, caps: Sequence[int] = CLIP_ROUNDS) -> None:
    """Old outputs are clipped to ever smaller caps, and the last one to just what is needed."""
    sizes = {index: draft.output_tokens(index) for index in draft.old_outputs}
    _clip_to(draft, _choose_caps(sizes, draft.excess, caps), {})


def _clip_to(draft: Draft, caps: dict[int, int], texts: Mapping[int, str]) -> None:
    """Clip outputs to their caps, the last one only as far as is still needed."""
    if not caps:
        return
    *others, last = caps
    for index in others:
        draft.clip(index, caps[index], "old output", text=texts.get(index))
    room = draft.output_tokens(last) - draft.excess
    draft.clip(last, max(room, caps[last]), "old output", text=texts.get(last), close=0.85)


def _choose_caps(sizes: dict[int, int], excess: int, caps: Sequence[int]) -> dict[int, int]:
    """What each output is to be clipped to; the one that ends it comes last."""
    now = dict(sizes)
    chosen: dict[int, int] = {}
    for cap in caps:
        for index, size in now.items():
            if excess <= 0:
                return chosen
            if size > cap:
                excess -= size - cap
                now[index] = cap
                chosen.pop(index, None)
                chosen[index] = cap
    return chosen


def clip_open(draft: Draft) -> None:
    """At the very end, and only for the limit: the open step's outputs share what room there is."""
    excess = draft.tokens - draft.limit
    sizes = {index: draft.output_tokens(index) for index in draft.open_outputs}
    if excess <= 0 or not sizes:
        return
    cap = find_common_cap(list(sizes.values()), sum(sizes.values()) - excess)
    for index, size in sizes.items():
        if size > cap:
            draft.clip(index, cap, "newest output, no room for all of it", close=0.98)


def find_common_cap(sizes: Sequence[int], room: int) -> int:
    """The cap under which the sizes together take at most the room."""
    remaining = room
    for place, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - place)
        if size > share:
            return max(share, 0)
        remaining -= size
    return max(sizes, default=0)
