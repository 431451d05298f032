"""Summaries of trimmed turns: the request for one, and the rules for accepting it.

A summarizer receives the previous summary and the trimmed turns, and returns a text. If it returns
anything else, fails, or returns a text longer than the turns, they are trimmed without a summary;
a summarizer never stops the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, Final, TypeAlias, TypeVar

from brim.fitting.clip import clip, truncate
from brim.fitting.flow import Flow, Job, SummaryJob, run_flow
from brim.messages import Message
from brim.wire import openai_chat

MAX_SUMMARY_CHARS: Final = 2_000
"""A longer summary is shortened."""
CHARS_PER_TOKEN: Final = 3
"""A cautious ratio for prose."""

T = TypeVar("T")
Turn: TypeAlias = Mapping[str, Any]
Summarizer: TypeAlias = "Callable[[str | None, Sequence[Mapping[str, object]] | None], object]"
"""Called with (previous summary, trimmed turns); returns a text. Without turns it shortens the
summary."""

SUMMARY_INSTRUCTIONS: Final = (
    "Summarize the earlier part of a conversation. It will be removed, so include everything that "
    "is needed to continue: the user's requests, corrections and decisions, in the user's own "
    "words; the goal; open tasks; decisions and their reasons; files that were read or changed; "
    "exact names, paths, numbers and commands; errors and attempted fixes. Omit greetings and "
    "finished topics. Write plain text in short lines, at most {max_chars} characters. Reply with "
    "the summary only."
)


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


def shorten_summary(text: str, count: Callable[[str], int], max_chars: int) -> Flow[str]:
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


def build_summary_messages(
    previous: str | None,
    evicted: Sequence[Turn] | None,
    *,
    room: int,
    count: Callable[[str], int],
    max_chars: int = MAX_SUMMARY_CHARS,
    focus: str | None = None,
) -> list[dict[str, str]]:
    """Return the messages that ask a model for a summary.

    Turns that are too long for the model are clipped to `room` tokens.
    """
    instructions = SUMMARY_INSTRUCTIONS.format(max_chars=max_chars)
    if focus:
        instructions += f" Focus on: {focus}"
    parts = []
    if previous:
        parts.append(f"Summary so far:\n{previous}")
    if evicted is None:
        parts.append("Shorten this summary. Keep names, numbers and open tasks.")
    else:
        text = format_transcript(evicted)
        tokens = count(text)
        left = max(64, room - count(instructions) - sum(map(count, parts)) - 64)
        parts.append(f"Messages to summarize:\n{clip(text, tokens, left, count)}")
        parts.append("Write one summary that covers all of the above.")
    return [
        {"role": "system", "content": instructions},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def format_transcript(turns: Sequence[Turn]) -> str:
    """Return turns as text."""
    messages = (openai_chat.read_message(turn, index) for index, turn in enumerate(turns))
    return "\n\n".join(map(_format_message, messages))


def _format_message(message: Message) -> str:
    lines = [
        f"{message.role}:",
        *message.outputs,
        *message.words,
        *(f"[{media.kind}]" for media in message.media),
        *(f"[tool: {call.name}] {call.arguments}" for call in message.calls),
    ]
    return "\n".join(lines)
