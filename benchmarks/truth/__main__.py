"""Compare counts with real servers that have the vocabularies and templates of public models.

python -m benchmarks.truth FOLDER                   FOLDER: llama.cpp's `models`
python -m benchmarks.truth FOLDER RECORDINGS        with other recordings than the shipped ones
python -m benchmarks.truth FOLDER --only counts     one part: counts, templates or windows
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environment
from benchmarks.promises.material import Conversation
from benchmarks.report import Table
from benchmarks.truth.counters import Peer, Score, Ways
from benchmarks.truth.models import SOURCES, Source, read_template, write_model
from benchmarks.truth.requests import load_conversations
from brim.providers.local import LocalServer
from brim.storage.calibration_store import CalibrationStore

CONVERSATIONS = 400
PARTS = ("counts",)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="llama.cpp's folder `models`")
    parser.add_argument("recordings", type=Path, nargs="?", help="a folder with *.jsonl.gz files")
    parser.add_argument("--only", choices=PARTS, help="run one part")
    parser.add_argument("--requests", type=int, default=3_000, help="number (%(default)s)")
    parser.add_argument("--models", nargs="*", help="use only these models")
    parser.add_argument("--keep", type=Path, help="folder in which the small models are kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = given.keep or Path(folder)
        kept.mkdir(exist_ok=True)
        conversations = load_conversations(given.recordings, CONVERSATIONS)
        sources = [each for each in SOURCES if not given.models or each.model in given.models]
        compare(conversations, sources, given.folder, kept, given.requests)


def compare(
    conversations: Sequence[Conversation],
    sources: Sequence[Source],
    folder: Path,
    kept: Path,
    most: int,
) -> None:
    peer = Peer() if environment.ready() is None else None
    store = CalibrationStore(kept / "calibration.sqlite3")
    total: dict[str, Score] = {}
    per_model = -(-most // len(sources))
    for number, source in enumerate(sources):
        path = write_model(source, folder, kept / f"local-{number}-{source.template}.gguf")
        template = read_template(source, folder)
        with LocalServer.start(path, window=32_768, threads=1) as server:
            ways = Ways(source.model, template, server, peer, store)
            start = number * len(conversations) // len(sources)
            made = ways.run([*conversations[start:], *conversations[:start]], per_model)
        rows = [_row(name, score) for name, score in ways.scores.items()]
        print(Table(f"{source.model}: {made} requests", rows, _FORMATS, ways.failures[:3]))
        print(flush=True)
        for name, score in ways.scores.items():
            _merge(total.setdefault(name, Score()), score)
    rows = [_row(name, score) for name, score in total.items()]
    print(Table("All models", rows, _FORMATS), flush=True)


_FORMATS = {"equal": ".1%", "mean error": ".1%", "worst": ".1%", "beyond": ".2%", "over": ".2%"}


def _merge(total: Score, score: Score) -> None:
    for name, value in vars(score).items():
        setattr(total, name, getattr(total, name) + value)


def _row(name: str, score: Score) -> dict[str, str | int | float | bool | None]:
    return {
        "counter": name,
        "requests": score.requests,
        "equal": score.equal / score.requests,
        "mean error": sum(map(abs, score.errors)) / score.requests,
        "worst": min(score.errors),
        "beyond": score.beyond / score.requests,
        "over": score.sent / score.offered,
    }


if __name__ == "__main__":
    main()
