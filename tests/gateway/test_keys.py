"""Once there is a key, every request needs one, and no upstream ever gets it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from aiohttp import web
from click.testing import CliRunner

from brim.cli import main
from brim.config import Config, UpstreamConfig
from brim.errors import AccountStoreError, AccountStoreUnavailableError
from brim.gateway import account_service as gateway_accounts
from brim.gateway import auth as gateway_admission
from brim.gateway.account_service import AccountService, requires_keys
from brim.gateway.accounts.keys import KeyRules
from brim.gateway.accounts.sqlite import store
from brim.gateway.errors import GatewayError
from brim.gateway.headers import read_headers
from brim.gateway.server import open_listener
from brim.testing import ErrorReply, ScriptedServer
from tests.support.gateway.accounts import (
    anthropic_with,
    bearer_headers,
    create_secret,
    gateway_with_upstream,
    ledger,
    make_priced_config,
    openai_with,
    revoke,
    run_in_store,
    say_hi,
    store_file,
    with_gateway,
)
from tests.support.gateway.process import FORMATS, SECRET, Running, config_of, run_gateway
from tests.support.gateway.requests import (
    CHAT,
    COUNT_TOKENS,
    INPUT_TOKENS,
    PATHS,
    RESPONSES,
    ask,
    body_of,
    post,
    wait_until,
)
from tests.support.providers.scripted import run, run_scripted

OPEN = ("/", "/healthz", "/readyz", "/openapi.json")
OPERATORS = ("/brim/requests", "/brim/spending", "/brim/routes", "/metrics")
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def provider() -> Iterator[ScriptedServer]:
    with ScriptedServer("Hello.", window=4_000, counts_tokens=True) as provider:
        yield provider


@pytest.fixture
def anna() -> str:
    """The secret of a client key."""
    return create_secret("anna")


@pytest.fixture
def keyed(provider: ScriptedServer, anna: str) -> Iterator[Running]:  # noqa: ARG001 - it is made
    """A gateway whose store has a key."""
    with run_gateway(config_of(provider.url)) as gateway:
        yield gateway


# Authentication


def test_without_keys_everyone_is_admitted_and_no_file_is_created(provider: ScriptedServer) -> None:
    with run_gateway(config_of(provider.url)) as gateway:
        asyncio.run(_swept(gateway))
        assert ask(gateway, CHAT, "hi", headers=bearer_headers("sk-own")).status_code == 200
        assert httpx.get(f"{gateway.url}/brim/requests").status_code == 200
    assert provider.requests[0].headers["authorization"] == "Bearer sk-own"
    assert not store_file().exists()


@pytest.mark.parametrize("secret", ["brim-wrong", "brim-", "sk-own"])
def test_an_invalid_key_gets_the_error_that_the_library_expects(
    keyed: Running, provider: ScriptedServer, secret: str
) -> None:
    with openai_with(keyed, secret) as client:
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            client.responses.create(model="m", input="hi")
    with anthropic_with(keyed, secret) as other:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            other.messages.create(model="m", messages=HELLO, max_tokens=9)
        assert caught.value.type == "authentication_error"
    assert not provider.requests


@pytest.mark.parametrize("path", [*PATHS, COUNT_TOKENS, INPUT_TOKENS])
def test_a_request_without_a_key_is_rejected(keyed: Running, path: str) -> None:
    answer = ask(keyed, path, "hi")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "Send a key of this gateway" in answer.text
    assert httpx.get(f"{keyed.url}/v1/models").status_code == 401


def test_an_active_key_works_with_each_library(keyed: Running, anna: str) -> None:
    with openai_with(keyed, anna) as client:
        message = client.chat.completions.create(model="m", messages=HELLO).choices[0].message
        assert message.content == "Hello."
        assert client.responses.create(model="m", input="hi").output_text == "Hello."
        assert [model.id for model in client.models.list()] == ["scripted"]
    with anthropic_with(keyed, anna) as other:
        answer: Any = other.messages.create(model="m", messages=HELLO, max_tokens=9)
        assert answer.content[0].text == "Hello."
        assert other.messages.count_tokens(model="m", messages=HELLO).input_tokens > 0


@pytest.mark.parametrize(
    "shown",
    [
        {"authorization": "Bearer {}"},
        {"authorization": "bearer  {}"},
        {"authorization": "{}"},
        {"x-api-key": "{}"},
        {"api-key": "{}"},
        {"authorization": "Bearer sk-own", "x-api-key": "{}"},
        {"authorization": "Bearer {}", "x-api-key": "sk-own"},
        {"authorization": "Bearer sk-own", "x-api-key": "sk-other", "api-key": "{}"},
    ],
)
def test_a_key_is_found_in_every_header(
    keyed: Running, provider: ScriptedServer, anna: str, shown: dict[str, str]
) -> None:
    headers = {name: value.format(anna) for name, value in shown.items()}
    assert ask(keyed, CHAT, "hi", headers=headers).status_code == 200
    (request,) = provider.requests
    assert not {name.lower() for name in request.headers} & {
        "authorization",
        "x-api-key",
        "api-key",
    }


def test_a_revoked_key_is_rejected_immediately_even_if_cached(
    keyed: Running, provider: ScriptedServer, anna: str
) -> None:
    bob = create_secret("bob")
    assert ask(keyed, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200
    revoke("anna")
    for path in PATHS:
        assert ask(keyed, path, "hi", headers=bearer_headers(anna)).status_code == 401
    assert ask(keyed, CHAT, "hi", headers=bearer_headers(bob)).status_code == 200
    assert len(provider.requests) == 2


def test_a_gateway_with_only_revoked_keys_still_requires_one(
    provider: ScriptedServer, anna: str
) -> None:
    revoke("anna")
    with run_gateway(config_of(provider.url)) as gateway:
        assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 401
        assert ask(gateway, CHAT, "hi").status_code == 401


# Paths and keys


@pytest.mark.parametrize("path", OPEN)
def test_public_paths_need_no_key(keyed: Running, path: str) -> None:
    assert httpx.get(keyed.url + path).status_code == 200


def test_an_operator_key_opens_operator_paths_only(
    keyed: Running, anna: str, provider: ScriptedServer
) -> None:
    operator = create_secret("olga", is_operator=True)
    for path in OPERATORS:
        assert httpx.get(keyed.url + path).status_code == 401
        rejected = httpx.get(keyed.url + path, headers=bearer_headers(anna))
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (
            403,
            "operator_key_required",
        )
        assert httpx.get(keyed.url + path, headers=bearer_headers(operator)).status_code == 200
    for path in (*PATHS, COUNT_TOKENS, INPUT_TOKENS):
        assert ask(keyed, path, "hi", headers=bearer_headers(operator)).status_code == 403
    assert httpx.get(f"{keyed.url}/v1/models", headers=bearer_headers(operator)).status_code == 403
    with openai_with(keyed, operator) as client, pytest.raises(openai.PermissionDeniedError):
        client.chat.completions.create(model="m", messages=HELLO)
    assert not provider.requests


# Where keys are sent


def test_no_upstream_gets_a_gateway_key(anna: str) -> None:
    """Neither the first nor the fallback, nor for counts, models or passthrough paths."""
    given = {"format": FORMATS, "window": 400, "reply": 50, "count": "always"}
    with (
        ScriptedServer(ErrorReply(503), window=400, counts_tokens=True) as first,
        ScriptedServer("Hello.", window=400, counts_tokens=True) as second,
    ):
        upstreams = {
            "first": UpstreamConfig(first.url, models=("one*",), fallback=("two",), **given),  # type: ignore[arg-type]
            "second": UpstreamConfig(second.url, models=("two", "s*"), key_env="KEY", **given),  # type: ignore[arg-type]
        }
        config = with_gateway(Config(upstreams=upstreams), passthrough_paths=("/v1/responses/x",))
        with run_gateway(config, {"KEY": SECRET}) as gateway:
            shown = {
                **bearer_headers(anna),
                "x-api-key": anna,
                "api-key": anna,
                "x-goog-api-key": anna,
            }
            for path in PATHS:  # a model each, because a failing one is skipped
                body = body_of(path, *["word " * 90, "so"] * 5, "hi", model=f"one{path}")
                assert post(gateway.url, path, body, shown).status_code == 200
            for path in (COUNT_TOKENS, INPUT_TOKENS):
                assert ask(gateway, path, "hi", model="one", headers=shown).status_code == 200
            httpx.get(f"{gateway.url}/v1/models", headers=shown).raise_for_status()
            post(gateway.url, "/v1/responses/x", {"model": "one"}, shown)
        requests = [
            *first.requests,
            *first.count_requests,
            *second.requests,
            *second.count_requests,
        ]
    assert len(first.requests) == len(second.requests) == 3
    assert len(requests) > 8
    for one in requests:
        assert anna not in json.dumps(dict(one.headers)) + one.raw.decode()
    assert {one.headers.get("authorization") for one in first.requests} == {None}
    assert {one.headers.get("Authorization") for one in second.requests} == {f"Bearer {SECRET}"}


def test_a_passthrough_path_does_not_forward_gateway_keys(anna: str) -> None:
    async def embedded(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": []})

    async def passed() -> None:
        async with run_scripted(embedded) as server:
            config = with_gateway(config_of(server.url), passthrough_paths=("/v1/moderations",))
            with run_gateway(config) as gateway:
                body = {"model": "m", "input": "hi"}
                at = (gateway.url, "/v1/moderations", body)
                assert (await asyncio.to_thread(post, *at)).status_code == 401
                answer = await asyncio.to_thread(
                    post, *at, bearer_headers(anna) | {"x-api-key": anna}
                )
                assert answer.status_code == 200
            (request,) = server.requests
            assert anna not in str(dict(request.headers))

    run(passed())


def test_a_key_is_neither_logged_nor_returned(
    keyed: Running, anna: str, caplog: pytest.LogCaptureFixture
) -> None:
    operator = create_secret("olga", is_operator=True)
    caplog.set_level(logging.DEBUG)
    for secret in (anna, "brim-wrong", operator):
        ask(keyed, CHAT, "hi", headers=bearer_headers(secret))
    listed = httpx.get(f"{keyed.url}/brim/requests", headers=bearer_headers(operator))
    assert [each["key"] for each in listed.json()["data"]] == [None, None, "anna"]
    logged = "".join(f"{record.getMessage()}{record.__dict__}" for record in caplog.records)
    assert "anna" in logged
    for secret in (anna, "brim-wrong", operator):
        assert secret not in listed.text + logged
        assert secret.encode() not in store_file().read_bytes()


# The first key


async def _swept(gateway: Running) -> None:
    """Run a sweep of the account service in the gateway's event loop."""
    accounts = gateway.gateway.services.accounts
    task = gateway.gateway._sweeping
    assert task is not None
    sweep = asyncio.run_coroutine_threadsafe(accounts.sweep(), task.get_loop())
    await asyncio.wrap_future(sweep)


