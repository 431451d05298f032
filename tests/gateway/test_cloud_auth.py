"""Upstreams in clouds: their paths, and credentials found by the libraries of the clouds."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import jwt
import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from brim.config import Config, UpstreamConfig
from tests.support.gateway.process import run_gateway
from tests.support.providers.scripted import RecordedRequest, Scripted, run, run_scripted

CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES = {**CHAT, "model": "claude-sonnet-4-5", "max_tokens": 5}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
GOOGLE = "https://oauth2.googleapis.com/token"
"""The audience of every assertion of a service account."""
VERTEX = "/v1/projects/p/locations/us-east5"
GATEWAY_KEY = {"authorization": "Bearer sk-of-the-client", "x-api-key": "sk-of-the-client"}


async def answer(request: web.Request) -> web.StreamResponse:
    """Return a token where libraries ask for one, and a short reply elsewhere."""
    if request.path in ("/token", "/msi/token"):
        expires = {"expires_in": 3600, "expires_on": int(time.time()) + 3600}
        token = {"access_token": "cloud-token", "token_type": "Bearer", "resource": "r"}
        return web.json_response({**token, **expires})
    usage = {"input_tokens": 8, "output_tokens": 2, "prompt_tokens": 8, "completion_tokens": 2}
    content = [{"type": "text", "text": "Hello."}]
    choices = [{"index": 0, "message": {"role": "assistant", "content": "Hello."}}]
    return web.json_response(
        {"type": "message", "content": content, "choices": choices, "usage": usage}
    )


def call(
    at: str, body: dict[str, Any], path: str = "", number: int = 1, **settings: Any
) -> tuple[httpx.Response, Scripted]:
    """Send requests through a gateway; return the last response, and the upstream."""

    async def work() -> tuple[httpx.Response, Scripted]:
        async with run_scripted(answer) as server:
            upstream = UpstreamConfig(f"{server.url}{path}", count="off", **settings)
            config = Config(upstreams={"cloud": upstream})
            with run_gateway(config, {"KEY": "sk-of-the-upstream"}) as gateway:
                async with httpx.AsyncClient(headers=GATEWAY_KEY) as client:
                    for _ in range(number):
                        found = await client.post(gateway.url + at, json=body)
            return found, server

    found: tuple[httpx.Response, Scripted] = run(work())
    return found


def last(server: Scripted) -> RecordedRequest:
    """Return the last request, its headers by lower-case name."""
    received = server.requests[-1]
    return replace(
        received, headers={name.lower(): value for name, value in received.headers.items()}
    )


# Azure


@pytest.mark.parametrize(
    ("at", "body", "path"),
    [
        ("/v1/chat/completions", CHAT, "/openai/deployments/gpt-4o/chat/completions"),
        ("/v1/embeddings", {"model": "e", "input": "hi"}, "/openai/deployments/e/embeddings"),
        ("/v1/responses", {"model": "gpt-4o", "input": "hi"}, "/openai/responses"),
    ],
)
def test_azure_gets_its_key_header_and_its_paths(at: str, body: dict[str, Any], path: str) -> None:
    found, server = call(
        at,
        body,
        format=("openai", "responses"),
        auth="azure",
        key_env="KEY",
        api_version="2024-10-21",
    )
    assert found.status_code == 200
    assert last(server).path == path
    assert last(server).headers["api-key"] == "sk-of-the-upstream"
    assert not {"authorization", "x-api-key"} & last(server).headers.keys()


def test_azure_without_a_version_has_the_usual_paths() -> None:
    _, server = call("/v1/chat/completions", CHAT, "/openai/v1", auth="azure", key_env="KEY")
    assert last(server).path == "/openai/v1/chat/completions"
    assert last(server).headers["api-key"] == "sk-of-the-upstream"


@asynccontextmanager
async def run_identity(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scripted]:
    """The identity service of a machine in Azure."""
    async with run_scripted(answer) as identity:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{identity.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "secret")
        yield identity


def test_azure_without_a_key_uses_the_identity_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with run_identity(monkeypatch) as identity, run_scripted(answer) as server:
            upstream = UpstreamConfig(f"{server.url}/openai/v1", auth="azure", count="off")
            with run_gateway(Config(upstreams={"azure": upstream})) as gateway:
                async with httpx.AsyncClient(headers=GATEWAY_KEY) as client:
                    for _ in range(2):
                        await client.post(f"{gateway.url}/v1/chat/completions", json=CHAT)
            assert last(server).headers["authorization"] == "Bearer cloud-token"
            assert identity.paths == ["/msi/token"]

    run(work())


# Google


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rsa.RSAPublicKey:
    """The public key of a service account; tokens come from `token_uri`, set by the test."""
    key = rsa.generate_private_key(65537, 2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"type": "service_account", "private_key": text.decode(), "client_email": "b@p.iam"}
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    return key.public_key()


@pytest.mark.parametrize(
    ("at", "body", "path"),
    [
        (
            "/v1beta/models/gemini-2.5-pro:generateContent",
            GEMINI,
            "/publishers/google/models/gemini-2.5-pro:generateContent",
        ),
        ("/v1/messages", MESSAGES, "/publishers/anthropic/models/claude-sonnet-4-5:rawPredict"),
        (
            "/v1/messages",
            {**MESSAGES, "stream": True},
            "/publishers/anthropic/models/claude-sonnet-4-5:streamRawPredict",
        ),
    ],
)
def test_vertex_gets_a_token_of_the_service_account(
    service_account: rsa.RSAPublicKey, tmp_path: Path, at: str, body: dict[str, Any], path: str
) -> None:
    async def work() -> tuple[httpx.Response, Scripted]:
        async with run_scripted(answer) as server:
            file = tmp_path / "account.json"
            account = json.loads(file.read_text())
            file.write_text(json.dumps({**account, "token_uri": f"{server.url}/token"}))
            formats: Any = ("gemini", "anthropic")
            upstream = UpstreamConfig(server.url + VERTEX, formats, auth="google", count="off")
            with run_gateway(Config(upstreams={"vertex": upstream})) as gateway:
                async with httpx.AsyncClient(headers=GATEWAY_KEY) as client:
                    for _ in range(2):
                        found = await client.post(gateway.url + at, json=body)
            return found, server

    found, server = run(work())
    assert found.status_code == 200
    assert last(server).path == VERTEX + path
    assert last(server).headers["authorization"] == "Bearer cloud-token"
    (received,) = [each for each in server.requests if each.path == "/token"]
    (assertion,) = parse_qs(received.raw.decode())["assertion"]
    claims = jwt.decode(assertion, service_account, ["RS256"], audience=GOOGLE)
    assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
    if body is not GEMINI:
        sent = last(server).body
        assert sent.pop("anthropic_version") == "vertex-2023-10-16"
        assert sent == {name: value for name, value in body.items() if name != "model"}


# Amazon

AWS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "AWS_SESSION_TOKEN": "tok"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    settings = {"AWS_DEFAULT_REGION": "us-east-2", "AWS_EC2_METADATA_DISABLED": "true"}
    files = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    for name, value in {**settings, **files}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def sign(received: RecordedRequest, url: str) -> str:
    """Return the signature that a request must have."""
    request = AWSRequest(received.method, url, data=received.raw)
    request.context["timestamp"] = received.headers["x-amz-date"]
    signer = SigV4Auth(Credentials("AKIA", "s3cr3t", "tok"), "bedrock-mantle", "us-east-2")
    request.headers["X-Amz-Date"] = received.headers["x-amz-date"]
    request.headers["X-Amz-Security-Token"] = "tok"
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return str(signer.signature(text, request))


def test_bedrock_gets_signed_requests(aws: pytest.MonkeyPatch) -> None:
    for name, value in AWS.items():
        aws.setenv(name, value)
    found, server = call("/v1/messages", MESSAGES, "/anthropic", format=("anthropic",), auth="aws")
    assert found.status_code == 200
    received = last(server)
    assert received.path == "/anthropic/v1/messages"
    assert received.headers["x-amz-security-token"] == "tok"
    assert "us-east-2/bedrock-mantle/aws4_request" in received.headers["authorization"]
    assert received.headers["authorization"].endswith(sign(received, server.url + received.path))
    assert "x-api-key" not in received.headers


def test_missing_credentials_are_an_error_that_says_so(aws: pytest.MonkeyPatch) -> None:
    for name in AWS:
        aws.delenv(name, raising=False)
    found, server = call("/v1/messages", MESSAGES, format=("anthropic",), auth="aws")
    assert found.status_code == 502
    assert "No credentials for aws" in found.json()["error"]["message"]
    assert not server.requests
