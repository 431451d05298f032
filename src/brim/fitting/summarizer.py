"""Summaries of trimmed turns: the rules for accepting what a summarizer returns.

A summarizer receives the previous summary and the trimmed turns, and returns a text. If it returns
anything else, fails, or returns a text longer than the turns, they are trimmed without a summary;
a summarizer never stops the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, Final, TypeAlias, TypeVar

from brim.errors import InputError
from brim.fitting.clip import truncate
from brim.fitting.flow import Flow, Job, SummaryJob, run_flow

MAX_SUMMARY_CHARS: Final = 2_000
"""A longer summary is shortened."""
CHARS_PER_TOKEN: Final = 3
"""A cautious ratio for prose."""
SUMMARY_HEADING: Final = "[earlier conversation summary]"

T = TypeVar("T")
Summarizer: TypeAlias = "Callable[[str | None, Sequence[Mapping[str, object]] | None], object]"
"""Called with (previous summary, trimmed turns); returns a text. Without turns it shortens the
summary."""


def check_summarizer(summarize: Summarizer | None) -> Summarizer | None:
    """Return the summarizer; raise `InputError` if it cannot be called."""
    if summarize is not None and not callable(summarize):
        raise InputError(f"summarize is not a function: {summarize!r:.100}.")
    return summarize


def run_with_summarizer(
    flow: Flow[T],
    summarize: Summarizer | None,
    count: Callable[[Mapping[str, Any]], int | None] | None = None,
) -> T:
    """Run a flow without a server: the summarizer answers its jobs, and `count` counts."""

    def answer(job: Job) -> object:
        if not isinstance(job, SummaryJob):
            return None if count is None else count(job.body)
        return None if summarize is None else call_summarizer(summarize, job)

    try:
        return run_flow(flow, answer)
    except BaseException:
        flow.close()  # undoes a trim immediately
        raise


def call_summarizer(summarize: Summarizer, job: SummaryJob) -> object:
    """Return the result of a summarizer, or None if it raises or returns an awaitable.

    It runs in the caller's thread, without a time limit.
    """
    try:
        result = summarize(job.previous, job.evicted)
    except Exception:
        return None
    if iscoroutine(result):
        result.close()
    return None if isawaitable(result) else result


def compute_summary_room(limit: int, max_chars: int = MAX_SUMMARY_CHARS) -> int:
    """Return the tokens to reserve for a summary: at most an eighth of the limit."""
    return min(max_chars // CHARS_PER_TOKEN, limit // 8)


def is_usable_summary(result: object, replaced: int, count: Callable[[str], int]) -> bool:
    """Return whether a summarizer's result is a text and smaller than what it replaces."""
    return isinstance(result, str) and bool(result.strip()) and count(result) <= replaced


def write_summary(
    previous: str | None,
    turns: Sequence[Mapping[str, Any]],
    replaced: int,
    count: Callable[[str], int],
    max_chars: int = MAX_SUMMARY_CHARS,
) -> Flow[str | None]:
    """Return a summary of turns and of the previous one; None if there is none.

    `replaced` are the tokens of both; a summary may not have more.
    """
    text = yield SummaryJob(previous or None, turns)
    if not is_usable_summary(text, replaced, count):
        return None
    return (yield from _shorten_summary(text, count, max_chars))


def _shorten_summary(text: str, count: Callable[[str], int], max_chars: int) -> Flow[str]:
    """Return a summary of at most `max_chars`; if it is longer, ask for a shorter one first."""
    if len(text) <= max_chars:
        return text
    shorter = yield SummaryJob(text, None)
    if is_usable_summary(shorter, count(text), count):
        text = shorter
    return truncate(text, max_chars)


def truncate_to_tokens(text: str, room: int, count: Callable[[str], int]) -> str:
    """Return the beginning of a text, with at most `room` tokens."""
    while text and (tokens := count(text)) > room:
        text = truncate(text, min(len(text) - 1, int(len(text) * room / tokens)))
    return text
