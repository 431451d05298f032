"""The planning flow, run by hand: the server is a function with a count of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.errors import Overflow
from brim.fitting.flow import MAX_TRIM_ROUNDS, CountJob, CountMode, SummaryJob
from brim.fitting.policies import PolicyName
from brim.session.driver import RequestSettings
from brim.session.session import Session, get_driver
from tests.support.pairwise import pairwise
from tests.support.strategies import Raw, histories, history, policies

UNKNOWN = "acme/unknown-model"
Server = Callable[[Mapping[str, Any]], int | None]


def estimate(body: Mapping[str, Any]) -> int:
    """Return brim's own count for an unknown model, with non-Latin text at its byte bound."""
    chat = Session(UNKNOWN, window=10**9)
    total = 3
    for message in body["messages"]:
        total += 4 + get_driver(chat).count_text(json.dumps(message, ensure_ascii=False))
    return total


def by_bytes(body: Mapping[str, Any]) -> int:
    return 3 + sum(
        8 + len(json.dumps(turn, ensure_ascii=False).encode()) // 4 for turn in body["messages"]
    )


def by_gpt(body: Mapping[str, Any]) -> int:
    return brim.count(body["messages"], model="gpt-4o")


def times(share: float) -> Server:
    def server(body: Mapping[str, Any]) -> int:
        return math.ceil(share * by_gpt(body))

    return server


SERVERS: dict[str, Server] = {
    "as gpt-4o": by_gpt,
    "0.7 times": times(0.7),
    "1.2 times": times(1.2),
    "by bytes": by_bytes,
}
DENSE: dict[str, Server] = {
    "1.3 times": times(1.3),
    "2 times": times(2.0),
    "as estimated": estimate,
}

servers = st.sampled_from(sorted(SERVERS))
all_servers = st.sampled_from(sorted(SERVERS | DENSE))


class Driven:
    """Runs a flow and records its jobs."""

    def __init__(self, chat: Session, server: Server, ask: CountMode, **more: Any) -> None:
        self.counts: list[tuple[Mapping[str, Any], int | None]] = []
        self.summaries = 0
        self.request = self._drive(
            get_driver(chat).plan_request(RequestSettings(**more), ask), server
        )

    def _drive(self, planning: Any, server: Server) -> brim.Request:
        answer: object = None
        while True:
            try:
                job = planning.send(answer)
            except StopIteration as done:
                request: brim.Request = done.value
                return request
            if isinstance(job, CountJob):
                answer = server(job.body)
                self.counts.append((job.body, answer))
            else:
                assert isinstance(job, SummaryJob)
                self.summaries += 1
                answer = "NOTES: so it was."


def no_count(_body: Mapping[str, Any]) -> int | None:
    return None


def session(turns: list[Raw], window: int, policy: PolicyName = "steady", **more: Any) -> Session:
    chat = Session(UNKNOWN, window=window + 1, reply=1, policy=policy, **more)
    for turn in turns:
        chat.append(turn)
    return chat


def keep_accepted(turns: list[Raw]) -> list[Raw]:
    """Return the turns that a session accepts."""
    chat, taken = Session(UNKNOWN, window=10**9), []
    for turn in turns:
        try:
            chat.append(turn)
        except brim.MessageError:
            continue
        taken.append(turn)
    return taken


windows = st.one_of(st.integers(50, 800), st.integers(400, 6_000))


@given(histories(), windows, policies, all_servers)
def test_with_count_always_the_request_fits_by_the_servers_count(
    turns: list[Raw], window: int, policy: PolicyName, name: str
) -> None:
    server = (SERVERS | DENSE)[name]
    chat = session(keep_accepted(turns), window, policy)
    try:
        driven = Driven(chat, server, "always")
    except brim.ContextOverflowError:
        return
    assert server(driven.request) <= window  # type: ignore[operator]
    assert driven.request.plan.server_tokens == server(driven.request)
    assert driven.request.plan.fits


@given(histories(), windows, policies, servers)
def test_with_count_near_the_request_fits_if_the_estimate_is_within_its_uncertainty(
    turns: list[Raw], window: int, policy: PolicyName, name: str
) -> None:
    server = SERVERS[name]
    chat = session(keep_accepted(turns), window, policy)
    try:
        driven = Driven(chat, server, "near")
    except brim.ContextOverflowError:
        return
    assert server(driven.request) <= window  # type: ignore[operator]
    if driven.request.plan.server_tokens is not None:
        assert driven.request.plan.server_tokens == server(driven.request)


@given(histories(), policies, all_servers, st.integers(0, 40), st.sampled_from(("near", "always")))
def test_a_conversation_that_fits_by_the_servers_count_is_never_trimmed(
    turns: list[Raw], policy: PolicyName, name: str, spare: int, ask: CountMode
) -> None:
    server = (SERVERS | DENSE)[name]
    turns = keep_accepted(turns)
    whole = session(turns, 10**8, policy).request()
    window = server(whole)
    assert window is not None
    driven = Driven(session(turns, window + spare, policy), server, ask)
    assert driven.request.messages == whole.messages
    assert not driven.request.plan.is_trimmed


