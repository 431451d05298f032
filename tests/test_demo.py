"""The demonstration: it is right, it ends, and it needs no terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

import brim
from brim.demo import MODEL, WINDOW, Totals, Turn, load, play, run_file

DEMO = [sys.executable, "-m", "brim.demo"]


def totals_of(policy: str) -> Totals:
    totals = Totals()
    for turn in play(load(), policy):
        totals.add(turn)
    return totals


def in_terminal(
    command: list[str],
    environment: Mapping[str, str],
    seen: Callable[[bytes, int], None] = lambda _output, _process: None,
) -> tuple[int, str]:
    """Run a command in a terminal of its own; `seen` is told what it has shown so far."""
    screen, terminal = pty.openpty()
    run = subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "80", "LINES": "24", **environment},
    )
    os.close(terminal)
    shown = b""
    try:
        while some := os.read(screen, 65_536):
            shown += some
            seen(shown, run.pid)
    except OSError:  # how Linux says that nobody is on the other side any more
        pass
    os.close(screen)
    return run.wait(), shown.decode()


def test_the_run_says_where_it_comes_from() -> None:
    run = json.loads(run_file().read_text(encoding="utf-8"))
    assert run["source"].startswith("https://github.com/")
    assert run["copyright"] in run["license"]
    assert run["license"].startswith("MIT License")
    assert (
        "The above copyright notice and this permission notice shall be included" in run["license"]
    )


def test_the_run_is_long_and_the_window_small() -> None:
    messages = load()
    assert brim.count(messages, model=MODEL) > 2 * WINDOW
    assert sum(message["role"] == "tool" for message in messages) > 20


def test_every_request_fits_and_most_naive_ones_do_not() -> None:
    totals = totals_of("steady")
    assert all(turn.plan.fits for turn in totals.turns)
    assert totals.requests / 2 < totals.refused < totals.requests
    assert totals.sent < totals.naive


def test_what_is_drawn_is_what_is_sent() -> None:
    framing = brim.count([], model=MODEL)
    for turn in play(load()):
        assert sum(tokens for _, tokens in turn.parts) + framing == turn.plan.tokens
        assert sum(tokens for _, tokens in turn.whole) + framing == turn.plan.before


def test_a_prefix_that_did_not_change_is_served_by_a_cache() -> None:
    turns = list(play(load()))
    for before, turn in pairwise(turns):
        whole = before.plan.tokens - brim.count([], model=MODEL)
        assert turn.changed == (turn.cached < whole)
        assert turn.changed or turn.parts == turn.grown


def test_steady_changes_the_prefix_less_than_sliding() -> None:
    steady, sliding = totals_of("steady"), totals_of("sliding")
    assert steady.changes < sliding.changes
    assert steady.share > sliding.share


def test_in_a_pipe_it_prints_lines_and_ends_well() -> None:
    ended = subprocess.run(DEMO, capture_output=True, check=False, encoding="utf-8")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    requests = [line for line in ended.stdout.splitlines() if line.startswith("request ")]
    assert len(requests) == sum(message["role"] == "assistant" for message in load())
    assert any("naive: refused" in line for line in requests)
    assert "client.chat.completions.create(**request)" in ended.stdout


def test_what_it_says_to_try_next_works() -> None:
    ended = subprocess.run(DEMO, capture_output=True, check=False, encoding="utf-8")
    (line,) = [line for line in ended.stdout.splitlines() if " fit " in line]
    _, *arguments = line.split()
    command = [sys.executable, "-m", "brim.cli", *arguments]
    tried = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
    assert tried.returncode == 0
    assert "message  role" in tried.stderr


def test_in_a_terminal_it_draws() -> None:
    code, shown = in_terminal([*DEMO, "--fast"], {"TERM": "xterm-256color", "NO_COLOR": ""})
    assert code == 0
    assert "█" in shown
    assert "▼ 3,072" in shown
    assert "request 30 of 30" in shown
    assert shown.endswith("\r\n")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_cannot_be_drawn_on_gets_lines(environment: dict[str, str]) -> None:
    code, shown = in_terminal(DEMO, environment)
    assert code == 0
    assert "request 30 " in shown
    assert "\x1b" not in shown


def test_without_rich_there_are_lines() -> None:
    script = "import sys; sys.modules['rich.console'] = None; import brim.demo as d; d.main()"
    code, shown = in_terminal([sys.executable, "-c", script], {"TERM": "xterm", "NO_COLOR": ""})
    assert code == 0
    assert "request 30 " in shown


def test_ctrl_c_ends_it_and_gives_the_cursor_back() -> None:
    pressed: list[int] = []

    def press(output: bytes, process: int) -> None:
        if not pressed and b"request 2 of" in output:
            os.killpg(process, signal.SIGINT)
            pressed.append(process)

    code, shown = in_terminal(DEMO, {"TERM": "xterm-256color", "NO_COLOR": ""}, press)
    assert code == 130
    assert "Traceback" not in shown
    assert "request 30 of" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_turn_is_refused_when_it_is_past_the_limit() -> None:
    turns: list[Turn] = list(play(load()))
    assert [turn.refused for turn in turns] == [
        turn.plan.before > WINDOW - WINDOW // 4 for turn in turns
    ]
