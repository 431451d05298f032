"""Summaries of what leaves a conversation: what to ask for, and what of an answer is taken.

A summarizer is given the summary so far and the turns that leave, and returns a text. Anything
else that it does (nothing, an error, more than it replaces) means that the turns leave without a
summary; it never stops the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable, iscoroutine
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from brim.fitting.clip import clip, truncate

if TYPE_CHECKING:
    from brim.fitting.flow import SummaryJob

MAX_SUMMARY_CHARS: Final = 2_000
"""Characters of a summary; a longer one is made shorter."""
CHARS_PER_TOKEN: Final = 3
"""A summary is plain prose; this is on the dense side of it."""

Turn: TypeAlias = Mapping[str, Any]
Summarizer: TypeAlias = "Callable[[str | None, Sequence[Turn] | None], object]"
"""(the summary so far, the turns that leave) → a text. No turns: make the summary shorter."""

SUMMARY_INSTRUCTIONS: Final = (
    "You keep the notes of a conversation whose older part is about to be forgotten. Write down "
    "what is needed to go on with it: the user's own words where they ask, correct or decide "
    "something; the goal; what is still open; decisions and why; files that were read or "
    "changed; exact names, paths, numbers and commands; errors and what was tried against them. "
    "Leave out greetings and what was settled and needs no memory. Plain text, short lines, at "
    "most {largest} characters. Answer with the notes alone."
)


SUMMARY_TIMEOUT: Final = 120.0
"""Seconds that a summary is waited for."""


async def call_summarizer_async(summarize: Summarizer, job: SummaryJob) -> object:
    """What a summarizer answers, which may be a coroutine; one that hangs keeps nobody waiting."""
    import asyncio

    loop = asyncio.get_running_loop()
    answered: asyncio.Future[object] = loop.create_future()

    def settle(answer: object, error: Exception | None) -> None:
        if answered.done():
            return
        if error is None:
            answered.set_result(answer)
        else:
            answered.set_exception(error)

    def ask() -> None:
        answer, failure = None, None
        try:
            answer = summarize(job.previous, job.evicted)
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, answer, failure)

    # Not a thread of the loop's: the interpreter would wait for those before it ends.
    Thread(target=ask, daemon=True, name="brim-summary").start()
    answer = await answered
    return await answer if isawaitable(answer) else answer


def call_summarizer(summarize: Summarizer, job: SummaryJob) -> object:
    """What a summarizer answers in time; one that fails, hangs or needs awaiting says nothing."""
    answers: list[object] = []

    def ask() -> None:
        with suppress(Exception):
            answers.append(summarize(job.previous, job.evicted))

    asking = Thread(target=ask, daemon=True, name="brim-summary")
    asking.start()
    asking.join(SUMMARY_TIMEOUT)
    answer = answers[0] if answers else None
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        return None
    return answer


def compute_summary_room(limit: int, largest: int = MAX_SUMMARY_CHARS) -> int:
    """Tokens to keep free for a summary: never more than an eighth of what may be sent."""
    return min(largest // CHARS_PER_TOKEN, limit // 8)


def is_usable_summary(answer: object, replaced: int, count: Callable[[str], int]) -> bool:
    """Whether an answer can stand for what it replaces: a text, and smaller."""
    return isinstance(answer, str) and bool(answer.strip()) and count(answer) <= replaced


def truncate_to_tokens(text: str, room: int, count: Callable[[str], int]) -> str:
    """The beginning of a text in at most `room` tokens."""
    while text and (tokens := count(text)) > room:
        text = truncate(text, min(len(text) - 1, int(len(text) * room / tokens)))
    return text


def build_summary_messages(
    previous: str | None,
    evicted: Sequence[Turn] | None,
    *,
    room: int,
    count: Callable[[str], int],
    largest: int = MAX_SUMMARY_CHARS,
    focus: str | None = None,
) -> list[dict[str, str]]:
    """The messages that ask a model for a summary; what is too long for it is cut first."""
    instructions = SUMMARY_INSTRUCTIONS.format(largest=largest)
    if focus:
        instructions += f" Above all keep what concerns: {focus}"
    parts = []
    if previous:
        parts.append(f"The notes so far:\n{previous}")
    if evicted is None:
        parts.append("Make these notes shorter. Keep the names, numbers and open points.")
    else:
        said = format_transcript(evicted)
        size = count(said)
        left = max(64, room - count(instructions) - sum(map(count, parts)) - 64)
        parts.append(f"What was said since:\n{clip(said, size, left, count)}")
        parts.append("Write the notes anew, so that they cover all of it.")
    return [
        {"role": "system", "content": instructions},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def format_transcript(turns: Sequence[Turn]) -> str:
    """Turns as text, one after the other."""
    return "\n\n".join(_format_turn(turn) for turn in turns)


def _format_turn(turn: Turn) -> str:
    lines = [f"{turn.get('role')}:"]
    if output := turn.get("_output"):
        lines.append(f"[exec output]\n{output}")
    content = turn.get("content")
    if isinstance(content, str):
        lines.append(content)
    elif content is not None:
        lines.append(" ".join(map(_format_part, content)))
    for call in turn.get("tool_calls") or ():
        function = call.get("function") or {}
        lines.append(
            f"[tool: {function.get('name')}] {_format_arguments(function.get('arguments', ''))}"
        )
    return "\n".join(lines)


def _format_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        return str(part.get("text", f"[{part.get('type')}]"))
    return ""


def _format_arguments(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
