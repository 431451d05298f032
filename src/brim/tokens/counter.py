"""Whole requests, counted with a tokenizer and what is known about the family.

A count is a sum: every text on its own, plus fixed numbers for what the template and the provider
add. So a changed text changes the count by the difference of its own counts, and fitting never
has to count a conversation twice. Calls, tools and media are counted on the high side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from brim.tokens.media import media_tokens

if TYPE_CHECKING:
    from brim.messages import Message
    from brim.tokens.cache import Table
    from brim.tokens.families import Family

CALL = 10
TOOL = 16
_NAME = re.compile(r"[^\s<|\\/>{\[\"]{1,64}")


class RequestCounter:
    """Counts requests to the models of one family with one tokenizer."""

    __slots__ = ("_family", "_table", "_extra", "_ids", "_message", "name", "overhead", "uncertainty")

    def __init__(self, name: str, table: Table, family: Family, uncertainty: float) -> None:
        self.name = name
        self.overhead = family.request
        self.uncertainty = uncertainty
        self._family = family
        self._table = table
        self._message = family.message
        self._extra = family.extra
        self._ids = family.ids

    def text(self, text: str) -> int:
        tokens = self._table.young.get(text)
        return self._table.miss(text) if tokens is None else tokens

    def message(self, message: Message) -> int:
        count = self.text
        total = self._message
        for text in message.words:
            total += count(text)
        for text in message.outputs:
            total += count(text)
        for text in message.thinking:
            total += count(text)
        for text in message.extras:
            total += count(text) + self._extra
        for call in message.calls:
            total += CALL + count(call.name) + count(call.arguments)
        for media in message.media:
            total += media_tokens(media, self._family)
        if self._ids:
            total += sum(count(call.id) for call in message.calls) + count(message.answers or "")
        return total

    def tools(self, tools: Sequence[Mapping[str, object]]) -> int:
        if not tools:
            return 0
        texts = [json.dumps(t, ensure_ascii=False, separators=(",", ":"), default=str) for t in tools]
        return self._family.tool_prompt + sum(self.text(text) + TOOL for text in texts)

    def exact(self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()) -> bool:
        if not self._family.known or self.uncertainty or tools:
            return False
        return all(
            not message.calls
            and not message.media
            and all(_NAME.fullmatch(extra) for extra in message.extras)
            for message in messages
        )
