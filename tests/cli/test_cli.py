"""The command line with real files and processes."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import brim
from brim.cli import main
from tests.support.terminal import shown_on

LONG = "many words in a row, " * 30
CHAT = [{"role": "user", "content": "hello"}]
TOO_MUCH = [{"role": "user", "content": LONG * 40}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
BRIM = [sys.executable, "-m", "brim.cli"]
WINDOW = ["--window", "400", "-m", "gpt-4o"]


def brim_command(*arguments: object, given: bytes | str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=given)


def make_chat(number: int = 0, turns: int = 6) -> list[dict[str, str]]:
    """Return a chat that does not fit the window; every number gives another text."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": f"{number}.{i} {LONG}"} for i in range(turns)]
    return [*messages, {"role": "user", "content": f"question {number}"}]


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_rows(path: Path, values: Iterable[object]) -> Path:
    text = "".join(f"{json.dumps(value)}\n" for value in values)
    path.write_text(text, encoding="utf-8")
    return path


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# count


def test_text_is_counted_exactly_with_the_models_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("word " * 4_000, encoding="utf-8")
    result = brim_command("count", tmp_path / "notes.md", "-m", "gpt-5-mini")
    assert result.stdout == f"{brim.count('word ' * 4_000, model='gpt-5-mini'):,} tokens, exact\n"
    assert result.exit_code == 0


def test_rows_of_jsonl_are_counted_one_by_one(tmp_path: Path) -> None:
    rows: list[Any] = [CHAT, {"messages": CHAT * 2, "tools": TOOLS}, {"messages": CHAT}]
    path = write_rows(tmp_path / "rows.jsonl", [*rows[:2], {"conversation": CHAT}])
    result = brim_command("count", path, "-m", "gpt-4o", "--json")
    counts = [brim.count(row, model="gpt-4o") for row in rows]
    printed = json.loads(result.stdout)
    assert printed["tokens"] == sum(counts)
    assert printed["rows"] == 3
    assert printed["parts"]["user"] == sum(count.parts["user"] for count in counts)
    assert "in 3 rows" in brim_command("count", path).stdout


def test_without_a_model_a_count_is_an_estimate_that_names_its_tokenizer() -> None:
    result = brim_command("count", "-", given="hello world")
    assert result.stdout == "about 2 tokens (estimated with o200k_base)\n"


@pytest.mark.parametrize("tokenizer", ["cl100k_base", "chars/4"])
def test_a_tokenizer_can_be_named(tokenizer: str) -> None:
    result = brim_command("count", "-", "--tokenizer", tokenizer, "--json", given="hello world")
    facts = json.loads(result.stdout)
    assert facts["tokenizer"] == tokenizer
    assert facts["tokens"] == brim.count("hello world", tokenizer=tokenizer)


@pytest.mark.parametrize(
    "value", [CHAT, {"model": "gpt-4o", "messages": CHAT}, {"body": {"messages": CHAT}}]
)
def test_a_conversation_is_counted_as_messages(value: object) -> None:
    result = brim_command("count", "-", "-m", "gpt-4o", given=json.dumps(value))
    first, *parts = result.stdout.splitlines()
    assert first == f"{brim.count(CHAT, model='gpt-4o'):,} tokens, exact"
    assert [part.split()[0] for part in parts] == ["framing", "user"]


def test_an_option_overrides_the_model_of_a_body() -> None:
    body = json.dumps({"model": "gpt-4", "messages": CHAT})
    assert json.loads(brim_command("count", "-", "--json", given=body).stdout)["model"] == "gpt-4"
    other = brim_command("count", "-", "--json", "-m", "gpt-4o", given=body)
    assert json.loads(other.stdout)["tokenizer"] == "o200k_base"


