"""Requests of a growing conversation: their beginning changes only at a trim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from brim.config import Config
from brim.fitting.policies import steady_share
from brim.models.pricing import Usage
from brim.testing import ScriptedServer
from brim.wire.reply import parse_usage
from tests.support.fixtures import LlamaWith
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import CHAT, PATHS, ask, turns_in

WINDOW = 1_500
REPLY = 50
TURNS = 60
LIFE = 10
"""Requests until the gateway is restarted, with nothing but its files."""


Saying = Callable[[int], tuple[str, str]]
"""Returns the nth question and its answer."""


def at_length(n: int) -> tuple[str, str]:
    question = f"Question {n}: " + f"what of the number {n}, and of {n * n}? " * (1 + n % 3)
    return question, f"Answer {n}: " + f"it is larger than {n - 1}. " * (1 + n % 4)


def shortly(n: int) -> tuple[str, str]:
    return f"And what of {n}, or {n * n}?", f"It is larger than {n - 1}."


def strip_marks(value: Any) -> Any:
    """Return a turn without its cache marks, which move while the text stays."""
    match value:
        case {"role": role, "content": [{"type": "text", "text": text, "cache_control": _}]}:
            return {"role": role, "content": text}
        case _:
            return value


class Exchange(NamedTuple):
    headers: Mapping[str, str]
    usage: Usage


def converse(
    config: Config, path: str, saying: Saying, turns: int, key: str = "", **more: Any
) -> Iterator[Exchange]:
    """Yield the exchanges of a conversation whose whole history is sent every time."""
    conversation: list[tuple[str, str]] = []
    for start in range(0, turns, LIFE):
        with run_gateway(config, {"KEY": key}) as gateway:
            for n in range(start, min(start + LIFE, turns)):
                question, answer = saying(n)
                conversation.append(("user", question))
                answered = ask(gateway, path, *conversation, **{"reply": 20, **more})
                assert answered.status_code == 200
                usage = parse_usage(answered.json())
                assert usage is not None
                yield Exchange(answered.headers, usage)
                conversation.append(("assistant", answer))


def continues(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether a request begins with the whole previous one."""
    return len(after) > len(before) and list(after[: len(before)]) == list(before)


MODELS = {
    "exact": ("gpt-4o", "gpt-4o"),
    "estimated": ("m", "gpt-3.5-turbo"),
    "estimated too low": ("m", "mistral-7b"),
}


@pytest.mark.parametrize(("model", "counted_as"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("path", PATHS)
def test_between_trims_each_request_begins_with_the_previous_one(
    path: str, model: str, counted_as: str
) -> None:
    with ScriptedServer("So it is.", window=WINDOW, tokenizer_model=counted_as, caches_prompts=True,
                  reports_window=False) as upstream:  # fmt: skip
        config = config_of(upstream.url, window=WINDOW, reply=REPLY, cache_marks=True)
        exchanges = list(converse(config, path, at_length, TURNS, model=model))
        sent = [[*map(strip_marks, turns_in(path, request.body))] for request in upstream.requests]
        assert not upstream.rejected
    last = exchanges[-1].headers
    assert last["brim-count"] == ("exact" if model == counted_as else "estimate")
    check(sent, exchanges)


@pytest.mark.parametrize("path", PATHS)
def test_the_prefix_is_stable_if_the_server_counts_every_request(path: str) -> None:
    with ScriptedServer(
        "So it is.",
        window=WINDOW,
        tokenizer_model="mistral-7b",
        caches_prompts=True,
        counts_tokens=True,
        like="llama.cpp",
    ) as upstream:
        config = config_of(upstream.url, reply=REPLY, cache_marks=True, count="always")
        exchanges = list(converse(config, path, at_length, TURNS))
        sent = [[*map(strip_marks, turns_in(path, request.body))] for request in upstream.requests]
        assert not upstream.rejected
    assert {exchange.headers["brim-count"] for exchange in exchanges} == {"server"}
    assert all(int(each.headers["brim-tokens"]) == each.usage.input for each in exchanges)
    check(sent, exchanges)


def check(sent: Sequence[Sequence[Any]], exchanges: Sequence[Exchange]) -> None:
    """Check that earlier messages are found in the cache except at trims, which are few."""
    trims = 0
    for (before, after), (earlier, later) in zip(pairwise(sent), pairwise(exchanges), strict=True):
        if continues(before, after):
            assert later.usage.cached == earlier.usage.input
        else:
            trims += 1
            assert later.headers["brim-trimmed"] != "none"
            assert later.usage.cached < earlier.usage.input
    last = exchanges[-1].headers
    assert 5 < trims <= max_trims(int(last["brim-tokens-before"]), int(last["brim-limit"]))


def max_trims(tokens: int, limit: int, share: float | None = None) -> int:
    """Return the promised maximum number of changes of the prefix."""
    slack = limit - int(limit * (steady_share(limit) if share is None else share))
    return 1 + tokens // slack


def test_a_real_server_finds_the_prefix_in_its_cache(llama_with: LlamaWith) -> None:
    llama = llama_with(window=512)
    config = config_of(llama.url, reply=8, key_env="KEY", policy="thrift")
    stream_of_exchanges = converse(config, CHAT, shortly, 24, llama.key, model=llama.model, reply=4)
    exchanges = list(stream_of_exchanges)
    last = exchanges[-1].headers
    tokens, limit = int(last["brim-tokens-before"]), int(last["brim-limit"])
    assert tokens > llama.window
    assert last["brim-trimmed"] != "none"
    # It forgets the very end of a prompt, where the answer was to begin.
    cold = [later.usage.cached < earlier.usage.input - 8 for earlier, later in pairwise(exchanges)]
    assert 0 < cold.count(True) <= max_trims(tokens, limit, 0.6)
