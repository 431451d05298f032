"""Count a request with a server that counts only texts; the structure is estimated."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from brim.fitting.plan import TextCount
from brim.tokens import counter_for
from brim.tokens.counter import RequestCounter
from brim.wire.formats import BodyFormat, read_messages, read_tools

REQUEST_MARGIN: Final = 96
"""Tokens of a system text that a template may add to a request."""
MESSAGE_MARGIN: Final = 4
"""Tokens that a template may add to a message, a call or a result."""
TOOL_PROMPT_MARGIN: Final = 400
"""Tokens of the instructions that a template may add before tools."""
TOOL_MARGIN: Final = 0.5
"""Share of the definitions of tools that a template may add: it may indent them."""
STEP_MARGIN: Final = 0.27
"""Share of calls and results that a template may add: it may print them as JSON."""


class TextSumCounter(RequestCounter):
    """Counts with given counts of texts; a text that is not among them is added with 0 tokens."""

    def __init__(self, counter: RequestCounter) -> None:
        super().__init__(counter.name, counter.table, counter.family, counter.uncertainty)
        self.counts: dict[str, int] = {}

    def text(self, text: str) -> int:
        return self.counts.setdefault(text, 0)


class TextRequest:
    """A request whose texts have to be counted. Raise `InputError` if it cannot be read."""

    def __init__(self, body: Mapping[str, Any], format: BodyFormat, model: str) -> None:
        counter = counter_for(model or None)
        assert isinstance(counter, RequestCounter)
        self._counter = TextSumCounter(counter)
        self._messages, self._tools = read_messages(body, format), read_tools(body)
        self._sum()

    @property
    def texts(self) -> list[str]:
        """All texts, each once."""
        return [text for text in self._counter.counts if text]

    def count(self, counts: Mapping[str, int]) -> TextCount:
        """Return the tokens of the request from the tokens of its texts."""
        self._counter.counts.update(counts)
        return TextCount(self._sum(), self._margin())

    def _sum(self) -> int:
        counter = self._counter
        tokens = counter.overhead + counter.tools(self._tools)
        return tokens + sum(map(counter.message, self._messages))

    def _margin(self) -> int:
        parts = sum(1 + len(message.calls) for message in self._messages)
        steps = (each for each in self._messages if each.calls or each.answers is not None)
        margin = REQUEST_MARGIN + MESSAGE_MARGIN * parts
        margin += ceil(STEP_MARGIN * sum(map(self._counter.message, steps)))
        if self._tools:
            margin += TOOL_PROMPT_MARGIN + ceil(TOOL_MARGIN * self._counter.tools(self._tools))
        return margin
