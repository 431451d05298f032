"""`GET /v1/retrieve/{id}`: what requests of the last hour dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest

import brim
from brim.config import GatewayConfig
from brim.gateway import dropped_messages
from brim.gateway.dropped_messages import MAX_AGE, DroppedMessages
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import bearer_headers, create_secret
from tests.support.gateway.clients import long_talk
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, PATHS, body_of, post

TALK = long_talk(80)


@contextmanager
def gateway(**settings: Any) -> Iterator[tuple[Running, ScriptedServer]]:
    with ScriptedServer("Blue.", window=2_000) as upstream:
        config = config_of(upstream.url, window=2_000, reply=100)
        with run_gateway(replace(config, gateway=GatewayConfig(**settings))) as running:
            yield running, upstream


def retrieve(running: Running, id: str, secret: str = "none") -> httpx.Response:
    return httpx.get(f"{running.url}/v1/retrieve/{id}", headers=bearer_headers(secret))


@pytest.mark.parametrize("path", PATHS)
def test_the_id_in_note_and_header_returns_what_was_dropped(path: str) -> None:
    with gateway(retrieve=True) as (running, upstream):
        answer = post(running.url, path, body_of(path, *TALK))
        id = answer.headers["brim-retrieve-id"]
        found = retrieve(running, id).raise_for_status().json()
    sent = str(upstream.requests[0].body)
    assert re.findall(r"omitted; id (\d+)\]", sent) == [id]
    assert (found["object"], found["id"]) == ("brim.dropped", id)
    texts = [message["text"] for message in found["messages"]]
    assert texts == [text for _, text in TALK if text in texts]
    assert not any(text in sent for text in texts)
    dropped = dict(item.split("=") for item in answer.headers["brim-trimmed"].split(", "))
    assert len(texts) == int(dropped["dropped"])
    assert [TALK[message["index"]][0] for message in found["messages"]] == [
        message["role"] for message in found["messages"]
    ]


def test_the_id_and_the_note_stay_the_same_until_the_next_trim() -> None:
    with gateway(retrieve=True) as (running, upstream):
        for length in range(len(TALK) - 24, len(TALK) + 1, 2):
            post(running.url, CHAT, body_of(CHAT, *TALK[:length]))
    bodies = [request.body["messages"] for request in upstream.requests]
    same = [later[: len(first)] == first for first, later in pairwise(bodies)]
    assert sum(same) > len(same) / 2


def test_a_request_that_fits_has_no_id() -> None:
    with gateway(retrieve=True) as (running, _):
        assert "brim-retrieve-id" not in post(running.url, CHAT, body_of(CHAT, "hi")).headers


def test_all_policies_have_an_id() -> None:
    with gateway(retrieve=True) as (running, _):
        for policy in ("sliding", "recall", "rolling", "thrift"):
            answer = post(running.url, CHAT, body_of(CHAT, *TALK), {"brim-policy": policy})
            assert retrieve(running, answer.headers["brim-retrieve-id"]).json()["messages"]


def test_only_the_key_that_sent_the_request_can_read_it() -> None:
    anna, ben = create_secret("anna"), create_secret("ben")
    with gateway(retrieve=True) as (running, _):
        sent = post(running.url, MESSAGES, body_of(MESSAGES, *TALK), bearer_headers(anna))
        id = sent.headers["brim-retrieve-id"]
        statuses = [retrieve(running, id, secret).status_code for secret in (anna, ben, "none")]
    assert statuses == [200, 404, 401]


def test_by_default_nothing_is_kept() -> None:
    with gateway() as (running, upstream):
        answer = post(running.url, CHAT, body_of(CHAT, *TALK))
        missing = retrieve(running, "000000000000")
    assert "brim-retrieve-id" not in answer.headers
    assert "; id " not in str(upstream.requests[0].body)
    assert missing.status_code == 404
    assert "gateway.retrieve = true" in missing.json()["error"]["message"]


# What is kept


def plan_of(turns: Sequence[tuple[str, str]]) -> brim.Plan:
    messages = [{"role": role, "content": text} for role, text in turns]
    return brim.fit(messages, model="gpt-4o", window=1_000, reply=100).plan


def test_it_is_forgotten_an_hour_after_the_last_request() -> None:
    now = 0.0
    kept = DroppedMessages(lambda: now)
    plan = plan_of(TALK)
    id = kept.add("anna", plan)
    now = MAX_AGE - 1
    assert kept.add("anna", plan) == id
    now = 2 * MAX_AGE - 2
    assert kept.find("anna", id) is not None
    now = 2 * MAX_AGE
    assert kept.find("anna", id) is None


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [plan_of([("user", f"Talk {n}."), *TALK]) for n in range(5)]
    kept = DroppedMessages()
    size = len(kept.find(None, kept.add(None, plans[0])) or b"")
    monkeypatch.setattr(dropped_messages, "MAX_BYTES", 3 * size)
    ids = [kept.add(None, plan) for plan in plans]
    assert len(set(ids)) == 5
    assert [kept.find(None, id) is not None for id in ids] == [False, False, True, True, True]
