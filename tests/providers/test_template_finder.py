"""Strict templates behind unknown names: rules found by trial at a real llama.cpp server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import brim
from brim.providers.local import LocalServer
from brim.providers.template_finder import METHODS
from brim.session.session import get_driver
from brim.storage.calibration_store import CalibrationStore
from brim.wire.template_renderer import TemplateRejectionError, TemplateRenderer
from brim.wire.template_rules import PERMISSIVE, list_changes
from tests.support.fixtures import LlamaWith
from tests.support.providers.scripted import run, run_scripted
from tests.support.wire.strict_templates import CHATML, GEMMA, MISTRAL, NEMO, PHI, R1

OPTIONS: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


@pytest.fixture
def store(tmp_path: Path) -> CalibrationStore:
    return CalibrationStore(tmp_path / "calibration.sqlite3")


@pytest.fixture
def saved(store: CalibrationStore) -> Iterator[CalibrationStore]:
    yield store
    assert store.problem is None


def open_client(server: LocalServer, store: CalibrationStore) -> brim.Client:
    return brim.Client(server.url, key=server.key, calibration_store=store)


def make_session(**settings: Any) -> brim.Session:
    chat = brim.Session("my-local-model", system="Be brief.", reply=8, **settings)
    chat.assistant("First, I speak.")
    chat.user("One.")
    chat.user("Two.")
    return chat


def add_step(chat: brim.Session, text: str, result: str) -> None:
    call = {"id": "call_0123456789abcdef", "type": "function"}
    function = {"name": "run", "arguments": '{"command": "ls"}'}
    chat.append(
        {"role": "assistant", "content": text, "tool_calls": [call | {"function": function}]}
    )
    chat.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def rules_of(chat: brim.Session) -> dict[str, Any]:
    return list_changes(get_driver(chat).profile.rules())


@pytest.mark.parametrize("template", [MISTRAL, GEMMA, PHI, NEMO, R1, CHATML])
def test_a_strict_template_behind_an_unknown_name_gets_every_text(
    llama_with: LlamaWith, saved: CalibrationStore, template: str
) -> None:
    server = llama_with(window=1024, template=template)
    chat = make_session(tools=TOOLS)
    add_step(chat, "I will look.", "Nothing here.")
    chat.append({"role": "user", "content": "Three."})
    with open_client(server, saved) as client:
        request = client.request(chat)
        client.send(chat, **OPTIONS)
    prompt = render(server, request)
    for text in ("Be brief.", "First, I speak.", "One.", "Two.", "I will look.", "Three."):
        assert text in prompt
    assert "Nothing here." in prompt


def render(server: LocalServer, request: Mapping[str, Any]) -> str:
    from urllib.request import Request, urlopen

    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    address = server.url.removesuffix("/v1") + "/apply-template"
    body = json.dumps({"messages": request["messages"], "tools": TOOLS}).encode()
    with urlopen(Request(address, body, headers)) as response:
        prompt: str = json.load(response)["prompt"]
        return prompt


def test_the_verdict_is_kept_across_runs(llama_with: LlamaWith, saved: CalibrationStore) -> None:
    server = llama_with(window=1024, template=MISTRAL)
    first, second = make_session(), make_session()
    with open_client(server, saved) as client:
        client.prepare(first)
    kept = saved.load(server.url.removesuffix("/v1"), "my-local-model") or {}
    assert kept["template"]["rules"]["alternate"] is True
    with open_client(server, saved) as client:
        client.asynchronous.templates._paused_until["my-local-model"] = time.monotonic() + 60
        client.prepare(second)
    assert rules_of(first) == rules_of(second) != {}


def test_another_template_needs_another_trial(
    llama_with: LlamaWith, saved: CalibrationStore
) -> None:
    server, chat = llama_with(window=1024, template=MISTRAL), make_session()
    with open_client(server, saved) as client:
        client.prepare(chat)
        key = client.asynchronous.endpoint.url, "my-local-model"
        stored = saved.load(*key) or {}
        saved.save(*key, {"template": stored["template"] | {"fingerprint": "other", "rules": {}}})
    again = make_session()
    with open_client(server, saved) as client:
        client.prepare(again)
    assert rules_of(again) == rules_of(chat)


def test_tools_are_tried_when_they_are_used(llama_with: LlamaWith, saved: CalibrationStore) -> None:
    server, chat = llama_with(window=1024, template=MISTRAL), make_session()
    with open_client(server, saved) as client:
        client.prepare(chat)
        assert "ids" not in rules_of(chat)
        chat.assistant("Yes.")
        chat.user("Look.")
        add_step(chat, "", "Nothing.")
        client.prepare(chat)
        assert rules_of(chat)["ids"] == "nine"
        assert rules_of(chat)["alternate"] is True


def test_a_template_that_was_set_is_not_tried(
    llama_with: LlamaWith, saved: CalibrationStore
) -> None:
    server, chat = llama_with(window=1024, template=MISTRAL), make_session(template="free")
    with open_client(server, saved) as client:
        client.prepare(chat)
        assert get_driver(chat).profile.rules() is PERMISSIVE
        with pytest.raises(brim.ProviderError):
            client.send(chat, **OPTIONS)


def test_a_trial_finds_that_user_turns_may_not_be_equal(
    llama_with: LlamaWith, saved: CalibrationStore
) -> None:
    server, chat = llama_with(window=1024, template=NEMO), make_session(tools=TOOLS)
    with open_client(server, saved) as client:
        client.models()
        client.prepare(chat)
    assert rules_of(chat)["repeats"] is False


# Other servers


class StrictServer:
    """A server that renders with a template, and answers only what that renders."""

    def __init__(self, template: str, kind: str, *, renders: bool = True) -> None:
        self.renderer = TemplateRenderer(template)
        self.kind = kind
        self.renders = renders
        self.rendered = self.sent = 0

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read() or b"{}")
        if request.path == "/v1/models":
            return web.json_response(
                {"data": [{"id": "m", "owned_by": self.kind, "max_model_len": 4096}]}
            )
        if request.path == "/v1/chat/completions":
            self.sent += 1
            return self._complete(body)
        if self.renders and request.path == METHODS["vllm"].path and "messages" in body:
            self.rendered += 1
            return self._tokenize(body)
        return web.json_response({"error": "not found"}, status=404)

    def _render(self, body: Any) -> str:
        return self.renderer.render(body["messages"], body.get("tools") or ())

    def _tokenize(self, body: Any) -> web.Response:
        try:
            words = list(self._render(body))
        except TemplateRejectionError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response({"count": len(words), "token_strs": words})

    def _complete(self, body: Any) -> web.Response:
        try:
            self._render(body)
        except TemplateRejectionError as error:
            message = f"Conversation roles must alternate: {error}"
            return web.json_response({"error": {"message": message}}, status=400)
        choice = {"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})


def send_to(server: StrictServer, store: CalibrationStore, chat: brim.Session) -> None:
    async def work() -> None:
        async with (
            run_scripted(server.answer) as scripted,
            brim.AsyncClient(scripted.url, calibration_store=store, retries=0) as client,
        ):
            await client.send(chat)

    run(work())


def test_vllm_renders_by_the_texts_of_its_tokens(saved: CalibrationStore) -> None:
    server, chat = StrictServer(MISTRAL, "vllm"), make_session()
    send_to(server, saved, chat)
    assert rules_of(chat)["alternate"] is True
    assert server.sent == 1
    assert 0 < server.rendered <= 20


@pytest.mark.parametrize("kind", ["vllm", "me"])
def test_a_rejected_request_is_adapted_and_sent_again_once(
    saved: CalibrationStore, kind: str
) -> None:
    server, chat = StrictServer(MISTRAL, kind, renders=False), make_session()
    send_to(server, saved, chat)
    assert server.sent == 2
    assert get_driver(chat).turns[-1]["content"] == "Yes."


def test_a_request_that_stays_rejected_is_not_sent_a_third_time(saved: CalibrationStore) -> None:
    server = StrictServer("{{ raise_exception('never') }}", "me")
    with pytest.raises(brim.ProviderError, match="must alternate"):
        send_to(server, saved, make_session())
    assert server.sent == 2


def test_a_verdict_that_no_longer_holds_is_replaced_after_a_rejection(
    saved: CalibrationStore,
) -> None:
    server, chat = StrictServer(MISTRAL, "vllm"), make_session()
    free: dict[str, Any] = {"rules": {}, "features": ["turns"], "fingerprint": None}

    async def work() -> None:
        async with (
            run_scripted(server.answer) as scripted,
            brim.AsyncClient(scripted.url, calibration_store=saved, retries=0) as client,
        ):
            saved.save(client.endpoint.url, "my-local-model", {"template": free})
            await client.send(chat)

    run(work())
    assert server.sent == 2
    assert rules_of(chat)["alternate"] is True


def test_summaries_are_requested_in_the_shape_that_the_template_accepts(
    saved: CalibrationStore,
) -> None:
    server, chat = StrictServer(GEMMA, "vllm"), make_session()

    async def work() -> None:
        async with (
            run_scripted(server.answer) as scripted,
            brim.AsyncClient(scripted.url, calibration_store=saved, retries=0) as client,
        ):
            await client.prepare(chat)
            assert await client.summarizer(chat)(None, [{"role": "user", "content": "One."}])

    run(work())
    assert rules_of(chat)["system"] == "user"
    assert server.sent == 1
