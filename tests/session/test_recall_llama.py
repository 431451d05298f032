"""A fact leaves the window of a real model, and the tool `recall` brings it back.

The small model seldom calls a tool by itself: the relay begins its reply to the question, and
allows one query only. What it answers then is its own affair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

import brim
from benchmarks.promises.relay import Relay
from brim.providers.local import LocalServer
from brim.storage.calibration_store import CalibrationStore
from tests.support.fixtures import LlamaWith
from tests.support.gateway.process import config_of, run_gateway
from tests.support.shell.driver import Home, home
from tests.support.tool_template import BEGUN, TEMPLATE

__all__ = ["home"]

FACT = "My locker at the station in Lisbon has the number 4711."
QUESTION = "Which locker was it?"
REMARKS = [f"Remark {number}: " + "nothing but words, really. " * 40 for number in range(10)]
REMARKS.insert(4, FACT)
# Else it would write mostly white space into its JSON.
FORCED = {
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "temperature": 0,
    "max_tokens": 120,
    "logit_bias": [[text, False] for text in ("\n", "\t", *(" " * n for n in range(2, 17)))],
}


@pytest.fixture(scope="module")
def llama(llama_with: LlamaWith) -> LocalServer:
    return llama_with(template=TEMPLATE)


@pytest.fixture
def relay(llama: LocalServer) -> Iterator[Relay]:
    with Relay(llama.url, recall_for_question) as relay:
        yield relay


def recall_for_question(body: Mapping[str, Any]) -> dict[str, Any]:
    """Begin the reply to the question as a call; other replies are short texts."""
    messages, (tool,) = body["messages"], body["tools"]
    if not str(messages[-1]["content"]).endswith(QUESTION):
        return {"max_tokens": 4, "tool_choice": "none"}
    query = {"type": "object", "properties": {"query": {"const": "locker number"}}}
    function = {**tool["function"], "parameters": {**query, "required": ["query"]}}
    return {**FORCED, "tools": [{**tool, "function": function}], "messages": [*messages, BEGUN]}


def check(relay: Relay) -> None:
    """Check that the fact was not in the request with the question, and in the next one."""
    asking, answering = relay.exchanges[-2:]
    assert {exchange.status for exchange in relay.exchanges} == {200}
    assert "omitted; call recall to read them" in json.dumps(asking.body)
    assert FACT not in json.dumps(asking.body)
    result = answering.body["messages"][-1]
    assert result["role"] == "tool"
    assert FACT in result["content"]


def test_through_a_session(relay: Relay, llama: LocalServer, tmp_path: Path) -> None:
    chat = brim.Session(recall=True, reply=100)
    for remark in REMARKS:
        chat.user(remark)
        chat.assistant("All right.")
    chat.user(QUESTION)
    store = CalibrationStore(tmp_path / "calibration.sqlite3")
    with brim.Client(relay.url, key=llama.key, calibration_store=store) as client:
        reply = client.stream(chat)
        text = "".join(reply.texts())
    check(relay)
    assert chat.history[-1]["content"] in (text, None)
    assert FACT in str(chat.history[-2]["content"])


def test_through_the_shell(relay: Relay, llama: LocalServer, home: Home) -> None:
    home.config.write_text(
        f'[models.small]\nendpoint = "{relay.url}"\nmodel = "{llama.model}"\n'
        'key_env = "SMALL_KEY"\nreply = 100\n[context]\nrecall = true\n'
    )
    home.environment["SMALL_KEY"] = llama.key
    lines = "".join(f"?{line}\n" for line in [*REMARKS, QUESTION])
    done = home.run("--yes", lines=lines)
    assert done.returncode == 0, done.stderr
    check(relay)


@pytest.mark.parametrize("streams", [False, True])
def test_through_the_gateway(relay: Relay, llama: LocalServer, streams: bool) -> None:
    turns = [("user", QUESTION)]
    for remark in reversed(REMARKS):
        turns = [("user", remark), ("assistant", "All right."), *turns]
    messages: Any = [{"role": role, "content": text} for role, text in turns]
    config = config_of(relay.url, key_env="SMALL_KEY", reply=100)
    on = {"brim-recall": "on"}
    with run_gateway(config, {"SMALL_KEY": llama.key}) as gateway:
        address = f"{gateway.url}/v1"
        with openai.OpenAI(base_url=address, api_key="any", default_headers=on) as client:
            answer = client.chat.completions.create(
                model=str(llama.model), messages=messages, stream=streams
            )
            assert "recall" not in "".join(map(str, answer))
    check(relay)
