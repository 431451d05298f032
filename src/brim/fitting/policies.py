"""Policies: which passes are applied, in which order, and down to which mark."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log2
from typing import Literal

from brim.errors import InputError
from brim.fitting import passes
from brim.fitting.history import STEP_TEXT, History, MessageIndex
from brim.fitting.passes import Pass
from brim.fitting.retrieval import keep_matching
from brim.fitting.trim import Floor, Share
from brim.wire.notes import MASK, fill_mask

PolicyName = Literal["steady", "thrift", "rolling", "sliding", "recall"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a conversation is made to fit."""

    name: str
    passes: tuple[Pass, ...]
    floor: Floor
    """Returns the fewest tokens that the passes leave of a message that is not dropped."""
    task_floor: Floor | None = None
    """The same for a conversation that is not a chat, if it differs."""
    share: Share | None = None
    """Returns the low-water mark's share of a limit. A policy with a share first drops units down
    to that mark, and trims again only when the limit is reached. None trims every request."""
    keep_recent: int = 0
    first: tuple[Pass, ...] = ()
    """Passes that are applied even if everything fits."""
    notes: bool = False
    """Whether gaps get a note even if no rule requires one."""
    brief_notes: bool = False
    """Whether a note tells only the number of messages, because there are many gaps."""
    max_turns: int | None = None
    token_budget: int | None = None
    low_water_mark: float | None = None
    """The caller's own share of a limit, which `share` returns."""
    rolling: RollingSettings | None = None
    """The numbers of `rolling`; None for other policies."""

    @property
    def has_summary_note(self) -> bool:
        """Whether a summary is in the note at the gap; otherwise it is in the system text."""
        return self.notes and not self.brief_notes

    @property
    def identity(self) -> Hashable:
        """A value that is equal for policies that decide the same."""
        numbers = self.keep_recent, self.max_turns, self.token_budget
        return self.passes, self.share, self.floor, self.task_floor, self.notes, numbers


def steady_share(limit: int, has_finished_tasks: bool = False) -> float:
    """Return the share for `steady`, by the measurements in `docs/fitting.md`.

    It is higher for small limits, where every token counts, and after finished tasks: a trim that
    drops whole tasks ends far below any mark, so that a high one costs little.
    """
    if has_finished_tasks:
        return 0.90
    doublings = log2(max(1, limit) / 16_000)
    return min(0.90, max(0.70, 0.83 - 0.06 * doublings))


@cache
def constant_share(share: float) -> Share:
    """Return the function for a share that is the same for every limit."""
    return lambda _, __: share


def unchanged_floor(history: History, index: int) -> int:
    """Return the tokens of a message as it is."""
    return history.tokens(index)


def no_thinking_floor(history: History, index: int) -> int:
    """Return the tokens of a message without its thinking."""
    tokens = history.tokens(index)
    message = history.messages[index]
    if message.thinking and not history.is_pinned(index):
        tokens -= sum(map(history.counter.text, message.thinking))
    return tokens


def _short_output_floor(history: History, index: int, least: int) -> int:
    """Return the tokens of a message without its thinking and with `least` tokens of output."""
    size = history.output_tokens[index]
    tokens = no_thinking_floor(history, index)
    if size > least and index not in history.marked_messages and not history.is_pinned(index):
        tokens -= size - least
    return tokens


def clipped_floor(history: History, index: int) -> int:
    """Return the tokens of a message after the last round of clipping."""
    return _short_output_floor(history, index, passes.CLIP_ROUNDS[-1])


def task_floor(history: History, index: int) -> int:
    """Return the tokens of a message with its output, or a long text of a step, clipped."""
    if (size := history.long_texts.get(MessageIndex(index))) is None:
        return _short_output_floor(history, index, passes.count_clip_mark(history.counter))
    tokens = no_thinking_floor(history, index)
    return tokens if history.is_pinned(index) else tokens - (size - STEP_TEXT)


def masked_floor(history: History, index: int) -> int:
    """Return the tokens of a message with its output masked."""
    if not history.output_tokens[index]:
        return no_thinking_floor(history, index)
    return _short_output_floor(history, index, history.counter.text(fill_mask(history.mask, 0, 0)))


STEADY = Policy(
    "steady",
    (
        passes.drop_thinking,
        passes.remove_repeats,
        passes.clip_old,
        passes.release_protected,
        passes.clip_old,
        passes.relax_to_limit,
        passes.drop_oldest,
        passes.clip_open,
    ),
    clipped_floor,
    task_floor,
    share=steady_share,
    notes=True,
)

THRIFT = replace(STEADY, name="thrift", share=constant_share(0.60))


