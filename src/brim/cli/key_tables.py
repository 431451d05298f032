"""Keys and their caps as tables, lines and JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from brim.cli.accounts import cap_to_dict, format_caps
from brim.cli.options import terminal_width
from brim.cli.render import format_time
from brim.fitting.text_tables import format_columns
from brim.gateway.accounts.caps import key_scope

if TYPE_CHECKING:
    from brim.cli.accounts import AccountSnapshot
    from brim.gateway.accounts.keys import ApiKey
    from brim.gateway.accounts.store import CapUsage


def format_keys(shown: Sequence[ApiKey], snapshot: AccountSnapshot, with_ended: bool) -> list[str]:
    """Return a table of keys, and the caps that several keys share."""
    ended = ("revoked",) if with_ended else ()
    limited = ("rules",) if any(map(describe_rules, shown)) else ()
    cells = [("name", "id", "project", "made", *ended, *limited, "spent")]
    for key in shown:
        revoked = (_format_day(key.revoked),) if with_ended else ()
        spent = format_caps(snapshot.caps_of(key_scope(key.id))) or "no cap"
        use = "operator" if key.is_operator else spent
        rules = (describe_rules(key),) if limited else ()
        made = _format_day(key.created)
        cells.append((key.name, key.id, key.project, made, *revoked, *rules, use))
    lines = format_columns(cells, terminal_width(sys.stdout), "<" * len(cells[0]))
    return [*lines, "", *format_scopes(snapshot, snapshot.shared)] if snapshot.shared else lines


def describe_rules(key: ApiKey) -> str:
    """Return when a key ends, its models, labels and note; the empty string if it has none."""
    rules, parts = key.rules, []
    if rules.expires is not None:
        parts.append(f"until {_format_day(rules.expires - 1)}")
    if rules.models:
        parts.append("models " + ", ".join(rules.models))
    if rules.labels:
        parts.append(", ".join(rules.labels))
    return "; ".join(parts + ([rules.note] if rules.note else []))


def format_scopes(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[str]:

    lines: list[str] = []
    for scope in scopes:
        text = f"{snapshot.name_scope(scope)}: {format_caps(snapshot.caps_of(scope)) or 'no cap'}"
        columns = terminal_width(sys.stdout) or len(text)
        lines += wrap(text, columns, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def scopes_to_dicts(snapshot: AccountSnapshot, scopes: Iterable[str]) -> list[dict[str, Any]]:

    return [
        {
            "scope": scope,
            "name": snapshot.name_scope(scope),
            "caps": list(map(cap_to_dict, snapshot.caps_of(scope))),
        }
        for scope in scopes
    ]


def key_to_dict(key: ApiKey, caps: Iterable[CapUsage]) -> dict[str, Any]:

    return {
        "name": key.name,
        "id": key.id,
        "project": key.project,
        "operator": key.is_operator,
        "created": format_time(key.created),
        "revoked": None if key.revoked is None else format_time(key.revoked),
        "expires": None if key.rules.expires is None else format_time(key.rules.expires),
        "models": list(key.rules.models),
        "note": key.rules.note,
        "labels": dict(label.split("=", 1) for label in key.rules.labels),
        "caps": list(map(cap_to_dict, caps)),
    }


def _format_day(seconds: float | None) -> str:

    return "" if seconds is None else format_time(seconds)[:10]
