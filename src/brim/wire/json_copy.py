"""Copies of JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brim.errors import InputError

_IMMUTABLE: Final = frozenset((str, int, float, bool, type(None)))


def copy_json(value: Any) -> Any:
    """Return a deep copy of JSON data. Mappings become dicts, and tuples become lists.

    Types are compared by identity first: `python -m benchmarks.speed` copies whole histories.
    """
    kind = value.__class__
    if kind is dict:
        return {
            key: item if item.__class__ in _IMMUTABLE else copy_json(item)
            for key, item in value.items()
        }
    if kind is list or isinstance(value, list | tuple):
        return [item if item.__class__ in _IMMUTABLE else copy_json(item) for item in value]
    if kind in _IMMUTABLE:
        return value
    return copy_json(dict(value)) if isinstance(value, Mapping) else value


def check_depth(value: object) -> None:
    """Raise `InputError` if a value cannot be written as JSON because it is nested too deeply."""
    try:
        copy_json(value)
    except RecursionError:
        raise InputError(
            "The messages contain themselves or are nested too deeply. Pass plain JSON data."
        ) from None
