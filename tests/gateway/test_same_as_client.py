"""The client and the gateway send the same messages for the same server, history and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from brim import Client, Session
from brim.fitting.flow import CountMode
from brim.fitting.policies import PolicyName
from brim.providers.server_counter import SHARED_STATES
from brim.storage.calibration_store import CalibrationStore
from brim.testing import ScriptedServer
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import CHAT, post

WINDOW: Final = 1_024
REPLY: Final = 40

Message = dict[str, Any]


def chat(turns: int) -> list[Message]:
    """Questions and answers of different lengths, with a question at the end."""
    messages: list[Message] = []
    for n in range(turns):
        question = f"Question {n}: " + f"what about number {n} and {n * n}? " * (1 + n % 3)
        answer = f"Answer {n}: " + f"it is larger than {n - 1}. " * (1 + n % 4)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": "And now?"}]


def agent(steps: int) -> list[Message]:
    """One task with many tool calls, some with a long result."""
    messages: list[Message] = [{"role": "user", "content": "Find the failing test."}]
    for n in range(steps):
        function = {"name": "read", "arguments": f'{{"path": "tests/test_{n}.py"}}'}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        result = f"line {n}: assert value == {n}\n" * (1 + 7 * (n % 3))
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": result})
    return messages


HISTORIES: Final = {
    "fits": chat(10),
    "near the limit": chat(19),
    "too long": chat(25),
    "far too long": chat(60),
    "tool calls": agent(30),
    "one message": [{"role": "user", "content": "Sum up: " + "alpha beta gamma " * 240}],
    "another script": [*chat(8), {"role": "user", "content": "日本語の文章です。" * 60}],
}
SERVERS: Final[Mapping[str, dict[str, Any]]] = {
    "counts more": {"like": "llama.cpp", "tokenizer_model": "mistral-7b"},
    "counts fewer": {"like": "llama.cpp", "tokenizer_model": "gpt-4o"},
    "does not count": {"tokenizer_model": "mistral-7b"},
    "hides its window": {"tokenizer_model": "mistral-7b", "reports_window": False},
}
MODELS: Final = ("scripted", "gpt-4o")
"""A model whose tokens are estimated, and one whose tokens are counted exactly."""


class Setting(NamedTuple):
    model: str
    count_mode: CountMode
    policy: PolicyName
    window: int | None


class Sent(NamedTuple):
    """What a server got for one conversation: the messages of each try, or the error."""

    tries: list[list[Message]]
    is_answered: bool


def send_with_client(
    server: ScriptedServer, setting: Setting, messages: Sequence[Message], store: Path
) -> Sent:
    session = Session(
        setting.model,
        window=setting.window,
        reply=REPLY,
        policy=setting.policy,
        template="free",
    )
    for message in messages:
        session.append(message)
    first = len(server.requests)
    with Client(
        server.url, count=setting.count_mode, calibration_store=CalibrationStore(store)
    ) as client:
        try:
            client.send(session, max_tokens=20)
            is_answered = True
        except Exception:
            is_answered = False
    return Sent([each.body["messages"] for each in server.requests[first:]], is_answered)


def send_through_gateway(
    server: ScriptedServer, setting: Setting, messages: Sequence[Message]
) -> Sent:
    config = config_of(
        server.url,
        window=setting.window,
        reply=REPLY,
        policy=setting.policy,
        count=setting.count_mode,
        template="free",
    )
    first = len(server.requests)
    body = {"model": setting.model, "messages": list(messages), "max_tokens": 20}
    with run_gateway(config) as gateway:
        response = post(gateway.url, CHAT, body)
    tries = [each.body["messages"] for each in server.requests[first:]]
    return Sent(tries, response.status_code == 200)


def check(server_settings: Mapping[str, Any], setting: Setting, messages: Any, path: Path) -> None:
    with ScriptedServer("ok", window=WINDOW, model=setting.model, **server_settings) as server:
        SHARED_STATES.clear()
        client = send_with_client(server, setting, messages, path / "calibration")
        SHARED_STATES.clear()
        gateway = send_through_gateway(server, setting, messages)
    assert gateway == client


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_gateway_sends_what_the_client_sends(
    server: str, history: str, model: str, tmp_path: Path
) -> None:
    window = WINDOW + 300 if server == "hides its window" else None
    setting = Setting(model, "near", "steady", window)
    check(SERVERS[server], setting, HISTORIES[history], tmp_path)


@pytest.mark.parametrize(
    ("count", "policy"),
    [
        pair
        for pair in product(("near", "always", "off"), ("steady", "thrift", "rolling", "sliding"))
        if pair != ("near", "steady")
    ],
)
def test_the_gateway_sends_what_the_client_sends_with_all_settings(
    count: CountMode, policy: PolicyName, tmp_path: Path
) -> None:
    for history in ("too long", "tool calls"):
        setting = Setting("scripted", count, policy, None)
        check(SERVERS["counts more"], setting, HISTORIES[history], tmp_path / history)


@pytest.mark.parametrize("policy", ["steady", "thrift"])
def test_the_gateway_sends_what_the_client_sends_while_a_conversation_grows(
    policy: PolicyName, tmp_path: Path
) -> None:
    messages = chat(40)
    with ScriptedServer("ok", window=WINDOW, model="gpt-4o") as server:
        session = Session("gpt-4o", reply=REPLY, policy=policy, template="free")
        store = CalibrationStore(tmp_path / "calibration")
        config = config_of(server.url, reply=REPLY, policy=policy, template="free")
        with Client(server.url, calibration_store=store) as client, run_gateway(config) as gateway:
            for end in range(1, len(messages), 2):
                session.append(messages[end - 1])
                sent = client.request(session)
                body = {"model": "gpt-4o", "messages": messages[:end]}
                assert post(gateway.url, CHAT, body).status_code == 200
                assert server.requests[-1].body["messages"] == sent.messages
                session.append(messages[end])
    assert sent.plan.is_trimmed
