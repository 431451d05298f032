"""Several upstreams for a model: aliases, weights, fail-over, health and session affinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.config import Config, GatewayConfig, UpstreamConfig
from brim.gateway.accounts.keys import KeyRules
from brim.gateway.affinity import rank_by_weight
from brim.gateway.health import FIRST_COOL_DOWN, MAX_COOL_DOWN, RouteHealth
from brim.models.pricing import Price
from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.gateway.accounts import create_secret, only_row, read_cap_usage, say_hi
from tests.support.gateway.metrics import read_metrics
from tests.support.gateway.process import FORMATS, Running, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, RESPONSES, body_of, post

MODEL = "gpt-4o"
BUSY = ErrorReply(503, "busy")


@contextmanager
def several(
    *replies: Any, settings: dict[str, Any] | None = None, **each: Any
) -> Iterator[tuple[Running, list[ScriptedServer]]]:
    """Run a gateway with several upstreams for one model, named a, b, …

    `each` has a list of values for a setting, one per upstream; `settings` are the gateway's.
    """
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(reply)) for reply in replies]
        common: dict[str, Any] = {"models": (MODEL,), "window": 8_000, "reply": 100}
        rows = [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]
        upstreams = {
            name: UpstreamConfig(server.url, FORMATS, **common | own)
            for name, server, own in zip("abc", servers, rows or [{}] * 3, strict=False)
        }
        config = Config(upstreams=upstreams, gateway=GatewayConfig(**(settings or {})))
        yield stack.enter_context(run_gateway(config)), servers


def ask_as(gateway: Running, conversation: object, path: str = CHAT, **more: Any) -> Any:
    """Send the request of a conversation; its first message is the conversation's own."""
    turns = [("user", f"I am {conversation}."), ("assistant", "Yes."), ("user", "Say something.")]
    return post(gateway.url, path, body_of(path, *turns, model=MODEL, **more))


# Aliases and names


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_an_alias_stands_for_a_model(path: str) -> None:
    with several("Hi.", settings={"aliases": {"fast": MODEL}}) as (gateway, (server,)):
        answer = post(gateway.url, path, body_of(path, ("user", "hi"), model="fast"))
        assert answer.status_code == 200
        assert server.requests[0].body["model"] == MODEL


def test_an_upstream_can_have_its_own_name_for_a_model() -> None:
    names = [{MODEL: "my-deployment"}]
    with several("Hi.", names=names) as (gateway, (server,)):
        ask_as(gateway, 1)
        assert server.requests[0].body["model"] == "my-deployment"


def test_a_key_that_may_use_a_model_may_use_its_alias() -> None:
    aliases = {"fast": MODEL, "other": "gpt-4.1"}
    allowed = create_secret("anna", rules=KeyRules(models=("gpt-4o*",)))
    with several("Hi.", models=[()], settings={"aliases": aliases}) as (gateway, _):
        statuses = [say_hi(gateway, allowed, model=name).status_code for name in aliases]
    assert statuses == [200, 403]


# Weights and affinity


def test_a_conversation_stays_at_one_upstream_and_conversations_are_spread() -> None:
    with several("A.", "B.", "C.") as (gateway, servers):
        for conversation in range(12):
            used = {ask_as(gateway, conversation).headers["brim-upstream"] for _ in range(3)}
            assert len(used) == 1
        assert all(server.requests for server in servers)


def test_a_session_header_names_the_conversation() -> None:
    with several("A.", "B.", "C.") as (gateway, _):
        for name in ("brim-session", "x-claude-code-session-id"):
            used = {
                post(
                    gateway.url, CHAT, body_of(CHAT, ("user", f"{n}"), model=MODEL), {name: "one"}
                ).headers["brim-upstream"]
                for n in range(8)
            }
            assert len(used) == 1


def test_responses_that_a_later_request_may_refer_to_stay_at_one_upstream() -> None:
    with several("A.", "B.", "C.") as (gateway, _):
        used = {ask_as(gateway, n, RESPONSES).headers["brim-upstream"] for n in range(8)}
        assert len(used) == 1


def test_without_affinity_a_conversation_uses_all_upstreams() -> None:
    with several("A.", "B.", settings={"affinity": False}) as (gateway, _):
        used = {ask_as(gateway, 1).headers["brim-upstream"] for _ in range(30)}
    assert used == {"a", "b"}


def test_an_upstream_of_weight_0_is_used_only_if_the_others_fail() -> None:
    with several([*["A."] * 6, BUSY], "B.", weight=[1.0, 0.0]) as (gateway, _):
        used = [ask_as(gateway, n).headers["brim-upstream"] for n in range(7)]
    assert used == ["a"] * 6 + ["b"]


def test_shares_are_proportional_to_weights() -> None:
    weights = {"a": 1.0, "b": 3.0, "c": 0.0}
    first = Counter(
        rank_by_weight(str(n).encode(), weights.items(), lambda each: each)[0][0]
        for n in range(4_000)
    )
    assert first["a"] == pytest.approx(1_000, rel=0.1)
    assert first["b"] == pytest.approx(3_000, rel=0.1)
    assert not first["c"]


@given(st.binary(), st.integers(2, 6))
def test_only_the_conversations_of_a_removed_upstream_move(
    conversation: bytes, number: int
) -> None:
    choices = [(f"upstream {n}", 1.0 + n) for n in range(number)]
    ranked = list(rank_by_weight(conversation, choices, lambda each: each))
    assert list(rank_by_weight(conversation, ranked[1:], lambda each: each)) == ranked[1:]


