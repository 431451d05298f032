"""Messages as objects: those of SDKs, pydantic models, dataclasses, arrays; no SDK is imported.

The engine works on plain JSON data. `to_plain` makes it from the caller's objects, and `restore`
puts the objects back in its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, Final

from brim.errors import InputError, MessageError
from brim.wire.body_parts import IMMUTABLE, describe_type

_FRAMEWORKS: Final[Mapping[str, str]] = {
    "langchain_core": "langchain",
    "pydantic_ai": "pydantic_ai",
    "llama_index": "llama_index",
    "haystack": "haystack",
    "autogen_core": "autogen",
    "smolagents": "smolagents",
}
"""Packages whose messages have another shape, and the integration that reads them."""


_DICTS: Final = {dict}
_NO_ARRAYS: Final = (list, tuple, str, bytes, bytearray, Mapping)


def is_array(value: object) -> bool:
    """Whether a value is an iterable that is neither a list nor text nor a mapping."""
    return not isinstance(value, _NO_ARRAYS) and isinstance(value, Iterable)


def to_list(values: Any) -> Sequence[Any]:
    """Return the values of an iterable as a list of the same objects."""
    return values if isinstance(values, list | tuple) else list(values)


def to_plain(value: Any) -> Any:
    """Return an object as JSON data without its null fields; JSON data is returned as it is."""
    kind = value.__class__
    if kind in IMMUTABLE:
        return value
    if kind is dict and IMMUTABLE.issuperset(map(type, value.values())):  # most messages
        return value
    if isinstance(value, Mapping):
        items = {key: to_plain(item) for key, item in value.items()}
        same = kind is dict and all(items[key] is value[key] for key in items)
        return value if same else items
    if isinstance(value, list | tuple):
        parts = [to_plain(item) for item in value]
        same = kind is list and all(map(_is_same, parts, value))
        return value if same else parts
    for base in (str, int, float):
        if isinstance(value, base):
            return base.__str__(value) if base is str else base(value)
    return _dump_object(value)


def _is_same(one: object, other: object) -> bool:
    return one is other


def _dump_object(value: Any) -> Any:
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json", by_alias=True, exclude_none=True, warnings=False)
    if is_dataclass(value) and not isinstance(value, type):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: to_plain(item) for name, item in items if item is not None}
    if callable(to_items := getattr(value, "tolist", None)):
        return to_plain(to_items())
    return value


def are_flat(values: list[Any], kinds: frozenset[type]) -> bool:
    """Whether all values are dicts with values of these types only, as most messages are.

    The loops are in C: `benchmarks.scale`.
    """
    if {*map(type, values)} != _DICTS:
        return False
    return kinds.issuperset(map(type, chain.from_iterable(map(dict.values, values))))


def to_plain_input(value: Any) -> Any:
    """Return `to_plain` of a value; raise `InputError` if it is nested too deeply."""
    try:
        return to_plain(value)
    except RecursionError:
        raise InputError(
            "The input contains itself or is nested too deeply. Pass plain JSON data."
        ) from None


def plain_messages(messages: Sequence[Any]) -> Sequence[Any]:
    """Return messages as JSON data; raise `MessageError` for one that cannot be a message."""
    if type(messages) is list and are_flat(messages, IMMUTABLE):
        return messages
    plain = [plain_message(message, index) for index, message in enumerate(messages)]
    same = isinstance(messages, list | tuple) and all(map(_is_same, plain, messages))
    return messages if same else plain


def plain_message(message: Any, index: int) -> Any:
    """Return a message as JSON data; raise `MessageError` if it cannot be a message."""
    is_object = message.__class__ is not dict and not isinstance(message, Mapping)
    if is_object and (advice := _advise(message)):
        raise MessageError(index, f"is {describe_type(message)}, not a message. {advice}")
    try:
        return to_plain(message)
    except (RecursionError, TypeError, ValueError):
        raise MessageError(
            index, "contains itself, is nested too deeply, or cannot be converted to JSON"
        ) from None


def _advise(value: object) -> str:
    """Return what to pass instead of an object that is known not to be a message."""
    package = type(value).__module__.partition(".")[0]
    if package in _FRAMEWORKS:
        return f"Use brim.integrations.{_FRAMEWORKS[package]}."
    if hasattr(value, "role") or hasattr(value, "type"):
        return ""  # asking a pydantic model for a field that it lacks is slow
    if hasattr(value, "choices"):
        return "Pass response.choices[0].message, or the response to Session.receive."
    if getattr(value, "object", None) == "response":
        return "Extend the input with response.output, or pass it to Session.receive."
    return ""


def restore(original: Any, before: Any, after: Any) -> Any:
    """Return a result with the caller's objects; `before` is `original` as JSON data.

    Unchanged parts are the original objects; changed ones have the same type if it can be built.
    """
    if after is before or original is before:
        return original if after is before else after
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return _restore_mapping(original, before, after)
    if isinstance(before, list) and isinstance(after, list):
        own = {id(part): source for part, source in zip(before, original, strict=True)}
        return [own.get(id(part), part) for part in after]
    return after


def _restore_mapping(original: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    if isinstance(original, Mapping):
        return {
            key: restore(original[key], before[key], value) if key in before else value
            for key, value in after.items()
        }
    with suppress(Exception):  # the type may not accept the change
        if hasattr(original, "model_dump"):
            return type(original).model_validate(after)
        cleared = dict.fromkeys(before.keys() - after.keys())
        changed = {
            key: restore(getattr(original, key), before[key], value)
            for key, value in after.items()
            if value is not before.get(key)
        }
        return replace(original, **cleared, **changed)
    return after
