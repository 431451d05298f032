"""Compare counts with real servers that have the vocabularies and templates of public models.

python -m benchmarks.truth FOLDER                   FOLDER: llama.cpp's `models`
python -m benchmarks.truth FOLDER RECORDINGS        with other recordings than the shipped ones
python -m benchmarks.truth FOLDER --only templates  one part: counts, templates or windows
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import environment
from benchmarks.promises.fitting import Fitting
from benchmarks.promises.material import Conversation
from benchmarks.report import Cell, Table
from benchmarks.truth.counters import Peer, Score, Ways
from benchmarks.truth.models import SOURCES, Source, read_template, write_model
from benchmarks.truth.requests import CONVERSATIONS, SEED, load_conversations
from benchmarks.truth.templates import Tally, try_templates
from brim.fitting.flow import CountMode
from brim.providers.local import LocalServer
from brim.storage.calibration_store import CalibrationStore

PARTS = ("templates", "windows", "counts")
WINDOWS = (512, 1_024, 2_048, 4_096, 8_192)
WINDOW_SOURCES = (0, 4, 7)
"""The models whose windows are tested, unless others are named."""
MODES: tuple[CountMode, ...] = ("near", "off")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="llama.cpp's folder `models`")
    parser.add_argument("recordings", type=Path, nargs="?", help="a folder with *.jsonl.gz files")
    parser.add_argument("--only", choices=PARTS, help="run one part")
    parser.add_argument("--requests", type=int, default=3_000, help="number (%(default)s)")
    parser.add_argument("--models", nargs="*", help="use only these models")
    parser.add_argument("--seed", type=int, default=SEED, help="choose conversations (%(default)s)")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=MODES, help="of the windows")
    parser.add_argument("--keep", type=Path, help="folder in which the small models are kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = given.keep or Path(folder)
        kept.mkdir(exist_ok=True)
        conversations = load_conversations(given.recordings, CONVERSATIONS, given.seed)
        chosen = [each for each in SOURCES if each.model in (given.models or ())]
        parts = [given.only] if given.only else PARTS
        if "templates" in parts:
            render_templates(given.folder)
        if "windows" in parts:
            sources = chosen or [SOURCES[place] for place in WINDOW_SOURCES]
            most = given.requests // 10
            fit_windows(conversations, sources, given.folder, kept, most, given.modes)
        if "counts" in parts:
            compare(conversations, chosen or SOURCES, given.folder, kept, given.requests)


def render_templates(folder: Path) -> None:
    """Render random conversations by the rules of a trial; print what was rejected or lost."""
    tallies = try_templates(folder / "templates")
    bad = [tally for tally in tallies if tally.errors or tally.lost]
    rows: list[dict[str, Cell]] = [
        {"template": each.name, **_count(each)} for each in [*bad, _add_up(tallies)]
    ]
    print(Table(f"Strict templates: {len(tallies)}", rows), end="\n\n", flush=True)


def _count(tally: Tally) -> dict[str, Cell]:
    return {"renderings": tally.renderings, "errors": tally.errors, "lost": tally.lost}


def _add_up(tallies: Sequence[Tally]) -> Tally:
    total = Tally("all")
    for tally in tallies:
        total.renderings += tally.renderings
        total.errors += tally.errors
        total.lost += tally.lost
    return total


def fit_windows(
    conversations: Sequence[Conversation],
    sources: Sequence[Source],
    folder: Path,
    kept: Path,
    most: int,
    modes: Sequence[CountMode],
) -> None:
    """Fit growing conversations into small windows, with and without the server's counts."""
    names = ("requests", "trimmed", "over", "rejected", "lost", "needless", "template_errors")
    rows: list[dict[str, Cell]] = []
    for number, source in enumerate(sources):
        path = write_model(source, folder, _get_path(kept, source))
        for mode in modes:
            store = CalibrationStore(kept / f"windows-{source.model}-{mode}.sqlite3")
            with closing(Fitting(path, store, mode, WINDOWS)) as fitting:
                fitting.run(conversations[number :: len(sources)], most, 0)
            tallies = fitting.tallies.values()
            sums: dict[str, Cell] = {
                name: sum(getattr(tally, name) for tally in tallies) for name in names
            }
            rows.append({"model": source.model, "count": mode, **sums})
            print(rows[-1], file=sys.stderr, flush=True)
    print(Table(f"Windows of {WINDOWS[0]} to {WINDOWS[-1]:,}", rows), end="\n\n", flush=True)


def _get_path(kept: Path, source: Source) -> Path:
    return kept / f"local-{SOURCES.index(source)}-{source.template}.gguf"


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
        path = write_model(source, folder, _get_path(kept, source))
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


def _row(name: str, score: Score) -> dict[str, Cell]:
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
