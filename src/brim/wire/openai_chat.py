"""OpenAI chat completions: dicts with `role` and `content`, the format of most servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from brim.errors import MessageError
from brim.messages import Call, Media, Message, Role
from brim.wire.body_parts import (
    copy_public,
    describe_type,
    find_priority,
    is_private,
    make_text,
    read_audio,
    read_file,
    read_image,
    replace_texts,
    require_mapping,
    to_message_error,
    to_text,
)
from brim.wire.body_reader import BodyReader, PlanView, WrittenBody

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
OUTPUT_FIELD: Final = "_output"
"""The field of a user turn with the output of commands; it is sent before the text."""
EMPTY_FIELD: Final = "_empty"
"""Marks an empty reply, which is recorded but never sent."""
OUTPUT_HEADING: Final = "[exec output]"
BLANK_LINE: Final = "\n\n"

PLAIN_THINKING: Final = ("reasoning_content", "reasoning")
SIGNED_THINKING: Final = ("reasoning_details", "thinking_blocks")
THINKING: Final = (*PLAIN_THINKING, *SIGNED_THINKING)
"""Fields in which servers report a model's thinking."""
_COMMON: Final = frozenset(("role", "content", "name", "tool_calls", "tool_call_id"))


class ChatReader(BodyReader):
    """Reads chat completions: every message is one turn."""

    def _read(self, body: Mapping[str, Any]) -> list[Message]:
        messages, start = body["messages"], self._seen
        if len(messages) == start:  # the same conversation was sent again
            return []
        self._seen = len(messages)
        return [read_message(messages[index], index) for index in range(start, self._seen)]

    def _write(self, body: Mapping[str, Any], plan: PlanView) -> WrittenBody:
        return WrittenBody({**body, "messages": apply_to_messages(body["messages"], plan)})


def find_origins(plan: PlanView) -> Sequence[int | None]:
    """Return the index of the message that each message of a plan comes from, None for a note.

    This is the order of `apply_to_messages`.
    """
    notes = {note.at for note in plan.notes if note.role != "paragraph"}
    if not notes:
        return plan.sent_indices
    out: list[int | None] = []
    for index in plan.sent_indices:
        out += (None, index) if index in notes else (index,)
    return out


