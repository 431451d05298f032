"""A configured model looked into: its server, its window, how it is counted, what it costs.

Asks only what costs nothing: the list of models, the window, and the count of one word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brim.errors import (
    AuthenticationError,
    BrimError,
    ConnectionFailedError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.providers import CountSupport, Endpoint, Portal, ServerCounter, ServerInfo, Transport
from brim.providers.server_counter import CountStates

if TYPE_CHECKING:
    from brim.config import Config, ModelConfig
    from brim.shell.setup.doctor import CheckState

Finding = tuple[str, "CheckState", str, str | None]
"""What was looked at, how it is, a sentence, and what can be done."""

SELF_HOSTED: Final = frozenset(("llama.cpp", "ollama", "lmstudio", "vllm", "sglang", "tgi"))
"""Servers that people run themselves, for nothing a token."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What a server said; `fault` is what was wrong, where nothing more could be asked."""

    fault: str | None = None
    models: tuple[str, ...] = ()
    window: int | None = None
    source: str = ""
    kind: str = "unknown"
    verdict: CountSupport | None = None


def check_model(
    name: str, config: Config, environment: Mapping[str, str], patience: float
) -> Iterator[Finding]:
    """Everything about one model of the configuration."""
    model = config.models[name]
    called = model.model or name
    if model.endpoint is None:
        yield "server", "bad", "has no endpoint", f"set models.{name}.endpoint to its address"
        return
    try:
        key = environment.get(model.key_env or "")
        endpoint = Endpoint(model.endpoint, model.format, key, model.headers, patience, 0)
    except BrimError as error:
        yield "server", "bad", str(error), f"set models.{name}.endpoint and its key anew"
        return
    if model.key_env and not key:
        state: CheckState = "warn" if endpoint.is_loopback else "bad"
        yield "key", state, f"{model.key_env} is not set", f"export {model.key_env}=…"
    seen = _probe(endpoint, called, patience, counts=config.count.server != "off")
    yield _check_server(name, seen, endpoint, called)
    yield _check_window(name, model, called, seen)
    yield _check_counting(called, seen, config.count.server)
    yield _check_price(name, model, called, seen)


def _probe(endpoint: Endpoint, called: str, patience: float, *, counts: bool) -> ServerReport:
    with Portal() as portal:
        try:
            return portal.run(_query_server(endpoint, called, patience, counts=counts))
        except TimeoutError as error:
            return ServerReport(str(error) or f"{endpoint.host} takes too long")
        except BrimError as error:
            return ServerReport(str(error))


async def _query_server(
    endpoint: Endpoint, called: str, patience: float, *, counts: bool
) -> ServerReport:
    async with Transport(endpoint) as connection, asyncio.timeout(3 * patience):
        server = ServerInfo(connection)
        models: list[str] = []
        try:
            async with asyncio.timeout(patience):
                models = await server.models()
        except (AuthenticationError, ConnectionFailedError, ProviderTimeoutError):
            raise
        except ProviderError as error:
            if error.status not in (404, 405, 501):  # some have no list, and work
                raise
        window = await server.window_of(called)
        counter = ServerCounter(connection, enabled=counts, states=CountStates(), timeout=patience)
        await counter.count(_count_body(endpoint.format, called))
        verdict = counter.support(called)
        return ServerReport(None, tuple(models), window.tokens, window.source, window.kind, verdict)


def _count_body(format: str, called: str) -> dict[str, Any]:
    """The shortest request."""
    if format == "responses":
        return {"model": called, "input": "hello"}
    return {"model": called, "messages": [{"role": "user", "content": "hello"}]}


def _check_server(name: str, seen: ServerReport, endpoint: Endpoint, called: str) -> Finding:
    if seen.fault is not None:
        return "server", "bad", seen.fault, f"models.{name}.endpoint says {endpoint}"
    what = "" if seen.kind == "unknown" else f", {seen.kind}"
    answers = f"{endpoint.host} answers{what}"
    if not seen.models:
        return "server", "ok", f"{answers}; it does not list its models", None
    if any(_is_same_model(called, offered) for offered in seen.models):
        return "server", "ok", f"{answers}, and offers {called}", None
    if seen.kind == "llama.cpp" and len(seen.models) == 1:
        return "server", "ok", f"{answers}, with {seen.models[0]}, whatever it is called", None
    few = ", ".join(seen.models[:5]) + (", …" if len(seen.models) > 5 else "")
    return "server", "bad", f"{answers}, but does not offer {called}", f"it offers {few}"


def _is_same_model(one: str, other: str) -> bool:
    """Whether two names mean the same model; a date and `:latest` go without saying."""
    one, other = (name.lower().removesuffix(":latest") for name in (one, other))
    return one == other or other.startswith(f"{one}-20")


def _check_window(name: str, model: ModelConfig, called: str, seen: ServerReport) -> Finding:
    from brim.models import catalog

    advice = f"set models.{name}.window"
    known = catalog.model(called)
    if model.window is not None:
        if seen.window is not None and seen.window < model.window:
            said = f"{model.window:,} tokens are configured, and the server gives {seen.window:,}"
            return "window", "warn", said, f"{advice} = {seen.window}, or take it out"
        return "window", "ok", f"{model.window:,} tokens, from the configuration", None
    if seen.window is not None:
        return "window", "ok", f"{seen.window:,} tokens, from the server ({seen.source})", None
    if known is not None and known.context is not None:
        return "window", "ok", f"{known.context:,} tokens, from the catalog", None
    if seen.fault is not None:
        return "window", "warn", "not known while the server does not answer", advice
    return "window", "bad", f"not known: {seen.source}", advice


def _check_counting(called: str, seen: ServerReport, wanted: str) -> Finding:
    from brim.tokens import counter_for, vocabulary_of
    from brim.tokens.vocabularies import INSTALL, has_splintr

    vocabulary, is_own = vocabulary_of(called)
    counts = seen.verdict is not None and seen.verdict.state == "yes"
    server = "and the server counts" if counts else "and the server does not count"
    if seen.fault is not None:
        server = "and the server could not be asked"
    if wanted == "off":
        server = "and the server is not asked (count.server)"
    if is_own:
        return "counting", "ok", f"exact, with {vocabulary}, {server}", None
    doubt = counter_for(called).uncertainty
    said = f"an estimate with {vocabulary}, up to {doubt:.0%} off, {server}"
    if counts or has_splintr():
        return "counting", "ok", said, None
    return "counting", "ok", said, f"{INSTALL} brings the vocabularies of open models"


def _check_price(name: str, model: ModelConfig, called: str, seen: ServerReport) -> Finding:
    from brim.models import pricing

    if model.price is not None:
        return "price", "ok", "from the configuration", None
    if seen.kind in SELF_HOSTED:
        return "price", "ok", f"{seen.kind} runs on somebody's own machine and has none", None
    price = pricing.price(called)
    if price is None or price.input is None or price.output is None:
        advice = f"set models.{name}.price, or spending limits cannot count it"
        return "price", "warn", "not known", advice
    return "price", "ok", f"${price.input} in, ${price.output} out, a million tokens", None