def test_parts_add_up_and_tools_are_included(tmp_path: Path) -> None:
    tools = write_json(tmp_path / "tools.json", TOOLS)
    chat = write_json(tmp_path / "chat.json", CHAT)
    result = brim_command("count", chat, "-m", "gpt-4o", "--tools", tools, "--json")
    facts = json.loads(result.stdout)
    assert facts["tokens"] == sum(facts["parts"].values())
    assert facts["parts"]["tools"] > 0
    assert facts["exact"] is False


@pytest.mark.parametrize("text", ['["just", "a list"]', '{"a": 1}', "[]", "[{", "12", "[" * 99_999])
def test_other_json_is_counted_as_text(text: str) -> None:
    facts = json.loads(brim_command("count", "-", "--json", given=text).stdout)
    assert facts["parts"] == {"text": brim.count(text)}


def test_text_can_be_forced() -> None:
    text = json.dumps(CHAT)
    facts = json.loads(brim_command("count", "-", "--text", "--json", given=text).stdout)
    assert facts["parts"] == {"text": brim.count(text)}


# fit, one conversation


@pytest.mark.parametrize(
    "value",
    [make_chat(), {"user": "me", "messages": make_chat(), "tools": TOOLS, "max_tokens": 90}],
)
def test_a_fitted_conversation_keeps_its_shape(tmp_path: Path, value: Any) -> None:
    result = brim_command("fit", write_json(tmp_path / "chat.json", value), *WINDOW)
    assert result.exit_code == 0
    out = json.loads(result.stdout)
    assert type(out) is type(value)
    request = brim.fit(value, model="gpt-4o", window=400)
    assert out == (request.messages if isinstance(value, list) else {k: request[k] for k in value})
    assert result.stderr == f"{request.plan}\n"


def test_a_conversation_that_fits_is_not_changed() -> None:
    result = brim_command("fit", "-", *WINDOW, given=json.dumps(CHAT))
    assert json.loads(result.stdout) == CHAT
    assert result.stderr == "8 of 300 tokens; nothing trimmed\n"


def test_the_output_is_indented_if_the_input_was() -> None:
    flat = brim_command("fit", "-", *WINDOW, given=json.dumps(CHAT))
    assert flat.stdout == json.dumps(CHAT) + "\n"
    deep = brim_command("fit", "-", *WINDOW, given=json.dumps(CHAT, indent=4))
    assert deep.stdout == json.dumps(CHAT, indent=2) + "\n"


def test_a_byte_order_mark_is_not_part_of_the_input() -> None:
    result = brim_command("fit", "-", *WINDOW, given=b"\xef\xbb\xbf" + json.dumps(CHAT).encode())
    assert json.loads(result.stdout) == CHAT


def test_options_reach_the_plan(tmp_path: Path) -> None:
    chat = write_json(tmp_path / "chat.json", make_chat())
    plan = tmp_path / "plan.json"
    numbers = ("--reply", 50, "--keep-recent", 1, "--pin", 0, "--policy", "sliding")
    result = brim_command("fit", chat, *WINDOW, *numbers, "--plan", plan, "--dry-run")
    assert result.stdout == ""
    expected = brim.fit(
        make_chat(), model="gpt-4o", window=400, reply=50, keep_recent=1, pins=[0], policy="sliding"
    )
    assert json.loads(plan.read_text(encoding="utf-8")) == expected.plan.to_dict()
    assert expected.plan.decisions[0].outcome == "kept"