def test_a_running_gateway_requires_keys_soon_after_the_first_is_created(
    provider: ScriptedServer,
) -> None:
    with run_gateway(config_of(provider.url)) as gateway:
        assert ask(gateway, CHAT, "hi").status_code == 200
        anna = create_secret("anna")
        asyncio.run(_swept(gateway))
        assert ask(gateway, CHAT, "hi").status_code == 401
        assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200
    assert len(ledger()) == 1


def test_a_store_without_keys_admits_everyone(provider: ScriptedServer) -> None:
    run_in_store(lambda store: store.keys())
    assert store_file().exists()
    with run_gateway(config_of(provider.url)) as gateway:
        asyncio.run(_swept(gateway))
        assert ask(gateway, CHAT, "hi").status_code == 200


def test_keys_can_be_required_before_the_first_exists(provider: ScriptedServer) -> None:
    with run_gateway(with_gateway(config_of(provider.url), require_keys=True)) as gateway:
        assert ask(gateway, CHAT, "hi").status_code == 401
        anna = create_secret("anna")
        assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200


@pytest.mark.parametrize("content", [b"garbage" * 1_000, b"SQLite format 3\0" + bytes(5_000)])
def test_an_unusable_store_stops_the_gateway_at_startup(content: bytes) -> None:
    store_file().parent.mkdir(parents=True)
    store_file().write_bytes(content)
    accounts = AccountService(config_of().gateway, {"BRIM_STATE": str(store_file().parent)})
    with pytest.raises(AccountStoreError, match="restore a backup") as error:
        asyncio.run(accounts.start())
    assert not isinstance(error.value, AccountStoreUnavailableError)
    assert "new" not in str(error.value)


