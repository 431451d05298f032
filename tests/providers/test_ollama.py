"""Ollama runs a model with the window that brim plans with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from brim import AsyncClient, Session
from brim.storage.calibration_store import CalibrationStore
from tests.support.providers.scripted import run, run_scripted

REPLY = {"choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}


class Ollama:
    """The parts of Ollama's API that brim uses, with one model of the default window."""

    def __init__(self, *, creates: bool = True) -> None:
        self.parameters = {"llama3.2:3b": ""}
        self._creates = creates

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else {}
        match request.path:
            case "/v1/models":
                names = [{"id": name, "owned_by": "library"} for name in self.parameters]
                return web.json_response({"object": "list", "data": names})
            case "/api/ps":
                rows = [{"model": "llama3.2:3b", "context_length": 4096}]
                return web.json_response({"models": rows})
            case "/api/show" if body["model"] in self.parameters:
                return web.json_response({"parameters": self.parameters[body["model"]]})
            case "/api/create" if self._creates and body["from"] in self.parameters:
                self.parameters[body["model"]] = f"num_ctx {body['parameters']['num_ctx']}"
                return web.json_response({"status": "success"})
            case "/v1/chat/completions" if body["model"] in self.parameters:
                return web.json_response({**REPLY, "model": body["model"]})
        return web.json_response({"error": "not found"}, status=404)


def ask(server: Ollama, tmp_path: Any, window: int | None, times: int = 2) -> tuple[list[str], int]:
    """Return the models of the requests to a server, and how many models were derived."""

    async def main() -> tuple[list[str], int]:
        async with (
            run_scripted(server.answer) as scripted,
            AsyncClient(
                f"{scripted.url}/v1", calibration_store=CalibrationStore(tmp_path)
            ) as client,
        ):
            for _ in range(times):
                session = Session("llama3.2:3b", window=window)
                session.user("Hello")
                await client.send(session)
            sent = [asked.body["model"] for asked in scripted.requests if "chat/comp" in asked.path]
            return sent, scripted.paths.count("/api/create")

    return run(main())


@pytest.mark.parametrize("window", [None, 2048, 4096])
def test_a_window_that_is_large_enough_is_used(window: int | None, tmp_path: Any) -> None:
    assert ask(Ollama(), tmp_path, window) == (["llama3.2:3b"] * 2, 0)


def test_a_larger_window_is_set_in_a_derived_model(tmp_path: Any) -> None:
    server = Ollama()
    assert ask(server, tmp_path, 16_384) == (["llama3.2:3b-brim-16384"] * 2, 1)
    assert server.parameters["llama3.2:3b-brim-16384"] == "num_ctx 16384"
    assert ask(server, tmp_path, 16_384) == (["llama3.2:3b-brim-16384"] * 2, 0), "it is kept"


def test_a_server_that_derives_no_model_is_used_as_it_is(tmp_path: Any) -> None:
    assert ask(Ollama(creates=False), tmp_path, 16_384) == (["llama3.2:3b"] * 2, 1)
