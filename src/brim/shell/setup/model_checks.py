"""Checks of a configured model: its server, window, token counting and price.

They send only requests that are free: the list of models, the window, a token count, and small
conversations that the server's chat template renders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from brim.config import Config, ModelConfig
from brim.errors import (
    BrimError,
)
from brim.fitting.profile import ModelProfile, PriceBasis
from brim.models import catalog, pricing
from brim.providers.endpoint import Endpoint
from brim.providers.server_counter import CountStates, CountSupport, ServerCounter
from brim.providers.server_info import ProfileSource, ServerInfo, Window, find_price_basis
from brim.providers.sync import Portal
from brim.providers.template_finder import TemplateFinder
from brim.providers.transport import Transport
from brim.shell.setup import CheckResult, CheckState, Finding
from brim.storage.calibration_store import CalibrationStore
from brim.tokens import counter_for, vocabulary_of
from brim.tokens.vocabularies import INSTALL, is_available
from brim.wire.formats import FORMATS
from brim.wire.template_rules import describe_rules
from brim.wire.template_trial import ALL_FEATURES


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What a server reported; `error` is set if it could not be queried."""

    error: str | None = None
    models: tuple[str, ...] = ()
    window: Window = field(default_factory=lambda: Window(None, ""))
    verdict: CountSupport | None = None
    profile: ModelProfile = field(default_factory=ModelProfile)
    """The model with the rules of its chat template."""


def check_model(
    name: str, config: Config, environment: Mapping[str, str], patience: float
) -> Iterator[CheckResult]:
    """Yield the checks of one configured model."""
    model = config.models[name]
    model_name = model.model or name
    if model.endpoint is None:
        yield CheckResult(
            "server", "bad", "has no endpoint", f"set models.{name}.endpoint to its URL"
        )
        return
    try:
        key = environment.get(model.key_env or "")
        endpoint = Endpoint(model.endpoint, model.format, key, model.headers, patience, 0)
    except BrimError as error:
        yield CheckResult("server", "bad", str(error), f"check models.{name}.endpoint and its key")
        return
    if model.key_env and not key:
        state: CheckState = "warn" if endpoint.is_loopback else "bad"
        yield CheckResult("key", state, f"{model.key_env} is not set", f"export {model.key_env}=…")
    profile = ModelProfile(model_name, template=model.template)
    counts = config.count.server != "off"
    with Portal() as portal:
        try:
            report = portal.run(_query_server(endpoint, profile, patience, counts=counts))
        except (TimeoutError, BrimError) as error:
            report = ServerReport(str(error) or f"{endpoint.host} timed out")
    yield CheckResult("server", *_check_server(name, report, endpoint, model_name))
    yield CheckResult("window", *_check_window(name, model, model_name, report))
    yield CheckResult("counting", *_check_counting(model_name, report, config.count.server))
    if report.error is None and model.format == "openai":
        rules, source = report.profile.rules(), report.profile.template_source
        known = f"{describe_rules(rules)} ({source})"
        if report.profile.trial is None and rules.free:
            known = "unknown: the server does not render; requests are sent as they are"
        yield CheckResult("template", "ok", known)
    basis = find_price_basis(report.window.kind, endpoint)
    yield CheckResult("price", *_check_price(name, model, model_name, basis))


async def _query_server(
    endpoint: Endpoint, profile: ModelProfile, patience: float, *, counts: bool
) -> ServerReport:
    model_name = profile.model or ""
    async with Transport(endpoint) as connection, asyncio.timeout(3 * patience):
        server = ServerInfo(connection)
        async with asyncio.timeout(patience):
            models = await server.offered()
        window = await server.window_of(model_name)
        counter = ServerCounter(connection, enabled=counts, states=CountStates(), timeout=patience)
        smallest = [{"role": "user", "content": "hello"}]
        await counter.count(FORMATS[endpoint.format].build(smallest, model=model_name, reply=1))
        templates = TemplateFinder(ProfileSource(server, CalibrationStore()))
        profile = await templates.complete(profile, window, ALL_FEATURES)
        return ServerReport(None, tuple(models), window, counter.support(model_name), profile)


def _check_server(name: str, report: ServerReport, endpoint: Endpoint, model_name: str) -> Finding:
    if report.error is not None:
        return "bad", report.error, f"models.{name}.endpoint is {endpoint}"
    kind = report.window.kind
    what = "" if kind == "unknown" else f", {kind}"
    answers = f"{endpoint.host} responds{what}"
    if not report.models:
        return "ok", f"{answers}; it does not list its models"
    if any(_is_same_model(model_name, offered) for offered in report.models):
        return "ok", f"{answers}, and offers {model_name}"
    if kind == "llama.cpp" and len(report.models) == 1:
        return "ok", f"{answers}, and serves {report.models[0]} under any name"
    few = ", ".join(report.models[:5]) + (", …" if len(report.models) > 5 else "")
    return "bad", f"{answers}, but does not offer {model_name}", f"it offers {few}"


def _is_same_model(one: str, other: str) -> bool:
    """Return whether two names mean the same model, ignoring a date and `:latest`."""
    one, other = (name.lower().removesuffix(":latest") for name in (one, other))
    return one == other or other.startswith(f"{one}-20")


def _check_window(name: str, model: ModelConfig, model_name: str, report: ServerReport) -> Finding:
    advice = f"set models.{name}.window"
    known, reported = catalog.model(model_name), report.window.tokens
    if model.window is not None:
        if reported is not None and reported < model.window:
            message = f"{model.window:,} tokens are configured, but the server has {reported:,}"
            return "warn", message, f"{advice} = {reported}, or remove it"
        return "ok", f"{model.window:,} tokens, from the configuration"
    if reported is not None:
        return "ok", f"{reported:,} tokens, from the server ({report.window.source})"
    if known is not None and known.context is not None:
        return "ok", f"{known.context:,} tokens, from the catalog"
    if report.error is not None:
        return "warn", "unknown while the server does not respond", advice
    return "bad", f"unknown: {report.window.source}", advice


def _check_counting(model_name: str, report: ServerReport, wanted: str) -> Finding:
    vocabulary, is_own = vocabulary_of(model_name)
    counts = report.verdict is not None and report.verdict.state == "yes"
    server = "and the server counts" if counts else "and the server does not count"
    if report.error is not None:
        server = "and the server could not be queried"
    if wanted == "off":
        server = "and the server is not used for counting (count.server)"
    if is_own:
        return "ok", f"exact, with {vocabulary}, {server}"
    doubt = counter_for(model_name).uncertainty
    message = f"an estimate with {vocabulary}, up to {doubt:.0%} off, {server}"
    if counts or is_available("llama3"):
        return "ok", message
    return "ok", message, f"{INSTALL} installs the tokenizers of open models"


def _check_price(name: str, model: ModelConfig, model_name: str, basis: PriceBasis) -> Finding:
    if model.price is not None:
        return "ok", "from the configuration"
    if basis == "free":
        return "ok", "$0: the server is self-hosted"
    price = pricing.price(model_name) if basis == "list" else None
    if price is None or price.input is None or price.output is None:
        advice = f"set models.{name}.price; spending limits need it"
        return "warn", "unknown", advice
    return "ok", f"${price.input} in, ${price.output} out, per million tokens"