def test_the_rules_of_a_strict_template_can_be_selected() -> None:
    turns = json.dumps([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    done = brim_command("fit", "-", "--window", 300, "--template", "gemma", given=turns)
    assert json.loads(done.stdout) == [{"role": "user", "content": "a\n\nb"}]
    wrong = brim_command("fit", "-", "--window", 300, "--template", "nix", given=turns)
    assert wrong.exit_code == 2
    assert "gemma" in wrong.stderr


def test_tools_can_be_in_a_separate_file(tmp_path: Path) -> None:
    chat = write_json(tmp_path / "chat.json", CHAT)
    plan = tmp_path / "plan.json"
    for tools in (TOOLS, {"tools": TOOLS}):
        write_json(tmp_path / "tools.json", tools)
        brim_command("fit", chat, *WINDOW, "--tools", tmp_path / "tools.json", "--plan", plan)
        before = json.loads(plan.read_text(encoding="utf-8"))["before"]
        assert before == brim.count(CHAT, model="gpt-4o", tools=TOOLS)


def test_explain_prints_a_table_instead_of_one_line() -> None:
    result = brim_command("fit", "-", *WINDOW, "--explain", given=json.dumps(make_chat()))
    assert "message  role" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("total")
    assert isinstance(json.loads(result.stdout), list)


def test_errors_in_the_input_are_reported() -> None:
    lonely = [*CHAT, {"role": "tool", "tool_call_id": "x", "content": "orphaned"}]
    result = brim_command("fit", "-", *WINDOW, given=json.dumps(lonely))
    assert "warning: message 1: " in result.stderr


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("old content", encoding="utf-8")
    rejected = brim_command("fit", "-", *WINDOW, "-o", out, given=json.dumps(TOO_MUCH))
    assert rejected.exit_code == 3
    assert out.read_text(encoding="utf-8") == "old content"
    written = brim_command("fit", "-", *WINDOW, "-o", out, given=json.dumps(make_chat()))
    assert (written.exit_code, written.stdout) == (0, "")
    assert json.loads(out.read_text(encoding="utf-8"))[-1] == make_chat()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_conversation_can_be_fitted_in_its_own_file(tmp_path: Path) -> None:
    chat = write_json(tmp_path / "chat.json", make_chat())
    assert brim_command("fit", chat, *WINDOW, "-o", chat).exit_code == 0
    assert len(json.loads(chat.read_text(encoding="utf-8"))) < len(make_chat())


def test_a_device_is_written_to_and_not_replaced() -> None:
    result = brim_command("fit", "-", *WINDOW, "-o", os.devnull, given=json.dumps(CHAT))
    assert result.exit_code == 0
    assert not Path(os.devnull).is_file()


# Exit codes


@pytest.mark.parametrize(
    ("arguments", "given", "code", "reason"),
    [
        (["fit", "-", *WINDOW], json.dumps(CHAT), 0, "nothing trimmed"),
        (["fit", "-", *WINDOW], json.dumps(TOO_MUCH), 3, "Shorten the last message"),
        (["fit", "no-such-file.json"], "", 2, "no-such-file.json: No such file"),
        (["count", "."], "", 2, "'.': Is a directory"),
        (["fit", "-", *WINDOW], "", 2, "standard input: line 1, column 1: not JSON"),
        (["fit", "-", *WINDOW], "hello", 2, "standard input: line 1, column 1: not JSON"),
        (["fit", "-", *WINDOW], "[\n1 2]", 2, "standard input: line 2, column 3: not JSON"),
        (["fit", "-", *WINDOW], b"\xff\x00", 2, "standard input: line 1: not UTF-8 text"),
        (["count", "-"], b"fine\n\xff\x00", 2, "standard input: line 2: not UTF-8 text"),
        (["fit", "-", *WINDOW], '[{"role": "user"}, {}]', 2, "message 1: has no role"),
        (
            ["fit", "-", *WINDOW],
            '{"a": 1}',
            2,
            "standard input: Unknown request body: it must have",
        ),
        (["fit", "-", *WINDOW], "5", 2, "standard input: The conversation is not a list"),
        (["fit", "-"], json.dumps(CHAT), 2, "Use --window 8192"),
        (["fit", "-", "-m", "unknown-model"], json.dumps(CHAT), 2, "Use --window 8192"),
        (["fit", "-", "--window", "0"], json.dumps(CHAT), 2, "'--window': 0 is not in the range"),
        (["fit", "-", "--window", "-5"], json.dumps(CHAT), 2, "'--window': -5 is not in"),
        (["fit", "-", *WINDOW, "--reply", "-1"], json.dumps(CHAT), 2, "'--reply': -1 is not in"),
        (
            ["fit", "-", *WINDOW, "--policy", "x"],
            json.dumps(CHAT),
            2,
            "Unknown policy 'x'. Use one of",
        ),
        (["fit", "-", *WINDOW, "--pin", "7"], json.dumps(CHAT), 2, "Pin 7 is not a message"),
        (["fit", "-", *WINDOW, "--tokenizer", "x.json"], json.dumps(CHAT), 2, "x.json cannot be"),
        (["fit", "-", *WINDOW, "-o", "no/such/folder"], json.dumps(CHAT), 2, "no/such/folder: No"),
        (["fit", "-", *WINDOW, "-o", "a.gz"], json.dumps(CHAT), 2, "Pipe the output into gzip"),
        (["fit", "-", *WINDOW, "-o", "a", "--plan", "a"], json.dumps(CHAT), 2, "the same file"),
        (["fit", "-", *WINDOW, "--resume"], json.dumps(CHAT), 2, "--resume needs a data set"),
        (["fit", "-", *WINDOW, "--resume", "-o", "a"], json.dumps(CHAT), 2, "--resume needs"),
        (["fit", "-", *WINDOW, "--explain"], "[]\n[]\n", 2, "--explain works for one conversation"),
        (["models", "gpt4o"], "", 2, "Unknown model: gpt4o. Similar names: gpt-4o"),
        (["models", "xyzzy"], "", 2, "`brim models` lists"),
        (["nonsense"], "", 2, "No such command"),
    ],
)
def test_every_exit_code_has_a_reason(
    arguments: list[str],
    given: bytes | str,
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = brim_command(*arguments, given=given)
    assert list(tmp_path.iterdir()) == []
    assert result.exit_code == code
    assert reason in result.stderr
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_an_overflow_still_prints_the_plan_and_the_table(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    arguments = ("fit", "-", *WINDOW, "--plan", plan, "--explain")
    result = brim_command(*arguments, given=json.dumps(TOO_MUCH))
    assert result.exit_code == 3
    assert "does not fit 300" in result.stderr
    assert json.loads(plan.read_text(encoding="utf-8"))["fits"] is False


def test_an_invalid_tools_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text("?", encoding="utf-8")
    chat = write_json(tmp_path / "chat.json", CHAT)
    result = brim_command("fit", chat, *WINDOW, "--tools", tmp_path / "tools.json")
    assert result.stderr.startswith(f"brim: {tmp_path / 'tools.json'}: line 1, column 1: not JSON")
    assert result.exit_code == 2


# fit, JSONL


def test_rows_are_fitted_in_order_with_a_summary(tmp_path: Path) -> None:
    values = [CHAT, {"id": 7, "messages": make_chat(7)}, TOO_MUCH, {"no": "messages"}, make_chat(8)]
    rows = write_rows(tmp_path / "rows.jsonl", values)
    result = brim_command("fit", rows, *WINDOW)
    out = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 3
    assert out[0] == CHAT
    request = brim.fit(make_chat(7), model="gpt-4o", window=400)
    assert out[1] == {
        "id": 7,
        "messages": request.messages,
        "brim_tokens_before": request.plan.before,
        "brim_tokens": request.plan.tokens,
        "brim_dropped": len(request.plan.dropped),
        "brim_clipped": 0,
        "brim_error": "",
    }
    assert out[2]["messages"] == TOO_MUCH
    assert "is the least that can be sent" in out[2]["brim_error"]
    assert out[3]["no"] == "messages"
    assert out[3]["brim_error"].startswith("Unknown request body")
    assert f"{rows}: line 3: " in result.stderr
    assert f"{rows}: line 4: Unknown request body: it must have" in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("5 rows: 3 fitted (2 trimmed), 1 do not fit, 1 unreadable; ")


def test_unreadable_rows_exit_with_2(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'[{"role": "user", "content": "\xff"}]\n' + json.dumps(CHAT).encode())
    result = brim_command("fit", rows, *WINDOW)
    assert result.exit_code == 2
    assert f"{rows}: line 1: not UTF-8 text (byte 0xff)" in result.stderr
    assert json.loads(result.stdout.splitlines()[1]) == CHAT


def test_many_errors_are_reported_in_a_few_lines(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [CHAT, *({"no": i} for i in range(30))])
    result = brim_command("fit", rows, *WINDOW)
    assert result.stderr.count("Unknown request body") == 10
    assert "... and 20 more" in result.stderr
    assert "errors: 30 InputError" in result.stderr


def test_an_empty_file_of_rows_is_valid(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = brim_command("fit", write_rows(tmp_path / "rows.jsonl", []), *WINDOW, "-o", out)
    assert (result.exit_code, out.read_bytes()) == (0, b"")


def test_compressed_rows_and_standard_input_give_the_same_output(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [make_chat(i) for i in range(5)])
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(rows.read_bytes()))
    plain = brim_command("fit", rows, *WINDOW)
    assert brim_command("fit", packed, *WINDOW).stdout == plain.stdout
    assert brim_command("fit", "-", *WINDOW, given=rows.read_bytes()).stdout == plain.stdout
    assert brim_command("fit", "-", *WINDOW, given=packed.read_bytes()).stdout == plain.stdout


def test_each_row_can_have_a_plan(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [make_chat(1), CHAT])
    plans = tmp_path / "plans.jsonl"
    result = brim_command("fit", rows, *WINDOW, "--plan", plans, "--dry-run")
    assert result.stdout == ""
    expected = [brim.fit(each, model="gpt-4o", window=400).plan for each in (make_chat(1), CHAT)]
    assert read_rows(plans) == [plan.to_dict() for plan in expected]


def test_a_usage_error_does_not_change_the_output(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [CHAT])
    out = tmp_path / "out.jsonl"
    out.write_text("the work of a night\n", encoding="utf-8")
    assert brim_command("fit", rows, "-o", out).exit_code == 2
    assert brim_command("fit", rows, *WINDOW, "-o", rows).exit_code == 2
    assert out.read_text(encoding="utf-8") == "the work of a night\n"
    assert read_rows(rows) == [CHAT]


def test_thousands_of_rows_on_several_cores(tmp_path: Path) -> None:
    number = 3_000
    rows = write_rows(tmp_path / "rows.jsonl", (make_chat(i, 2) for i in range(number)))
    out = tmp_path / "out.jsonl"
    ended = subprocess.run(
        [*BRIM, "fit", rows, *WINDOW, "-j", "2", "-o", out], capture_output=True, check=False
    )
    assert ended.returncode == 0
    found = read_rows(out)
    assert [row[-1]["content"] for row in found] == [f"question {i}" for i in range(number)]
    assert all(brim.count(row, model="gpt-4o") <= 300 for row in found[::100])
    assert ended.stderr.decode().splitlines()[-1].startswith("3,000 rows: 3,000 fitted")


# Interrupted


def start_run(rows: int, out: Path, stdout: int | None = None) -> subprocess.Popen[bytes]:
    """Start a run that has received this many rows, waits for more, and has written some."""
    run = subprocess.Popen(
        [*BRIM, "fit", "-", *WINDOW, "-j", "2", "-o", str(out), "--plan", f"{out}.plans"],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert run.stdin is not None
    for i in range(rows):
        run.stdin.write(f"{json.dumps(make_chat(i, 2))}\n".encode())
    run.stdin.flush()
    while not (out.exists() and out.stat().st_size):
        assert run.poll() is None
        time.sleep(0.02)
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """2,000 rows, and the output for them."""
    folder = tmp_path_factory.mktemp("finished")
    rows = write_rows(folder / "rows.jsonl", (make_chat(i, 2) for i in range(2_000)))
    out = folder / "out.jsonl"
    assert brim_command("fit", rows, *WINDOW, "-j", "1", "-o", out).exit_code == 0
    return rows, out.read_bytes()


def test_a_killed_run_is_resumed(tmp_path: Path, finished: tuple[Path, bytes]) -> None:
    rows, whole = finished
    out, plans = tmp_path / "out.jsonl", tmp_path / "out.jsonl.plans"
    run = start_run(1_800, out)
    run.kill()
    run.communicate()
    before = out.read_bytes()
    assert 0 < before.count(b"\n") < 2_000
    out.write_bytes(before + b'[{"role": "us')
    where = [str(rows), "-o", str(out), "--plan", str(plans)]
    resume = [*BRIM, "fit", *where, *WINDOW, "--resume"]
    ended = subprocess.run(resume, capture_output=True, check=False)
    assert (ended.returncode, out.read_bytes()) == (0, whole)
    assert plans.read_bytes().count(b"\n") == 2_000
    assert b"existing rows)" in ended.stderr
    again = subprocess.run(resume, capture_output=True, check=False)
    assert (again.returncode, out.read_bytes()) == (0, whole)
    assert b"2,000 rows: 2,000 fitted" in again.stderr


def test_ctrl_c_leaves_complete_lines_and_explains_how_to_resume(
    tmp_path: Path, finished: tuple[Path, bytes]
) -> None:
    rows, whole = finished
    out = tmp_path / "out.jsonl"
    run = start_run(1_800, out)
    os.killpg(run.pid, signal.SIGINT)
    assert run.stderr is not None
    errors = run.stderr.read().decode()
    assert run.wait() == 130
    assert run.stdin is not None
    run.stdin.close()
    run.stderr.close()
    written = out.read_bytes()
    assert written.endswith(b"\n")
    lines = written.count(b"\n")
    how = "Run the same command with --resume to continue."
    assert errors.endswith(f"brim: Stopped after {lines:,} rows. {how}\n")
    assert brim_command("fit", rows, *WINDOW, "-j", 1, "-o", out, "--resume").exit_code == 0
    assert out.read_bytes() == whole


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    run = start_run(1_800, tmp_path / "out.jsonl", writer)
    os.close(writer)
    run.kill()
    run.communicate()
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""  # ends when the last process has closed it


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [TOO_MUCH, CHAT, CHAT])
    out = tmp_path / "out.jsonl"
    brim_command("fit", rows, *WINDOW, "-o", out)
    whole = out.read_bytes()
    assert brim_command("fit", rows, *WINDOW, "-o", out, "--resume").exit_code == 3
    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (["--window", "500"], "window was 400 and is now 500"),
        (["--policy", "sliding"], 'policy was "steady" and is now "sliding"'),
        (["--no-columns"], "columns was true and is now false"),
    ],
)
def test_an_output_is_not_continued_with_other_options(
    tmp_path: Path, change: list[str], reason: str
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [CHAT])
    out = tmp_path / "out.jsonl"
    assert brim_command("fit", rows, *WINDOW, "-o", out).exit_code == 0
    whole = out.read_bytes()
    result = brim_command("fit", rows, *WINDOW, *change, "-o", out, "--resume")
    assert result.exit_code == 2
    assert reason in result.stderr
    assert out.read_bytes() == whole


def test_an_output_is_not_continued_with_another_input(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [CHAT])
    out = tmp_path / "out.jsonl"
    assert brim_command("fit", rows, *WINDOW, "-o", out).exit_code == 0
    for changed in ([make_chat(1)], [CHAT, CHAT], []):
        write_rows(rows, changed)
        result = brim_command("fit", rows, *WINDOW, "-o", out, "--resume")
        assert result.exit_code == 2
        assert "The input has" in result.stderr


def test_an_output_of_something_else_is_not_continued(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [CHAT])
    out = write_rows(tmp_path / "out.jsonl", [CHAT] * 3)
    result = brim_command("fit", rows, *WINDOW, "-o", out, "--resume")
    assert result.exit_code == 2
    assert "has no checkpoint" in result.stderr
    assert len(read_rows(out)) == 3


@pytest.mark.parametrize("command", [["fit", *WINDOW, "-j", "2"], ["count", "--text"], ["models"]])
def test_a_closed_pipe_ends_silently(command: list[str], finished: tuple[Path, bytes]) -> None:
    name, *options = command
    file = [] if name == "models" else [str(finished[0])]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*BRIM, name, *file, *options], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_full_disk_is_reported() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no full disk to try")
    with full.open("wb") as disk:
        ended = subprocess.run(
            [*BRIM, "count", "-"], input=b"hello", stdout=disk, stderr=subprocess.PIPE, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"brim: the output: ")


# Terminals


def on_terminal(columns: int, *arguments: str) -> str:
    """Return the output of a command whose standard error is a terminal."""
    return shown_on(columns, [*BRIM, *arguments], "stderr", stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("columns", [50, 90])
def test_a_table_fits_the_width_of_the_terminal(tmp_path: Path, columns: int) -> None:
    chat = write_json(tmp_path / "chat.json", make_chat())
    shown = on_terminal(columns, "fit", str(chat), *WINDOW, "--explain").splitlines()
    assert columns - 30 < max(map(len, shown)) <= columns


def test_progress_is_shown_on_a_terminal(finished: tuple[Path, bytes]) -> None:
    shown = on_terminal(80, "fit", str(finished[0]), *WINDOW, "-j", "1")
    parts = [part.strip() for part in shown.replace("\x1b[K", "").split("\r")]
    step = r"[\d,]+ rows, [\d,]+ rows/s, \d+%, \d+:\d\d:\d\d left"
    assert any(re.fullmatch(step, part) for part in parts)
    assert any(part.startswith("2,000 rows: 2,000 fitted") for part in parts)


# models


def test_models_are_listed() -> None:
    lines = brim_command("models").stdout.splitlines()
    assert lines[0].split()[:5] == ["model", "context", "input", "output", "tokenizer"]
    (line,) = [line for line in lines if line.startswith("gpt-5-mini ")]
    assert line.split()[1:5] == ["400,000", "272,000", "128,000", "o200k_base"]


def test_models_can_be_printed_as_json() -> None:
    known = json.loads(brim_command("models", "--json").stdout)
    assert len(known) > 50
    numbers = [m[key] for m in known for key in ("context", "largest_input", "largest_output")]
    assert all(number is None or number > 0 for number in numbers)
    assert None in numbers


def test_details_of_a_model_name_the_catalog_entry() -> None:
    result = brim_command("models", "openai/gpt-4o-2024-08-06")
    assert result.stdout.startswith("gpt-4o, found for openai/gpt-4o-2024-08-06\n")
    assert "context         128,000 tokens" in result.stdout
    facts = json.loads(brim_command("models", "gpt-4o", "--json").stdout)
    assert (facts["name"], facts["context"], facts["exact"]) == ("gpt-4o", 128_000, True)
    assert facts["price"]["input"] > facts["price"]["cached"] > 0


# Help


@pytest.mark.parametrize(
    "arguments", [["--help"], ["count", "-h"], ["fit", "-h"], ["models", "-h"]]
)
def test_help_has_examples(arguments: list[str]) -> None:
    result = brim_command(*arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: brim ")
    assert result.stdout.count("  brim ") >= 2  # examples


def test_version() -> None:
    assert brim_command("--version").stdout == f"brim {brim.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from brim.cli import main; main(['--help'], standalone_mode=False); "
        "heavy = {'tiktoken', 'genai_prices', 'multiprocessing', 'rich', 'splintr'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
