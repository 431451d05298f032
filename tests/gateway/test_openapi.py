"""The OpenAPI description matches all paths and responses, for any request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import httpx
import pytest
from hypothesis import Phase, given, settings
from jsonschema_rs import Draft202012Validator
from starlette.applications import Starlette
from starlette.routing import Route

from brim.config import GatewayConfig
from brim.gateway.admin import AdminRoutes
from brim.gateway.asgi import create_app
from brim.gateway.bodies import PATHS
from brim.testing import ErrorReply, ScriptedServer, ToolCallReply
from tests.support.gateway.process import Running, config_of, run_gateway
from tests.support.gateway.requests import CHAT, MESSAGES, RESPONSES, ask, body_of, post


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedServer]:
    with ScriptedServer("Hello.", window=4_000, counts_tokens=True) as provider:
        yield provider


# Paths


@cache
def description() -> dict[str, Any]:
    text = resources.files("brim.gateway").joinpath("openapi.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def resolve(value: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference into the components."""
    if (reference := value.get("$ref")) is None:
        return value
    _, _, kind, name = reference.split("/")
    found: dict[str, Any] = description()["components"][kind][name]
    return found


def list_operations() -> set[tuple[str, str]]:
    return {
        (method.upper(), path)
        for path, methods in description()["paths"].items()
        for method in methods
    }


def test_every_path_is_described_and_no_other() -> None:
    app = create_app(config_of("http://127.0.0.1:9"), {})
    admin: Starlette = AdminRoutes(app.gateway).app()
    routes = {
        (method, route.path.replace(":path}", "}"))
        for route in admin.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    gemini = {f"/v1beta/models/{{model}}:{name}enerateContent" for name in ("g", "streamG")}
    assert list_operations() == routes | {("POST", path) for path in gemini.union(PATHS)}


def test_the_description_is_served(served: Running) -> None:
    assert httpx.get(f"{served.url}/openapi.json").json() == description()


def test_every_component_exists_and_is_used() -> None:
    parts = description()["components"]
    there = {f"#/components/{kind}/{name}" for kind in parts for name in parts[kind]}
    assert set(_references(description())) == there


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


# Responses


def check(answer: httpx.Response, path: str) -> None:
    """Validate a response against the description of its path."""
    method = answer.request.method.lower()
    responses = description()["paths"][path][method]["responses"]
    found = responses.get(str(answer.status_code), responses.get("default"))
    assert found is not None, f"{answer.status_code} at {path}"
    expected = resolve(found)
    names = {name for name in answer.headers if name.startswith("brim-")}
    assert names <= set(expected.get("headers", {}))
    media = answer.headers["content-type"].partition(";")[0]
    content = expected["content"]
    assert media in content or "*/*" in content
    if media == "application/json" and "*/*" not in content:
        validate(answer.json(), content[media]["schema"])


def validate(value: object, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": description()["components"]}
    Draft202012Validator(whole).validate(value)


BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: body_of(CHAT, "Hello?"),
    "/messages": body_of(MESSAGES, "Hello?"),
    RESPONSES: body_of(RESPONSES, "Hello?"),
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "heads", "status"),
    [({}, {}, 200), ({"stream": True}, {}, 200), ({}, {"brim-fitting": "dry-run"}, 200),
     ({}, {"brim-policy": "none"}, 400), ({"model": 5}, {}, 400), ({"tools": {}}, {}, 400),
     ({"messages": [{"role": "user", "content": "word " * 9_000}]}, {}, 400),
     ({}, {"origin": "https://example.org"}, 403)],
)  # fmt: skip
def test_completions_match_the_description(
    served: Running, path: str, fields: dict[str, Any], heads: dict[str, str], status: int
) -> None:
    body = {**BODIES[path], **fields}
    if "responses" in path and "messages" in body:
        body["input"] = body.pop("messages")
    answer = post(served.url, path, body, heads)
    assert answer.status_code == status
    check(answer, path)
    if status >= 400:
        validate(answer.json(), {"$ref": "#/components/schemas/Error"})


def test_other_paths_match_the_description(served: Running) -> None:
    answer = ask(served, CHAT, *["word " * 900, "Yes."] * 9, "Hello?")
    assert answer.headers["brim-trimmed"] != "none"
    for path, at in {
        "/brim/requests/{id}": f"/brim/requests/{answer.headers['brim-request-id']}",
        "/brim/requests": "/brim/requests?last=2",
        "/v1/models": "/v1/models",
        "/v1/models/{name}": "/v1/models/scripted",
        "/metrics": "/metrics",
        "/healthz": "/healthz",
        "/readyz": "/readyz",
        "/openapi.json": "/openapi.json",
    }.items():
        for heads in ({}, {"anthropic-version": "2023-06-01"}):
            found = httpx.get(served.url + at, headers=heads)
            assert found.status_code == 200
            check(found, path)


@pytest.mark.parametrize(
    "fault", [ErrorReply(429, retry_after=1), ErrorReply(500, raw=b"\xff"), ErrorReply(418)]
)
def test_upstream_errors_match_the_description(fault: ErrorReply) -> None:
    with (
        ScriptedServer([fault, ToolCallReply("f")]) as failing,
        run_gateway(config_of(failing.url)) as served,
    ):
        for _ in range(2):
            answer = post(served.url, MESSAGES, BODIES["/messages"])
            check(answer, MESSAGES)


def test_an_unreachable_upstream_matches_the_description() -> None:
    with run_gateway(config_of("http://127.0.0.1:9")) as served:
        for path, body in BODIES.items():
            answer = post(served.url, path, body)
            assert answer.status_code == 502
            check(answer, path)


# Generated requests

EXAMPLES = settings().max_examples // 4
"""Requests for each path; checking the responses takes most of the time."""


@pytest.mark.parametrize(("method", "path"), sorted(list_operations()))
def test_every_response_matches_the_description(method: str, path: str, served: Running) -> None:
    from schemathesis import Case, openapi
    from schemathesis.specs.openapi import checks

    api = openapi.from_dict(description())
    api.config.update(base_url=served.url)
    conformance = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
    ]

    @given(api[path][method].as_strategy())
    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
    def call(case: Case[Any]) -> None:
        answer = case.call()
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, checks=conformance)

    call()


def test_dropped_messages_match_the_description(upstream: ScriptedServer) -> None:
    config = replace(config_of(upstream.url), gateway=GatewayConfig(retrieve=True))
    with run_gateway(config) as running:
        answer = ask(running, CHAT, *["word " * 900, "Yes."] * 9, "Hello?")
        check(answer, CHAT)
        path = "/v1/retrieve/{id}"
        check(httpx.get(running.url + path.format(id=answer.headers["brim-retrieve-id"])), path)
        check(httpx.get(running.url + path.format(id="0")), path)
