"""Real MCP servers: local programs, and servers over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any, ClassVar

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.config import McpConfig
from brim.errors import (
    AuthenticationError,
    BrimError,
    ConnectionFailedError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.shell.mcp.servers import McpServers
from brim.shell.mcp.tools import LONGEST_NAME, ToolResult, offered_name, result_of, tool_of
from tests.support.shell.mcp_process import SCRIPT, SECRET, over_http, until

__all__ = ["over_http"]


def program(*args: str, **env: str) -> McpConfig:
    return McpConfig(command=sys.executable, args=args, env=env)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp") / "logs" / "servers.log"


@pytest.fixture(scope="module")
def stdio(log: Path) -> Iterator[McpServers]:
    with McpServers(log=log, timeout=60) as servers:
        servers.connect("own", program(str(SCRIPT), SECRET=SECRET))
        yield servers


# Tools


def test_tools_are_offered_with_their_servers_name(stdio: McpServers) -> None:
    tools = {tool.name: tool for tool in stdio.tools}
    assert {"add", "fail", "slow", "big", "structured"} <= tools.keys()
    add = tools["add"]
    assert (add.server, add.offered) == ("own", "own__add")
    function = add.definition["function"]
    assert add.definition["type"] == "function"
    assert (function["name"], function["description"]) == ("own__add", "Add two numbers.")
    assert function["parameters"]["required"] == ["a", "b"]


def test_hints_of_a_server_are_used(stdio: McpServers) -> None:
    hints = {tool.name: (tool.is_read_only, tool.is_destructive) for tool in stdio.tools}
    assert hints["add"] == (True, None)
    assert hints["slow"] == (False, True)
    assert hints["big"] == (False, None)


names = st.text(min_size=1, max_size=80)


@given(st.lists(st.tuples(names, names), unique=True, max_size=20))
def test_offered_names_are_unique_and_valid_for_all_providers(pairs: list[tuple[str, str]]) -> None:
    offered = [offered_name(server, name) for server, name in pairs]
    assert len(set(offered)) == len(pairs)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in offered)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a__b", "c"), ("a", "b__c")),
        (("a_", "b"), ("a", "_b")),
        (("a b", "c"), ("a_b", "c")),
        (("a", "b.c"), ("a", "b/c")),
        (("a", "b" * 64 + "c"), ("a", "b" * 64 + "d")),
    ],
)
def test_similar_names_stay_distinct(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert offered_name(*one) != offered_name(*other)


def test_plain_names_stay_readable() -> None:
    assert offered_name("files", "read_file") == "files__read_file"
    assert offered_name("files", "read.file").startswith("files__read_file_")
    assert len(offered_name("files", "r" * 100)) == LONGEST_NAME


def test_a_tool_without_arguments_has_an_empty_schema() -> None:
    listed = types.Tool(name="now", title="The time", input_schema={"type": "object"})
    function = tool_of("clock", listed).definition["function"]
    assert function["parameters"] == {"type": "object", "properties": {}}
    assert function["description"] == "The time"


# Calls


@pytest.mark.parametrize(
    ("name", "arguments", "text", "is_error"),
    [
        ("add", {"a": 2, "b": 3}, "5", False),
        ("add", {"a": "two"}, "validation error", True),
        ("fail", {}, "the reason of the failure", True),
        ("big", {"size": 200_000}, "x" * 200_000, False),
        ("structured", {}, "grün", False),
        ("picture", {}, "before\n[image, 12 kB]", False),
        ("variable", {"name": "SECRET"}, SECRET, False),
        ("variable", {"name": "PATH"}, "/", False),
    ],
)
def test_a_call_returns_text(
    stdio: McpServers, name: str, arguments: dict[str, Any], text: str, is_error: bool
) -> None:
    result = stdio.call(f"own__{name}", arguments)
    assert text in result.text
    assert result.is_error is is_error


def test_an_unknown_tool_is_an_error_result(stdio: McpServers) -> None:
    result = stdio.call("own__ad", {})
    assert result.is_error
    assert "own__ad." in result.text
    assert "own__add" in result.text


def test_api_keys_are_not_passed_to_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("TZ", "UTC")
    with McpServers(timeout=60) as servers:
        servers.connect("own", program(str(SCRIPT)))
        assert servers.call("own__variable", {"name": "OPENAI_API_KEY"}).text == "nothing"
        assert servers.call("own__variable", {"name": "TZ"}).text == "UTC"


def test_standard_error_goes_to_the_log(
    stdio: McpServers, log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stdio.call("own__variable", {"name": "SOME_NAME"})
    until(lambda: "asked for SOME_NAME" in log.read_text())
    assert log.stat().st_mode & 0o077 == 0
    assert capfd.readouterr() == ("", "")


def test_a_slow_tool_times_out_and_its_server_stays_connected(log: Path) -> None:
    with McpServers(log=log, timeout=60, tool_timeout=0.5) as servers:
        servers.connect("own", program(str(SCRIPT)))
        result = servers.call("own__slow", {"seconds": 1_000})
        assert result == ToolResult("own did not respond within 0.5 seconds", is_error=True)
        assert servers.states()[0].is_connected


def test_new_tools_of_a_server_are_listed(stdio: McpServers) -> None:
    assert not stdio.call("own__grow", {}).is_error
    until(lambda: "own__grown" in [tool.offered for tool in stdio.tools])
    assert stdio.call("own__grown", {}) == ToolResult("new")


CTRL_C = """
import os, signal, sys, threading, time
from pathlib import Path
from brim.config import McpConfig
from brim.shell.mcp.servers import McpServers

