"""Conversations on disk: killed shells, concurrent shells, scripts, and the first start."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from brim.shell.setup.discovery import find_models
from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.shell.driver import Home, home, last_words, texts
from tests.support.terminal import Terminal

__all__ = ["home"]


def test_a_killed_shell_is_resumed_with_all_messages(home: Home) -> None:
    hold = threading.Event()
    held_reply = TextReply("One two three four.", hold=hold)
    with ScriptedServer(["Good day.", held_reply, "Where were we?"]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("good day to you")
            shell.do("echo kept too")
            shell.terminal.line("please count to four")
            shell.terminal.wait_for("One")
            shell.wait(lambda: read_draft(home.state) == "One", "the draft on disk")
            shell.terminal.kill()
        with home.shell("resume") as shell:
            assert "4 turns" in shell.terminal.everything
            shell.do("please continue")
    *before, last = texts(provider.requests[-1])[1:]
    assert before[:2] == ["good day to you", "Good day."]
    assert before[2].startswith("[exec output]\n$ echo kept too\nkept too")
    assert before[2].endswith("please count to four")
    assert before[3:] == ["One"]
    assert last == "please continue"


def test_a_call_that_was_killed_with_its_shell_counts_against_the_cap(home: Home) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("One two.", hold=hold), "Aye."]) as provider:
        price = "price = {input = 1000.0, output = 1000.0}"
        home.configure(provider, price, "[cost]\ncap_at_dollars = 1", window=1_000, reply=500)
        with home.shell() as shell:
            shell.terminal.line("please count to two")
            shell.terminal.wait_for("One")
            shell.terminal.kill()
        with home.shell("resume") as shell:
            shell.terminal.line("please say aye")
            shell.terminal.wait_for("your message is back in the prompt")
            assert "cap_at_dollars" in shell.terminal.everything
    assert len(provider.requests) == 1
    assert "1 presumed" in home.run("cost").stdout


def test_a_warning_is_not_repeated_after_a_resume(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider, "[cost]\nwarn_at_tokens = 10")
        with home.shell() as shell:
            assert "This session has used" in shell.do("please say aye")
        with home.shell("resume") as shell:
            assert "This session has used" not in shell.do("please say it again")


def test_the_spending_warning_of_a_summary_is_shown(home: Home) -> None:
    def answer(body: Any) -> str:
        return "Aye." if body.get("stream") else "They spoke of numbers. " * 2_000

    with ScriptedServer(answer) as provider:
        home.configure(provider, "[cost]\nwarn_at_tokens = 8000", window=3_000)
        with home.shell() as shell:
            for number in range(6):
                assert "This session has used" not in shell.do(f"?question {number}")
            shell.expect_question(":compact", "compact? [y]es, [n]o: ")
            assert "This session has used" in shell.do("y")


def test_a_command_that_was_killed_with_its_shell_is_not_forgotten(home: Home) -> None:
    temporary = home.folder / "tmp"
    temporary.mkdir()
    home.environment["TMPDIR"] = str(temporary)
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("good day to you")
            shell.terminal.line("echo begun; sleep 600")
            shell.terminal.wait_for(lambda screen: "begun" in screen)
            shell.terminal.kill()
        (left,) = temporary.glob("brim-*")
        os.utime(left, (0, 0))
        with home.shell("resume") as shell:
            shown = shell.do(":output")
            shell.leave()
    assert "$ echo begun; sleep 600\n[brim] No output: the shell was killed" in shown
    assert list(temporary.glob("brim-*")) == []


def read_draft(state: Path) -> str | None:
    with closing(sqlite3.connect(state / "brim.sqlite3")) as base:
        row = base.execute("SELECT draft FROM sessions").fetchone()
    return str(row[0]) if row and row[0] else None


def test_two_concurrent_shells(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell() as one, home.shell() as other:
            one.do("the words of one")
            other.do("the words of the other")
            one.do("more words of one")
            other.do("more words of the other")
            assert texts(provider.requests[2])[1:] == [
                "the words of one",
                "Aye.",
                "more words of one",
            ]
            assert "the words of one" not in str(provider.requests[3].body)
            listed = other.do(":sessions")
            assert len(re.findall("4 turns", listed)) == 2
            name = next(line.split()[0] for line in listed.split("\n") if "→" not in line)
            one.do(f":resume {name}")  # it is already open there, and stays open
            assert "is open in another shell" in other.do(f":resume {name}")
            again = home.run("resume", name)
            assert again.returncode == 2
            assert "is open in another shell" in again.stderr
            one.leave()
            assert "4 turns" in other.do(f":resume {name}")


def test_files_on_disk_are_private(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("seq 1 9000")
            shell.do("what is that?")
            found = list(home.state.rglob("*"))
            assert {"brim.sqlite3", "history"} <= {path.name for path in found}
            for path in (home.state, *found):
                mode = path.stat().st_mode & 0o777
                assert mode == (0o700 if path.is_dir() else 0o600), path


def test_cost_and_sessions_cover_all_runs(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider, "price = {input = 1000.0, output = 1000.0}")
        with home.shell() as shell:
            shell.do("the first talk")
            shell.leave()
        assert home.run("-m", "fast", lines="?the second talk\n").returncode == 0
        spent = json.loads(home.run("cost", "--json").stdout)
        tokens = sum(request.tokens + provider.tokens("Aye.") for request in provider.requests)
        assert float(spent["total"]["cost"]) == pytest.approx(tokens / 1_000)
        assert spent["total"]["calls"] == 2
        listed = json.loads(home.run("sessions", "list", "--json").stdout)
        assert [one["title"] for one in listed] == ["the second talk", "the first talk"]
        assert "the first talk" in (shown := home.run("sessions", "list").stdout)
        assert home.run("sessions").stdout == shown
        removed = home.run("sessions", "rm", listed[0]["id"])
        assert f"Removed {listed[0]['id']}" in removed.stdout
        left = json.loads(home.run("sessions", "list", "--json").stdout)
        assert [one["title"] for one in left] == ["the first talk"]
        assert json.loads(home.run("cost", "--json").stdout) == spent, "the recorded costs stay"
        assert home.run("sessions", "rm", "nothing-like-it").returncode == 2


# Scripts


def test_the_lines_of_a_script_run_in_order(home: Home) -> None:
    with ScriptedServer("Some **bold** words.") as provider:
        home.configure(provider)
        lines = "cd /\npwd\n:memory add I am a script.\nwhat is here?\n:cost\n"
        done = home.run("-m", "fast", lines=lines)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert "bold" in done.stdout
        assert re.search(r"^/$", done.stdout, re.MULTILINE)
        assert "$ pwd\n/\n" in last_words(provider.requests[0].body)
        assert "I am a script." in texts(provider.requests[0])[0]


def test_a_script_stops_at_the_first_line_that_fails(home: Home) -> None:
    with ScriptedServer(lambda _body: ErrorReply(400, "no such thing")) as provider:
        home.configure(provider)
        for failing in ("false", ":wrod", "?is anybody there"):
            done = home.run(lines=f"echo one\n{failing}\necho two\n")
            assert done.returncode == 1, failing
            assert "one" in done.stdout
            assert "two" not in done.stdout
            assert "Traceback" not in done.stdout + done.stderr
        for leaving in (":quit", "quit", "exit", "exit 0"):
            assert home.run(lines=f"echo one\n{leaving}\nfalse\n").returncode == 0, leaving
        left = home.run(lines="exit 3\necho two\n")
        assert left.returncode == 1
        assert "The script left with exit code 3" in left.stdout + left.stderr
        assert "two" not in left.stdout


def test_messages_of_brim_are_not_in_the_output_of_a_script(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        home.state.mkdir()
        (home.state / "outputs").touch()  # so that no output can be saved
        done = home.run(lines="seq 5000\nfalse\n")
    assert done.stdout.endswith("4999\n5000\n")
    saved, code = done.stderr.splitlines()
    assert saved.startswith("! the whole text could not be saved: ")
    assert code == "· exit code 1"


def test_a_reply_without_a_finish_reason_is_a_failure(home: Home) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "CMD: touch made"}}]}
    reply = ErrorReply(200, raw=f"data: {json.dumps(event)}\n\n".encode())
    with ScriptedServer([reply, reply]) as provider:
        home.configure(provider)
        done = home.run("--yes", lines="?what now\n")
        assert done.returncode == 1
        assert "The reply may be incomplete" in done.stderr
        assert not (home.folder / "made").exists()
        result = home.run("ask", "what now")
    assert (result.returncode, result.stdout) == (4, "CMD: touch made\n")
    assert "The reply may be incomplete" in result.stderr


def test_a_script_never_confirms(home: Home) -> None:
    target = home.folder / "precious"
    target.write_text("x")
    with ScriptedServer(["CMD: rm -rf precious", "CMD: touch made"]) as provider:
        home.configure(provider)
        home.run(lines="?tidy up here\n")
        assert target.exists()
        home.run("--yes", lines="?make it\n")
        assert (home.folder / "made").exists()


# The first start

ALONE = (
    sys.executable,
    "-c",
    "from brim.shell.setup.discovery import find_models; from brim.cli import main; "
    "find_models.__kwdefaults__.update(ports=(), timeout=30.0); main()",
)
"""brim with long timeouts, which ignores servers that run on this machine."""


def test_a_running_server_is_found(home: Home) -> None:
    with ScriptedServer("Found you.", like="llama.cpp", window=4_000, model="tiny") as provider:
        home.config.touch()
        with home.shell(program=ALONE, also={"OPENAI_BASE_URL": provider.url}) as shell:
            assert f"llama.cpp at {provider.url.removesuffix('/v1')}" in shell.terminal.everything
            assert "tiny" in shell.do(":models")
            shell.do(":model tiny")
            assert "Found you." in shell.do("is anybody there?")
        assert provider.requests[0].body["model"] == "tiny"


def test_servers_from_the_environment_come_first() -> None:
    with ScriptedServer("A", model="usual") as usual, ScriptedServer("B", model="named") as named:
        port = urlsplit(usual.url).port
        assert port is not None
        found = find_models({"OPENAI_BASE_URL": named.url}, ports=[port], timeout=30.0)
    assert [one.name for one in found] == ["named", "usual"]


def test_without_any_model_the_embedded_one_is_offered(home: Home) -> None:
    home.config.touch()
    with Terminal(
        ALONE, environment=home.environment, folder=home.folder, columns=150, rows=30
    ) as terminal:
        terminal.wait_for("download it? [y]es, [n]o: ")
        assert "No model is configured" in terminal.everything
        terminal.line("n")
        assert terminal.wait_for_end() == 2
        assert "brim config --example" in terminal.everything
        assert "Traceback" not in terminal.everything
    assert not any(Path(home.environment["BRIM_DATA"]).rglob("*.gguf"))
