"""How much more a gateway reserves for a request than the request then costs.

    python -m benchmarks.reservations [--short] [--json]

Every answer uses half of `max_tokens`. The reservation is read from the account store while the
upstream has the request. If a prompt costs at least 1.2 times the longest reply, the gap is the
reservation ÷ the actual cost. Below that, no safe reservation is near the actual cost of half a
reply, so there the gap is the reservation ÷ the cost of the actual prompt and the longest reply.
The upstream counts with the vocabulary of gpt-4o, which is not that of the models marked
*estimated*; the first requests, which calibrate the estimates, have a row of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import httpx

from benchmarks import material, report
from benchmarks.report import Cell, Options, Table
from brim.config import Config, UpstreamConfig
from brim.gateway.accounts import create_store
from brim.gateway.accounts.caps import Cap
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.store import AccountStore
from brim.models.pricing import MILLION, Price
from brim.testing import ScriptedServer, TextReply
from tests.support.gateway.process import FORMATS, run_gateway

T = TypeVar("T")

INPUT, OUTPUT = 3, 15
"""Dollars per million tokens."""
PRICE: Final = Price(input=Decimal(INPUT), cached=Decimal("0.3"), output=Decimal(OUTPUT))
CACHE_PRICE: Final = Decimal("3.75")
"""Dollars per million tokens written to Anthropic's cache."""
LIMITS: Final = (5, 50, 500, 2_000)
"""Values of `max_tokens`."""
SIZES: Final = (0, 100, 1_000, 8_000, 40_000)
"""Characters of a prompt besides its question."""
LARGE_PROMPT: Final = 1.2
"""From this multiple of the cost of the longest reply on, a prompt is large."""
CALIBRATING: Final = 12
"""The first requests of a model, which calibrate estimates."""
TARGET: Final = 1.3
QUESTION: Final = "hi"


@dataclass(frozen=True)
class Subject:
    """A model in a format."""

    title: str
    model: str
    path: str = "/v1/chat/completions"
    limit_key: str = "max_tokens"
    price: Price = PRICE

    def build_body(self, text: str, limit: int) -> dict[str, Any]:
        content = f"{text}\n{QUESTION}" if text else QUESTION
        turns = [{"role": "user", "content": content}]
        key = "input" if self.limit_key == "max_output_tokens" else "messages"
        return {"model": self.model, self.limit_key: limit, key: turns}


SUBJECTS: Final = (
    Subject("chat, gpt-4o", "gpt-4o"),
    Subject("responses, gpt-4o", "gpt-4o", "/v1/responses", "max_output_tokens"),
    Subject(
        "messages, claude-sonnet-4-5 (estimated)",
        "claude-sonnet-4-5",
        "/v1/messages",
        price=replace(PRICE, written=CACHE_PRICE),
    ),
    Subject("chat, a private model (estimated)", "house-1"),
)


@dataclass(frozen=True)
class Measured:
    """Micro-dollars of one request."""

    reserved: float
    prompt: float
    reply: float
    longest: float
    """The cost of the longest reply."""

    @property
    def is_large(self) -> bool:
        return self.prompt >= LARGE_PROMPT * self.longest

    @property
    def gap(self) -> float:
        return self.reserved / (self.prompt + (self.reply if self.is_large else self.longest))


def tables(options: Options) -> Iterator[Table]:
    rounds = 2 if options.short else 6
    rows: list[dict[str, Cell]] = []
    for subject in SUBJECTS:
        found = _measure(subject, rounds)
        kinds = {
            "the first requests": found[:CALIBRATING],
            "large prompts": [each for each in found[CALIBRATING:] if each.is_large],
            "others": [each for each in found[CALIBRATING:] if not each.is_large],
        }
        for kind, some in kinds.items():
            gaps = [each.gap for each in some]
            cells = {"requests": len(gaps), "mean gap": mean(gaps), "highest": max(gaps)}
            rows.append({"model": subject.title, "prompts": kind, **cells})
    yield Table(
        "Gateway: reservation ÷ cost, answers of half of max_tokens",
        rows,
        {"mean gap": ".2f", "highest": ".2f"},
        [
            f"large: the prompt costs at least {LARGE_PROMPT} times the longest reply, and the gap "
            "is reserved ÷ actual; others: reserved ÷ (actual prompt + longest reply)",
            f"target of the mean gap, but for the first requests: ≤ {TARGET}",
        ],
    )


def _measure(subject: Subject, rounds: int) -> list[Measured]:
    """Return the reservations and costs of the first requests, and of some of every size."""
    random, texts = Random(3), " ".join(material.load_texts()["user"] * 5)
    grid = [(size, limit) for size in SIZES for limit in LIMITS]
    calls = [random.choice(grid) for _ in range(CALIBRATING)] + grid * rounds
    with TemporaryDirectory() as folder:
        file = Path(folder, "accounts.sqlite3")
        secret = asyncio.run(_create_key(file))
        reserved: list[int] = []

        def answer(body: Mapping[str, Any]) -> TextReply:
            reserved.append(asyncio.run(_read_reserved(file)))
            return TextReply("word" + " word" * (body[subject.limit_key] // 2 - 1))

        with ScriptedServer(answer, tokenizer_model="gpt-4o") as upstream:
            config = UpstreamConfig(upstream.url, FORMATS, price=subject.price, window=100_000)
            environment = {"BRIM_STATE": folder}
            with (
                run_gateway(Config(upstreams={"one": config}), environment) as gateway,
                httpx.Client(base_url=gateway.url, timeout=60) as client,
            ):
                headers = {"authorization": f"Bearer {secret}"}
                usages = []
                for size, limit in calls:
                    start = random.randrange(len(texts) - size)
                    body = subject.build_body(texts[start : start + size], limit)
                    while asyncio.run(_read_reserved(file)):
                        time.sleep(0.01)  # the last request is settled a little later
                    raw = client.post(subject.path, json=body, headers=headers).raise_for_status()
                    usages.append((*_read_usage(raw.json()["usage"]), limit))
    return [_price(kept, *usage) for kept, usage in zip(reserved, usages, strict=True)]


def _price(reserved: int, prompt: int, reply: int, limit: int) -> Measured:
    return Measured(reserved, INPUT * prompt, OUTPUT * reply, OUTPUT * limit)


def _read_usage(usage: Mapping[str, int]) -> Sequence[int]:
    names = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
    return [usage[name] for name in names if name in usage]


async def _create_key(file: Path) -> str:
    async def create(store: AccountStore) -> str:
        key, secret = create_key("bench")
        await store.add_key(key, hash_secret(secret), [Cap(int(1_000 * MILLION))])
        return secret

    return await _use_store(file, create)


async def _read_reserved(file: Path) -> int:
    async def read(store: AccountStore) -> int:
        return sum(each.reserved for each in await store.counters())

    return await _use_store(file, read)


async def _use_store(file: Path, work: Callable[[AccountStore], Awaitable[T]]) -> T:
    store = create_store(str(file), file.parent)
    await store.open()
    try:
        return await work(store)
    finally:
        await store.close()


if __name__ == "__main__":
    report.run(__doc__, tables)
