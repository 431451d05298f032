"""Conversations in files: reading, fitting and writing rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from io import BytesIO
from multiprocessing import active_children
from pathlib import Path
from typing import IO, Any

import pytest

import brim
from brim.cli.batch import (
    CHUNK_ROWS,
    Chunk,
    Job,
    Tally,
    chunks,
    fit_chunk,
    fit_chunks,
    fit_value,
    measure_whole_lines,
    truncate_output,
)
from brim.cli.files import InputFile, decode_text, dump_json, parse_json

OPTIONS: dict[str, Any] = {"model": "gpt-4o", "window": 400}
LONG = "many words in a row, " * 30
CHAT = [{"role": "user", "content": "hello"}]
TOO_MUCH = [{"role": "user", "content": LONG * 10}]


def long_chat(number: int, turns: int = 6) -> list[dict[str, str]]:
    """Return a chat that does not fit the window; every number gives another text."""
    roles = ("user", "assistant")
    turn_of = [{"role": roles[i % 2], "content": f"{number}.{i} {LONG}"} for i in range(turns)]
    return [*turn_of, {"role": "user", "content": f"question {number}"}]


def source_of(data: bytes) -> InputFile:
    return InputFile(BytesIO(data))


def lines_of(values: Iterable[object]) -> bytes:
    return b"".join(map(dump_json, values))


# Reading


def test_an_input_file_has_a_name_a_size_and_a_position(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(b"[]\n")
    with path.open("rb") as file:
        source = InputFile(file)
        assert (source.name, source.size, source.is_same(path)) == (str(path), 3, True)
        assert not source.is_same(tmp_path / "other")
        assert source.text() == "[]\n"
        assert source.position == 3
    assert source_of(b"[]").name == "standard input"
    assert source_of(b"[]").size is None


@pytest.mark.parametrize("packed", [False, True])
def test_compressed_input_is_decompressed_under_any_name(packed: bool) -> None:
    data = b'["one"]\n["two"]\n'
    source = source_of(gzip.compress(data) if packed else data)
    assert source.holds_rows()
    assert list(source.lines()) == [b'["one"]\n', b'["two"]\n']


def test_damaged_compression_is_reported() -> None:
    whole = gzip.compress(b"some text that will be cut short" * 50)
    with pytest.raises(brim.InputError, match=r"standard input: .*ended before"):
        source_of(whole[:-12]).text()


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"[1]\n[2]\n", True),
        (b'{"a": 1}\n\n{"a": 2}', True),
        (b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n', True),
        (b"\n\n[1]\n[2]\n", True),
        (b"[1]\n", False),
        (b"[1]\n\n  \n", False),
        (b'[\n{"role": "user"}\n]\n', False),
        (b'{"messages": [\n]}\n', False),
        (b"1\n2\n", False),
        (b"plain text\nand more\n", False),
        (b"", False),
        (b"[" * 100_000 + b"\n[]\n", False),
    ],
)
def test_the_first_line_distinguishes_rows_from_a_document(data: bytes, rows: bool) -> None:
    source = source_of(data)
    assert source.holds_rows() is rows
    assert b"".join(source.lines()) == data


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz"])
def test_a_file_name_can_declare_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    with path.open("rb") as file:
        assert InputFile(file).holds_rows()


def test_text_is_utf8_with_or_without_a_byte_order_mark() -> None:
    assert decode_text(b"\xef\xbb\xbfna\xc3\xafve", "f") == "naïve"
    with pytest.raises(brim.InputError, match=r"^f: line 9: not UTF-8 text \(byte 0xff\)$"):
        decode_text(b"fine\nfine\n\xff", "f", 7)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[1,\n 2 3]", "f: line 2, column 4: not JSON: Expecting ',' delimiter"),
        ("", "f: line 1, column 1: not JSON: Expecting value"),
        ("[" * 100_000, "f: line 1: nested too deeply"),
        ("9" * 5_000, "f: line 1: Exceeds the limit"),
    ],
)
def test_invalid_json_is_reported_with_its_position(text: str, where: str) -> None:
    with pytest.raises(brim.InputError) as caught:
        parse_json(text, "f")
    assert str(caught.value).startswith(where)


@pytest.mark.parametrize("text", ["plain", "naïve → 中", "half \ud83d of a character"])
def test_written_json_can_be_read_again(text: str) -> None:
    data = dump_json({"content": text})
    assert json.loads(data) == {"content": text}
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


# Fitting


def test_a_fitted_list_is_a_list() -> None:
    out, plan = fit_value(long_chat(1), OPTIONS)
    assert isinstance(out, list)
    assert plan.is_trimmed
    assert out[-1] == long_chat(1)[-1]


def test_a_fitted_body_has_only_its_own_keys() -> None:
    body = {"temperature": 0, "messages": CHAT, "user": "me"}
    out, _ = fit_value(body, OPTIONS)
    assert out == body
    assert list(out) == list(body)


@pytest.mark.parametrize("key", ["body", "params"])
def test_the_request_in_a_batch_row_is_fitted_in_place(key: str) -> None:
    row = {"custom_id": "7", key: {"model": "gpt-4o", "messages": long_chat(7)}}
    out, plan = fit_value(row, OPTIONS)
    assert plan.is_trimmed
    assert out["custom_id"] == "7"
    assert out[key]["messages"] == fit_value(long_chat(7), OPTIONS)[0]


def test_other_formats_keep_their_format() -> None:
    body = {"model": "gpt-4o", "input": long_chat(3), "instructions": "Be brief."}
    out, plan = fit_value(body, OPTIONS)
    assert plan.is_trimmed
    assert list(out) == ["model", "input", "instructions"]
    assert len(out["input"]) < len(body["input"])


def fit_rows(data: bytes, options: dict[str, Any] = OPTIONS, *, plans: bool = False) -> Any:
    rows = list(enumerate(data.splitlines(), start=1))
    return fit_chunk(Chunk(rows, 0), Job("rows.jsonl", options, wants_plans=plans))


def test_rows_keep_their_order() -> None:
    data = lines_of([CHAT, long_chat(1), TOO_MUCH]) + b'{"half": \n' + dump_json([{"content": "?"}])
    done = fit_rows(data)
    first, second, third, fourth, fifth = map(json.loads, done.lines.splitlines())
    assert first == CHAT
    assert second == fit_value(long_chat(1), OPTIONS)[0]
    assert (third["error"]["type"], third["error"]["line"]) == ("ContextOverflowError", 3)
    assert third["error"]["tokens"] > third["error"]["limit"] == 300
    assert fourth["error"]["type"] == "InputError"
    assert fourth["error"]["message"].startswith("rows.jsonl: line 4, column 10: not JSON")
    assert fifth["error"] == {
        "type": "MessageError",
        "message": "message 0: has no role",
        "line": 5,
    }
    assert (done.tally.rows, done.tally.fitted, done.tally.cut) == (5, 2, 1)
    assert (done.tally.overflowed, done.tally.unreadable) == (1, 2)
    assert [text.split(":")[1] for text in done.problems] == [
        " line 3",
        " line 4, column 10",
        " line 5",
    ]


def test_each_row_can_have_a_plan() -> None:
    done = fit_rows(lines_of([long_chat(1), TOO_MUCH]) + b"?\n", plans=True)
    cut, over, unread = map(json.loads, done.plans.splitlines())
    assert cut == brim.fit(long_chat(1), **OPTIONS).plan.to_dict()
    assert over["fits"] is False
    assert list(unread) == ["error"]


def test_a_deeply_nested_row_is_one_error() -> None:
    deep = b'[{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]\n"
    done = fit_rows(deep * 2 + dump_json(CHAT))
    assert done.tally.rows == 3
    assert json.loads(done.lines.splitlines()[-1]) == CHAT


def test_a_missing_window_is_a_usage_error_unless_the_row_names_a_model() -> None:
    with pytest.raises(brim.BudgetError):
        fit_rows(dump_json(CHAT), {})
    done = fit_rows(dump_json({"model": "unknown-model", "messages": CHAT}), {})
    assert json.loads(done.lines)["error"]["type"] == "BudgetError"
    assert fit_rows(dump_json({"model": "gpt-4o", "messages": CHAT}), {}).tally.fitted == 1


def test_an_unknown_tokenizer_ends_the_run() -> None:
    with pytest.raises(brim.UnknownTokenizerError):
        fit_rows(dump_json(CHAT), {"window": 100, "tokenizer": "no-such-thing.json"})


# Many rows


def test_chunks_omit_blank_lines_and_keep_line_numbers() -> None:
    data = b'\xef\xbb\xbf\n["a"]\n\n   \n["b"]'
    assert [chunk.rows for chunk in chunks(source_of(data))] == [[(2, b'["a"]\n'), (5, b'["b"]')]]


def test_chunks_are_small_and_can_start_at_a_later_row() -> None:
    data = lines_of([str(i)] for i in range(CHUNK_ROWS + 50))
    assert [len(chunk.rows) for chunk in chunks(source_of(data))] == [CHUNK_ROWS, 50]
    (late,) = chunks(source_of(data), skip=CHUNK_ROWS + 48)
    assert late.rows == [(249, b'["248"]\n'), (250, b'["249"]\n')]


def test_an_output_with_more_rows_than_the_input_is_rejected() -> None:
    with pytest.raises(brim.InputError, match="has 1 rows, but the output already has 2"):
        list(chunks(source_of(b"[1]\n"), skip=2))


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_input_order(processes: int) -> None:
    number = 5 * CHUNK_ROWS + 1
    data = lines_of(long_chat(i, 2) for i in range(number))
    done = list(fit_chunks(chunks(source_of(data)), Job("rows", OPTIONS), processes))
    assert len(done) == 6
    out = b"".join(bytes(each.lines) for each in done)
    asked = [json.loads(line)[-1]["content"] for line in out.splitlines()]
    assert asked == [f"question {i}" for i in range(number)]
    tally = Tally()
    for each in done:
        tally.add(each.tally)
    assert (tally.rows, tally.fitted, tally.overflowed) == (number, number, 0)


def test_a_usage_error_is_raised_from_another_process() -> None:
    data = lines_of(CHAT for _ in range(2 * CHUNK_ROWS))
    with pytest.raises(brim.BudgetError):
        list(fit_chunks(chunks(source_of(data)), Job("rows", {}), 2))


def test_a_killed_process_is_reported() -> None:
    data = lines_of(long_chat(i, 2) for i in range(20 * CHUNK_ROWS))
    rows = fit_chunks(chunks(source_of(data)), Job("rows", OPTIONS), 2)
    next(rows)
    for process in active_children():
        process.kill()
    with pytest.raises(brim.BrimError, match="A worker process was killed"):
        list(rows)
    assert active_children() == []


def test_processes_end_when_the_caller_stops_reading() -> None:
    data = lines_of(long_chat(i, 2) for i in range(5 * CHUNK_ROWS))
    rows = fit_chunks(chunks(source_of(data)), Job("rows", OPTIONS), 2)
    next(rows)
    assert len(active_children()) == 2
    rows.close()
    assert active_children() == []


def test_a_tally_counts_the_outcomes_of_rows() -> None:
    tally = Tally(rows=1_000, fitted=900, cut=80, overflowed=60, unreadable=40, before=5, after=4)
    assert str(tally) == (
        "1,000 rows: 900 fitted (80 trimmed), 60 do not fit, 40 unreadable; 5 → 4 tokens"
    )
    tally.estimated = 1
    assert str(tally).endswith("; about 5 → 4 tokens")


# Going on


def test_only_complete_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert measure_whole_lines(path) == (0, 0)
    path.write_bytes(b"one\ntwo\nthr")
    assert measure_whole_lines(path) == (2, 8)
    assert measure_whole_lines(path, 1) == (1, 4)


def test_an_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    out, plans = tmp_path / "out", tmp_path / "plans"
    out.write_bytes(b"[1]\n[2]\n[3]\n[4")
    plans.write_bytes(b"{1}\n{2}\n{")
    assert truncate_output(out, plans) == Tally(rows=2)
    assert (out.read_bytes(), plans.read_bytes()) == (b"[1]\n[2]\n", b"{1}\n{2}\n")
    assert truncate_output(out, tmp_path / "none") == Tally()
    assert out.read_bytes() == b""


def test_the_errors_of_earlier_rows_are_counted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = fit_rows(lines_of([TOO_MUCH, CHAT]) + b"?\n")
    out.write_bytes(done.lines)
    assert truncate_output(out, None) == Tally(rows=3, overflowed=1, unreadable=1)


def test_an_input_file_reads_from_any_stream(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(gzip.compress(lines_of([CHAT] * 3)))
    file: IO[bytes]
    with path.open("rb") as file:
        source = InputFile(file)
        (chunk,) = chunks(source)
    assert len(chunk.rows) == 3
    assert chunk.position == path.stat().st_size
