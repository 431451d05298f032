"""The gateway in the pictures of the dashboard, as used by a small team.

Its upstreams are scripted, and its agents and its month of spending are made up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from brim.config import Config, GatewayConfig, UpstreamConfig
from brim.gateway.accounts.caps import ALL, Cap, key_scope, project_scope
from brim.gateway.accounts.editor import AccountEditor
from brim.gateway.accounts.keys import ApiKey, KeyRules, create_key, hash_secret
from brim.gateway.accounts.reservations import Charge, Reservation, Settlement
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.gateway.records import RequestRecord
from brim.gateway.request_history import RequestHistory
from brim.models.pricing import Price, Usage
from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.requests import CHAT, wait_until

DAY: Final = 86_400.0
LEASE: Final = 60.0
CLAUDE, GPT, QWEN = "claude-sonnet-4-5", "gpt-5-mini", "qwen3-8b"
SERVED: Final = {CLAUDE: "anthropic", GPT: "openai", QWEN: "own"}
COSTS: Final = {CLAUDE: 2.1, GPT: 0.4, QWEN: 0.1}
"""Micro-dollars per token, on average."""
KEYS: Final = {
    "alice": ("web", ("2/day", "40/month")),
    "review-bot": ("web", ("0.75/day",)),
    "ci": ("build", ("1M tokens/day",)),
    "bob": ("", ("1/day",)),
}
SHARED: Final = {project_scope("web"): "20/month", ALL: "100/month"}
OPERATOR: Final = "operator"
FAILURES: Final = (
    *[(429, "insufficient_quota")] * 4,
    *[(400, "context_length_exceeded")] * 3,
    *[(503, None), (502, "upstream_unreachable"), (403, "uncountable"), (404, "model_not_found")],
)
SAID: Final = "It works now. " * 30


@contextmanager
def scene(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a gateway with one request in flight; yield its address and the operator's key."""
    random, held = Random(7), threading.Event()
    secrets = asyncio.run(_fill_store(folder / "accounts.sqlite3", random))
    asyncio.run(_fill_history(RequestHistory(folder, 30), Random(11)))
    with ExitStack() as stack:
        providers = {
            model: stack.enter_context(provider) for model, provider in _providers(held).items()
        }
        config = _config({model: provider.url for model, provider in providers.items()}, folder)
        server = stack.enter_context(run_gateway(config))
        _ask(server, secrets, random)
        last = {**_agent(120, random, CLAUDE), "stream": True}
        asking = threading.Thread(target=_post, args=(server, last, secrets["alice"]))
        asking.start()
        wait_until(lambda: any(each.body.get("stream") for each in providers[CLAUDE].requests))
        try:
            yield server.url, secrets[OPERATOR]
        finally:
            held.set()
            asking.join()


# The account store


async def _fill_store(path: Path, random: Random) -> dict[str, str]:
    """Fill a store with a month of requests; return the secret of each key by its name."""
    at = time.time() - 30 * DAY
    store = SqliteAccountStore(path, lambda: at)
    secrets: dict[str, str] = {}
    keys: list[ApiKey] = []
    for name, (project, caps) in {**KEYS, OPERATOR: ("", ())}.items():
        key, secrets[name] = create_key(name, project, is_operator=name == OPERATOR)
        keys.append(replace(key, created=at))
        await store.add_key(keys[-1], hash_secret(secrets[name]), list(map(Cap.parse, caps)))
    editor = AccountEditor(store, f"key:{OPERATOR}")
    for scope, cap in SHARED.items():
        await editor.set_caps(scope, [Cap.parse(cap)])
    await editor.set_rules(keys[0], KeyRules(note="the web team", labels=("team=web",)))
    await editor.set_rules(keys[1], KeyRules(models=("claude-*", "gpt-5*", "qwen*")))
    for days in range(30, -1, -1):
        at = time.time() - days * DAY
        busy = 0.3 if days % 7 in (0, 6) else 1.0
        for number in range(int(busy * random.randint(16, 30))):
            await _spend(store, keys[number % len(KEYS)], random, f"{days}-{number}")
    for key, micro_dollars in zip(keys, (240_000, 310_000), strict=False):
        await store.reserve(_reservation(key, CLAUDE, Charge(micro_dollars=micro_dollars)), LEASE)
    await store.close()
    return secrets


async def _spend(store: SqliteAccountStore, key: ApiKey, random: Random, id: str) -> None:
    (model,) = random.choices(list(COSTS), (5, 4, 2))
    read = random.randint(10_000, 90_000)
    usage = Usage(read, int(read * random.uniform(0.2, 0.9)), random.randint(300, 4_000))
    bill = Charge(usage, int(COSTS[model] * read))
    reservation = _reservation(key, model, bill, id)
    if await store.reserve(reservation, LEASE) is None and await store.mark_sent(
        reservation.id, LEASE
    ):
        await store.settle([Settlement(reservation.id, bill)])


def _reservation(key: ApiKey, model: str, maximum: Charge, id: str = "open") -> Reservation:
    own = [(key_scope(key.id), cap) for cap in KEYS[key.name][1]]
    shared = [
        (scope, cap) for scope, cap in SHARED.items() if scope in (ALL, f"project:{key.project}")
    ]
    caps = tuple((scope, Cap.parse(cap)) for scope, cap in own + shared)
    name, upstream = f"{key.name}-{id}", SERVED[model]
    return Reservation(name, key.id, key.name, key.project, model, upstream, maximum, caps)


