"""Tools of MCP servers in the real shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from brim.testing import (
    ErrorReply,
    ReceivedRequest,
    ScriptedReply,
    ScriptedServer,
    TextReply,
    ToolCallReply,
)
from tests.support.shell.driver import Home, home
from tests.support.shell.mcp_process import SCRIPT, over_http
from tests.support.shell.replies import answer, asks, events, read_screen

__all__ = ["home", "over_http"]

ASKED = "call it? [y]es, [s]kip, [a]lways:"
DESTRUCTIVE = "destructive. type yes to call it, or [s]kip:"
ADD = ToolCallReply("tests__add", {"a": 2, "b": 3})
SLOW = ToolCallReply("tests__slow", {"seconds": 0})


def server(*more: str, name: str = "tests") -> str:
    """Return the configuration table of a server."""
    program, script = json.dumps(sys.executable), json.dumps(str(SCRIPT))
    return "\n".join([f"[mcp.{name}]", f"command = {program}", f"args = [{script}]", *more])


def results(request: ReceivedRequest) -> list[str]:
    """Return the last tool results in a request."""
    turns = [(turn["role"], turn.get("content")) for turn in request.body["messages"]]
    found: list[str] = []
    while turns and turns[-1][0] == "tool":
        found.insert(0, str(turns.pop()[1]))
    return found


def list_offered(request: ReceivedRequest) -> set[str]:
    return {tool["function"]["name"] for tool in request.body.get("tools", ())}


def unreadable(*calls: tuple[str, str]) -> ErrorReply:
    """Return a reply whose calls have these raw arguments."""
    made = [
        {"id": f"odd_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": made}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = {"id": "odd", "object": "chat.completion", "model": "scripted", "choices": [choice]}
    return ErrorReply(200, raw=json.dumps(whole).encode())


def rows(text: str, *names: str) -> Iterable[bool]:
    lines = text.split("\n")
    return [any(name in line.split() for line in lines) for name in names]


def test_calls_are_confirmed_by_the_user(home: Home, over_http: Any) -> None:
    _, web = over_http
    dangerous = ToolCallReply(
        "tests__variable", {"name": "HOME", "command": f"{'a ' * 999}; rm -rf x"}
    )
    parts = {"command": "rm", "args": ["-rf", "x"]}
    hidden = ToolCallReply("tests__variable", {"name": "HOME", "steps": [parts]})
    answers: list[ScriptedReply] = [
        *(ADD, "Five."),
        *(ToolCallReply("web__add", {"a": 4, "b": 4}), "No eight."),
        *(ADD, "Again."),
        *(TextReply(calls=[ADD, ToolCallReply("tests__structured"), ADD]), "All."),
        *(TextReply(calls=[dangerous, hidden, SLOW]), "Some."),
        *(
            ToolCallReply("web__add", {"a": 1, "b": 1}),
            ToolCallReply("web__slow", {"seconds": 0}),
            "GOAL: complete",
        ),
        *(TextReply(calls=[ADD, SLOW]), "Nearly."),
    ]
    with ScriptedServer(answers) as provider:
        allowed = server('allow = ["structured", "slow", "variable"]')
        home.configure(provider, allowed, f'[mcp.web]\nurl = "{web.url}"', window=32_000)
        with home.shell() as shell:
            shell.terminal.line("what is two and three?")
            answer(shell, ASKED, "y")
            shell.at_prompt()
            assert "tests: add" in read_screen(shell)
            assert "→ 5" in read_screen(shell)
            shell.terminal.line("what is four and four?")
            answer(shell, ASKED, "s")
            shell.at_prompt()
            shell.terminal.line("what is two and three again?")
            answer(shell, ASKED, "always")
            shell.at_prompt()
            shell.do("what is all of this together?")
            shell.terminal.line("what does it destroy?")
            asks(shell, DESTRUCTIVE)
            assert "; rm -rf x" in read_screen(shell), "it is shown to its end"
            answer(shell, DESTRUCTIVE, "y")
            shell.wait(lambda: "type the whole word" in read_screen(shell), "a word about it")
            answer(shell, DESTRUCTIVE, "s")
            answer(shell, DESTRUCTIVE, "s")
            answer(shell, DESTRUCTIVE, "yes")
            shell.at_prompt()
            shell.terminal.line(":goal add one and one")
            answer(shell, DESTRUCTIVE, "yes")
            shell.at_prompt()
            assert "goal complete · 3 steps" in read_screen(shell)
            assert all(rows(shell.do(":context"), "tests", "web"))
            shell.leave()
        with home.shell("--yes") as shell:
            shell.terminal.line("what is two and three tomorrow?")
            answer(shell, DESTRUCTIVE, "always")
            shell.wait(lambda: "one of the letters in brackets" in read_screen(shell), "the same")
            answer(shell, DESTRUCTIVE, "s")
            shell.at_prompt()
    results_sent = [results(request) for request in provider.requests if results(request)]
    skipped = "[brim] The user skipped this call."
    assert results_sent[:3] == [["5"], [skipped], ["5"]]
    assert (results_sent[3][0], json.loads(results_sent[3][1])["colour"], results_sent[3][2]) == (
        "5",
        "grün",
        "5",
    )
    assert results_sent[4:] == [[skipped, skipped, "done"], ["2"], ["done"], ["5", skipped]]
    assert {"tests__add", "web__add"} <= list_offered(provider.requests[0])
    calls = [(event["tool"], event["answer"]) for event in events(home, "asked")]
    assert calls == [
        ("tests__slow", "skip"),
        ("tests__add", "run"),
        ("web__add", "skip"),
        ("tests__add", "always"),
        ("tests__variable", "skip"),
        ("tests__variable", "skip"),
        ("tests__slow", "run"),
        ("web__slow", "run"),
    ]


def test_every_call_gets_a_result_after_any_failure(home: Home) -> None:
    odd = unreadable(
        ("tests__nothing", "{}"), ("tests__add", '{"a": 2,'), ("tests__add", "[2, 3]"),
        ("tests__add", '{"a": "x"}'), ("tests__fail", ""),
    )  # fmt: skip
    dies = TextReply(calls=[ToolCallReply("tests__die"), ADD])
    grows = ToolCallReply("tests__grow")
    answers: list[ScriptedReply] = [
        *(odd, "Sorry.", grows, "Grown.", dies, "Gone.", ADD, "Gone.", ADD, "Back.")
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider, server('allow = ["fail", "grow", "die"]'), window=32_000)
        with home.shell("--yes") as shell:
            shell.do("please do something odd")
            shell.do("please offer more")
            assert any("grown" in shell.do(":mcp list") for _ in range(50))
            shell.do("please end it")
            assert "it ended or closed the connection" in shell.do(":mcp list")
            shell.do("please add them")
            assert "add" in shell.do(":mcp connect tests")
            assert "→ 5" in shell.do("please add them now")
            assert "no MCP server is connected" in shell.do(":mcp disconnect tests")
            assert "MCP server not configured: unknown" in shell.do(":mcp connect unknown")
    first, _, gone, still, back = (results(request) for request in provider.requests[1::2])
    assert "There is no tool" in first[0]
    assert ["not a JSON object" in text for text in first[1:3]] == [True, True]
    assert "validation error" in first[3]
    assert "the reason of the failure" in first[4]
    assert "was disconnected" in gone[0]
    assert "no tool" in gone[1]
    assert "no tool" in still[0]
    assert back == ["5"]
    news = list_offered(provider.requests[4]) - list_offered(provider.requests[0])
    assert news == {"tests__grown"}
    assert not list_offered(provider.requests[5]), "a disconnected tool is not offered"
    assert list_offered(provider.requests[8])


def test_ctrl_c_in_a_slow_tool(home: Home) -> None:
    slow = TextReply(
        "Wait.\nCMD: touch made", calls=[ToolCallReply("tests__slow", {"seconds": 600}), ADD]
    )
    with ScriptedServer([slow, slow, "Fine."]) as provider:
        home.configure(provider, server(), window=32_000)
        with home.shell("--yes") as shell:
            shell.terminal.line("please wait a little")
            answer(shell, DESTRUCTIVE, "yes")
            log = home.state / "mcp.log"
            shell.wait(lambda: log.exists() and "begun" in log.read_text(), "the tool to begin")
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            shell.wait(lambda: "cancelled" in log.read_text(), "the server to be told")
            shell.terminal.line("please wait again")
            asks(shell, DESTRUCTIVE)
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            shell.do("and now?")
    stopped = "[brim] The user stopped this call."
    for request in provider.requests[1:]:
        *_, first, second, words = request.body["messages"]
        assert (first["content"], second["content"], words["role"]) == (stopped, stopped, "user")
    assert not (home.folder / "made").exists(), "no command of what was stopped is run"


def test_tools_that_do_not_fit_are_listed_and_not_offered(home: Home) -> None:
    with ScriptedServer("Hello.") as small, ScriptedServer("Hello.") as large:
        second = f'[models.large]\nendpoint = "{large.url}"\nwindow = 64000\n'
        home.configure(small, second, server(), window=1_000)
        with home.shell() as shell:
            shell.terminal.type("hello there, ")
            shell.terminal.wait_for("tool does not fit and is not offered: tests__")
            shell.at_prompt("hello there,")
            assert read_screen(shell).count("›") == 1, "what is told does not disturb the line"
            shell.terminal.line("how are you?")
            shell.at_prompt()
            listed = shell.do(":mcp list")
            assert "too large" in listed
            assert all(rows(shell.do(":context"), "tests"))
            shell.do(":model large")
            shell.do("hello again, how are you?")
            assert "too large" not in shell.do(":mcp list")
            shell.do(":model fast")
            shell.do("hello once more, how are you?")
    few, same = (list_offered(request) for request in (small.requests[0], small.requests[1]))
    assert few == same
    assert few < list_offered(large.requests[0])
    assert small.rejected == []
