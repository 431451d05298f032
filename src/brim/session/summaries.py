"""The request that asks a model for a summary of trimmed turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from brim.fitting.clip import clip
from brim.fitting.summarizer import MAX_SUMMARY_CHARS
from brim.messages import Message
from brim.wire import openai_chat

Turn: TypeAlias = Mapping[str, Any]

SUMMARY_INSTRUCTIONS: Final = (
    "Summarize the earlier part of a conversation. It will be removed, so include everything that "
    "is needed to continue: the user's requests, corrections and decisions, in the user's own "
    "words; the goal; open tasks; decisions and their reasons; files that were read or changed; "
    "exact names, paths, numbers and commands; errors and attempted fixes. Omit greetings and "
    "finished topics. Write plain text in short lines, at most {max_chars} characters. Reply with "
    "the summary only."
)


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