script, log = sys.argv[1], Path(sys.argv[2])

def awaited(word):
    while word not in log.read_text():
        time.sleep(0.01)

def interrupt(word):
    awaited(word)
    os.kill(os.getpid(), signal.SIGINT)

def interrupted(word, work):
    threading.Thread(target=interrupt, args=(word,)).start()
    try:
        work()
    except KeyboardInterrupt:
        print("interrupted", flush=True)

with McpServers(log=log, timeout=60) as servers:
    servers.connect("own", McpConfig(command=sys.executable, args=(script,)))
    interrupted("begun", lambda: servers.call("own__slow", {"seconds": 1000}))
    awaited("cancelled")
    print(servers.call("own__add", {"a": 1, "b": 2}).text, flush=True)
    silent = McpConfig(command="bash", args=("-c", "echo silent >&2; while read -r; do :; done"))
    interrupted("silent", lambda: servers.connect("silent", silent))
    print([state.error for state in servers.states()], flush=True)
    print(servers.call("own__add", {"a": 2, "b": 2}).text, flush=True)
"""


def test_ctrl_c_cancels_a_call_and_the_servers_stay_connected(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, SCRIPT, tmp_path / "log"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    stopped = "[None, 'it was stopped before it was connected']"
    expected_text = ["interrupted", "3", "interrupted", stopped, "4"]
    assert done.stdout.splitlines() == expected_text, done.stderr
    assert (done.returncode, done.stderr) == (0, "")


# Content


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


def embed(
    resource: types.TextResourceContents | types.BlobResourceContents,
) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=resource)


@pytest.mark.parametrize(
    ("content", "structured", "expected_text"),
    [
        ([text("one"), text("two")], None, "one\ntwo"),
        ([text("one")], {"a": 1}, "one"),
        ([], {"a": "ö"}, '{"a": "ö"}'),
        ([text("")], {"a": 1}, '{"a": 1}'),
        ([types.ImageContent(data="A" * 40, mime_type="image/png")], None, "[image, 30 bytes]"),
        (
            [types.AudioContent(data="A" * 4_000, mime_type="audio/wav")],
            [1],
            "[audio, 3 kB]\n[1]",
        ),
        ([types.ResourceLink(uri="file:///a", name="a")], None, "[resource file:///a]"),
        ([embed(types.TextResourceContents(uri="a:b", text="inside"))], None, "inside"),
        (
            [embed(types.BlobResourceContents(uri="a:b", blob="A" * 8_000))],
            None,
            "[resource a:b, 6 kB]",
        ),
        ([], None, "[no output]"),
    ],
)
def test_contents_become_text(content: list[Any], structured: object, expected_text: str) -> None:
    answer = types.CallToolResult(content=content, structured_content=structured)
    assert result_of(answer) == ToolResult(expected_text)


def test_a_failure_without_a_message_is_described() -> None:
    answer = types.CallToolResult(content=[], is_error=True)
    assert result_of(answer) == ToolResult("[failed without a message]", is_error=True)


# Connecting and disconnecting


def test_servers_keep_their_order_and_disconnect_one_by_one() -> None:
    with McpServers(timeout=60) as servers:
        assert (servers.tools, servers.states()) == ((), ())
        first = servers.connect("first", program("-c", OLD))
        second = servers.connect("second", program("-c", OLD))
        assert servers.tools == (*first, *second)
        assert [state.name for state in servers.states()] == ["first", "second"]
        servers.disconnect("first")
        assert servers.tools == second
        assert servers.call("first__echo", {}).is_error
        with pytest.raises(InputError, match=r"not connected: first\. Connected: second"):
            servers.disconnect("first")
        assert servers.connect("second", program("-c", OLD)) == second
    assert (servers.tools, servers.states()) == ((), ())
    servers.close()


def report_pid(pid: Path) -> str:
    """The old server; it writes its process ID to a file."""
    return f"import os, pathlib; pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n{OLD}"


def lives(pid: Path) -> bool:
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_closing_ends_started_processes(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with McpServers(timeout=60) as servers:
        servers.connect("old", program("-c", report_pid(pid)))
        assert lives(pid)
    assert not lives(pid)


def test_a_server_over_http_works_like_a_local_one(over_http: tuple[Any, McpConfig]) -> None:
    child, config = over_http
    with McpServers(timeout=60) as servers:
        offered = [tool.offered for tool in servers.connect("web", config)]
        assert "web__add" in offered
        assert servers.call("web__add", {"a": 2, "b": 3}) == ToolResult("5")
        assert servers.call("web__header", {"name": "X-Key"}) == ToolResult(SECRET)
        assert servers.call("web__fail", {}).is_error
        child.kill()
        child.wait()
        result = servers.call("web__add", {"a": 2, "b": 3})
        assert result.is_error
        assert "the MCP server web was disconnected" in result.text
        assert not servers.states()[0].is_connected
        assert servers.tools == ()
        assert servers.call("web__add", {}).is_error


def portals() -> list[Thread]:
    return [thread for thread in enumerate_threads() if thread.name == "brim-portal"]


def test_several_servers_connect_concurrently() -> None:
    before = len(portals())
    with McpServers(timeout=60) as servers:
        names = [f"s{number}" for number in range(6)]
        with ThreadPoolExecutor(len(names)) as pool:
            found = pool.map(lambda name: servers.connect(name, program("-c", OLD)), names)
            assert [len(tools) for tools in found] == [5] * len(names)
        assert {tool.server for tool in servers.tools} == set(names)
        assert len(portals()) == before + 1


def test_closing_does_not_wait_for_a_connecting_server() -> None:
    servers = McpServers(timeout=600)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(servers.connect, "silent", shell("while read -r; do :; done"))
        until(servers.states)
        assert servers.states()[0].error == "it is not connected yet"
        servers.close()
        with pytest.raises(BrimError):
            coming.result(60)


# Servers of the older protocol, and invalid ones

OLD = """
import json, os, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def tool(name):
    return {"name": name, "inputSchema": {"type": "object"}}

