"""The inputs of OpenAI's embeddings: texts, or tokens instead of texts.

Each input is read as a turn, so that it is counted like one. Nothing is ever trimmed, because the
embedding of a part is not that of the whole.
"""

from __future__ import annotations

from typing import Any, Final

from brim.errors import InputError
from brim.messages import Media, Message
from brim.wire.body_parts import Part
from brim.wire.body_reader import BodyReader, PlanView, WrittenBody

INVALID_INPUT: Final = "`input` must be a text, a list of texts, or tokens in place of texts."


class EmbeddingReader(BodyReader):
    """Reads the inputs of a body; bodies do not grow."""

    def _read(self, body: Part) -> list[Message]:
        return [_read_input(item) for item in _list_inputs(body.get("input"))]

    def _write(self, body: Part, plan: PlanView) -> WrittenBody:  # noqa: ARG002
        return WrittenBody(body)


def _list_inputs(given: object) -> list[Any]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise InputError(INVALID_INPUT)
    return [given] if isinstance(given[0], int) else given


def _read_input(item: object) -> Message:
    if isinstance(item, str):
        return Message("user", (item,))
    if isinstance(item, list) and all(type(token) is int for token in item):
        return Message("user", media=(Media("tokens", size=len(item)),))
    raise InputError(INVALID_INPUT)
