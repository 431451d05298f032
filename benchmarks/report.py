"""Tables, JSON, and the command line that all benchmarks share."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

SHIPPED = "shipped with the project; too few to compare with the targets of cost and recall"

Cell: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows of figures under one title."""

    title: str
    rows: Sequence[dict[str, Cell]]
    formats: dict[str, str] = field(default_factory=dict)
    """A format specification for each column."""
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        if not self.rows:
            return "\n".join([f"## {self.title}", "", *(self.notes or ["nothing to measure"])])
        names = list(self.rows[0])
        lines = [names, *([self._show(name, row.get(name)) for name in names] for row in self.rows)]
        columns = range(len(names))
        widths = [max(len(line[column]) for line in lines) for column in columns]
        numeric = [any(line[column][0].isdigit() for line in lines[1:]) for column in columns]
        shown = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
            for line in lines
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([f"## {self.title}", "", shown[0], rule, *shown[1:], *self._foot()])

    def _show(self, name: str, value: Cell) -> str:
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else format(value, self.formats.get(name, ","))

    def _foot(self) -> list[str]:
        return ["", *self.notes] if self.notes else []

    def to_dict(self) -> dict[str, object]:
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)}


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    folder: Path | None
    json: bool
    peers: bool
    part: str
    """Which recordings to use: all, held (not used to choose the policies) or chosen."""
    limit: float
    """Seconds after which a peer's run is stopped."""
    short: bool = False
    """Whether to make fewer and smaller runs, with less precise figures."""
    only: tuple[str, ...] = ()
    """The names of the tables to print; empty: all of them."""


def options(doc: str | None, argv: Sequence[str] | None = None) -> Options:
    """Parse the command line, which is the same for every benchmark."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="folder with *.jsonl.gz recordings (default: those shipped with the project)",
    )
    parser.add_argument(
        "--part",
        choices=("all", "chosen", "held", "unseen"),
        default="all",
        help="for cost and recall, use only the recordings that the policies were chosen on, or "
        "the third that was held aside (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--no-peers", action="store_true", help="measure only brim")
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="seconds after which a peer is stopped (%(default)s)",
    )
    parser.add_argument(
        "--short", action="store_true", help="make fewer and smaller runs of the gateway benchmark"
    )
    parser.add_argument(
        "--only",
        metavar="NAME,...",
        default="",
        help="print only these tables of the data set benchmark; for rates, the stores",
    )
    given = parser.parse_args(argv)
    return Options(
        given.folder,
        given.json,
        not given.no_peers,
        given.part,
        given.limit,
        given.short,
        tuple(filter(None, given.only.split(","))),
    )


def run(doc: str | None, measure: Callable[[Options], Iterable[Table]]) -> None:
    """Measure and print the tables, each as soon as it is ready, or all as JSON."""
    given = options(doc)
    start = time.perf_counter()
    if given.json:
        tables = [table.to_dict() for table in measure(given)]
        print(json.dumps(tables, ensure_ascii=False, indent=1))
        return
    for table in measure(given):
        print(table, end="\n\n", flush=True)
    print(f"{time.perf_counter() - start:.0f} s; recordings: {given.folder or SHIPPED}")
