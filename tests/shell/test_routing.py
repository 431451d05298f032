"""Routing rules and fallbacks."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import fit
from brim.config import Config, ModelConfig, RoutingConfig
from brim.config.schema import ContextConfig, RoutingRule
from brim.errors import (
    AuthenticationError,
    BudgetError,
    ConnectionFailedError,
    ContextLengthError,
    ContextOverflowError,
    InputError,
    InvalidResponseError,
    LocalModelError,
    Overflow,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    SpendingCapError,
)
from brim.providers.errors import is_fallback_worthwhile
from brim.session.session import Session, get_driver
from brim.shell.model_clients import (
    MAX_MATCHED_CHARS,
    ModelClients,
    Route,
    choose_route,
    fallback_for,
)
from brim.testing import ScriptedServer

CONFIG = RoutingConfig(
    rules=(
        RoutingRule(r"\btranslate\b", class_="text", model="fast"),
        RoutingRule(r"^fix\b|\bbug\b", class_="code"),
        RoutingRule(r"translate|picture", model="large"),
    ),
    system_prompts={"text": "Answer with the text only.", "unused": "Never."},
)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        ("Translate this", Route("text", "fast", "Answer with the text only.", 0)),
        ("please TRANSLATE", Route("text", "fast", "Answer with the text only.", 0)),
        ("a translated picture", Route(None, "large", None, 2)),
        ("fix it", Route("code", None, None, 1)),
        ("there is a Bug\nin it", Route("code", None, None, 1)),
        ("prefix it", Route()),
        ("", Route()),
    ],
)
def test_the_first_matching_rule_decides(words: str, route: Route) -> None:
    assert choose_route(words, CONFIG) == route


def test_without_rules_nothing_is_routed() -> None:
    assert choose_route("translate", RoutingConfig()) == Route()


def test_rules_match_only_the_beginning_of_a_long_message() -> None:
    assert choose_route("x" * (MAX_MATCHED_CHARS - 4) + " bug", CONFIG).rule == 1
    assert choose_route("x" * (MAX_MATCHED_CHARS - 3) + " bug", CONFIG).rule is None


@given(st.text(max_size=200))
def test_a_route_is_one_of_the_rules_or_none(words: str) -> None:
    route = choose_route(words, CONFIG)
    if route.rule is None:
        assert route == Route()
    else:
        rule = CONFIG.rules[route.rule]
        assert (route.class_, route.model) == (rule.class_, rule.model)


MODELS = {
    "a": ModelConfig(fallback="b"),
    "b": ModelConfig(fallback="a"),
    "c": ModelConfig(),
    "d": ModelConfig(fallback="d"),
    "e": ModelConfig(fallback="local"),
}


@pytest.mark.parametrize(
    ("failed", "tried", "other"),
    [
        ("a", {"a"}, "b"),
        ("b", {"a", "b"}, None),
        ("c", {"c"}, None),
        ("d", {"d"}, None),
        ("d", set(), None),
        ("e", {"e"}, "local"),
        ("gpt-5-mini", {"gpt-5-mini"}, None),
    ],
)
def test_the_configured_fallback_is_tried_once(
    failed: str, tried: set[str], other: str | None
) -> None:
    assert fallback_for(failed, MODELS, tried) == other


def overflow() -> ContextOverflowError:
    with pytest.raises(ContextOverflowError) as error:
        fit([{"role": "user", "content": "word " * 500}], window=200, reply=50)
    return error.value


@pytest.mark.parametrize(
    ("error", "is_worth_it"),
    [
        (ConnectionFailedError("gone"), True),
        (ProviderTimeoutError("silent"), True),
        (RateLimitError("wait", status=429), True),
        (AuthenticationError("no key", status=401), True),
        (AuthenticationError("not yours", status=403), True),
        (ProviderError("no such model", status=404), True),
        (ProviderError("pay first", status=402), True),
        (ProviderError("broken", status=500), True),
        (ProviderError("overloaded", status=529), True),
        (ProviderError("an error in the place of an answer", status=200), True),
        (ContextLengthError("too long", Overflow(100, 200), status=400), True),
        (InvalidResponseError("cannot be read"), True),
        (LocalModelError("no weights"), True),
        (ProviderError("no such field", status=400), False),
        (ProviderError("not like this", status=422), False),
        (overflow(), False),
        (SpendingCapError("too dear", Decimal(1), Decimal(1), None), False),
        (InputError("what?"), False),
        (BudgetError("no window"), False),
        (KeyboardInterrupt(), False),
        (asyncio.CancelledError(), False),
        (OSError("disk full"), False),
        (ConnectionResetError(), False),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'status', '')}",
)
def test_a_fallback_is_used_only_if_the_model_failed(
    error: BaseException, is_worth_it: bool
) -> None:
    assert is_fallback_worthwhile(error) is is_worth_it


@pytest.mark.parametrize(("window", "limits"), [(None, (40, 4_096)), (8_000, (None, None))])
def test_sliding_has_limits_as_long_as_the_window_is_unknown(
    window: int | None, limits: tuple[int | None, int | None]
) -> None:
    with ScriptedServer("Yes.", window=window) as provider:
        model = ModelConfig(endpoint=provider.url, model="unheard-of")
        config = Config(models={"m": model}, context=ContextConfig(policy="sliding"))
        models, session = ModelClients(config, {}), Session(policy="sliding")
        get_driver(session).profile = models.profile("m")
        models.prepare(session, "m")
        policy = get_driver(session).composer.state.policy
        assert (policy.max_turns, policy.token_budget) == limits
        models.close()