# Fail-over


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "failure", [BUSY, ErrorReply(429), ErrorReply(401), TextReply("A", cut_after=0)]
)
def test_another_upstream_of_the_model_answers_if_one_fails(
    failure: Any, is_streamed: bool
) -> None:
    with several(failure, "Blue.", weight=[1.0, 0.0]) as (gateway, servers):
        answer = ask_as(gateway, 1, stream=is_streamed)
        assert answer.status_code == 200
        assert answer.headers["brim-upstream"] == "b"
        assert answer.headers["brim-attempts"] == "2"
        assert "brim-fallback" not in answer.headers
        first, second = (server.requests[0].raw for server in servers)
        assert first == second


def test_a_chain_of_fallbacks_is_tried_in_turn() -> None:
    models = [(MODEL,), ("gpt-4o-mini",), ("gpt-4.1",)]
    chains = [("gpt-4o-mini", "gpt-4.1"), (), ()]
    with several(BUSY, BUSY, "Blue.", models=models, fallback=chains) as (gateway, servers):
        answer = ask_as(gateway, 1)
        assert (answer.status_code, answer.headers["brim-fallback"]) == (200, "gpt-4.1")
        assert [len(server.requests) for server in servers] == [1, 1, 1]


def test_an_error_can_have_a_chain_of_its_own() -> None:
    """A request that is too long goes to a larger model, and a rejected key to another one."""
    models = [("gpt-4o",), ("large",), ("spare",)]
    by_error = [{"context_length": ("large",), "access": ("spare",)}, {}, {}]
    windows = [1_000, 8_000, 8_000]
    replies = (ErrorReply(401), "Large.", "Spare.")
    with several(*replies, models=models, fallback_by_error=by_error, window=windows) as (
        gateway,
        _,
    ):
        long = post(gateway.url, CHAT, body_of(CHAT, ("user", "word " * 2_000), model=MODEL))
        assert long.headers["brim-fallback"] == "large"
        assert ask_as(gateway, 1).headers["brim-fallback"] == "spare"


def test_each_attempt_is_reserved_and_charged_at_its_own_price() -> None:
    prices = [Price(input=Decimal(n), output=Decimal(10 * n)) for n in (2, 4)]
    secret = create_secret("anna", "1/day")
    with several(BUSY, "Hello.", weight=[1.0, 0.0], price=prices) as (gateway, _):
        assert say_hi(gateway, secret).headers["brim-upstream"] == "b"
    assert only_row().upstream == "b"
    assert only_row().charge.micro_dollars == 4 * 8 + 40 * 2
    assert read_cap_usage()["key dollars"] == (4 * 8 + 40 * 2, 0)


# Health


def test_a_failing_upstream_is_skipped_until_it_answers_a_probe() -> None:
    with several([BUSY, *["A."] * 9], "B.", weight=[1.0, 0.0]) as (gateway, (first, _)):
        assert ask_as(gateway, 1).headers["brim-attempts"] == "2"
        skipped = ask_as(gateway, 2)
        assert skipped.headers["brim-upstream"] == "b"
        assert "brim-attempts" not in skipped.headers
        assert len(first.requests) == 1
        problem = {"upstream": "a", "model": MODEL, "problem": "server_error"}
        assert read_metrics(gateway)("brim_upstream_problems_total", **problem) == 1
        assert read_metrics(gateway)("brim_route_available", upstream="a", model=MODEL) == 0


def test_a_fallback_comes_first_while_the_only_upstream_cools_down() -> None:
    models, chains = [(MODEL,), ("spare",)], [("spare",), ()]
    with several(BUSY, "Blue.", models=models, fallback=chains) as (gateway, (first, _)):
        for _ in range(3):
            assert ask_as(gateway, 1).headers["brim-fallback"] == "spare"
        assert len(first.requests) == 1


def test_an_upstream_that_cools_down_is_tried_if_nothing_else_answers() -> None:
    with several([BUSY, *["A."] * 9], ErrorReply(500)) as (gateway, _):
        answers = [ask_as(gateway, n) for n in range(4)]
    assert answers[-1].status_code == 200


def test_the_limit_of_a_clients_own_key_says_nothing_about_the_upstream() -> None:
    with several([ErrorReply(429, retry_after=30), "A."], weight=[1.0]) as (gateway, _):
        assert ask_as(gateway, 1).status_code == 429
        assert read_metrics(gateway)("brim_route_available", upstream="a", model=MODEL) == 1


def test_a_cool_down_doubles_and_one_request_probes() -> None:
    health, now = RouteHealth(), 0.0
    for failures in range(20):
        assert health.is_available(now)
        begun, other = health.begin(), health.begin()
        assert health.is_available(now) == (failures == 0)
        health.fail(begun, now, None)
        health.fail(other, now, None)  # it ran at the same time
        assert not health.is_available(now)
        now += min(FIRST_COOL_DOWN * 2**failures, MAX_COOL_DOWN)
    begun = health.begin()
    health.succeed(begun)
    health.end(begun)
    assert health.is_available(now)
    health.fail(health.begin(), now, 30.0)
    assert not health.is_available(now + 29)


def test_a_probe_that_is_cancelled_lets_the_next_one_pass() -> None:
    health = RouteHealth()
    health.fail(health.begin(), 0.0, None)
    health.end(health.begin())
    assert health.is_available(FIRST_COOL_DOWN)
