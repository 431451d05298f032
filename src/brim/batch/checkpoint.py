"""Checkpoint: how far a job has come, in a hidden file next to its output.

It has the options and a digest of the rows that were read, so that a run with other options or
with another input cannot continue the output of this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from brim.batch.byte_streams import dump_json, write_file
from brim.batch.input_files import Piece
from brim.batch.tally import Tally
from brim.errors import InputError


@dataclass(slots=True)
class Checkpoint:
    """The state after a number of pieces whose rows were written."""

    options: Mapping[str, Any]
    pieces: int = 0
    digest: str = ""
    """A chain of digests of these pieces."""
    target: int = 0
    """The index of the output file, if there are several."""
    positions: dict[str, int] = field(default_factory=dict)
    """The positions in this file and in the file of plans."""
    tally: Tally = field(default_factory=Tally)
    is_complete: bool = False

    def save(self, path: Path) -> None:
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        write_file(path, dump_json({**state, "tally": self.tally.to_dict()}))


def load_checkpoint(path: Path, output: Path, options: Mapping[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of an output; None if there is neither.

    Raise `InputError` if it is missing, or if it was written with other options.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        if not output.exists():
            return None
        raise InputError(
            f"{output} has no checkpoint ({path.name}), so it cannot be continued. "
            "Run without --resume, or remove it."
        ) from None
    except ValueError:
        raise InputError(f"{path} is damaged. Run without --resume.") from None
    earlier, current = data["options"], json.loads(json.dumps(options))
    changed = [
        f"{name} was {_shorten(earlier.get(name))} and is now {_shorten(current.get(name))}"
        for name in sorted({*earlier, *current})
        if earlier.get(name) != current.get(name)
    ]
    if changed:
        raise InputError(
            f"{output} was written with other options: {'; '.join(changed)}. "
            "Use the same options, or run without --resume."
        )
    return Checkpoint(**{**data, "tally": Tally.from_dict(data["tally"])})


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def extend_digest(digest: str, piece: Piece) -> str:
    """Return the digest of the pieces before and of this one."""
    hashed = blake2b(digest.encode(), digest_size=16)
    for data in [piece.data] if isinstance(piece.data, bytes) else piece.data:
        hashed.update(b"%d\n" % len(data))
        hashed.update(data)
    return hashed.hexdigest()
