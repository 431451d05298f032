"""Gemini bodies: contents of parts, with the results of tools inside user contents.

Contents correspond to Anthropic's messages and parts to its blocks, one by one. So a body is read
as a view in that format, which shares the texts, and only what a plan changes is written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from brim.messages import Message
from brim.wire.anthropic import AnthropicReader
from brim.wire.body_parts import (
    Part,
    copy_public,
    filter_mappings,
    make_text,
    require_mapping,
    require_parts,
    to_text,
)
from brim.wire.body_reader import BodyReader, PlanView, WrittenBody

PART: Final = "part"
"""The field of a block of the view with the part that it stands for."""
_PLAIN: Final = frozenset(("text",))


class GeminiReader(BodyReader):
    """Reads Gemini bodies, each content of which may be several turns."""

    def __init__(self) -> None:
        super().__init__()
        self._view = AnthropicReader()

    def _read(self, body: Mapping[str, Any]) -> list[Message] | None:
        turns = self._view.read(_view_body(body))
        self._seen = len(body["contents"])
        return turns

    def _write(self, body: Mapping[str, Any], plan: PlanView) -> WrittenBody:
        view = _view_body(body)
        written, origins = self._view.apply(view, plan)
        if written is view:
            return WrittenBody(body)
        contents, before = body["contents"], view["messages"]
        messages = written["messages"]
        origins = range(len(messages)) if origins is None else origins
        out = [
            contents[origin]
            if origin is not None and message is before[origin]
            else _write_content(None if origin is None else contents[origin], message)
            for message, origin in zip(messages, origins, strict=True)
        ]
        return WrittenBody({**body, "contents": out}, origins)


def get_field(fields: Part, name: str) -> Any:
    """Return a field by its name in camel case, or in the snake case that the API accepts too."""
    if name in fields:
        return fields[name]
    return fields.get("".join(f"_{each.lower()}" if each.isupper() else each for each in name))


# Reading


def _view_body(body: Mapping[str, Any]) -> dict[str, Any]:
    contents = require_parts(body["contents"], 0, "contents")
    ids = _CallIds()
    messages = [_view_content(content, index, ids) for index, content in enumerate(contents)]
    system = get_field(body, "systemInstruction")
    if isinstance(system, Mapping):
        parts = filter_mappings(system.get("parts"))
        system = [_view_part(part, ids, 0) for part in parts]
    return {"system": system, "messages": messages}


def _view_content(content: Part, index: int, ids: _CallIds) -> Part:
    content = require_mapping(content, index)
    role = "assistant" if content.get("role") == "model" else "user"
    parts = content.get("parts")
    blocks = () if parts is None else require_parts(parts, index, "parts")
    ids.begin(index, is_model=role == "assistant")
    private = {key: value for key, value in content.items() if key.startswith("_")}
    viewed = [_view_part(part, ids, index) for part in blocks]
    return {"role": role, "content": viewed, **private}


def _view_part(part: Part, ids: _CallIds, index: int) -> Part:
    text = part.get("text")
    if isinstance(text, str):
        if part.keys() == _PLAIN:
            return {"type": "text", **part}
        kind = "thinking" if part.get("thought") else "text"
        return {"type": kind, kind: text, PART: part}
    if isinstance(call := get_field(part, "functionCall"), Mapping):
        given = {"name": call.get("name", ""), "input": call.get("args") or {}}
        return {"type": "tool_use", "id": ids.add(call), **given, PART: part}
    if isinstance(result := get_field(part, "functionResponse"), Mapping):
        return {"type": "tool_result", **_view_result(result, ids, index), PART: part}
    return {**_view_media(part), PART: part}


def _view_result(result: Part, ids: _CallIds, index: int) -> Part:
    words = make_text(_read_response(result)[1])
    media = [_view_part(each, ids, index) for each in filter_mappings(result.get("parts"))]
    return {"tool_use_id": ids.answer(result), "content": [words, _WRAPPER, *media]}


def _read_response(result: Part) -> tuple[str, str]:
    """Return the field of a response with its text, and the text; of other responses the JSON."""
    response = result.get("response") or {}
    if isinstance(response, Mapping) and len(response) == 1:
        ((name, text),) = response.items()
        if isinstance(text, str):
            return name, text
    return "result", to_text(response)


_WRAPPER: Final = {"type": "object", "result": ""}
"""Counts as the object around the text of a result."""


def _view_media(part: Part) -> Part:
    data, file = get_field(part, "inlineData"), get_field(part, "fileData")
    if isinstance(data, Mapping):
        kind = str(get_field(data, "mimeType")).partition("/")[0]
        source = {"type": "base64", "data": data.get("data")}
        return {"type": "image" if kind == "image" else "document", "source": source}
    if isinstance(file, Mapping):
        return {"type": "document", "source": {"type": "url"}}
    return {"type": "part"}


class _CallIds:
    """Ids of calls: a call need not have one, and a result may name only the function."""

    def __init__(self) -> None:
        self._place = ""
        self._waiting: list[tuple[str, object]] = []
        """Id and name of the calls that have no result yet."""

    def begin(self, index: int, *, is_model: bool) -> None:
        self._place = str(index)
        if is_model:
            self._waiting = []

    def add(self, call: Part) -> str:
        given = call.get("id")
        name = given if isinstance(given, str) else f"{self._place}.{len(self._waiting)}"
        self._waiting.append((name, call.get("name")))
        return name

    def answer(self, result: Part) -> str:
        """Return the id of the call that a result answers."""
        for is_answered in self._find_rules(result):
            for place, (name, function) in enumerate(self._waiting):
                if is_answered(name, function):
                    del self._waiting[place]
                    return name
        return str(result.get("id") or f"{self._place}.unknown")

    def _find_rules(self, result: Part) -> Iterator[Any]:
        yield lambda name, _: name == result.get("id")
        if result.get("id") is None:
            yield lambda _, function: function == result.get("name")


# Writing


def _write_content(content: Part | None, message: Part) -> Part:
    """Return a content with the blocks of a message of the view."""
    blocks = message["content"]
    if isinstance(blocks, str):
        blocks = [make_text(blocks)]
    before = {"role": "user" if message["role"] == "user" else "model"}
    if content is not None:
        before = copy_public(content)
    return {**before, "parts": [_write_part(block) for block in blocks]}


def _write_part(block: Part) -> Part:
    part = block.get(PART)
    if not isinstance(part, Mapping):
        return {"text": block["text"]}
    part = copy_public(part)
    if "text" in part:
        return {**part, "text": block.get("text", block.get("thinking"))}
    if block["type"] == "tool_result":
        return _write_result(part, block["content"])
    return part


def _write_result(part: Part, content: str | Sequence[Part]) -> Part:
    """Return a result; a text that was changed is no JSON any more, and gets its own object."""
    name = "functionResponse" if "functionResponse" in part else "function_response"
    result = part[name]
    texts = [content] if isinstance(content, str) else [each.get("text") for each in content]
    text = "".join(filter(None, texts))
    field, before = _read_response(result)
    return part if text == before else {**part, name: {**result, "response": {field: text}}}
