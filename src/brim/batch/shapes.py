"""Shapes: where a row has its conversation, and how the conversation names its fields.

A shape reads the request body of a row, which the engine fits, and writes the fitted messages back
under the row's own names. Messages that were not changed are written back as the row's own objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_not
from typing import Any, Final, Protocol

from brim.errors import InputError
from brim.wire.formats import FORMATS, REPLY_KEYS
from brim.wire.objects import are_flat

Row = Any
"""A mapping, or a list of messages."""
Body = Mapping[str, Any]

ENVELOPES: Final = ("body", "params")
"""Keys of the request in a row of the batch APIs of OpenAI and Anthropic."""
_CONVERSATIONS: Final = tuple({format.messages_key: None for format in FORMATS.values()})
"""Keys of the conversation in a body, the most common one first."""
_LISTS: Final = ("messages", "contents", "tools")
BODY_COLUMNS: Final = REPLY_KEYS.union(
    _CONVERSATIONS,
    (*_LISTS, *ENVELOPES, "model", "system", "instructions"),
    ("systemInstruction", "system_instruction", "generationConfig"),
)
"""The columns of a table that belong to a request body."""
_FITTED_COLUMNS: Final = BODY_COLUMNS.difference(ENVELOPES, ("model", "tools"))
"""Those that a fit changes. The options may replace the model and the tools, but not in the row,
where `model` may be the one that wrote the conversation."""
_SCALARS: Final = frozenset((str, int, float, bool))
TURN_COLUMNS: Final = ("conversations", "conversation", "messages")
"""The usual names of columns with lists of turns."""
ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}
"""OpenAI's names of the roles in ShareGPT files."""
_CALL: Final = "function_call"
_RESULTS: Final = ("observation", "function_response", "tool")


