"""Plans and models as text. Nothing is printed here.

A plan is a table whose rows add up. Consecutive messages that were kept or dropped for the same
reason share a row. Notes have rows of their own, and so do the request's tools and framing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from brim.fitting.plan import Decision, Plan
from brim.fitting.text_tables import fill_lines, format_columns, format_count
from brim.wire.notes import Note

_FOLDED: Final = ("kept", "dropped")


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row of the table: a message, consecutive messages, a note, or tools and framing."""

    place: str
    """The index of a message, `4–311` for several, empty for other rows."""
    role: str
    outcome: str
    before: int
    after: int
    reason: str


def build_rows(plan: Plan) -> list[PlanRow]:
    """Return the rows of a plan; `before` and `after` add up to the plan's."""
    decisions = plan.decisions
    found = list(_message_rows(decisions, plan.notes))
    other = plan.before - sum(decision.before for decision in decisions)
    if other:
        found.append(PlanRow("", "request", "kept", other, other, "tools and framing"))
    return found


def render_plan(plan: Plan, width: int | None = None) -> str:
    """Return a plan as text of at most `width` columns: a table, or sentences if too narrow."""
    found = build_rows(plan)
    total = PlanRow(
        "total",
        format_count(plan.length, "message"),
        "",
        sum(row.before for row in found),
        sum(row.after for row in found),
        f"{'fits' if plan.fits else 'does not fit'} {plan.limit:,}",
    )
    head = ("message", "role", "outcome", "before", "after", "why")
    cells = [
        head,
        *(
            (row.place, row.role, row.outcome, f"{row.before:,}", f"{row.after:,}", row.reason)
            for row in (*found, total)
        ),
    ]
    warnings = [f"warning: {warning}" for warning in plan.warnings]
    return "\n".join(
        [
            *fill_lines(render_header(plan), width),
            "",
            *format_columns(cells, width, "<<<>><"),
            *warnings,
        ]
    )


def render_header(plan: Plan) -> str:
    """Return the token counts of a plan and the parts of its limit."""
    budget = plan.budget
    about = "" if plan.exact else "about "
    known = "counted exactly" if plan.exact else "estimated"
    parts = f"window {budget.window:,} − reply {budget.reply:,} − margin {budget.margin:,}"
    largest = budget.largest_input
    if largest is not None and largest < budget.window - budget.reply:
        parts = f"largest input {largest:,} − margin {budget.margin:,}"
    return (
        f"{about}{plan.before:,} → {plan.tokens:,} tokens, limit {plan.limit:,} = {parts}; "
        f"{known}, policy {plan.policy}"
    )


def _message_rows(decisions: Iterable[Decision], notes: Iterable[Note]) -> Iterator[PlanRow]:
    before = {note.at: note for note in notes if note.role != "paragraph"}
    behind = {note.at: note for note in notes if note.role == "paragraph"}
    run: list[Decision] = []
    for decision in decisions:
        index = decision.index
        if run and (index in before or not _shares_row(run[-1], decision)):
            yield _merge_decisions(run)
            run = []
        if index in before:
            yield _build_note_row(before[index])
        run.append(decision)
        if index in behind:
            yield _merge_decisions(run)
            yield _build_note_row(behind[index])
            run = []
    if run:
        yield _merge_decisions(run)


def _shares_row(one: Decision, other: Decision) -> bool:
    """Return whether consecutive decisions share a row. System messages have their own."""
    return (
        one.outcome in _FOLDED
        and (one.outcome, one.reason) == (other.outcome, other.reason)
        and (one.role == "system") == (other.role == "system")
    )


def _merge_decisions(run: Sequence[Decision]) -> PlanRow:
    first, last = run[0], run[-1]
    roles = dict.fromkeys(decision.role for decision in run)
    row = PlanRow(
        f"{first.index}–{last.index}" if len(run) > 1 else str(first.index),
        ", ".join(roles) if len(roles) < 3 else "mixed",
        first.outcome,
        sum(decision.before for decision in run),
        sum(decision.after for decision in run),
        first.reason,
    )
    return row if first.outcome != "kept" else replace(row, reason="")


def _build_note_row(note: Note) -> PlanRow:
    place = "in" if note.role == "paragraph" else "before"
    reason = f"tells what was dropped, {place} message {note.at}"
    return PlanRow("", "note", "added", 0, note.tokens, reason)


# Models


def render_models(known: Iterable[Mapping[str, Any]], width: int | None = None) -> str:
    """Return a table of models, without prices if there is no room for them."""
    head = ("model", "context", "input", "output", "tokenizer", "$ in / cached / out")
    cells = [
        (
            facts["name"],
            *(_format_number(facts[key]) for key in ("context", "largest_input", "largest_output")),
            facts["tokenizer"] if facts["exact"] else f"~{facts['tokenizer']}",
            _format_rates(facts["price"]),
        )
        for facts in known
    ]
    lines = format_columns([head, *cells], None, "<>>><<")
    if width is not None and max(map(len, lines)) > width:
        lines = format_columns([row[:-1] for row in (head, *cells)], None, "<>>><")
    note = (
        "context: request and reply together; input, output: maximum; $: US dollars per million "
        "tokens; ~: fallback tokenizer, so counts are estimates"
    )
    return "\n".join([*lines, "", *fill_lines(note, width)])


def render_model(requested: str, facts: Mapping[str, Any]) -> str:
    """Return the facts about a model, and the name under which it was found."""
    how = "exact" if facts["exact"] else "fallback: counts are estimates"
    lines = {
        "provider": facts["provider"],
        "context": _format_number(facts["context"], " tokens"),
        "largest input": _format_number(facts["largest_input"], " tokens"),
        "largest output": _format_number(facts["largest_output"], " tokens"),
        "tokenizer": f"{facts['tokenizer']}, {how}",
        "price": f"{_format_rates(facts['price'])} (dollars per million tokens in / cached / out)",
    }
    matched = "" if requested == facts["name"] else f", found for {requested}"
    return "\n".join(
        [f"{facts['name']}{matched}", *(f"  {name:16}{text}" for name, text in lines.items())]
    )


def _format_number(number: int | None, unit: str = "") -> str:
    return "unknown" if number is None else f"{number:,}{unit}"


def _format_rates(price: Mapping[str, float | None]) -> str:
    if all(rate is None for rate in price.values()):
        return "unknown"
    return " / ".join("unknown" if rate is None else f"{rate:g}" for rate in price.values())