@dataclass(frozen=True, slots=True)
class RollingSettings:
    """The numbers of the policy `rolling`; tokens and steps."""

    max_age: int = 5
    """Outputs of more than this many steps ago are masked first."""
    max_output: int = 2_000
    """Larger outputs are clipped first."""
    small_output: int = 100
    """Smaller outputs are masked last."""
    keep_errors: bool = True
    """Whether outputs that report an error are masked last."""
    placeholder: str = MASK
    """Replaces a masked output; `{age}` and `{tokens}` are filled in."""

    def __post_init__(self) -> None:
        for name in ("max_age", "max_output", "small_output"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise InputError(f"{name} must be an integer of at least 0, not {value!r}")
        if not isinstance(self.placeholder, str):
            raise InputError(f"placeholder must be text, not {type(self.placeholder).__name__}")


@cache
def make_rolling(settings: RollingSettings) -> Policy:
    """Return the policy `rolling` with these numbers."""
    mask_first = partial(
        passes.mask_old,
        after=settings.max_age,
        smallest=settings.small_output,
        keep_errors=settings.keep_errors,
    )
    order = (
        passes.drop_unavoidable,
        passes.drop_thinking,
        partial(passes.remove_repeats, then_clip=False),
        partial(passes.clip_large, over=settings.max_output),
        mask_first,
        passes.mask_rest,
        passes.drop_oldest,
        passes.release_protected,
        passes.mask_rest,
        passes.drop_oldest,
        passes.clip_open,
    )
    return Policy("rolling", order, masked_floor, keep_recent=5, rolling=settings)


ROLLING = make_rolling(RollingSettings())

SLIDING = Policy(
    "sliding",
    (
        passes.drop_unavoidable,
        passes.drop_thinking,
        passes.drop_oldest,
        passes.release_protected,
        passes.drop_oldest,
        passes.clip_open,
    ),
    no_thinking_floor,
)

RECALL = replace(
    SLIDING,
    name="recall",
    passes=(passes.drop_thinking, keep_matching, *SLIDING.passes),
    notes=True,
    brief_notes=True,
)

OFF = Policy("off", (), unchanged_floor)
"""Trims nothing: a conversation that does not fit is an error."""

POLICIES = {policy.name: policy for policy in (STEADY, THRIFT, ROLLING, SLIDING, RECALL)}


def resolve_policy(
    given: str | Policy | Sequence[Pass],
    *,
    keep_recent: int | None = None,
    max_turns: int | None = None,
    token_budget: int | None = None,
    low_water_mark: float | None = None,
    rolling: RollingSettings | None = None,
) -> Policy:
    """Return the policy with that name, or one of the caller's passes, with these numbers.

    Raise `InputError` if there is no such policy or a number is not valid for it.
    """
    policy = _find_policy(given)
    if rolling is not None:
        if policy.rolling is None:
            raise InputError(f"Settings of rolling do not work with {policy.name}.")
        policy = replace(make_rolling(rolling), keep_recent=policy.keep_recent)
    if low_water_mark is not None:
        policy = _set_low_water_mark(policy, low_water_mark)
    if keep_recent is None and max_turns is None and token_budget is None:
        return policy
    if keep_recent is None:
        keep_recent = policy.keep_recent
    for name, value, least in (
        ("keep_recent", keep_recent, 0),
        ("token_budget", token_budget, 0),
        ("max_turns", max_turns, 1),
    ):
        if value is not None and (not isinstance(value, int) or value < least):
            raise InputError(f"{name} must be an integer of at least {least}, not {value!r}")
    if (max_turns is not None or token_budget is not None) and policy.share is not None:
        raise InputError(
            f"max_turns and token_budget do not work with {policy.name}. "
            "Use the policy sliding, rolling or recall."
        )
    return replace(
        policy,
        keep_recent=keep_recent,
        first=() if max_turns is None else (partial(passes.drop_turns, most=max_turns),),
        max_turns=max_turns,
        token_budget=token_budget,
    )


def _set_low_water_mark(policy: Policy, mark: float) -> Policy:
    if not isinstance(mark, int | float) or not 0 < mark < 1:
        raise InputError(f"low_water_mark must be a share between 0 and 1, not {mark!r}")
    if policy.share is None:
        raise InputError(
            f"low_water_mark does not work with {policy.name}. Use the policy steady or thrift."
        )
    return replace(policy, share=constant_share(float(mark)), low_water_mark=float(mark))


def _find_policy(given: str | Policy | Sequence[Pass]) -> Policy:
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        if given not in POLICIES:
            raise InputError(f"Unknown policy {given!r}. Use one of {', '.join(POLICIES)}.")
        return POLICIES[given]
    listed = list(given) if isinstance(given, list | tuple) else []
    if not listed or not all(map(callable, listed)):
        raise InputError(
            "A policy is a name or a list of passes (functions that take a draft), "
            f"not {type(given).__name__}."
        )
    return Policy("custom", tuple(listed), unchanged_floor)