class Shape(Protocol):
    """Reads the request body of a row, and writes the fitted one back."""

    @property
    def name(self) -> str: ...

    def columns(self, available: Iterable[str]) -> list[str]:
        """Return the columns of a table that are read or written."""
        ...

    def read(self, row: Row) -> Body:
        """Return the request body of a row; raise `InputError` if it has none."""
        ...

    def write(self, row: Row, body: Body, fitted: Body) -> Row:
        """Return the row with the fitted body; `body` is the one that was read."""
        ...


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request body, a list of messages, or a row of a batch API."""

    name: str = "messages"

    def __str__(self) -> str:
        return self.name

    def columns(self, available: Iterable[str]) -> list[str]:
        return [name for name in available if name in BODY_COLUMNS]

    def read(self, row: Row) -> Body:
        if isinstance(row, list):
            return {"messages": to_plain(row)}
        if not isinstance(row, Mapping):
            raise InputError(
                "The conversation is not a list of messages or a request body: "
                f"{type(row).__name__}."
            )
        if (envelope := find_envelope(row)) is not None:
            return self.read(_parse(row[envelope]))
        body = {}
        for name, value in row.items():
            if name in _LISTS:
                value = _parse(value)
            if not _is_null(value := to_plain(value) if name in BODY_COLUMNS else value):
                body[name] = value
        return body

    def write(self, row: Row, body: Body, fitted: Body) -> Row:
        if isinstance(row, list):
            return _restore(row, body["messages"], fitted["messages"])
        if (envelope := find_envelope(row)) is not None:
            inner = self.write(_parse(row[envelope]), body, fitted)
            return {**row, envelope: _dump_like(row[envelope], inner)}
        changed = {}
        for name in _FITTED_COLUMNS.intersection(body):
            given, before, after = row[name], body[name], fitted[name]
            if isinstance(after, list) and isinstance(before, list):
                after = _dump_like(given, _restore(_parse(given), before, after))
            if after is not before:
                changed[name] = after
        return {**row, **changed}


@dataclass(frozen=True, slots=True)
class TurnShape:
    """A column with a list of turns, whose fields and roles may have names of their own.

    The system text and the tools of a row may be in columns of these names; both are counted.
    """

    name: str
    column: str
    role: str = "role"
    content: str = "content"
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)
    """OpenAI's name of each role; other roles have OpenAI's names."""

    def __str__(self) -> str:
        return f"{self.name} ({self.column}: {self.role}, {self.content})"

    def columns(self, available: Iterable[str]) -> list[str]:
        return [name for name in available if name in (self.column, "system", "tools")]

    def read(self, row: Row) -> Body:
        turns = to_plain(_parse(row.get(self.column))) if isinstance(row, Mapping) else None
        if not isinstance(turns, list):
            raise InputError(f"The row has no list of turns in {self.column!r}.")
        body: dict[str, Any] = {"messages": self._to_messages(turns)}
        if isinstance(system := row.get("system"), str) and system.strip():
            body["messages"].insert(0, {"role": "system", "content": system})
        if tools := to_plain(_parse(row.get("tools"))):
            body["tools"] = tools
        return body

    def write(self, row: Row, body: Body, fitted: Body) -> Row:
        given = _parse(row[self.column])
        before, after = body["messages"], fitted["messages"]
        if len(before) > len(given):  # the system text has a column of its own
            before, after = before[1:], after[1:]
        places = {id(message): place for place, message in enumerate(before)}
        names = {
            message["role"]: turn[self.role] for message, turn in zip(before, given, strict=True)
        }
        out = [
            given[places[id(message)]] if id(message) in places else self._to_turn(message, names)
            for message in after
        ]
        is_same = len(out) == len(given) and not any(map(is_not, out, given))
        return row if is_same else {**row, self.column: _dump_like(row[self.column], out)}

    def _to_messages(self, turns: Sequence[Any]) -> list[dict[str, Any]]:
        """Return turns as messages. Other fields stay, and so does a role under another name.

        ShareGPT does not link a call and its result, but the result follows the call.
        """
        messages, call = [], None
        for index, turn in enumerate(turns):
            if not isinstance(turn, Mapping) or not isinstance(turn.get(self.role), str):
                raise InputError(f"Turn {index} of {self.column!r} has no {self.role!r}.")
            name, content = turn[self.role], turn.get(self.content)
            message = {key: value for key, value in turn.items() if key != self.content}
            message["role"] = self.roles.get(name, name)
            if name == _CALL:
                call = f"call_{index}"
                function = {"name": "", "arguments": content}
                message |= {"role": "assistant", "tool_calls": [{"id": call, "function": function}]}
            elif name in _RESULTS and "tool_call_id" not in turn:
                link = {"role": "user"} if call is None else {"role": "tool", "tool_call_id": call}
                message |= {"content": content, **link}
            else:
                message["content"] = content
            messages.append(message)
        return messages

    def _to_turn(self, message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
        """Return the turn of a changed message, or of a note that a trim added."""
        role, content = message["role"], message.get("content")
        turn = {key: value for key, value in message.items() if key not in ("role", "content")}
        turn.setdefault(self.role, names.get(role) or self._find_name(role))
        if turn[self.role] in _RESULTS and self.role != "role":
            turn.pop("tool_call_id", None)
        if turn[self.role] == _CALL:
            content = turn.pop("tool_calls")[0]["function"]["arguments"]
        return {**turn, self.content: content}

    def _find_name(self, role: str) -> str:
        return next((name for name, known in self.roles.items() if known == role), role)


MESSAGES: Final = RequestShape()
SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        MESSAGES,
        RequestShape("body"),
        TurnShape("sharegpt", "conversations", "from", "value"),
        TurnShape("lmsys", "conversation"),
    )
}
KNOWN_SHAPES: Final = (
    "messages (OpenAI), body (a whole request, also as `body` or `params` of a batch request), "
    "sharegpt (`conversations` with `from` and `value`), lmsys (`conversation`)"
)


def find_shape(
    name: str | None = None, column: str | None = None, mapping: Mapping[str, str] | None = None
) -> Shape | None:
    """Return the shape with these names; None if it must be detected from rows.

    `mapping` has the row's names for `role`, `content` and OpenAI's roles. Raise `InputError` for
    an unknown name.
    """
    if name is not None and name not in SHAPES:
        raise InputError(f"Unknown shape: {name!r}. Use one of: {KNOWN_SHAPES}.")
    shape = SHAPES.get(name or "")
    if isinstance(shape, RequestShape) and not mapping:
        return shape if column is None else TurnShape(shape.name, column)
    if mapping:
        fields = {key: mapping[key] for key in ("role", "content") if key in mapping}
        roles = {given: role for role, given in mapping.items() if role not in fields}
        named = shape if isinstance(shape, TurnShape) else TurnShape("mapped", "messages")
        shape = replace(named, roles={**ROLES, **roles}, **fields)
    if isinstance(shape, TurnShape) and column is not None:
        return replace(shape, column=column)
    return shape


def detect_shape(rows: Iterable[Row], column: str | None = None) -> Shape:
    """Return the shape of the first row that has a known one; raise `InputError` if none has."""
    names: list[str] = []
    for row in rows:
        if (shape := _detect(row, column)) is not None:
            return shape
        names = names or (list(map(str, row)) if isinstance(row, Mapping) else [])
    found = f" Columns: {', '.join(names)}." if names else ""
    raise InputError(
        f"The shape of the rows is unknown.{found} Known shapes: {KNOWN_SHAPES}. "
        "Name a column and its fields, or convert the rows."
    )


def _detect(row: Row, column: str | None) -> Shape | None:
    if not isinstance(row, Mapping):
        return MESSAGES if isinstance(row, list) and column is None else None
    for name in TURN_COLUMNS if column is None else (column,):
        turns = _parse(row.get(name))
        is_list = turns is not None and not isinstance(turns, str | Mapping) and len(turns)
        first = turns[0] if is_list else None
        if not isinstance(first, Mapping):
            continue
        if first.get("from") is not None and first.get("value") is not None:
            return TurnShape("sharegpt", name, "from", "value")
        if "role" in first and (name != "messages" or column):
            return TurnShape("lmsys" if name == "conversation" else name, name)
    if find_envelope(row) is not None:
        return SHAPES["body"]
    if column is not None or row.keys().isdisjoint(_CONVERSATIONS):
        return None
    return MESSAGES if row.get("messages") is not None else SHAPES["body"]


def find_envelope(value: Mapping[str, Any]) -> str | None:
    """Return the key of the request in a row of a batch API; None for a plain body."""
    for name in _CONVERSATIONS:
        if value.get(name) is not None:
            return None
    return next((key for key in ENVELOPES if isinstance(_parse(value.get(key)), Mapping)), None)


def to_plain(value: Any) -> Any:
    """Return JSON data without the nulls that Arrow puts in place of absent fields.

    Arrays become lists. Data without nulls and arrays is returned as it is.
    """
    kind = value.__class__
    if kind is str:
        return value
    if kind is dict:
        if _SCALARS.issuperset(map(type, value.values())):
            return value
        plain = {key: to_plain(item) for key, item in value.items() if item is not None}
        is_same = len(plain) == len(value) and not any(map(is_not, plain.values(), value.values()))
        return value if is_same else plain
    if kind is list:
        if are_flat(value, _SCALARS):
            return value
        items = list(map(to_plain, value))
        return items if any(map(is_not, items, value)) else value
    return to_plain(value.tolist()) if hasattr(value, "tolist") else value


def _is_null(value: object) -> bool:
    """Whether a cell is empty: None, or pandas' NaN."""
    return value is None or (isinstance(value, float) and value != value)


def _parse(value: Any) -> Any:
    """Return the list or mapping that a text is the JSON of; other values as they are."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _dump_like(given: Any, value: Any) -> Any:
    """Return a value as JSON text if the given one was."""
    return json.dumps(value, ensure_ascii=False) if isinstance(given, str) else value


def _restore(given: Any, before: Sequence[Any], after: list[Any]) -> Any:
    """Return the items after a fit, with the row's own objects in place of unchanged ones."""
    if len(after) == len(before) and not any(map(is_not, after, before)):
        return given
    if given is before:
        return after
    places = {id(item): place for place, item in enumerate(before)}
    return [given[places[id(item)]] if id(item) in places else item for item in after]