@given(histories(), windows, policies, all_servers, st.sampled_from(("near", "always")))
def test_the_number_of_counts_is_bounded(
    turns: list[Raw], window: int, policy: PolicyName, name: str, ask: CountMode
) -> None:
    bodies = []

    def server(body: Mapping[str, Any]) -> int | None:
        bodies.append(body)
        return (SERVERS | DENSE)[name](body)

    with suppress(brim.ContextOverflowError):
        Driven(session(keep_accepted(turns), window, policy), server, ask)
    assert len(bodies) <= 1 + MAX_TRIM_ROUNDS


@given(histories(), windows, policies, st.sampled_from(("near", "always")))
def test_without_a_count_the_estimate_decides(
    turns: list[Raw], window: int, policy: PolicyName, ask: CountMode
) -> None:
    turns = keep_accepted(turns)
    try:
        sent = Driven(session(turns, window, policy), no_count, ask).request
    except brim.ContextOverflowError:
        with pytest.raises(brim.ContextOverflowError):
            session(turns, window, policy).request()
        return
    plan = sent.plan
    assert plan.server_tokens is None
    assert plan.tokens <= plan.budget.room
    alone = session(turns, window, policy)
    if not alone.request().plan.is_trimmed:
        assert not plan.is_trimmed
    elif policy in ("rolling", "sliding") and plan.is_trimmed:
        assert sent.messages == alone.request().messages


@given(
    histories(faults=False), st.integers(600, 4_000), st.sampled_from(("steady", "thrift")), servers
)
def test_with_reported_usage_the_prefix_is_stable_between_trims(
    turns: list[Raw], window: int, policy: PolicyName, name: str
) -> None:
    server, chat = SERVERS[name], session([], window, policy)
    last: list[Raw] = []
    trim_id: int | None = None
    for turn in keep_accepted(turns):
        if turn["role"] == "assistant" and not turn.get("tool_calls"):
            continue
        chat.append(turn)
        if turn["role"] != "user":
            continue
        try:
            request = chat.request()
        except brim.ContextOverflowError:
            return
        if request.plan.trim_id == trim_id:
            assert request.messages[: len(last)] == last
        last, trim_id = request.messages, request.plan.trim_id
        chat.receive(answer(server(request)))
        last = [*last, {"role": "assistant", "content": "ok"}]


@pairwise(
    policy=["steady", "thrift"],
    name=sorted(SERVERS),
    ask=["off", "near", "always"],
    reports=[1, 3],
)
def test_in_a_long_conversation_trims_are_rare_and_no_request_is_too_long(
    policy: PolicyName, name: str, ask: CountMode, reports: int
) -> None:
    """Also if only some of the replies report their usage."""
    server, chat = SERVERS[name], session([], 6_000, policy)
    prefixes, over = 0, 0
    last: list[Raw] = []
    chat.user(LATIN * 3)
    for number in range(120):
        call = {"id": f"c{number}", "function": {"name": "run", "arguments": '{"n": 1}'}}
        chat.assistant(None, [call])
        chat.tool(f"c{number}", f"{number} {LATIN * 12}")
        request = Driven(chat, server, ask).request
        over += server(request) > 6_000  # type: ignore[operator]
        prefixes += request.messages[: len(last)] != last
        last = request.messages
        chat.receive(answer(server(request) if number % reports == 0 else None))
        chat.user(f"and {number}?")
    assert over == 0
    overflow_error = sum(len(json.dumps(turn)) for turn in chat.history) / 4
    slack = {"steady": 0.10, "thrift": 0.40}[policy] * 6_000 * 0.6
    assert prefixes <= 3 + 1.6 * overflow_error / slack


LATIN = "the budget of the parser reads a file, and writes another one. "


def answer(tokens: int | None) -> Raw:
    message = {"role": "assistant", "content": "ok"}
    reply: Raw = {"choices": [{"message": message, "finish_reason": "stop"}]}
    if tokens is not None:
        reply["usage"] = {"prompt_tokens": tokens, "completion_tokens": 1}
    return reply


def test_far_from_the_limit_the_server_counts_only_with_always() -> None:
    chat = session(history("u50 a50 u50"), 50_000)
    assert Driven(chat, by_gpt, "near").counts == []
    assert len(Driven(chat, by_gpt, "always").counts) == 1
    assert Driven(chat, by_gpt, "off").counts == []


@pytest.mark.parametrize("density", [0.9, 1.3])
@pytest.mark.parametrize("share", [0.95, 1.01])
def test_new_text_is_sent_up_to_the_limit_once_reports_show_its_size(
    density: float, share: float
) -> None:
    chat = Session(UNKNOWN, window=2_001, reply=1)
    tokens = 50
    for words in (300, 100, 200, 100, 200):
        chat.append({"role": "user", "content": "word " * words})
        assert not chat.request().plan.is_trimmed
        tokens += 10 + round(density * words)
        chat.receive(answer(tokens))
    room = share * 2_000 - tokens - 10
    chat.append({"role": "user", "content": "word " * round(room / density)})
    assert chat.request().plan.is_trimmed is (share > 1)