print("Welcome to the old server!", flush=True)
tools = [tool("echo"), tool("refuse"), tool("nonsense"), tool("leave"), tool("more")]
for line in sys.stdin:
    request = json.loads(line)
    method, params = request["method"], request.get("params") or {}
    if "id" not in request:
        continue
    ident = request["id"]
    if method == "initialize":
        about = {"name": "old", "version": "1"}
        say(id=ident, result={"protocolVersion": "2025-06-18", "serverInfo": about,
                              "capabilities": {"tools": {"listChanged": True}}})
    elif method == "tools/list":
        at = int(params.get("cursor") or 0)
        page = {"tools": tools[at:at + 2]}
        if at + 2 < len(tools):
            page["nextCursor"] = str(at + 2)
        say(id=ident, result=page)
    elif method != "tools/call":
        say(id=ident, error={"code": -32601, "message": "unknown"})
    elif params["name"] == "echo":
        print("what is this line?", flush=True)
        words = json.dumps(params["arguments"])
        say(id=ident, result={"content": [{"type": "text", "text": words}]})
    elif params["name"] == "refuse":
        secret = os.environ.get("SECRET", "")
        say(id=ident, error={"code": -32602, "message": "I will not,\\n for " + secret})
    elif params["name"] == "nonsense":
        say(id=ident, result={"content": 7})
    elif params["name"] == "leave":
        sys.exit(1)
    elif params["name"] == "more":
        tools.append(tool("extra"))
        say(method="notifications/tools/list_changed")
        say(id=ident, result={"content": []})
