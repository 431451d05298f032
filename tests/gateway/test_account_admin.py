"""The administration API: keys, caps and the audit log over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from brim.gateway.accounts.keys import KeyRules
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import (
    PRICE,
    bearer_headers,
    create_secret,
    run_in_store,
    say_hi,
)
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import wait_until

CHANGES = [
    ("POST", "/brim/keys", {"name": "x"}),
    ("PATCH", "/brim/keys/anna", {"note": "x"}),
    ("DELETE", "/brim/keys/anna", None),
    ("PUT", "/brim/caps", {"scope": "all", "caps": ["1/day"]}),
]


@pytest.fixture
def served(upstream: ScriptedServer) -> Iterator[Running]:
    create_secret("anna", "5/day", project="web")
    with run_gateway(config_of(upstream.url, price=PRICE)) as served:
        yield served


@pytest.fixture
def operator(served: Running) -> Iterator[httpx.Client]:
    secret = create_secret("boss", is_operator=True)
    with httpx.Client(base_url=served.url, headers=bearer_headers(secret)) as client:
        yield client


def read_audit_log(operator: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = operator.get("/brim/audit").raise_for_status().json()["data"]
    return found


def test_a_key_is_created_used_changed_and_revoked(served: Running, operator: httpx.Client) -> None:
    made = operator.post("/brim/keys", json={"name": "ben", "project": "web", "caps": ["5/day"]})
    assert made.status_code == 201
    key = made.json()
    assert key["caps"][0]["limit"] == 5.0
    assert say_hi(served, key["key"]).status_code == 200
    changed = operator.patch(
        "/brim/keys/ben", json={"models": ["none-*"], "expires": "30d", "caps": ["7/week"]}
    ).json()
    assert changed["models"] == ["none-*"]
    assert changed["expires"] > time.time()
    assert [cap["cap"] for cap in changed["caps"]] == ["$7/week"]
    assert "key" not in changed
    ended = operator.delete(f"/brim/keys/{key['id']}").json()
    assert ended["revoked"] is not None
    assert say_hi(served, key["key"]).status_code == 401
    assert [each["name"] for each in operator.get("/brim/keys").json()["data"]] == ["boss", "anna"]
    everything = operator.get("/brim/keys?all=true").json()["data"]
    assert {each["name"] for each in everything} == {"boss", "anna", "ben"}
    assert operator.get("/brim/keys/ben").json()["id"] == key["id"]


def test_every_change_is_in_the_audit_log(operator: httpx.Client) -> None:
    secret = operator.post("/brim/keys", json={"name": "ben"}).json()["key"]
    operator.patch("/brim/keys/ben", json={"note": "intern"})
    operator.put("/brim/caps", json={"scope": "project:web", "caps": ["2M tokens/day"]})
    operator.put("/brim/caps", json={"scope": "key:ben", "caps": []})
    operator.delete("/brim/keys/ben")
    found = read_audit_log(operator)
    assert [each["action"] for each in found] == [
        *("key.revoke", "caps.set", "caps.set", "key.edit", "key.add"),
    ]
    assert {each["actor"] for each in found} == {"key:boss"}
    assert found[2]["details"]["caps"] == {"before": [], "after": ["2,000,000 tokens/day"]}
    assert secret not in str(found)


def test_caps_are_listed_with_their_use(operator: httpx.Client) -> None:
    operator.put("/brim/caps", json={"scope": "all", "caps": ["100/month", "5M tokens/day"]})
    found = operator.get("/brim/caps").json()["data"]
    assert {(each["kind"], each["name"], each["cap"]) for each in found} == {
        ("all", "", "$100/month"),
        ("all", "", "5,000,000 tokens/day"),
        ("key", "anna", "$5/day"),
    }


INVALID: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/brim/keys", {"name": "anna"}, 409, "name_in_use"),
    ("POST", "/brim/keys", {}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "a b"}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "b", "cap": "5"}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "b", "caps": "5/day"}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "b", "caps": ["5/year"]}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "b", "caps": ["5/day", "6/day"]}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "b", "operator": 1}, 400, "invalid_request"),
    ("POST", "/brim/keys", {"name": "b", "operator": True, "caps": ["5"]}, 400,
     "invalid_request"),
    ("PATCH", "/brim/keys/anna", {"expires": 5}, 400, "invalid_request"),
    ("PATCH", "/brim/keys/anna", {"expires": 1e308}, 400, "invalid_request"),
    ("PATCH", "/brim/keys/anna", {"expires": "2020-01-01"}, 400, "invalid_request"),
    ("PATCH", "/brim/keys/anna", {"models": [1]}, 400, "invalid_request"),
    ("PATCH", "/brim/keys/boss", {"caps": ["1/day"]}, 400, "invalid_request"),
    ("PATCH", "/brim/keys/ben", {"note": "x"}, 404, "key_not_found"),
    ("DELETE", "/brim/keys/ben", None, 404, "key_not_found"),
    ("GET", "/brim/keys/ben", None, 404, "key_not_found"),
    ("PUT", "/brim/caps", {"scope": "all"}, 400, "invalid_request"),
    ("PUT", "/brim/caps", {"scope": "team:x", "caps": []}, 400, "invalid_request"),
    ("PUT", "/brim/caps", {"scope": "key:boss", "caps": []}, 400, "invalid_request"),
    ("PUT", "/brim/caps", {"scope": "key:ben", "caps": []}, 404, "key_not_found"),
]  # fmt: skip


def test_an_invalid_request_changes_nothing_and_says_why(operator: httpx.Client) -> None:
    for method, path, body, status, code in INVALID:
        answer = operator.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), body
    assert read_audit_log(operator) == []


def test_only_an_operator_may_change_keys(served: Running) -> None:
    client = bearer_headers(create_secret("carl"))
    for method, path, body in CHANGES:
        for heads, status in ((client, 403), (bearer_headers("brim-x"), 401), ({}, 401)):
            answer = httpx.request(method, served.url + path, json=body, headers=heads)
            assert answer.status_code == status
    assert run_in_store(lambda store: store.audit_entries(9)) == []


def test_the_first_key_is_not_created_over_http(upstream: ScriptedServer) -> None:
    with run_gateway(config_of(upstream.url)) as served:
        for method, path, body in CHANGES:
            answer = httpx.request(method, served.url + path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_keys")
        for path in ("/brim/keys", "/brim/caps", "/brim/audit"):
            assert httpx.get(served.url + path).json()["data"] == []


def test_a_page_of_another_site_cannot_change_keys(operator: httpx.Client) -> None:
    heads = {"origin": "https://example.org", "sec-fetch-site": "cross-site"}
    answer = operator.delete("/brim/keys/anna", headers=heads)
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert operator.get("/brim/keys/anna").json()["revoked"] is None


def test_the_dashboard_at_its_public_name_can_change_keys(operator: httpx.Client) -> None:
    page = {"origin": "https://gateway.example.com", "host": "gateway.example.com"}
    assert operator.patch("/brim/keys/anna", json={"note": "x"}, headers=page).status_code == 200
    behind_proxy = {"origin": "https://gateway.example.com", "sec-fetch-site": "same-origin"}
    answer = operator.patch("/brim/keys/anna", json={"note": "y"}, headers=behind_proxy)
    assert answer.status_code == 200


def test_end_users_are_listed_with_what_they_spent_of_their_caps(
    served: Running, operator: httpx.Client
) -> None:
    secret = operator.post("/brim/keys", json={"name": "chat"}).json()["key"]
    body = {"scope": "users:chat", "caps": ["1/day", "10 requests/minute"]}
    assert operator.put("/brim/caps", json=body).status_code == 200
    for user in ("ann", "bob", "ann"):
        assert say_hi(served, secret, user=user).status_code == 200
    wait_until(lambda: sum(one["requests"] for one in read_users(operator)) == 3)
    first, second = read_users(operator)
    assert (first["user"], first["requests"], second["user"]) == ("ann", 2, "bob")
    assert [(cap["cap"], cap["spent"]) for cap in first["caps"]] == [("$1/day", first["cost"])]
    assert operator.get("/brim/keys/chat").json()["user_caps"] == ["$1/day", "10 requests/minute"]
    assert operator.get("/brim/keys/chat/users?since=2100-01-01").json()["data"] == []
    assert operator.get("/brim/keys/chat/users?since=x").status_code == 400
    assert operator.get("/brim/keys/none/users").status_code == 404


def read_users(operator: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = operator.get("/brim/keys/chat/users").json()["data"]
    return found


def test_the_ledger_is_pruned(operator: httpx.Client) -> None:
    assert operator.post("/brim/prune", json={"older_than": "90d"}).json()["rows"] == 0
    assert read_audit_log(operator)[0]["action"] == "ledger.prune"
    for text in ("1d", "x"):
        assert operator.post("/brim/prune", json={"older_than": text}).status_code == 400


# Idempotency-Key


def test_a_repeated_request_gets_the_first_response(operator: httpx.Client) -> None:
    heads = {"idempotency-key": "one"}

    def create(_: int) -> httpx.Response:
        return operator.post("/brim/keys", json={"name": "ben"}, headers=heads)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(create, range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert len(read_audit_log(operator)) == 1


def test_an_idempotency_key_belongs_to_one_request(operator: httpx.Client) -> None:
    heads = {"idempotency-key": "two"}
    assert operator.post("/brim/keys", json={"name": "ben"}, headers=heads).status_code == 201
    for path, body in (
        ("/brim/keys", {"name": "carl"}),
        ("/brim/keys", {"name": "ben", "note": ""}),
    ):
        answer = operator.post(path, json=body, headers=heads)
        assert answer.json()["error"]["code"] == "idempotency_key_reused"
    answer = operator.delete("/brim/keys/ben", headers={"idempotency-key": "x" * 256})
    assert answer.status_code == 400


def test_a_failed_request_may_be_repeated(operator: httpx.Client) -> None:
    heads = {"idempotency-key": "three"}
    assert operator.delete("/brim/keys/ben", headers=heads).status_code == 404
    create_secret("ben", rules=KeyRules(note="late"))
    assert operator.delete("/brim/keys/ben", headers=heads).status_code == 200
    assert operator.delete("/brim/keys/ben", headers=heads).status_code == 200
