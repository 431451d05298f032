"""A real model calls the tools of a real MCP server and gets their results.

The small model seldom calls a tool by itself: the template teaches it how, and the request begins
its answer for it. llama.cpp then lets it write nothing but calls. What it calls, and with which
arguments, is its own affair: nothing here depends on it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import brim
from benchmarks.promises.relay import Relay
from brim.config import McpConfig
from brim.messages import Call
from brim.providers.endpoint import Endpoint
from brim.providers.local import LocalServer
from brim.providers.sync import Portal
from brim.providers.transport import Transport
from brim.session.session import get_driver
from brim.shell.mcp.servers import McpServers
from brim.shell.mcp.tools import Tool, ToolResult, choose_tools
from brim.storage.calibration_store import CalibrationStore
from tests.support.fixtures import LlamaWith
from tests.support.shell.driver import Home, home
from tests.support.tool_template import BEGUN, ONE_CALL, TEMPLATE

__all__ = ["home"]

SCRIPT = Path(__file__).parents[1] / "support/shell/mcp_server.py"


@pytest.fixture(scope="module")
def llama(llama_with: LlamaWith) -> LocalServer:
    return llama_with(template=TEMPLATE)


@pytest.fixture(scope="module")
def servers() -> Iterator[McpServers]:
    with McpServers(timeout=60) as servers:
        servers.connect("own", McpConfig(command=sys.executable, args=(str(SCRIPT),)))
        yield servers


@pytest.fixture
def client(llama: LocalServer, tmp_path: Path) -> Iterator[brim.Client]:
    learned = CalibrationStore(tmp_path / "calibration.sqlite3")
    with brim.Client(llama.url, key=llama.key, calibration_store=learned) as client:
        yield client


def session_with(tools: Sequence[Tool]) -> brim.Session:
    session = brim.Session(system="You are a careful clerk.")

    def size(definitions: Sequence[Mapping[str, Any]]) -> int:
        return get_driver(session).count_text(json.dumps(definitions))

    made = choose_tools(tools, room=1_000, size=size)
    assert made.offered
    session.tools = made.definitions
    return session


def request_tool_call(
    client: brim.Client, llama: LocalServer, session: brim.Session, max_tokens: int
) -> brim.Reply:
    """Send the session's request with the start of the reply, and receive the rest."""
    request = client.request(
        session, tool_choice="required", stop=[ONE_CALL], temperature=0, max_tokens=max_tokens
    )
    body = {**request, "messages": [*request["messages"], BEGUN]}
    connection = Transport(Endpoint(llama.url, "openai", llama.key))
    with Portal() as portal:
        answer = portal.run(connection.post(connection.endpoint.chat_path, body))
        portal.run(connection.close())
    reply = session.receive(answer)
    assert isinstance(reply, brim.Reply)
    return reply


def call_tool(servers: McpServers, call: Call) -> ToolResult:
    """Return the result of a call; without arguments if the model wrote invalid ones."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = {}
    return servers.call(call.name, arguments)


def run_calls(
    session: brim.Session, servers: McpServers, calls: Sequence[Call]
) -> list[ToolResult]:
    results = [call_tool(servers, call) for call in calls]
    for call, result in zip(calls, results, strict=True):
        session.tool(call.id, result.text)
    return results


def roles(session: brim.Session) -> list[str]:
    return [str(turn["role"]) for turn in session.history]


def test_a_tool_call_runs_and_its_result_is_sent(
    client: brim.Client, llama: LocalServer, servers: McpServers
) -> None:
    session = session_with([tool for tool in servers.tools if tool.name == "add"])
    session.user("What is 2 plus 3? Use the tool.")
    reply = request_tool_call(client, llama, session, 120)
    assert reply.calls
    assert {call.name for call in reply.calls} == {"own__add"}
    results = run_calls(session, servers, reply.calls)
    assert results[0].text.lstrip("-").isdigit() or results[0].is_error
    answer = client.send(session, max_tokens=8)
    assert answer.usage is not None
    assert roles(session) == ["user", "assistant", *["tool"] * len(results), "assistant"]


def test_a_failing_tool_is_reported_to_the_model(
    client: brim.Client, llama: LocalServer, servers: McpServers
) -> None:
    session = session_with([tool for tool in servers.tools if tool.name == "fail"])
    session.user("Try it.")
    reply = request_tool_call(client, llama, session, 120)
    results = run_calls(session, servers, reply.calls)
    assert {result.is_error for result in results} == {True}
    sent = client.request(session)["messages"]
    assert "the reason of the failure" in sent[-1]["content"]
    assert client.send(session, max_tokens=8).usage is not None


def begun(body: Mapping[str, Any]) -> dict[str, Any]:
    """Start the reply to a message as a call; replies to results are free, and short."""
    messages = body["messages"]
    if messages[-1]["role"] != "user":
        return {"max_tokens": 8, "tool_choice": "none"}
    called = {"tool_choice": "required", "stop": [ONE_CALL], "temperature": 0, "max_tokens": 80}
    return {**called, "messages": [*messages, BEGUN]}


def test_the_shell_runs_what_the_model_calls(home: Home, llama: LocalServer) -> None:
    with Relay(llama.url, begun) as relay:
        home.config.write_text(
            f'[models.small]\nendpoint = "{relay.url}"\nmodel = "{llama.model}"\n'
            'key_env = "SMALL_KEY"\nreply = 100\n'
            f'[mcp.own]\ncommand = "{sys.executable}"\nargs = ["{SCRIPT}"]\n'
        )
        home.environment["SMALL_KEY"] = llama.key
        with home.shell() as shell:
            shell.terminal.line("please add two and three")

            def asks() -> bool:
                return "[s]kip" in shell.terminal.before_cursor

            while len(relay.exchanges) < 2:
                # A small machine needs a while to process all tool definitions.
                shell.terminal.wait_for(lambda _: asks() or len(relay.exchanges) > 1, timeout=300)
                if asks():
                    shell.terminal.line("yes")
                    shell.terminal.wait_for(lambda _: not asks())
            shell.terminal.wait_for(lambda _: shell.terminal.before_cursor == "› ", timeout=300)
    first, second = relay.exchanges[:2]
    assert {tool["function"]["name"] for tool in first.body["tools"]} >= {"own__add"}
    *_, calling, result = second.body["messages"]
    assert calling["tool_calls"][0]["id"] == result["tool_call_id"]
    assert result["content"]
    assert {exchange.status for exchange in relay.exchanges} == {200}