def test_text_that_was_never_measured_needs_a_larger_margin() -> None:
    chat = Session(UNKNOWN, window=2_001, reply=1)
    chat.append({"role": "user", "content": "word " * 900})
    chat.request()
    chat.receive(answer(900))
    chat.append({"role": "user", "content": "word " * 1_050})
    assert chat.request().plan.is_trimmed


def test_an_exact_count_is_confirmed_only_with_always() -> None:
    chat = Session("gpt-4o", window=2_001, reply=1)
    for turn in history("u400 a400 u400"):
        chat.append(turn)
    assert Driven(chat, no_count, "near").counts == []


def test_the_counted_body_is_the_body_that_is_sent() -> None:
    chat = session(history("u50 " + "c9 r300 " * 9), 2_000, system="Be brief.")
    driven = Driven(chat, by_gpt, "always", options={"temperature": 0})
    body, true = driven.counts[-1]
    assert dict(body) == dict(driven.request)
    assert driven.request.plan.server_tokens == driven.request.plan.size == true
    assert driven.request["temperature"] == 0


def test_a_japanese_prompt_that_fits_is_not_rejected_for_its_bytes() -> None:
    chat = session(
        history("u9 a9 u9"), 3_000, system="日本語の文章は、ここに書かれています。" * 100
    )
    driven = Driven(chat, by_gpt, "near")
    assert not driven.request.plan.is_trimmed
    assert len(driven.request.messages) == 4


def test_a_summary_is_requested_once_and_the_request_still_fits() -> None:
    for policy in ("steady", "thrift", "rolling", "sliding"):
        chat = session(history("u20 " + "a60 u60 " * 40), 2_000, policy, summarize=lambda *_: None)
        driven = Driven(chat, times(1.2), "near")
        assert driven.summaries == 1
        assert "NOTES: so it was." in json.dumps(driven.request.messages)
        assert times(1.2)(driven.request) <= 2_000  # type: ignore[operator]
        assert len(driven.counts) <= 2 * (1 + MAX_TRIM_ROUNDS)


def test_messages_that_cannot_be_dropped_are_reported_with_the_servers_count() -> None:
    chat = session(history("u900"), 700)
    with pytest.raises(brim.ContextOverflowError) as caught:
        Driven(chat, by_gpt, "always")
    assert caught.value.tokens == by_gpt({"messages": list(chat.history)})
    assert caught.value.limit == 700


@pairwise(
    overflow_error=[
        Overflow(None, None),
        Overflow(8_000, None),
        Overflow(None, 9_000),
        Overflow(8_000, 9_000),
        Overflow(6_000, 6_500),
        Overflow(8_000, 100),
        Overflow(3_000, None),
        Overflow(None, 9_000, at_least=True),
    ],
    ask=["off", "near", "always"],
    policy=["steady", "thrift", "rolling", "sliding"],
    model=["gpt-4o", UNKNOWN],
)
def test_after_a_context_length_error_the_next_request_is_smaller(
    overflow_error: Overflow, ask: CountMode, policy: PolicyName, model: str
) -> None:
    chat = Session(model, window=8_000, policy=policy)
    for turn in history("u20 " + "a60 u60 " * 30):
        chat.append(turn)
    sizes = []
    for _ in range(3):
        request = Driven(chat, no_count, ask).request
        sizes.append(by_gpt(request))
        get_driver(chat).handle_context_length_error(overflow_error)
    assert sizes[2] < sizes[1] < sizes[0]
    assert list(chat.history) == history("u20 " + "a60 u60 " * 30)


def test_after_a_context_length_error_the_messages_that_are_kept_may_be_denser() -> None:
    chat = session(history("u9 " + "a9 u9 " * 40), 1_001, "sliding")
    first = chat.request().plan
    get_driver(chat).handle_context_length_error(Overflow(1_001, 1_100))
    assert 1.1 * chat.request().plan.tokens * 1_100 / first.tokens <= 1_000


def test_a_context_length_error_without_a_request_changes_nothing() -> None:
    chat = session(history("u9"), 1_000)
    get_driver(chat).handle_context_length_error(Overflow(10, 10))
    assert not chat.request().plan.is_trimmed


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
@pytest.mark.parametrize("share", [0.6, 0.8, 1.0, 1.2])
def test_with_reported_usage_no_request_of_a_small_window_is_too_long(
    policy: PolicyName, share: float
) -> None:
    server, chat = times(share), session([], 256, policy, system="Answer in one sentence.")
    for n in range(16):
        chat.user(f"Question {n}: " + "what does this line of the log mean? " * 4)
        request = chat.request()
        tokens = server(request)
        assert tokens is not None
        assert tokens <= 256
        chat.receive(answer(tokens))