def describe_message(message: Message) -> dict[str, Any]:
    """Return the roles, texts and calls of a message of any format in the chat shape."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.calls
    ]
    fields = {"tool_calls": calls, "tool_call_id": message.answers}
    text = "\n".join((*message.outputs, *message.words))
    given = {name: value for name, value in fields.items() if value}
    return {"role": message.role, "content": text, **given}


def read_message(given: object, index: int) -> Message:
    """Read one message; `index` is used in errors."""
    try:
        raw = given if type(given) is dict else require_mapping(given, index)
        name = raw.get("role")
        if not isinstance(name, str) or not name:
            raise MessageError(index, "has no role")
        role = _ROLES.get(name, "other")
        if len(raw) == 2 and type(content := raw.get("content")) is str and role != "tool":
            return Message(role, (content,))
        return _read_fields(raw, name, role, index)
    except (RecursionError, ValueError) as error:
        raise to_message_error(error, index) from None


def _read_fields(raw: Mapping[str, Any], name: str, role: Role, index: int) -> Message:
    texts, media, extras = _content(raw.get("content"), index)
    if raw.get("name") is not None and name != "function":
        extras = (*extras, to_text(raw["name"]))
    result = role == "tool"
    words, outputs = ((), texts) if result else (texts, ())
    if role == "user" and (output := raw.get(OUTPUT_FIELD)):
        outputs, extras = (f"{OUTPUT_HEADING}\n{to_text(output)}",), (*extras, BLANK_LINE)
    calls = _calls(raw, index) if role == "assistant" else ()
    answers = find_answered_id(raw) if result else None
    if raw.keys() <= _COMMON:
        return Message(role, words, outputs, (), calls, answers, media, extras)
    thinking = tuple(to_text(raw[field]) for field in THINKING if raw.get(field))
    pin, priority = bool(raw.get("_pin")), find_priority((raw,), index)
    private = is_private(raw)
    if raw.get(EMPTY_FIELD):
        return Message(role, private=True, skipped=True)
    return Message(
        role, words, outputs, thinking, calls, answers, media, extras, pin, priority, private
    )


def _content(
    content: object, index: int
) -> tuple[tuple[str, ...], tuple[Media, ...], tuple[str, ...]]:
    """Return the texts, the media and the unknown parts of a content."""
    if isinstance(content, str):
        return (content,), (), ()
    if content is None:
        return (), (), ()
    if type(content) is not list and (
        not isinstance(content, Sequence) or isinstance(content, bytes | bytearray)
    ):
        raise MessageError(
            index, f"content must be text, parts or null, but is {describe_type(content)}"
        )
    texts: list[str] = []
    media: list[Media] = []
    extras: list[str] = []
    for part in content:
        match part:
            case str():
                texts.append(part)
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": source}:
                media.append(read_image(source))
            case {"type": "image" | "image_url"}:
                media.append(read_image(part.get("source") or part.get("image")))
            case {"type": "input_audio", "input_audio": source}:
                media.append(read_audio(source))
            case {"type": "file", "file": source}:
                media.append(read_file(source))
            case _:
                extras.append(to_text(part))
    return tuple(texts), tuple(media), tuple(extras)


def _calls(raw: Mapping[str, Any], index: int) -> tuple[Call, ...]:
    calls = raw.get("tool_calls")
    if calls is None:
        legacy = raw.get("function_call")
        return () if not isinstance(legacy, Mapping) else (_legacy_call(legacy),)
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise MessageError(index, f"tool_calls must be a list, but is {describe_type(calls)}")
    return tuple(_call(require_mapping(call, index, "a tool call "), index) for call in calls)


def _call(call: Mapping[str, Any], index: int) -> Call:
    called = call.get("function") or call.get("custom") or {}
    function = require_mapping(called, index, "the function of a tool call ")
    arguments = function.get("arguments", function.get("input", ""))
    return Call(str(call.get("id", "")), str(function.get("name", "")), to_text(arguments))


def _legacy_call(call: Mapping[str, Any]) -> Call:
    name = str(call.get("name", ""))
    return Call(name, name, to_text(call.get("arguments", "")))


def find_answered_id(raw: Mapping[str, Any]) -> str | None:
    answered = raw.get("name") if raw["role"] == "function" else raw.get("tool_call_id")
    return None if answered is None else str(answered)


def apply_to_messages(
    messages: Sequence[Mapping[str, Any]],
    plan: PlanView,
    keep: Sequence[str] = (),
    *,
    separator: Literal["assistant", "system"] = "assistant",
) -> list[Mapping[str, Any]]:
    """Return the messages to send, without reserved fields except those in `keep`.

    `separator` is the role of a note between two user messages.
    """
    seen, changed = plan.history.messages, plan.changed_messages
    notes = {note.at: note for note in plan.notes if note.role != "paragraph"}
    out: list[Mapping[str, Any]] = []
    for index in plan.sent_indices:
        raw = messages[index]
        if index in notes:
            role = separator if notes[index].role == "assistant" else notes[index].role
            out.append({"role": role, "content": notes[index].text})
        if index in changed:
            raw = _restore_fields(rewrite_message(raw, seen[index], changed[index]), raw, keep)
        elif seen[index].private:
            raw = _restore_fields(render_outgoing(raw, seen[index]), raw, keep)
        out.append(raw)
    return out


def _restore_fields(
    written: dict[str, Any], raw: Mapping[str, Any], keep: Sequence[str]
) -> Mapping[str, Any]:
    return {**written, **{key: raw[key] for key in keep if key in raw}} if keep else written


def build(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    reply: int,  # noqa: ARG001 - the server has a default
    tools: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, object],
) -> dict[str, Any]:
    """Return the body of a request for these turns."""
    fields = {"messages": messages, "model": model, "tools": tools}
    known = {key: value for key, value in fields.items() if value is not None}
    return {**known, **options}


def render_outgoing(raw: Mapping[str, Any], message: Message) -> dict[str, Any]:
    """Return a message without reserved fields, its command output before its text."""
    out = copy_public(raw)
    if message.role == "user" and message.outputs:
        before = BLANK_LINE.join(filter(None, message.outputs))
        content = raw.get("content")
        if content is None or isinstance(content, str):
            out["content"] = BLANK_LINE.join(filter(None, (before, content)))
        else:
            out["content"] = [make_text(before), *content] if before else content
    return out


def rewrite_message(raw: Mapping[str, Any], before: Message, after: Message) -> dict[str, Any]:
    """Return a copy of a message with the changes from `before` to `after`."""
    if before.role == "user" and before.outputs:
        return render_outgoing(
            {**raw, "content": _rewrite_content(raw, before.words, after.words)}, after
        )
    out = copy_public(raw) if before.private else dict(raw)
    if after.thinking != before.thinking:
        for field in THINKING:
            out.pop(field, None)
    result = before.role == "tool"
    old, new = (before.outputs, after.outputs) if result else (before.words, after.words)
    if new != old:
        out["content"] = _rewrite_content(raw, old, new)
    return out


def _rewrite_content(raw: Mapping[str, Any], old: Sequence[str], new: Sequence[str]) -> Any:
    """Return the content with other texts."""
    content = raw.get("content")
    if new == old:
        return content
    if content is None or isinstance(content, str):
        return new[0] if new else None
    return replace_texts(content, new)
