"""Parse responses of all formats into a `Reply`.

The turn of a reply is in the chat shape. What only the original format can express (signed
thinking, ids of items) is kept in `_anthropic` or `_responses`, to be sent back later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brim.errors import InputError, InvalidResponseError
from brim.wire import openai_chat
from brim.wire.body_parts import (
    THINKING_BLOCKS,
    Part,
    copy_public,
    filter_mappings,
    get_mapping,
    read_thinking,
    shorten_encrypted,
    to_text,
)
from brim.wire.openai_chat import PLAIN_THINKING, SIGNED_THINKING
from brim.wire.reply import Reply, parse_reported_cost, parse_usage

ANTHROPIC_FIELD: Final = "_anthropic"
RESPONSES_FIELD: Final = "_responses"
NATIVE_FIELDS: Final = (ANTHROPIC_FIELD, RESPONSES_FIELD)
"""Fields of a turn with the original blocks of a format, which are sent back unchanged."""
ARGUMENTS_FIELD: Final = "_arguments"
"""The raw JSON of a streamed call; it may be invalid."""


def parse_reply(response: object) -> Reply:
    """Parse a complete response: a mapping, or an object of a client library.

    Raise `InvalidResponseError` if it is not a reply, or an error with a status of success.
    """
    response = to_mapping(response)
    if (error := find_error_object(response)) is not None:
        raise InvalidResponseError(f"The response is an error: {_error_message(error)}", error)
    return read_reply(response)


def to_mapping(given: object) -> Part:
    """Return a mapping as it is, or the mapping of an object of a client library."""
    if isinstance(given, Mapping):
        return given
    dump = getattr(given, "model_dump", None)
    if callable(dump) and not isinstance(given, type):
        try:
            # Only what the server sent: fields that the library adds must not be sent back.
            dumped = dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
        except TypeError:
            dumped = dump()
        if isinstance(dumped, Mapping):
            return dumped
    raise InvalidResponseError(
        "A response must be a mapping or an object of a client library, but is " + _describe(given)
    )


_ERROR_TYPES: Final = ("error", "response.failed", "response")
"""Types of objects that may be errors."""


def find_error_object(response: Part) -> Part | None:
    """Return the error object in a response or an event of a stream; None if there is none."""
    if "error" not in response and not (
        response.get("type") in _ERROR_TYPES or response.get("object") in _ERROR_TYPES
    ):
        return None
    match response:
        case {"error": Mapping() as error} if error:
            return error
        case {"error": str(message)} if message:
            return {"message": message}
        case {"type": "error"} | {"object": "error"}:
            return response
        case {"type": "response.failed", "response": Mapping() as response}:
            return find_error_object(response) or {"message": "the response failed"}
        case {"object": "response", "status": "failed"}:
            return {"message": "the response failed"}
        case _:
            return None


_DELTA_METADATA: Final = frozenset(("role",))
_OPENING_EVENTS: Final = frozenset(
    ("message_start", "ping", "response.created", "response.in_progress", "response.queued")
)


def is_opening(event: Part) -> bool:
    """Whether an event of a stream has neither content nor an error: a context-length error may
    still follow.
    """
    if find_error_object(event) is not None or "prompt_progress" in event:
        return False
    if isinstance(choices := event.get("choices"), list):
        return not any(map(_has_delta, choices))
    kind = event.get("type")
    return isinstance(kind, str) and kind in _OPENING_EVENTS


def _has_delta(choice: object) -> bool:
    if not isinstance(choice, Mapping) or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return True
    return any(value for key, value in delta.items() if key not in _DELTA_METADATA)


def read_reply(response: Part, *, is_whole: bool = True) -> Reply:
    """Parse a response of any format, by its shape; the blocks of a partial one are not kept."""
    match response:
        case {"choices": choices}:
            return _chat(response, choices, is_whole)
        case {"candidates": [*_]} | {"promptFeedback": _}:
            return _gemini(response)
        case {"output": [*items]}:
            return _responses(response, items, is_whole)
        case {"content": [*blocks], "role": "assistant"} | {
            "content": [*blocks],
            "type": "message",
        }:
            return _anthropic(response, blocks, is_whole)
        case _:
            raise InvalidResponseError(
                "A response must have choices, content, output or candidates, but is "
                + _describe(response)
            )


def _reply(response: Part, turn: dict[str, Any], text: str, thinking: str, finish: object) -> Reply:
    try:
        calls = openai_chat.read_message(turn, 0).calls
    except InputError as error:
        raise InvalidResponseError(f"The response is invalid: {error}") from None
    model = response.get("model")
    return Reply(
        turn,
        text,
        thinking,
        calls,
        finish if isinstance(finish, str) else None,
        parse_usage(response),
        parse_reported_cost(response),
        model if isinstance(model, str) else None,
    )


def _turn(text: object, calls: Sequence[Part], thinking: str = "") -> dict[str, Any]:
    """Return the turn to keep; a call without an id gets one, so that a result can refer to it."""
    turn: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thinking:
        turn[PLAIN_THINKING[0]] = thinking
    if calls:
        turn["tool_calls"] = [
            call if call["id"] else {**call, "id": f"call_{place}"}
            for place, call in enumerate(calls)
        ]
    return turn


def _chat_call(name: object, call_id: object, arguments: str) -> Part:
    function = {"name": str(name or ""), "arguments": arguments}
    return {"id": str(call_id or ""), "type": "function", "function": function}


# Chat completions


def _chat(response: Part, choices: object, is_whole: bool) -> Reply:
    found = choices[0] if isinstance(choices, Sequence) and choices else None
    choice = _require_mapping(found, "the first choice")
    message = _require_mapping(choice.get("message"), "the message of a choice")
    content = message.get("content")
    if content is not None and not isinstance(content, Sequence):
        raise InvalidResponseError(
            f"the content of a message must be text or parts, not {_describe(content)}"
        )
    text, thinking = split_content(content)
    if not text and isinstance(refusal := message.get("refusal"), str):
        content = text = refusal
    turn = _turn(content, _chat_calls(message.get("tool_calls")))
    for field in ("function_call", "extra_content"):
        if message.get(field):
            turn[field] = message[field]
    turn |= _chat_thinking(message, is_whole)
    thinking = _visible_thinking(message) or thinking
    if choice.get("error") and not text and not turn.get("tool_calls"):
        error = _require_mapping(choice["error"], "the error of a choice")
        raise InvalidResponseError(f"The response is an error: {_error_message(error)}", error)
    return _reply(response, turn, text, thinking, choice.get("finish_reason"))


def split_content(content: object) -> tuple[str, str]:
    """Return the text of a content, and the thinking that Mistral puts into it."""
    if isinstance(content, str):
        return content, ""
    text = thought = ""
    for part in content if isinstance(content, Sequence) else ():
        match part:
            case str(piece) | {"type": "text", "text": str(piece)}:
                text += piece
            case {"type": "thinking", "thinking": inner}:
                thought += split_content(inner)[0]
    return text, thought


def _chat_calls(calls: object) -> list[Part]:
    if calls is None:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidResponseError(f"tool_calls must be a list, not {_describe(calls)}")
    return [_clean_call(_require_mapping(call, "a tool call")) for call in calls]


def _clean_call(call: Part) -> Part:
    """Return a call that can be sent back, including extra fields: Gemini signs calls there."""
    out: dict[str, Any] = {key: value for key, value in call.items() if key != "index"}
    out["id"] = str(call.get("id") or "")
    if "custom" in call:
        return out
    function = _require_mapping(call.get("function"), "the function of a tool call")
    arguments = function.get("arguments")
    text = "" if arguments is None else to_text(arguments)
    out["type"] = call.get("type") or "function"
    out["function"] = {"name": str(function.get("name") or ""), "arguments": text}
    return out


def _chat_thinking(message: Part, is_whole: bool) -> dict[str, Any]:
    """Return the thinking once: plain text next to signed thinking, or in a second field, is a
    copy.

    Thinking of a partial reply is not signed yet.
    """
    signed = {field: message[field] for field in SIGNED_THINKING if message.get(field)}
    shown = {field: message[field] for field in PLAIN_THINKING if message.get(field)}
    return signed if signed and is_whole else dict([*shown.items()][:1])


def _visible_thinking(message: Part) -> str:
    for field in PLAIN_THINKING:
        if isinstance(thought := message.get(field), str) and thought:
            return thought
    details = [part for field in SIGNED_THINKING for part in filter_mappings(message.get(field))]
    pieces = (part.get(key) for part in details for key in ("text", "summary", "thinking"))
    return "".join(piece for piece in pieces if isinstance(piece, str))


# Anthropic messages


def _anthropic(response: Part, given: Sequence[object], is_whole: bool) -> Reply:
    blocks = [_require_mapping(block, "a block of the content") for block in given]
    calls = [
        _chat_call(block.get("name"), block.get("id"), _arguments(block))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    text = join_block_text(blocks)
    turn = _turn(text, calls, join_block_thinking(blocks))
    if is_whole:
        turn[ANTHROPIC_FIELD] = [copy_public(block) for block in blocks]
    shown = (block.get("thinking") for block in blocks if block.get("type") == "thinking")
    thinking = "\n\n".join(thought for thought in shown if isinstance(thought, str) and thought)
    return _reply(response, turn, text, thinking, response.get("stop_reason"))


def _arguments(block: Part) -> str:
    given = block.get(ARGUMENTS_FIELD, block.get("input"))
    return to_text({} if given is None else given)


def parse_arguments(text: str) -> dict[str, Any]:
    """Return arguments as an object, as Anthropic requires; invalid JSON is wrapped."""
    try:
        given = json.loads(text) if text.strip() else {}
    except (RecursionError, ValueError):
        given = None
    return given if isinstance(given, dict) else {"_raw": text}


def is_json(text: str) -> bool:
    """Whether a text is valid JSON or empty."""
    try:
        json.loads(text or "{}")
    except (RecursionError, ValueError):
        return False
    return True


def join_block_text(blocks: Iterable[Part]) -> str:
    texts = (block.get("text") for block in blocks if block.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def join_block_thinking(blocks: Iterable[Part]) -> str:
    """Return the thinking of blocks; for encrypted thinking, a text of about its size."""
    thoughts = (read_thinking(block) for block in blocks if block.get("type") in THINKING_BLOCKS)
    return "\n\n".join(filter(None, thoughts))


# Gemini


def _gemini(response: Part) -> Reply:
    """Parse the first candidate; a prompt that was blocked has none."""
    candidates = filter_mappings(response.get("candidates"))
    candidate = candidates[0] if candidates else {}
    parts = filter_mappings(get_mapping(candidate, "content").get("parts"))
    words = [part for part in parts if isinstance(part.get("text"), str)]
    text = "".join(part["text"] for part in words if not part.get("thought"))
    thinking = "".join(part["text"] for part in words if part.get("thought"))
    called = [call for part in parts if (call := get_mapping(part, "functionCall"))]
    calls = [
        _chat_call(call.get("name"), call.get("id"), to_text(call.get("args") or {}))
        for call in called
    ]
    feedback = get_mapping(response, "promptFeedback")
    finish = candidate.get("finishReason", feedback.get("blockReason"))
    named = {**response, "model": response.get("modelVersion")}
    return _reply(named, _turn(text, calls, thinking), text, thinking, finish)


# Responses


def _responses(response: Part, given: Sequence[object], is_whole: bool) -> Reply:
    items = [_require_mapping(item, "an item of the output") for item in given]
    calls = [call for item in items if (call := _item_call(item)) is not None]
    text = join_item_text(items)
    turn = _turn(text, calls, join_item_thinking(items))
    if is_whole:
        turn[RESPONSES_FIELD] = list(items)
    thinking = "\n\n".join(_list_reasoning(items))
    return _reply(response, turn, text, thinking, _find_finish_reason(response))


def _item_call(item: Part) -> Part | None:
    match item:
        case {"type": "function_call"}:
            arguments = to_text(item.get("arguments") or "")
            return _chat_call(item.get("name"), item.get("call_id"), arguments)
        case {"type": "custom_tool_call"}:
            called = {"name": item.get("name"), "input": to_text(item.get("input") or "")}
            return {"id": to_text(item.get("call_id") or ""), "type": "custom", "custom": called}
        case _:
            return None


def _find_finish_reason(response: Part) -> object:
    """Return the status; if the reply ended early for a reason other than length, that reason."""
    match response:
        case {"status": "incomplete", "incomplete_details": {"reason": str(reason)}}:
            return "incomplete" if reason == "max_output_tokens" else reason
        case _:
            return response.get("status")


def join_item_text(items: Iterable[Part]) -> str:
    joined: list[str] = []
    for item in items:
        if item.get("type", "message") == "message":
            content = item.get("content")
            parts = filter_mappings(content)
            texts = (part.get("text") or part.get("refusal") for part in parts)
            text = "".join(text for text in texts if isinstance(text, str))
            joined.append(content if isinstance(content, str) else text)
    return "\n\n".join(filter(None, joined))


def join_item_thinking(items: Sequence[Part]) -> str:
    """Return the thinking of items; if all of it is encrypted, a text of about its size."""
    secrets = (item.get("encrypted_content") for item in items if item.get("type") == "reasoning")
    return "\n\n".join(_list_reasoning(items)) or "".join(
        shorten_encrypted(secret) for secret in secrets if isinstance(secret, str)
    )


def _list_reasoning(items: Iterable[Part]) -> list[str]:
    reasoning = (item for item in items if item.get("type") == "reasoning")
    parts = (
        part
        for item in reasoning
        for field in ("summary", "content")
        for part in filter_mappings(item.get(field))
    )
    return [part["text"] for part in parts if isinstance(part.get("text"), str) and part["text"]]


# Validation


def _require_mapping(value: object, what: str) -> Part:
    if not isinstance(value, Mapping):
        raise InvalidResponseError(f"{what} must be a mapping, but is {_describe(value)}")
    return value


def _error_message(error: Part) -> str:
    message = error.get("message")
    return message if isinstance(message, str) and message else to_text(error)


def _describe(value: object) -> str:
    """Describe a value; of a text, its beginning is included: it is often the page of a proxy."""
    match value:
        case None:
            return "null"
        case str() | bytes():
            text = value if isinstance(value, str) else value.decode(errors="replace")
            return f"text: {text.strip()[:80]!r}" if text.strip() else "an empty text"
        case Mapping():
            return f"a mapping with {', '.join(map(str, value)) or 'nothing'}"
        case _:
            return f"a {type(value).__name__}"
