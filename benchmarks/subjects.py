"""The subjects of the speed benchmark: brim and its peers behind one interface.

Peers get messages in their own types (made before the clock starts) and, where they take one, the
same exact counter. They live in an environment of their own, so they are imported by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks import limited, ruler
from benchmarks.recordings import Message

Fit = Callable[[list[Any], int], list[Any] | None]
"""Fits messages to a limit; None means that they stay unchanged."""


@dataclass(frozen=True)
class Subject:
    """A library and policy to time."""

    convert: Callable[[list[Message]], list[Any]]
    fit: Fit
    rewrites: bool = False
    """Whether its caller continues with the trimmed history instead of the whole history."""


def tokenize(messages: Sequence[Message]) -> int:
    """Tokenize every text of every message once: the baseline."""
    encode = ruler.load_o200k().encode_ordinary
    texts = (text for message in messages for text in ruler.texts(message) if text)
    return sum(len(encode(text)) for text in texts)


def same(messages: list[Message]) -> list[Any]:
    return messages


def brim_with(policy: str) -> Subject:
    return Subject(same, lambda messages, limit: limited.fit(messages, limit, policy).messages)


def haystack() -> Subject:
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    message_type = import_module("haystack.dataclasses").ChatMessage
    compactor = import_module("haystack.hooks.compaction").SlidingWindowCompactor(
        omission_note=None
    )

    class Counter:
        def count(self, messages: list[Any], tools: object = None) -> int:
            del tools
            return ruler.REQUEST + sum(map(_haystack_tokens, messages))

    def fit(messages: list[Any], limit: int) -> list[Any] | None:
        kept: list[Any] | None = compactor.compact(messages, limit, Counter())
        return kept

    return Subject(
        lambda messages: [message_type.from_openai_dict_format(m) for m in messages], fit, True
    )


def _haystack_tokens(message: Any) -> int:
    encode = ruler.load_o200k().encode_ordinary
    results = [result.result for result in message.tool_call_results]
    total = ruler.MESSAGE + sum(len(encode(text)) for text in [*message.texts, *results])
    for call in message.tool_calls:
        total += ruler.CALL + len(encode(call.tool_name)) + len(encode(str(call.arguments)))
    return total


def langchain(exact: bool) -> Subject:
    utils = import_module("langchain_core.messages.utils")

    def fit(messages: list[Any], limit: int) -> list[Any] | None:
        trimmed: list[Any] = utils.trim_messages(
            messages,
            max_tokens=limit,
            token_counter=_langchain_tokens if exact else "approximate",
            strategy="last",
            start_on="human",
            include_system=True,
        )
        return trimmed

    return Subject(utils.convert_to_messages, fit)


def _langchain_tokens(messages: list[Any]) -> int:
    encode = ruler.load_o200k().encode_ordinary
    total = ruler.REQUEST + ruler.MESSAGE * len(messages)
    for message in messages:
        total += len(encode(message.content))
        for call in getattr(message, "tool_calls", ()):
            total += ruler.CALL + len(encode(call["name"])) + len(encode(str(call["args"])))
    return total


def litellm() -> Subject:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    trim = import_module("litellm.utils").trim_messages

    def fit(messages: list[Any], limit: int) -> list[Any] | None:
        trimmed: list[Any] = trim(messages, model=limited.MODEL, max_tokens=limit)
        return trimmed

    return Subject(same, fit)


BRIM: dict[str, Callable[[], Subject]] = {
    f"brim {policy}": partial(brim_with, policy)
    for policy in ("steady", "thrift", "rolling", "sliding")
}
PEERS: dict[str, Callable[[], Subject]] = {
    "haystack": haystack,
    "langchain, exact counter": partial(langchain, exact=True),
    "langchain, approximate counter": partial(langchain, exact=False),
    "litellm": litellm,
}
