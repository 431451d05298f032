"""Renders usage and cost: `:cost`, `:cost detail`, `:usage`.

The texts and rules come from the ledger; this module adds colors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from brim.fitting.text_tables import color_of_fill
from brim.models.pricing import SpendingTotal, format_dollars
from brim.session.ledger import Ledger, format_spending_cells
from brim.session.request_log import LoggedRequest, RequestLog
from brim.shell.render.sanitize import sanitize
from brim.shell.render.styled_table import StyledTable

MAX_ENTRIES: Final = 20
"""Requests to list, the newest last."""

# Cost


def cost(ledger: Ledger) -> RenderableType:
    """Render the cost of a session, its cap, and what the cap does not cover."""
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


def cost_detail(ledger: Ledger, count_now: int) -> RenderableType:
    """Render a row per model and category, and the current size of the conversation."""
    last = Text(f"the conversation now has {count_now:,} tokens", "dim")
    rows = [_slot_row(*name, slot) for name, slot in ledger.totals.items()]
    if not rows:
        return Group("no calls yet", last)
    if len(rows) > 1:
        rows.append([Text(cell.plain, "bold") for cell in _slot_row("total", "", ledger.total)])
    head = ("model", "category", "calls", "prompt", "cached", "completion", "cost")
    drop_order = ("cached", "calls", "category", "completion", "prompt")
    return Group(StyledTable(head, rows, ("model", "category"), drop_order), last)


def _slot_row(model: str, category: str, slot: SpendingTotal) -> list[Text]:
    cells = map(sanitize, format_spending_cells(model, category, slot))
    model, category, calls, prompt, cached, completion, spent = cells
    return [
        Text(model, "bold"),
        Text(category, "cyan"),
        Text(calls),
        Text(prompt, "yellow" if "~est=" in prompt else ""),
        Text(cached, "dim"),
        Text(completion, "yellow" if "estimated" in completion else ""),
        Text(spent, "green" if spent.startswith("$") else "yellow"),
    ]


# Usage


def usage(
    log: RequestLog, *, local: Callable[[float], time.struct_time] = time.localtime
) -> RenderableType:
    """Render statistics of all requests, and the last ones in a table.

    The size before trimming is shown only for trimmed requests: it is an estimate, while the size
    sent may be the server's count, so that otherwise they would differ only by the error.
    """
    found = log.statistics()
    summary = Text(
        f"{found.requests:,} request{'s' * (found.requests != 1)}, {found.trimmed:,} trimmed, "
        f"{found.utilization:.0%} of the limit used on average",
        "bold",
    )
    rows = [_entry_row(entry, local) for entry in log.entries[-MAX_ENTRIES:]]
    if not rows:
        return summary
    head = ("time", "model", "category", "before", "sent", "limit", "full", "trimmed")
    drop_order = ("category", "before", "limit", "model", "trimmed", "time")
    return Group(summary, StyledTable(head, rows, ("time", "model", "category"), drop_order))


def _entry_row(entry: LoggedRequest, local: Callable[[float], time.struct_time]) -> list[Text]:
    day = "" if entry.time is None else time.strftime("%m-%d %H:%M:%S", local(entry.time))
    left_out = f"{entry.dropped:,}" if entry.dropped else "shortened" if entry.trimmed else ""
    return [
        Text(day, "dim"),
        Text(sanitize(entry.model), "bold"),
        Text(entry.category, "cyan"),
        Text(f"{entry.before:,}" if entry.trimmed else ""),
        Text(f"{entry.after:,}"),
        Text(f"{entry.limit:,}", "dim"),
        Text(f"{entry.utilization:.0%}", color_of_fill(entry.utilization)),
        Text(left_out, "yellow"),
    ]
