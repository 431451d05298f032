"""Files and standard input: compression, formats, JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
import zstandard

import brim
from brim.batch.byte_streams import InputFile, decode_text, dump_json, parse_json
from brim.batch.input_files import find_text_format


def source_of(data: bytes) -> InputFile:
    return InputFile(BytesIO(data))


def test_an_input_file_has_a_name_a_size_and_a_position(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(b"[]\n")
    with path.open("rb") as file:
        source = InputFile(file)
        assert (source.name, source.size) == (str(path), 3)
        assert source.text() == "[]\n"
        assert source.position == 3
    assert source_of(b"[]").name == "standard input"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_compressed_input_is_decompressed_under_any_name(pack: Callable[[bytes], bytes]) -> None:
    data = [b'["one"]\n', b'["two"]\n']
    source = source_of(b"".join(map(pack, data)))
    assert source.holds_lines()
    assert list(source.lines()) == data


def test_damaged_compression_is_reported() -> None:
    whole = gzip.compress(b"some text that will be cut short" * 50)
    with pytest.raises(brim.InputError, match=r"standard input: .*ended before"):
        source_of(whole[:-12]).text()
    with pytest.raises(brim.InputError, match="standard input: "):
        source_of(zstandard.compress(b"text" * 50)[:5] + b"damage").text()


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
    assert source.holds_lines() is rows
    assert b"".join(source.lines()) == data


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz"])
def test_a_file_name_can_declare_rows(name: str) -> None:
    assert find_text_format(InputFile(BytesIO(b""), name)) == "jsonl"


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (b'[{"messages": []}]', "json"),
        (b'\n [\n  {"id": 1, "text": "}", "conversations": []}]', None),
        (b'[{"id": 1, "conversations": []}]', "json"),
        (b"[[], []]", "json"),
        (b'[{"role": "user", "content": "messages"}]', None),
        (b'{"messages": []}', None),
        (b'{"messages": []}\n{"messages": []}', "jsonl"),
    ],
)
def test_an_array_of_rows_is_distinguished_from_a_conversation(
    data: bytes, format: str | None
) -> None:
    assert find_text_format(source_of(data)) == format


@pytest.mark.parametrize("size", [1, 100, 70_000, 200_000])
def test_the_items_of_an_array_are_read_one_by_one(size: int) -> None:
    items = [{"messages": [{"content": f"ä{i}]," + "x" * size}]} for i in range(5)]
    for text in (json.dumps(items), json.dumps(items, indent=2, ensure_ascii=False)):
        assert list(map(json.loads, source_of(text.encode()).items())) == items


@pytest.mark.parametrize("data", [b"[1, 2", b"[", b"[1, 2}", b'["one" "two"'])
def test_an_incomplete_array_is_an_error(data: bytes) -> None:
    with pytest.raises(brim.InputError, match="JSON array"):
        list(source_of(data).items())


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
