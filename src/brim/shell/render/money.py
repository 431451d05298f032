"""Renders usage and cost: `:cost`, `:cost detail`, `:usage`.

The texts and rules come from the ledger; this module adds colors. Without a terminal, a table is
the ledger's own text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brim.models.spending_totals import format_dollars
from brim.session.ledger import format_spending_cells as slot_cells
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

    from brim.session.ledger import Ledger
    from brim.session.request_log import LoggedRequest, RequestLog

MAX_ENTRIES: Final = 20
"""Requests to list, the newest last."""
WARN_FILL: Final = 0.7
ALERT_FILL: Final = 0.9
"""Shares of the limit from which a request is shown in yellow, and in red."""
GAP: Final = 2
"""Columns between two cells."""

Cell = tuple[str, str]
"""A text and its style."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows under a header, with lines above and below."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: int
    """Number of left-aligned columns; the others are numbers."""
    drop_order: tuple[str, ...]
    """Columns to drop first on a narrow screen."""
    plain: str
    """The table as text, if there is no terminal."""
    above: tuple[Cell, ...] = ()
    below: tuple[Cell, ...] = ()

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.text import Text

        if not console.is_terminal:
            yield Text(self.plain)
            return
        yield from (Text(*line) for line in self.above)
        if self.rows:
            yield from self._lines(options.max_width)
        yield from (Text(*line) for line in self.below)

    def _lines(self, width: int) -> Iterator[Text]:
        head: tuple[Cell, ...] = tuple((name, "dim") for name in self.head)
        chosen = self._chosen(width)
        widths = [max(len(row[place][0]) for row in (head, *self.rows)) for place in chosen]
        for row in (head, *self.rows):
            yield self._line([row[place] for place in chosen], chosen, widths)

    def _chosen(self, width: int) -> list[int]:
        """Return the indices of the columns that fit."""
        chosen = list(range(len(self.head)))
        sizes = [max(map(len, (self.head[p], *(row[p][0] for row in self.rows)))) for p in chosen]
        for name in self.drop_order:
            if sum(sizes[place] + GAP for place in chosen) - GAP > width:
                chosen.remove(self.head.index(name))
        return chosen

    def _line(self, row: Sequence[Cell], chosen: Sequence[int], widths: Sequence[int]) -> Text:
        from rich.text import Text

        line = Text(no_wrap=True, overflow="fold")
        for (text, style), place, width in zip(row, chosen, widths, strict=True):
            side = "<" if place < self.left else ">"
            line.append(" " * GAP if line.plain else "").append(f"{text:{side}{width}}", style)
        line.rstrip()
        return line


# Cost


def cost(ledger: Ledger) -> RenderableType:
    """Render the cost of a session, its cap, and what the cap does not cover."""
    from rich.console import Group
    from rich.text import Text

    total, usage = ledger.total, ledger.usage
    calls = "no calls yet" if not total.calls else f"{total.calls:,} call{'s' * (total.calls > 1)}"
    spent = total.format_cost() if total.calls else format_dollars(total.cost)
    lines = [
        Text.assemble((spent, "bold yellow" if total.unknown else "bold green"), f" · {calls}")
    ]
    if total.calls:
        cached = f" ({usage.cached:,} cached)" if usage.cached else ""
        about = " (estimated in part)" if total.estimated else ""
        lines.append(Text(f"{usage.input:,} tokens in{cached}, {usage.output:,} out{about}"))
    if ledger.cap_at_dollars is not None:
        left = max(ledger.cap_at_dollars - total.cost, total.cost * 0)
        style = "red" if not left else "dim"
        lines.append(
            Text(f"cap {format_dollars(ledger.cap_at_dollars)}, {format_dollars(left)} left", style)
        )
    if ledger.uncovered:
        lines.append(Text(sanitize(ledger.uncovered), "yellow"))
    if total.calls:
        lines.append(Text(":cost detail shows it by model", "dim"))
    return Group(*lines)


def cost_detail(ledger: Ledger, count_now: int | None = None) -> RenderableType:
    """Render a row per model and category, and the current size of the conversation."""
    plain = ledger.format_table(count_now)
    rows = [_slot_row(slot_cells(*name, slot)) for name, slot in ledger.totals.items()]
    if len(rows) > 1:
        rows.append(
            tuple((text, "bold") for text, _ in _slot_row(slot_cells("total", "", ledger.total)))
        )
    last = plain.splitlines()[-1] if count_now is not None else ""
    below = ((last, "dim"),) if last else ()
    return _Table(
        ("model", "category", "calls", "prompt", "cached", "completion", "cost"),
        tuple(rows),
        left=2,
        drop_order=("cached", "calls", "category", "completion", "prompt"),
        plain=plain,
        above=() if rows else (("no calls yet", ""),),
        below=below,
    )


def _slot_row(cells: Sequence[str]) -> tuple[Cell, ...]:
    model, category, calls, prompt, cached, completion, spent = map(sanitize, cells)
    return (
        (model, "bold"),
        (category, "cyan"),
        (calls, ""),
        (prompt, "yellow" if "~est=" in prompt else ""),
        (cached, "dim"),
        (completion, "yellow" if "estimated" in completion else ""),
        (spent, "green" if spent.startswith("$") else "yellow"),
    )


# Usage


def usage(
    log: RequestLog, *, local: Callable[[float], time.struct_time] = time.localtime
) -> RenderableType:
    """Render statistics of all requests, and the last ones in a table.

    The size before trimming is shown only for trimmed requests: it is an estimate, while the size
    sent may be the server's count, so that otherwise they would differ only by the error.
    """
    found = log.statistics()
    summary = (
        f"{found.requests:,} request{'s' * (found.requests != 1)}, {found.trimmed:,} trimmed, "
        f"{found.utilization:.0%} of the limit used on average"
    )
    head = ("time", "model", "category", "before", "sent", "limit", "full", "trimmed")
    entries = log.entries[-MAX_ENTRIES:]
    rows = tuple(_entry_row(entry, local) for entry in entries)
    texts = [head, *(tuple(text for text, _ in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in texts] if rows else []
    return _Table(
        head,
        rows,
        left=3,
        drop_order=("category", "before", "limit", "model", "trimmed", "time"),
        plain="\n".join([summary, *lines]),
        above=((summary, "bold"),),
    )


def _format_time(seconds: float | None, local: Callable[[float], time.struct_time]) -> str:
    return "" if seconds is None else time.strftime("%m-%d %H:%M:%S", local(seconds))


def _entry_row(
    entry: LoggedRequest, local: Callable[[float], time.struct_time]
) -> tuple[Cell, ...]:
    share = entry.utilization
    color = "red" if share >= ALERT_FILL else "yellow" if share >= WARN_FILL else "green"
    left_out = f"{entry.dropped:,}" if entry.dropped else "shortened" if entry.trimmed else ""
    return (
        (_format_time(entry.time, local), "dim"),
        (sanitize(entry.model), "bold"),
        (entry.category, "cyan"),
        (f"{entry.before:,}" if entry.trimmed else "", ""),
        (f"{entry.after:,}", ""),
        (f"{entry.limit:,}", "dim"),
        (f"{share:.0%}", color),
        (left_out, "yellow"),
    )
