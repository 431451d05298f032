"""The policies: which passes, in which order, down to which mark."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from brim.errors import InputError
from brim.fitting.passes import (
    CLIP_ROUNDS,
    Pass,
    clean_outputs,
    clip_large,
    clip_open,
    clip_rounds,
    drop_middle,
    drop_oldest,
    drop_thinking,
    drop_turns,
    drop_unavoidable,
    mask_old,
    mask_rest,
    relax_to_limit,
    release_protected,
)
from brim.fitting.replay import steady_share, thrift_share
from brim.wire.notes import fill_mask

if TYPE_CHECKING:
    from brim.fitting.droppable import Floor
    from brim.fitting.history import History


@dataclass(frozen=True, slots=True)
class Policy:
    """How a conversation is made to fit."""

    name: str
    passes: tuple[Pass, ...]
    floor: Floor
    """The least that the passes leave of a message that stays."""
    share: Callable[[int], float] | None = None
    """Where an edit cuts to a low mark: its share of the limit. None: to the limit, every time."""
    keep_recent: int = 0
    first: tuple[Pass, ...] = ()
    """Passes that are applied whether there is room or not."""
    notes: bool = False
    """Whether a gap is told of even where no rule asks for it."""
    max_turns: int | None = None
    token_budget: int | None = None

    @property
    def identity(self) -> Hashable:
        """What two policies have in common that decide alike."""
        numbers = self.keep_recent, self.max_turns, self.token_budget
        return self.passes, self.share, self.floor, self.notes, numbers


def unchanged_floor(history: History, index: int) -> int:
    return history.tokens(index)


def no_thinking_floor(history: History, index: int) -> int:
    """A message without its thinking."""
    tokens = history.tokens(index)
    message = history.messages[index]
    if message.thinking and not history.is_pinned(index):
        tokens -= sum(map(history.counter.text, message.thinking))
    return tokens


def _short_output_floor(history: History, index: int, least: int) -> int:
    """A message without its thinking and with its output cut down to `least` tokens."""
    size = history.output_sizes[index]
    tokens = no_thinking_floor(history, index)
    if size > least and index not in history.marked and not history.is_pinned(index):
        tokens -= size - least
    return tokens


def clipped_floor(history: History, index: int) -> int:
    return _short_output_floor(history, index, CLIP_ROUNDS[-1])


def masked_floor(history: History, index: int) -> int:
    if not history.output_sizes[index]:
        return no_thinking_floor(history, index)
    return _short_output_floor(history, index, history.counter.text(fill_mask(history.mask, 0, 0)))


STEADY = Policy(
    "steady",
    (
        drop_middle,
        drop_thinking,
        clean_outputs,
        clip_rounds,
        release_protected,
        clip_rounds,
        relax_to_limit,
        drop_oldest,
        clip_open,
    ),
    clipped_floor,
    share=steady_share,
    notes=True,
)

THRIFT = Policy("thrift", STEADY.passes, clipped_floor, share=thrift_share, notes=True)

ROLLING = Policy(
    "rolling",
    (
        drop_unavoidable,
        drop_thinking,
        clip_large,
        mask_old,
        mask_rest,
        drop_oldest,
        release_protected,
        mask_rest,
        drop_oldest,
        clip_open,
    ),
    masked_floor,
    keep_recent=5,
)

SLIDING = Policy(
    "sliding",
    (drop_unavoidable, drop_thinking, drop_oldest, release_protected, drop_oldest, clip_open),
    no_thinking_floor,
)

OFF = Policy("off", (), unchanged_floor)
"""Nothing is left out; what does not fit is an error."""

POLICIES = {policy.name: policy for policy in (STEADY, THRIFT, ROLLING, SLIDING)}


def resolve_policy(
    given: str | Policy | Sequence[Pass],
    *,
    keep_recent: int | None = None,
    max_turns: int | None = None,
    token_budget: int | None = None,
) -> Policy:
    """The policy of a name, or one of the user's own passes, with its numbers."""
    policy = _find_policy(given)
    if keep_recent is None:
        keep_recent = policy.keep_recent
    for name, value, least in (
        ("keep_recent", keep_recent, 0),
        ("token_budget", token_budget, 0),
        ("max_turns", max_turns, 1),
    ):
        if value is not None and (not isinstance(value, int) or value < least):
            raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    if (max_turns is not None or token_budget is not None) and policy.share is not None:
        raise InputError("max_turns and token_budget go with the policies sliding and rolling")
    first = () if max_turns is None else (partial(drop_turns, most=max_turns),)
    return Policy(
        policy.name,
        policy.passes,
        policy.floor,
        policy.share,
        keep_recent,
        first,
        policy.notes,
        max_turns,
        token_budget,
    )


def _find_policy(given: str | Policy | Sequence[Pass]) -> Policy:
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        if given not in POLICIES:
            raise InputError(f"no policy {given!r}; there are {', '.join(POLICIES)}")
        return POLICIES[given]
    passes = list(given) if isinstance(given, list | tuple) else []
    if not passes or not all(map(callable, passes)):
        raise InputError("a policy is a name, or a list of passes (functions of a draft)")
    return Policy("custom", tuple(passes), unchanged_floor)