"""


@pytest.fixture(scope="module")
def old() -> Iterator[McpServers]:
    with McpServers(timeout=60) as servers:
        servers.connect("old", program("-c", OLD, SECRET=SECRET))
        yield servers


def test_all_pages_of_a_tool_list_are_read_and_other_lines_ignored(old: McpServers) -> None:
    assert [tool.name for tool in old.tools][:5] == ["echo", "refuse", "nonsense", "leave", "more"]
    assert old.call("old__echo", {"a": 1}) == ToolResult('{"a": 1}')


def test_an_error_of_a_server_is_a_result_without_secrets(old: McpServers) -> None:
    assert old.call("old__refuse", {}) == ToolResult(
        "old returned an error: I will not, for …", is_error=True
    )


def test_an_invalid_response_is_an_error_result(old: McpServers) -> None:
    result = old.call("old__nonsense", {})
    assert result.is_error
    assert result.text.startswith("nonsense of old: ")
    assert old.call("old__echo", {}) == ToolResult("{}")


def test_an_old_server_notifies_about_changed_tools(old: McpServers) -> None:
    assert old.call("old__more", {}) == ToolResult("[no output]")
    until(lambda: "extra" in [tool.name for tool in old.tools])


def test_a_server_that_exits_in_a_call_stays_disconnected_until_reconnected(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with McpServers(log=log, timeout=60) as servers:
        servers.connect("old", program("-c", OLD))
        result = servers.call("old__leave", {})
        assert result.is_error
        assert (
            result.text
            == f"the MCP server old was disconnected: it ended or closed the connection; see {log}"
        )
        assert servers.tools == ()
        assert "is not connected" in servers.call("old__echo", {}).text
        assert servers.states()[0].error == f"it ended or closed the connection; see {log}"
        servers.connect("old", program("-c", OLD))
        assert servers.call("old__echo", {}) == ToolResult("{}")


def test_a_server_that_exited_is_noticed_at_the_next_call(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with McpServers(timeout=60) as servers:
        servers.connect("old", program("-c", report_pid(pid)))
        os.kill(int(pid.read_text()), signal.SIGKILL)
        until(lambda: not lives(pid))
        result = servers.call("old__echo", {})
        assert result == ToolResult(
            "the MCP server old was disconnected: it ended or closed the connection", is_error=True
        )
        assert not servers.states()[0].is_connected


def shell(script: str) -> McpConfig:
    return McpConfig(command="bash", args=("-c", script))


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        (McpConfig(), InputError, "strange needs a command or a url"),
        (McpConfig(command="no-such-program"), InputError, "command not found: no-such-program"),
        (McpConfig(command="bash -c ls"), InputError, "bash -c ls. Put its arguments in `args`."),
        (McpConfig(command="/"), InputError, "/ cannot be started: .*denied"),
        (McpConfig(command="a\0b"), InputError, "cannot be started"),
        (shell("exit 3"), ConnectionFailedError, "bash ended immediately; see .*log"),
        (shell(r"printf '\377\376\n'"), ProviderError, "prints something other"),
        (McpConfig(command="cat"), ProviderError, "cat does not seem to be an MCP server"),
        (McpConfig(url="http://127.0.0.1:9/mcp?k=v"), ConnectionFailedError, "127.0.0.1:9 cannot"),
    ],
)
def test_connection_errors_are_one_sentence(
    config: McpConfig, kind: type[BrimError], words: str, tmp_path: Path
) -> None:
    with McpServers(log=tmp_path / "log", timeout=60) as servers:
        with pytest.raises(kind, match=words):
            servers.connect("strange", config)
        assert all(not state.is_connected for state in servers.states())
        assert servers.tools == ()


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("while read -r; do :; done", ProviderTimeoutError, "bash timed out after 2 seconds"),
        ("echo hello; while read -r; do :; done", ProviderError, "prints something other than"),
    ],
)
def test_a_server_that_does_not_respond_times_out(
    script: str, kind: type[BrimError], words: str
) -> None:
    with McpServers(timeout=2) as servers:
        with pytest.raises(kind, match=words):
            servers.connect("strange", shell(script))
        assert not servers.states()[0].is_connected


@pytest.fixture(scope="module")
def website() -> Iterator[str]:
    """A server that does not speak MCP; the path sets its status."""

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, kind = re.findall(r"/(\d{3})/(.*)", self.path)[0]
            body = b"<p>Hello</p>"
            self.send_response(int(status))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("/401/text/html", AuthenticationError, r"rejected the key.* mcp\.web\.headers"),
        ("/403/text/html", AuthenticationError, "rejected the key"),
        ("/404/text/html", ProviderError, "responded with status 404. Check that the URL"),
        ("/500/text/html", ProviderError, "responded with status 500"),
        (
            "/200/text/html",
            ProviderError,
            "to be an MCP server: Unexpected content type",
        ),
        ("/200/application/json", ProviderError, "does not seem to be an MCP server"),
    ],
)
def test_a_url_of_something_else_is_an_error(
    website: str, path: str, kind: type[BrimError], words: str
) -> None:
    config = McpConfig(url=website + path, headers={"X-Key": SECRET})
    with McpServers(timeout=30) as servers:
        with pytest.raises(kind, match=words) as caught:
            servers.connect("web", config)
        assert SECRET not in str(caught.value)
        assert servers.states()[0].error == str(caught.value).removeprefix("web: ")


class OldOverHttp(BaseHTTPRequestHandler):
    """A restarted server of the older protocol, which has lost its sessions."""

    results: ClassVar[dict[str, Any]] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "serverInfo": {"name": "old", "version": "1"},
            "capabilities": {"tools": {}},
        },
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    }

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            return self.answer(202, b"")
        if (result := self.results.get(request["method"])) is None:
            return self.answer(404, b"no such session")
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        return self.answer(200, json.dumps(answer).encode())

    def do_GET(self) -> None:
        self.answer(405, b"")

    def do_DELETE(self) -> None:
        self.answer(405, b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "one")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_lost_session_disconnects_the_server() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OldOverHttp) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with McpServers(timeout=30) as servers:
            servers.connect("web", McpConfig(url=f"http://127.0.0.1:{server.server_port}/mcp"))
            result = servers.call("web__echo", {})
            assert result.is_error
            assert (
                result.text
                == "the MCP server web was disconnected: it ended or closed the connection"
            )
            assert servers.tools == ()
        server.shutdown()


def test_the_proxy_of_the_environment_is_used(
    website: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", website)
    config = McpConfig(url="http://mcp.invalid/401/text/html")
    with (
        McpServers(timeout=30) as servers,
        pytest.raises(AuthenticationError, match=r"mcp\.invalid rejected"),
    ):
        servers.connect("web", config)


def test_local_addresses_bypass_the_proxy(website: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with McpServers(timeout=30) as servers, pytest.raises(AuthenticationError):
        servers.connect("web", McpConfig(url=f"{website}/401/text/html"))


def test_an_unwritable_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with McpServers(log=tmp_path / "file" / "log") as servers:
        with pytest.raises(InputError, match=r"The log cannot be written"):
            servers.connect("old", program("-c", OLD))
        assert not servers.states()[0].is_connected


def test_the_library_is_loaded_at_the_first_connection() -> None:
    code = (
        "import sys, brim.shell.mcp.servers as own; own.McpServers().close(); "
        "print({'mcp', 'aiohttp'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
