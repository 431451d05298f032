"""The demonstration: it is right, it ends, and it needs neither a terminal nor a model."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import brim
from brim.demo import live, plain
from brim.demo.bars import Scale, bar
from brim.demo.naive import Naive
from brim.demo.paths import recording
from brim.demo.recorded import MODEL, WINDOW, Totals, Turn, load, play
from brim.demo.script import LINES
from brim.demo.talk import REPLY, Talk, left_out, parts_of, talk
from brim.demo.talk import Turn as Said
from brim.providers.local import SMOLLM2, LocalServer
from tests.support.fixtures import LlamaWith

DEMO = [sys.executable, "-m", "brim.demo"]
DRAWN_ON = {"TERM": "xterm-256color", "NO_COLOR": ""}


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


def in_pipe(*options: str, **environment: str) -> str:
    """What it prints where there is no terminal."""
    ended = subprocess.run(
        [*DEMO, *options],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, **environment},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    return ended.stdout


@pytest.fixture(scope="session")
def data(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder in which the model is."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "models").mkdir()
    (folder / "models" / weights.name).symlink_to(weights)
    return str(folder)


# The conversation


@pytest.fixture(scope="module")
def conversation(weights: Path) -> Iterator[tuple[Talk, list[Said]]]:
    """A talk of eight turns that has ended; so wordy that it is cut whatever the model says."""
    wordy = [replace(line, words=f"{line.words} {' Please.' * 25}") for line in LINES[:8]]
    with talk(weights, wordy) as held:
        yield held, [turn for turn in held.turns() if turn.ended]


def test_brim_is_never_refused_and_the_naive_client_is(
    conversation: tuple[Talk, list[Said]],
) -> None:
    held, turns = conversation
    refused = [turn.naive.refused for turn in turns]
    assert refused[0] is False
    assert refused[-1] is True
    assert refused == sorted(refused)
    assert held.totals.refused == 0
    assert held.totals.naive_refused == sum(refused)
    assert held.totals.first_refused == refused.index(True) + 1


def test_every_request_leaves_the_room_for_its_answer(
    conversation: tuple[Talk, list[Said]],
) -> None:
    held, turns = conversation
    for turn in turns:
        assert turn.plan.fits
        assert turn.usage is not None
        assert 0 < turn.usage.input <= held.server.window - REPLY
        assert 0 < turn.usage.output <= REPLY
        assert turn.answer


def test_a_refusal_is_the_servers_own(conversation: tuple[Talk, list[Said]]) -> None:
    held, turns = conversation
    naive = turns[-1].naive
    assert (naive.status, naive.error) == (400, "exceed_context_size_error")
    assert (naive.counted, naive.window) == (naive.tokens, held.server.window)


def test_what_the_naive_client_sends_is_counted_while_it_fits(
    conversation: tuple[Talk, list[Said]],
) -> None:
    _, turns = conversation
    for turn in turns:
        if not turn.plan.is_trimmed and not any(before.clipped for before in turns[: turn.number]):
            assert turn.usage is not None
            assert turn.naive.tokens == turn.usage.input  # both send the same until then


def test_bars_add_up(conversation: tuple[Talk, list[Said]]) -> None:
    _, turns = conversation
    for turn in turns:
        assert sum(tokens for _, tokens in turn.parts) == turn.plan.size
        assert sum(tokens for _, tokens in turn.whole) == turn.naive.tokens
    assert "note" in {role for role, _ in turns[-1].parts}
    assert "note" not in {role for role, _ in turns[-1].whole}


def test_long_outputs_are_clipped_and_the_pinned_turn_stays(
    conversation: tuple[Talk, list[Said]],
) -> None:
    _, turns = conversation
    (clipped,) = [turn.clipped for turn in turns if turn.clipped]
    assert clipped[1] < clipped[0] / 2
    pinned = [turn.pinned for turn in turns]
    assert pinned == [None, None, *[True] * 6]
    assert turns[-1].plan.is_trimmed


def test_the_totals_are_those_of_the_turns(conversation: tuple[Talk, list[Said]]) -> None:
    held, turns = conversation
    totals = held.totals
    assert totals.turns == len(turns) == 8
    assert totals.sent == held.session.usage.input
    assert totals.cached == held.session.usage.cached
    assert totals.naive == sum(turn.naive.tokens for turn in turns)
    assert 0.3 < totals.share < 1


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_every_picture_has_its_place_on_the_screen(
    conversation: tuple[Talk, list[Said]], width: int, height: int
) -> None:
    held, turns = conversation
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    pictures = []
    for turn in turns:
        for state in (turn, replace(turn, answer="", usage=None)):
            with console.capture() as capture:
                console.print(live.screen(held, state, console))
            pictures.append(capture.get().splitlines())
    assert {len(lines) for lines in pictures} == {len(pictures[0])}
    assert len(pictures[0]) < height
    assert max(len(line) for lines in pictures for line in lines) <= width
    last = "\n".join(pictures[-2])
    assert f"▼ {held.server.window}" in last
    assert "HTTP 400" in last


def test_what_a_model_says_cannot_command_the_terminal(
    conversation: tuple[Talk, list[Said]],
) -> None:
    held, turns = conversation
    odd = replace(turns[0], answer="\x1b[2J[bold]one\r\ntwo\x07" + "日本語の長い答え " * 40)
    console = Console(width=80, height=24, color_system=None)
    with console.capture() as capture:
        console.print(live.screen(held, odd, console))
    shown = capture.get() + "\n".join(plain.lines(odd, held.server.window))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[2J[bold]one two" in shown
    assert len(capture.get().splitlines()) < 24


def test_lines_are_no_wider_than_a_terminal(conversation: tuple[Talk, list[Said]]) -> None:
    held, turns = conversation
    for turn in turns:
        assert max(map(len, plain.lines(turn, held.server.window))) < 80
    assert plain.bar(turns[0].parts, held.server.window).startswith("S")


def test_what_is_left_out_is_told_with_its_reason(conversation: tuple[Talk, list[Said]]) -> None:
    _, turns = conversation
    assert left_out(turns[0].plan) == ""
    dropped = turns[-1].plan.outcome_counts()["dropped"]
    assert left_out(turns[-1].plan).startswith(f"dropped {dropped} messages (")
    assert left_out(turns[-1].plan).endswith(" tokens): middle of the history")


@pytest.mark.parametrize(
    ("parts", "columns"),
    [
        ([], (0, 30, 0, 10)),
        ([("system", 50), ("user", 100)], (15, 15, 0, 10)),
        ([("system", 250), ("user", 90)], (30, 0, 4, 6)),
        ([("user", 300)], (30, 0, 0, 10)),
    ],
)
def test_a_bar_has_a_column_for_ten_tokens(
    parts: list[tuple[str, int]], columns: tuple[int, int, int, int]
) -> None:
    drawn = bar(Scale(width=72, window=400, limit=300), parts, {"system": "blue", "user": "green"})
    filled, free, over, reply = columns
    assert drawn.plain == "█" * filled + "·" * free + "▒" * over + "░" * reply + " " * 6
    colors = {span.style for span in drawn.spans if drawn.plain[span.start] == "█"}
    assert colors == {{"system": "blue", "user": "green"}[role] for role, _ in parts}


def test_a_bar_that_is_too_long_goes_on_past_the_screen() -> None:
    drawn = bar(Scale(width=72, window=400, limit=300), [("user", 9_000)], {})
    assert drawn.plain == "█" * 30 + "▒" * 15 + "▶"


def test_a_note_in_somebodys_words_is_told_apart() -> None:
    messages = [
        {"role": "user", "content": "[exec output]\nline\n\nline\n\nWhy?"},
        {"role": "assistant", "content": "Because.\n\n[brim: gap]"},
        {"role": "user", "content": "[brim: gap]"},
        {"role": "assistant", "content": "[brim: I say so]"},
    ]
    roles = [role for role, _ in parts_of(messages, 100, len, ["[brim: gap]"])]
    assert roles == ["output", "user", "assistant", "note", "note", "assistant"]


def test_a_naive_request_that_is_too_long_is_really_sent(llama_with: LlamaWith) -> None:
    server = llama_with(window=256)
    naive = Naive(server, "Be brief.", max_tokens=1)
    naive.add("user", "Hello!")
    assert naive.outcome().status is None
    naive.add("user", "again and again " * 200)
    refused = naive.outcome()
    assert refused.refused
    assert refused.tokens > server.window == refused.window


def test_the_script_is_what_it_is_meant_to_be() -> None:
    assert 24 <= len(LINES) <= 30
    assert sum(line.pinned for line in LINES) == 1
    assert sum(bool(line.output) for line in LINES) >= 3
    assert all(bool(line.output) == bool(line.command) for line in LINES)


# How it is shown


@pytest.fixture(scope="module")
def printed(data: str) -> str:
    return in_pipe("--turns", "6", BRIM_DATA=data)


def test_in_a_pipe_it_prints_lines_and_ends_well(printed: str) -> None:
    turns = [line for line in printed.splitlines() if line.startswith("turn ")]
    assert len(turns) == 6
    assert "HTTP 400 exceed_context_size_error: " in printed
    assert "6 turns. Sent whole, 2 got HTTP 400, from turn 5 on. " in printed
    assert "With brim: none." in printed


def test_the_command_that_it_says_to_try_next_works(printed: str) -> None:
    (line,) = [line for line in printed.splitlines() if " fit " in line]
    _, *arguments = line.split()
    command = [sys.executable, "-m", "brim.cli", *arguments]
    tried = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
    assert tried.returncode == 0
    assert "message  role" in tried.stderr


def test_the_python_that_it_says_to_try_next_works(
    printed: str,
    llama: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    code = textwrap.dedent(printed[printed.index("  import brim\n") :])
    (serve,) = [line for line in printed.splitlines() if " local serve" in line]
    assert serve.split()[-4:] == ["--port", "8080", "--key", '""']
    code = code.replace('"http://127.0.0.1:8080"', f"{llama.url!r}, key={llama.key!r}")
    exec(code, {})
    assert capsys.readouterr().out.strip()


def test_in_a_terminal_it_draws(data: str) -> None:
    code, shown = in_terminal([*DEMO, "--fast", "--turns", "1"], {**DRAWN_ON, "BRIM_DATA": data})
    assert code == 0
    assert "█" in shown
    assert "turn 1 of 1" in shown
    assert "1 turn. Sent whole, 0 got HTTP 400. With brim: none." in shown
    assert shown.endswith("\r\n")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_cannot_be_drawn_on_gets_lines(
    data: str, environment: dict[str, str]
) -> None:
    code, shown = in_terminal([*DEMO, "--turns", "1"], {**environment, "BRIM_DATA": data})
    assert code == 0
    assert "\x1b" not in shown
    assert "turn 1  you" in shown


def children(process: int) -> list[Path]:
    return [
        Path("/proc", child)
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for children in /proc")
@pytest.mark.parametrize(("option", "sign"), [("--fast", b"turn 2 of"), ("--plain", b"turn 1 ")])
def test_ctrl_c_ends_it_with_its_server_and_gives_the_cursor_back(
    data: str, option: str, sign: bytes
) -> None:
    left: list[Path] = []

    def press(output: bytes, process: int) -> None:
        if not left and sign in output:
            left.extend(children(process))
            os.killpg(process, signal.SIGINT)

    code, shown = in_terminal([*DEMO, option], {**DRAWN_ON, "BRIM_DATA": data}, press)
    assert code == 130, shown
    assert "Stopped. 1 turn. Sent whole, 0 got" in shown
    assert "Traceback" not in shown
    assert left
    assert not any(child.exists() for child in left)
    assert shown.rfind("\x1b[?25h") >= shown.rfind("\x1b[?25l")


# Without a model


def test_where_no_model_can_be_fetched_it_says_so_and_shows_a_recorded_run(tmp_path: Path) -> None:
    printed = in_pipe(BRIM_DATA=str(tmp_path), PIP_NO_INDEX="1", UV_OFFLINE="1", UV_NO_INDEX="1")
    (said,) = [line for line in printed.splitlines() if line.startswith("No model can be had")]
    assert "could not be fetched from the package index" in said
    assert said.endswith("so this is a recorded run.")
    assert "request 30 " in printed
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("missing", ["xllamacpp", "httptools"])
def test_without_its_packages_it_shows_a_recorded_run(data: str, missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "from brim.demo.__main__ import main; main(['--plain'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "BRIM_DATA": data},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("No model can be had here (")
    assert "pip install" in ended.stdout.splitlines()[0]
    assert "request 30 " in ended.stdout


@pytest.mark.parametrize("beginning", [b"", b"GGUF"])
def test_a_damaged_model_leads_to_the_recorded_run(tmp_path: Path, beginning: bytes) -> None:
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / SMOLLM2.file).open("wb") as file:
        file.write(beginning)
        file.truncate(SMOLLM2.size)
    printed = in_pipe(BRIM_DATA=str(tmp_path))
    assert printed.startswith("No model can be had here (")
    assert "request 30 " in printed


# The recorded run


def totals_of(policy: str) -> Totals:
    totals = Totals()
    for turn in play(load(), policy):
        totals.add(turn)
    return totals


def test_the_run_says_where_it_comes_from() -> None:
    run = json.loads(recording().read_text(encoding="utf-8"))
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


def test_a_turn_is_refused_when_it_is_past_the_limit() -> None:
    turns: list[Turn] = list(play(load()))
    assert [turn.refused for turn in turns] == [
        turn.plan.before > WINDOW - WINDOW // 4 for turn in turns
    ]


def test_the_recorded_run_in_a_pipe_is_lines() -> None:
    printed = in_pipe("--recorded")
    requests = [line for line in printed.splitlines() if line.startswith("request ")]
    assert len(requests) == sum(message["role"] == "assistant" for message in load())
    assert any("naive: refused" in line for line in requests)
    assert "client.chat.completions.create(**request)" in printed


def test_the_recorded_run_in_a_terminal_is_drawn() -> None:
    code, shown = in_terminal([*DEMO, "--recorded", "--fast"], DRAWN_ON)
    assert code == 0
    assert "█" in shown
    assert "▼ 3,072" in shown
    assert "request 30 of 30" in shown
    assert shown.endswith("\r\n")


def test_without_rich_there_are_lines() -> None:
    script = (
        "import sys; sys.modules['rich.console'] = None; "
        "from brim.demo.__main__ import main; main(['--recorded'])"
    )
    code, shown = in_terminal([sys.executable, "-c", script], {"TERM": "xterm", "NO_COLOR": ""})
    assert code == 0
    assert "request 30 " in shown


def test_ctrl_c_ends_the_recorded_run_and_gives_the_cursor_back() -> None:
    pressed: list[int] = []

    def press(output: bytes, process: int) -> None:
        if not pressed and b"request 2 of" in output:
            os.killpg(process, signal.SIGINT)
            pressed.append(process)

    code, shown = in_terminal([*DEMO, "--recorded"], DRAWN_ON, press)
    assert code == 130
    assert "Traceback" not in shown
    assert "request 30 of" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
