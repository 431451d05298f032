"""Writes a copy of a model with only its first layers.

Its tokenizer and chat template are those of the model, and it answers in a fraction of the time:
most tests need a real server and its counts, but no meaningful reply.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

ALIGNMENT: Final = 32
_NUMBERS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING: Final = 8
_ARRAY: Final = 9


class Tensor(NamedTuple):
    """A tensor in a GGUF file; its data ends where the next one begins."""

    name: bytes
    shape: bytes
    start: int
    end: int


def write_short_model(source: Path, target: Path, layers: int) -> None:
    """Copy a GGUF file without the layers from this number on."""
    with source.open("rb") as file, target.open("wb") as out:
        magic, version, tensors, keys = struct.unpack("<4sIQQ", file.read(24))
        values = b"".join(_copy_key(file, layers) for _ in range(keys))
        kept = [each for each in _read_tensors(file, tensors) if _layer(each.name) < layers]
        out.write(struct.pack("<4sIQQ", magic, version, len(kept), keys) + values)
        offset = 0
        for each in kept:
            out.write(_pack_string(each.name) + each.shape + struct.pack("<Q", offset))
            offset += each.end - each.start
        out.write(b"\0" * (-out.tell() % ALIGNMENT))
        for each in kept:
            file.seek(each.start)
            out.write(file.read(each.end - each.start))


def _layer(name: bytes) -> int:
    """Return the layer of a tensor such as `blk.7.attn_q.weight`, or -1."""
    return int(name.split(b".")[1]) if name.startswith(b"blk.") else -1


def _copy_key(file: BinaryIO, layers: int) -> bytes:
    begin = file.tell()
    name = _read_string(file)
    (kind,) = struct.unpack("<I", file.read(4))
    at = file.tell()
    _skip_value(file, kind)
    end = file.tell()
    file.seek(begin)
    copy = file.read(end - begin)
    if name.endswith(b".block_count"):
        copy = copy[: at - begin] + struct.pack(f"<{_NUMBERS[kind]}", layers)
    return copy


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _read_string(file)
    elif kind == _ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        for _ in range(length):
            _skip_value(file, inner)
    else:
        file.read(struct.calcsize(_NUMBERS[kind]))


def _read_tensors(file: BinaryIO, number: int) -> list[Tensor]:
    found: list[Any] = []
    for _ in range(number):
        name = _read_string(file)
        dimensions = file.read(4)
        rest = file.read(8 * struct.unpack("<I", dimensions)[0] + 4)
        (offset,) = struct.unpack("<Q", file.read(8))
        found.append((name, dimensions + rest, offset))
    data = -(-file.tell() // ALIGNMENT) * ALIGNMENT
    size = file.seek(0, 2)
    starts = sorted(data + offset for _, _, offset in found)
    ends = dict(zip(starts, [*starts[1:], size], strict=True))
    return [Tensor(name, shape, data + at, ends[data + at]) for name, shape, at in found]


def _read_string(file: BinaryIO) -> bytes:
    return file.read(struct.unpack("<Q", file.read(8))[0])


def _pack_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text