# The history


async def _fill_history(history: RequestHistory, random: Random) -> None:
    """Fill the history with a month of requests, most of them on working days."""
    now = time.time()
    at = now - 30 * DAY
    while at < now - 120:
        hour, day = time.gmtime(at).tm_hour, time.gmtime(at).tm_wday
        busy = (0.15 if day > 4 else 1.0) * (1.0 if 7 <= hour < 19 else 0.25)
        at += random.expovariate(busy * (2.0 if now - at < DAY else 0.25) / 60)
        history.add(_make_record(at, random))
        if random.random() < 0.001:
            await history.flush()
    await history.flush()


def _make_record(at: float, random: Random) -> RequestRecord:
    (model,) = random.choices(list(COSTS), (5, 4, 2))
    record = RequestRecord(CHAT, "openai")
    record.time, record.model, record.upstream = at, model, SERVED[model]
    record.key = random.choice(list(KEYS))
    record.project = KEYS[record.key][0] or None
    record.streamed = random.random() < 0.8
    if random.random() < 0.03:
        record.status, record.code = random.choice(FAILURES)
        record.end, record.seconds = "rejected", random.uniform(0.01, 0.4)
        return record
    read, written = random.randint(2_000, 40_000), random.randint(100, 1_500)
    record.status, record.end, record.tokens_before = 200, "completed", int(read * 1.2)
    record.tokens, record.limit = read, 47_000
    record.usage = Usage(read, int(read * random.uniform(0.3, 0.9)), written)
    record.cost = Decimal(int(COSTS[model] * read)) / 1_000_000
    record.first_byte = random.lognormvariate(-0.4, 0.5)
    record.seconds = record.first_byte + written / random.uniform(60, 120)
    return record


# The gateway


def _providers(held: threading.Event) -> dict[str, ScriptedServer]:
    def answer(body: Mapping[str, Any]) -> TextReply:
        return TextReply(SAID, hold=held if body.get("stream") else None)

    busy: list[str | ErrorReply] = [*[SAID] * 5, ErrorReply(503, "overloaded"), *[SAID] * 20]
    return {
        CLAUDE: ScriptedServer(answer, model=CLAUDE, tokenizer_model=QWEN),
        GPT: ScriptedServer(busy, model=GPT),
        QWEN: ScriptedServer(SAID, model=QWEN, window=12_000, reports_window=False),
    }


def _config(addresses: Mapping[str, str], folder: Path) -> Config:
    price = Price(Decimal("0.1"), Decimal("0.02"), Decimal("0.4"))
    settings: dict[str, dict[str, Any]] = {
        CLAUDE: {"window": 48_000},
        GPT: {"window": 32_000, "fallback": QWEN},
        QWEN: {"window": 24_000, "price": price},
    }
    return Config(
        upstreams={
            SERVED[model]: UpstreamConfig(
                endpoint=address, format=("openai",), models=(model,), **settings[model]
            )
            for model, address in addresses.items()
        },
        gateway=GatewayConfig(store=str(folder / "accounts.sqlite3")),
    )


# The clients


def _ask(server: Running, secrets: Mapping[str, str], random: Random) -> None:
    steps = {CLAUDE: (9, 30, 70, 140), GPT: (4, 25, 60), QWEN: (3, 12, 60)}
    order = "CGCQGCGQCGGCQGCQGCGCG"
    models = {model[0].upper(): model for model in steps}
    for place, letter in enumerate(order):
        model = models[letter]
        body = _agent(random.choice(steps[model]), random, model)
        _post(server, body, secrets[list(KEYS)[place % len(KEYS)]])
    _post(server, _question(QWEN, "All of it: " + "x y " * 12_000), secrets["bob"])
    _post(server, _question("gpt-4o", "Hello?"), secrets["ci"])
    _post(server, _agent(6, random, GPT), secrets["alice"])


def _question(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def _agent(steps: int, random: Random, model: str) -> dict[str, Any]:
    """Return a long conversation of an agent."""
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "Work on the repository. " * 40},
        {"role": "user", "content": "The import fails for some files. " * 8},
    ]
    for step in range(steps):
        turns += _step(step, random.choice((4, 12, 60, 150)))
        if step % 9 == 8:
            turns.append({"role": "assistant", "content": "That was it, I think. " * 10})
            turns.append({"role": "user", "content": f"Not yet: {step} tests fail. " * 6})
    turns.append({"role": "user", "content": "Go on."})
    return {"model": model, "messages": turns, "max_tokens": 1_000}


def _step(step: int, lines: int) -> list[dict[str, Any]]:
    function = {"name": "read", "arguments": '{"path": "src/load.py"}'}
    call = {"id": f"call_{step}", "type": "function", "function": function}
    result = "".join(f"{step}:{line} value = read(row, {line * step})\n" for line in range(lines))
    return [
        {"role": "assistant", "content": "I look at it.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


def _post(server: Running, body: dict[str, Any], secret: str) -> None:
    headers = {"authorization": f"Bearer {secret}"}
    httpx.post(server.url + CHAT, json=body, headers=headers, timeout=600)
