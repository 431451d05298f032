"""The report of a run: one HTML page without scripts, with a summary and a histogram of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Final

from brim.batch.outputs import write_output
from brim.batch.tally import Tally, find_size_class

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2530; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .2rem 1.5rem .2rem 0; vertical-align: top; }
th { font-weight: 500; color: #5a6775; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .7rem; background: #8fa3b8; vertical-align: middle; }
.after .bar { background: #2f6fab; }
.histogram th, .histogram td { padding-top: 0; padding-bottom: 0; line-height: 1.2; }
.histogram .before > * { padding-top: .6rem; }
@media (prefers-color-scheme: dark) {
  body { color: #dde4ea; background: #14191f; } th { color: #93a1af; }
  .bar { background: #5a6775; } .after .bar { background: #5b9bd5; } }
"""
_WIDTH: Final = 24
"""The width of the longest bar in rem."""


def write_report(name: str, tally: Tally, model: str | None, options: Mapping[str, object]) -> None:
    """Write the page to a file or an address."""
    write_output(name, "\n".join(_render(tally, model, options)).encode())


def _render(tally: Tally, model: str | None, options: Mapping[str, object]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><meta charset="utf-8"><title>brim fit</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{_STYLE}</style><h1>{tally.rows:,} conversations</h1>"
    about = "about " if tally.estimated else ""
    yield from _draw_table(
        [
            ("fitted", f"{tally.fitted:,}"),
            ("of these, trimmed", f"{tally.trimmed:,}"),
            ("do not fit", f"{tally.overflowed:,}"),
            ("unreadable", f"{tally.unreadable:,}"),
            ("tokens", f"{about}{tally.before:,} → {tally.after:,}"),
            *tally.describe(model),
        ]
    )
    yield "<h2>Tokens per conversation</h2><p>Before (gray) and after fitting (blue).</p>"
    yield from _draw_histogram(tally)
    if tally.examples:
        yield "<h2>First errors</h2><ul>"
        yield from (f"<li>{escape(text)}</li>" for text in tally.examples)
        yield "</ul>"
    yield "<h2>Options</h2>"
    given = ((name, str(value)) for name, value in options.items() if value not in (None, ()))
    yield from _draw_table(given)
    yield "</html>\n"


def _draw_table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield "<table>"
    for name, value in rows:
        yield f"<tr><th>{escape(name)}</th><td>{escape(value[:500])}</td></tr>"
    yield "</table>"


def _draw_histogram(tally: Tally) -> Iterator[str]:
    """Yield a bar before and one after fitting for each class of sizes."""
    before, after = tally.sizes_before, tally.sizes_after
    starts = sorted(map(int, {*before, *after}))
    most = max([*before.values(), *after.values()], default=1)
    size, end = (starts[0], starts[-1]) if starts else (0, -1)
    yield '<table class="histogram">'
    while size <= end:
        sizes = find_size_class(size)
        label = f"{size:,} – {sizes[-1]:,}" if len(sizes) > 1 else f"{size:,}"
        for kind, counts in (("before", before), ("after", after)):
            number = counts[str(size)]
            bar = f'<span class="bar" style="width:{_WIDTH * number / most:.2f}rem"></span>'
            name = label if kind == "before" else ""
            yield f'<tr class="{kind}"><th>{name}</th><td>{bar}</td><td class="number">'
            yield f"{number:,}</td></tr>"
        size = sizes.stop
    yield "</table>"
