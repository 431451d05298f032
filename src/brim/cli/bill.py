"""A bill: what was spent on what, as a table, as a picture or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from textwrap import wrap
from typing import Any, Final, Literal

from brim.cli.bars import Bar, draw_bars, fill_idle_days
from brim.fitting.explain import format_columns
from brim.models.spending import SpendingRow, SpendingTotal

PRESUMED: Final = "presumed: charged in full, as nobody came back to say what it really took"
NAMELESS: Final = "-"
"""What stands for a key's project where it has none."""

Source = Literal["shell", "gateway"]


@dataclass(frozen=True, slots=True)
class SpendingReport:
    """Lines, what they are summed up by, and whose books they are from."""

    source: Source
    by: tuple[str, ...]
    lines: Sequence[SpendingRow]

    @property
    def total(self) -> SpendingRow:
        slot = sum((line.total for line in self.lines), SpendingTotal())
        blank = ("",) * (len(self.by) - 1)
        return SpendingRow(("total", *blank), slot, sum(line.presumed for line in self.lines))

    @property
    def _counted(self) -> str:
        """What is counted: the shell makes calls, the gateway gets requests."""
        return "calls" if self.source == "shell" else "requests"

    def to_dict(self) -> dict[str, Any]:
        rows = [
            dict(zip(self.by, line.keys, strict=True)) | self._numbers(line) for line in self.lines
        ]
        return {"of": self.source, "rows": rows, "total": self._numbers(self.total)}

    def table(self, width: int | None) -> list[str]:
        """Columns; where there is no room for all kinds of tokens, they are one."""
        lines = self._columns(("prompt", "cached", "completion"), None)
        if width is not None and max(map(len, lines)) > width:
            lines = self._columns(("tokens",), width)
        return [*lines, *self._notes(width)]

    def picture(self, width: int, *, plain: bool, paint: Callable[[str], str] = str) -> list[str]:
        """A bar for each line, of dollars, or of tokens where no price is known at all."""
        total = self.total
        is_money = bool(total.total.cost)
        bars = [_bar(line, is_money) for line in self.lines]
        if self.by == ("day",):
            bars = list(fill_idle_days(bars))
        elif "day" not in self.by:
            bars.sort(key=lambda bar: bar.size, reverse=True)
        if len(self.lines) > 1:
            bars.append(Bar("total", Decimal(0), _bar(total, is_money).beside))
        return [*draw_bars(bars, width, plain=plain, paint=paint), *self._notes(width)]

    def _columns(self, kinds: tuple[str, ...], width: int | None) -> list[str]:
        shown = [replace(line, keys=tuple(map(escape_name, line.keys))) for line in self.lines]
        if len(shown) > 1:
            shown.append(self.total)
        cells = [(*self.by, self._counted, *kinds, "cost")]
        for line in shown:
            usage = line.total.usage
            split = (usage.input, usage.cached, usage.output)
            tokens = split if len(kinds) > 1 else (line.total.tokens,)
            numbers = (f"{number:,}" for number in (line.total.calls, *tokens))
            cells.append((*line.keys, *numbers, line.cost))
        return format_columns(cells, width, "<" * len(self.by) + ">" * (len(kinds) + 1))

    def _notes(self, width: int | None) -> list[str]:
        if not self.total.presumed:
            return []
        return [PRESUMED] if width is None else wrap(PRESUMED, width)

    def _numbers(self, line: SpendingRow) -> dict[str, Any]:
        slot = line.total
        is_shell = self.source == "shell"
        return {
            self._counted: slot.calls,
            "input": slot.usage.input,
            "cached": slot.usage.cached,
            "output": slot.usage.output,
            "cost": f"{slot.cost:f}",
            "at_least": slot.unknown,
            **({"estimated": slot.estimated} if is_shell else {"presumed": line.presumed}),
        }


def _bar(line: SpendingRow, is_money: bool) -> Bar:
    label = " ".join(map(escape_name, line.keys))
    if is_money:
        return Bar(label, line.total.cost, line.cost)
    return Bar(label, Decimal(line.total.tokens), f"{line.total.tokens:,} tokens")


def escape_name(text: str) -> str:
    """A name that may come from anybody, with nothing in it that a terminal obeys."""
    seen = (sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    return "".join(seen) or NAMELESS