def test_an_unavailable_store_is_retried_while_requests_are_rejected(
    provider: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_accounts, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.02)
    anna = create_secret("anna")
    with closing(sqlite3.connect(store_file())) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with run_gateway(config_of(provider.url)) as gateway:
            assert ask(gateway, CHAT, "hi").status_code == 401
            assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 503
            other.close()
            wait_until(lambda: httpx.get(f"{gateway.url}/readyz").status_code == 200)
            assert ask(gateway, CHAT, "hi").status_code == 401
            assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200


# A missing file


def test_nothing_is_sent_while_the_file_is_missing_or_replaced(
    keyed: Running, provider: ScriptedServer, anna: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.gateway.accounts.sqlite.store.FILE_CHECK_SECONDS", -1.0)
    assert ask(keyed, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200
    hidden = store_file().rename(store_file().with_name("hidden"))
    assert ask(keyed, CHAT, "hi", headers=bearer_headers(anna)).status_code == 503
    shutil.copyfile(hidden, store_file())
    assert ask(keyed, CHAT, "hi", headers=bearer_headers(anna)).status_code == 503
    assert httpx.get(f"{keyed.url}/readyz").status_code == 503
    hidden.rename(store_file())
    assert ask(keyed, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200
    assert len(provider.requests) == 2


def test_a_lost_file_does_not_admit_everyone(provider: ScriptedServer, anna: str) -> None:
    with run_gateway(config_of(provider.url)) as gateway:
        assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 200
    store_file().unlink()
    with run_gateway(config_of(provider.url)) as gateway:
        assert ask(gateway, CHAT, "hi").status_code == 401
        assert ask(gateway, CHAT, "hi", headers=bearer_headers(anna)).status_code == 401
    elsewhere = with_gateway(config_of(provider.url), store=str(store_file().with_name("other")))
    with run_gateway(elsewhere) as gateway:  # this store never had a key
        assert ask(gateway, CHAT, "hi").status_code == 200
    store_file().unlink()
    store_file().with_name("accounts.required").unlink()
    with run_gateway(config_of(provider.url)) as gateway:
        assert ask(gateway, CHAT, "hi").status_code == 200


# Listening


def test_other_machines_are_admitted_only_with_keys(
    provider: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(store_file().parent))
    command = ["serve", "--upstream", provider.url, "--host", "0.0.0.0", "--port", "0"]
    rejected = CliRunner().invoke(main, command)
    assert rejected.exit_code == 2
    assert "0.0.0.0 is reachable from other machines" in rejected.stderr
    assert "brim keys add" in rejected.stderr
    settings = config_of(provider.url).gateway
    environment = {"BRIM_STATE": str(store_file().parent)}
    assert not asyncio.run(requires_keys(settings, environment))
    assert asyncio.run(requires_keys(replace(settings, require_keys=True), environment))
    create_secret("anna")
    assert asyncio.run(requires_keys(settings, environment))
    with open_listener("0.0.0.0", 0, has_keys=True) as listener:
        assert listener.getsockname()[1]


# Many clients


def test_the_cache_of_invalid_keys_is_bounded(anna: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_admission, "MAX_CACHED_KEYS", 20)
    environment = {"BRIM_STATE": str(store_file().parent)}

    async def known() -> int:
        accounts = AccountService(config_of().gateway, environment)
        admission = gateway_admission.Authenticator(accounts)
        await accounts.start()
        for number in range(100):
            with pytest.raises(GatewayError):
                await admission.authenticate_client(_make_headers(f"brim-{number}"))
        assert (await admission.authenticate_client(_make_headers(anna))).key.name == "anna"
        await accounts.stop()
        return len(admission._cache)

    assert asyncio.run(known()) == 20


def _make_headers(secret: str) -> Any:
    return read_headers([(b"authorization", f"Bearer {secret}".encode())])


def test_concurrent_clients_are_distinguished_by_key(keyed: Running) -> None:
    secrets = {f"user-{n}": create_secret(f"user-{n}") for n in range(8)}

    def asks(name: str) -> int:
        return ask(keyed, RESPONSES, "hi", headers=bearer_headers(secrets[name])).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(asks, [*secrets, *secrets])) == {200}
    wait_until(lambda: len(ledger()) == 16)
    assert Counter(row.key_name for row in ledger()) == dict.fromkeys(secrets, 2)


# Rules


def test_an_expired_key_is_rejected_also_while_it_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = time.time() + 3_600
    secret = create_secret("anna", rules=KeyRules(expires=end))
    with gateway_with_upstream() as (gateway, provider):
        assert say_hi(gateway, secret).status_code == 200
        monkeypatch.setattr(time, "time", lambda: end)
        rejected = say_hi(gateway, secret)
        assert rejected.status_code == 401
        assert "expired at 20" in rejected.json()["error"]["message"]
        assert len(provider.requests) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_key_can_be_limited_to_some_models(path: str) -> None:
    secret = create_secret("anna", rules=KeyRules(models=("gpt-4o-mini", "claude-*")))
    with gateway_with_upstream() as (gateway, provider):
        for model, status in (
            ("gpt-4o-mini", 200),
            ("claude-sonnet-5", 200),
            ("gpt-4o", 403),
            ("gpt-4o-mini-2", 403),
            ("GPT-4o-mini", 403),
            ("", 403),
            (None, 403),
            (["claude-x"], 403),
        ):
            assert say_hi(gateway, secret, path, model=model).status_code == status, model
        rejected = say_hi(gateway, secret, path, model="gpt-4o").json()["error"]["message"]
        assert "cannot use the model 'gpt-4o'. It can use gpt-4o-mini, claude-*." in rejected
        assert len(provider.requests) == 2


def test_a_limited_key_is_shown_its_models_only() -> None:
    secret = create_secret("anna", rules=KeyRules(models=("gpt-4o-mini", "claude-*")))
    served = ("gpt-4o", "gpt-4o-mini", "claude-x")
    config = make_priced_config("http://127.0.0.1:9", models=served)
    config = with_gateway(config, aliases={"small": "gpt-4o-mini", "large": "gpt-4o"})
    with run_gateway(config) as gateway:
        answer = httpx.get(f"{gateway.url}/v1/models", headers=bearer_headers(secret))
        names = [model["id"] for model in answer.json()["data"]]
        assert names == ["claude-x", "gpt-4o-mini", "small"]
        for name, status in (("small", 200), ("gpt-4o", 404)):
            path = f"{gateway.url}/v1/models/{name}"
            assert httpx.get(path, headers=bearer_headers(secret)).status_code == status
