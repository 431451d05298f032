"""Count a request with a server that counts only texts; the structure is estimated.

The usage of each reply shows how far the estimate was off: for later requests of the same
conversation, and in general for the system text that a template adds and the tools that it prints.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from math import ceil
from typing import Any, Final, NamedTuple

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
MIN_REPORT_SHARE: Final = 0.5
"""A report below this share of the messages is not of the whole prompt."""
MAX_CONVERSATIONS: Final = 1_000
"""Conversations whose last report is kept."""


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
    def has_system(self) -> bool:
        return bool(self._messages) and self._messages[0].role == "system"

    @property
    def opening(self) -> bytes:
        """Identifies the tools and the first message, which a conversation keeps."""
        first = [(each.role, each.words) for each in self._messages[:1]]
        text = json.dumps([self._tools, first], default=str)
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    @property
    def tool_tokens(self) -> int:
        return self._counter.tools(self._tools)

    @property
    def message_tokens(self) -> int:
        return sum(map(self._counter.message, self._messages))

    @property
    def texts(self) -> list[str]:
        """All texts, each once."""
        return [text for text in self._counter.counts if text]

    def count(self, counts: Mapping[str, int]) -> TextCount:
        """Return the tokens of the request from the tokens of its texts."""
        self._counter.counts.update(counts)
        return TextCount(self._sum(), self._margin())

    def _sum(self) -> int:
        return self._counter.overhead + self.tool_tokens + self.message_tokens

    def _margin(self) -> int:
        parts = sum(1 + len(message.calls) for message in self._messages)
        steps = (each for each in self._messages if each.calls or each.answers is not None)
        margin = REQUEST_MARGIN + MESSAGE_MARGIN * parts
        margin += ceil(STEP_MARGIN * sum(map(self._counter.message, steps)))
        if self._tools:
            margin += TOOL_PROMPT_MARGIN + ceil(TOOL_MARGIN * self.tool_tokens)
        return margin


class _Report(NamedTuple):
    """By how much the estimate of a request's structure was too low."""

    size: int
    """Tokens of the messages; the smallest request shows best what does not depend on them."""
    error: float


class StructureReports:
    """What the reports of one model show about the structure that its template adds."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[bytes, _Report] = OrderedDict()
        self._plain: dict[bool, _Report] = {}
        """Tokens of requests without tools, by whether they have a system message."""
        self._tools: dict[bool, _Report] = {}
        """Shares of the definitions of tools, likewise."""

    def record(self, request: TextRequest, counted: int, tokens: int) -> None:
        """Record the actual tokens of a request that was counted by its texts."""
        size, error = request.message_tokens, tokens - counted
        if tokens < MIN_REPORT_SHARE * size:
            return
        self._conversations[request.opening] = _Report(size, error)
        self._conversations.move_to_end(request.opening)
        if len(self._conversations) > MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)
        known, report = self._plain, _Report(size, error)
        if request.tool_tokens:
            added = error - self._plain_error(request)
            known, report = self._tools, _Report(size, added / request.tool_tokens)
        if size <= known.get(request.has_system, report).size:
            known[request.has_system] = report

    def correct(self, request: TextRequest, counted: TextCount) -> TextCount:
        """Return a count without the errors that are known.

        A report about a longer request or another conversation lowers the count, but not the most
        that it may be.
        """
        report = self._conversations.get(request.opening)
        error = self._estimate_error(request) if report is None else report.error
        tokens = max(1, round(counted + error))
        is_longer = report is not None and report.size <= request.message_tokens
        return TextCount(tokens, counted.margin + (0 if is_longer else max(0, counted - tokens)))

    def _estimate_error(self, request: TextRequest) -> float:
        kind = request.has_system
        share = self._tools.get(kind) or self._tools.get(not kind)
        tools = share.error * request.tool_tokens if share else 0
        return self._plain_error(request) + tools

    def _plain_error(self, request: TextRequest) -> float:
        report = self._plain.get(request.has_system)
        return report.error if report else 0
