"""Count whole requests with a tokenizer and the numbers of a model family.

A count is a sum: each text separately, plus fixed numbers for what the template and the provider
add. So a changed text changes the count by the difference of the two texts, and fitting never
counts a conversation twice. Calls, tools and media are upper estimates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from brim.errors import InputError
from brim.messages import Message
from brim.tokens.cache import CountCache
from brim.tokens.families import UNKNOWN_FAMILY, Family
from brim.tokens.media_tokens import count_media
from brim.tokens.vocabularies import utf8_length

UNKNOWN_TOOL_PROMPT = 200
"""Tokens of instructions that the template of an unknown model may print before tools."""
UNKNOWN_TOOL_SHARE = 0.5
"""Share by which such a template may print definitions longer than their JSON."""
_NAME = re.compile(r"[^\s<|\\/>{}\[\]\"]{1,64}")
"""An extra that can be a speaker's name, not JSON."""


class RequestCounter:
    """Counts requests to the models of one family with one tokenizer."""

    def __init__(self, name: str, table: CountCache, family: Family, uncertainty: float) -> None:
        self.name = name
        self.overhead = family.request
        self.default_system = 0
        self.uncertainty = uncertainty
        self.density = 0.0
        self.ratio = 1.0
        self.family = family
        self.table = table
        self._message = family.message
        self._call = family.call
        self._extra = family.extra

    def text(self, text: str) -> int:
        try:
            known = self.table.young.get(text)
        except TypeError:
            known = None
        return self.table.find(text) if known is None else known

    def message(self, message: Message) -> int:
        total, count = self._message, self.text
        for text in message.words:
            total += count(text)
        if message.is_text_only:
            return total
        for text in message.outputs:
            total += count(text)
        if message.thinking:
            total += sum(map(count, message.thinking))
        for text in message.extras:
            total += count(text) + self._extra
        if message.media:
            total += sum(count_media(media, self.family) for media in message.media)
        if message.calls or message.answers is not None:
            total += self._step(message)
        return total

    def tools(self, tools: Sequence[Mapping[str, object]]) -> int:
        if not tools:
            return 0
        total = self.family.tool_prompt
        for tool in tools:
            total += self.text(_dump_definition(tool)) + self.family.tool
        return total

    def tool_margin(self, tools: Sequence[Mapping[str, object]], room: int) -> int:
        if not tools or (self.uncertainty and self.family is not UNKNOWN_FAMILY):
            return 0
        own = self.tools(tools)
        if self.uncertainty:
            added = min(room // 8, UNKNOWN_TOOL_PROMPT + ceil(UNKNOWN_TOOL_SHARE * own))
            return room - int((room - added) / (1 + self.uncertainty))
        added = min(room, ceil(self.family.tool_margin * own))
        rest = max(0, room - own - added)
        return added + rest - int(rest / (1 + self.family.step_margin))

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known about the model."""
        return self.uncertainty > 0 and self.family is UNKNOWN_FAMILY

    def exact(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> bool:
        if not self.family.known or self.uncertainty or tools:
            return False
        return all(map(_is_plain, messages))

    def _step(self, message: Message) -> int:
        """Tokens of calls, of the frame of a result, and of ids if the template prints them."""
        family = self.family
        total = family.result if message.answers is not None else 0
        for call in message.calls:
            total += self.text(call.name) + self.text(call.arguments) + self._call
        if family.ids:
            total += self.text(message.answers or "")
            total += sum(self.text(call.id) for call in message.calls)
        return total


def _dump_definition(tool: Mapping[str, object]) -> str:
    try:
        return json.dumps(tool, ensure_ascii=False, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"A tool definition is not valid JSON: {error}") from None


def _is_plain(message: Message) -> bool:
    """Whether a turn is a single text: the separator between several parts is unknown."""
    return (message.is_text_only and len(message.words) <= 1) or (
        len(message.words) + len(message.outputs) <= 1
        and not message.thinking
        and not message.calls
        and not message.media
        and message.answers is None
        and (not message.extras or all(map(_NAME.fullmatch, message.extras)))
    )


# Calibration

_NON_LATIN = re.compile(r"[^\x00-\u024f\u2010-\u2027\u2030-\u205e\u20ac]+")
"""Characters that are neither Latin nor common punctuation."""
_CACHE_SIZE = 2_000
"""Texts with non-Latin characters whose counts a calibrated counter keeps."""


class CalibratedCounter(RequestCounter):
    """Scales the estimates of another counter by the counts that servers reported.

    Two numbers are calibrated for a model at an endpoint: the actual tokens per estimated token,
    and the tokens per byte of non-Latin text. A vocabulary for Latin text falls back to single
    bytes for other scripts, so until it is measured, such text counts one token per byte, the
    maximum of any vocabulary.
    """

    def __init__(
        self, counter: RequestCounter, ratio: float, density: float, uncertainty: float
    ) -> None:
        name = f"{counter.name}*{ratio:.4f}+{density:.4f}"
        super().__init__(name, counter.table, counter.family, uncertainty)
        self.ratio = ratio
        self.density = density
        self._scaled: dict[str, int] = {}

    def text(self, text: str) -> int:
        if text.isascii():
            return ceil(self.ratio * super().text(text))
        found = self._scaled.get(text)
        if found is None:
            latin = _NON_LATIN.sub("", text)
            foreign = utf8_length(text) - utf8_length(latin)
            found = ceil(self.ratio * super().text(latin) + self.density * foreign)
            if len(self._scaled) >= _CACHE_SIZE:
                self._scaled.clear()
            self._scaled[text] = found
        return found


UNKNOWN_DENSITY = 0.6
"""Tokens per byte of non-Latin text, without a measurement."""
UNKNOWN_PROMPT = 160
"""Tokens that the template of an unknown model may add to any request."""
UNKNOWN_INSTRUCTIONS = 500
UNKNOWN_DEFINITIONS = 0.7
"""Instructions before tools, and the share by which definitions may be longer than their JSON."""


class UnmeasuredCounter(CalibratedCounter):
    """Counts for an unknown model whose server never reports usage, with a margin for that.

    The numbers cover 49 of 50 requests to 14 public models (`benchmarks.truth`), but at most a
    third of the room.
    """

    def __init__(self, counter: RequestCounter) -> None:
        super().__init__(counter, 1.0, UNKNOWN_DENSITY, counter.uncertainty)

    def tool_margin(self, tools: Sequence[Mapping[str, object]], room: int) -> int:
        added = UNKNOWN_PROMPT
        if tools:
            added += UNKNOWN_INSTRUCTIONS + ceil(UNKNOWN_DEFINITIONS * self.tools(tools))
        return room - int((room - min(room // 3, added)) / (1 + self.uncertainty))


def measure_non_latin(messages: Iterable[Message]) -> int:
    """Return the bytes of non-Latin text in the messages."""
    total = 0
    for message in messages:
        texts = message.words + message.outputs + message.thinking + message.extras
        if message.calls:
            texts += tuple(call.arguments for call in message.calls)
        for text in texts:
            if not text.isascii():
                total += utf8_length("".join(_NON_LATIN.findall(text)))
    return total
