"""Accumulate the events of a stream into the reply that an unstreamed request would have returned.

This module does no I/O: the caller passes the events in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from brim.wire.body_parts import Part, filter_mappings, get_mapping, to_text
from brim.wire.openai_chat import PLAIN_THINKING, SIGNED_THINKING
from brim.wire.reply import Reply
from brim.wire.reply_parser import (
    ARGUMENTS_FIELD,
    find_error_object,
    join_item_text,
    parse_arguments,
    read_reply,
    split_content,
    to_mapping,
)


class StreamAccumulator:
    """The reply so far. Events are mappings or objects of a client library, of any format."""

    def __init__(self) -> None:
        self.started = False
        """Whether a token or call has arrived; before that, a rejected request may be retried."""
        self.thought = ""
        """The thinking that the last event added."""
        self.error: Part | None = None
        """The error that ended the stream."""
        self._answer: _Accumulator | None = None

    def add(self, event: object) -> str:
        """Add an event and return the text that it adds."""
        given = to_mapping(event)
        if given.get("type") == "chunk" and "chunk" in given:  # of OpenAI's streaming helper
            given = to_mapping(given["chunk"])
        elif str(given.get("type")).startswith(_HELPER_EVENTS):
            return ""
        self.error = self.error or find_error_object(given)
        if self._answer is None:
            self._answer = _choose_accumulator(given)
        delta = self._answer.add(given) if self._answer else _NOTHING
        self.thought = delta.thought
        self.started = self.started or delta.is_token or bool(delta.text or delta.thought)
        return delta.text

    @property
    def is_whole(self) -> bool:
        """Whether the provider has completed the reply."""
        return self._answer is not None and self._answer.is_whole and self.error is None

    @property
    def is_answer(self) -> bool:
        """Whether anything arrived that can be a reply, even an empty one."""
        return self._answer is not None and self._answer.has_begun

    @property
    def whole(self) -> Part:
        """The response so far, in its own format."""
        return {} if self._answer is None else self._answer.whole()

    def reply(self) -> Reply:
        """Return the reply so far, even if the stream was interrupted or ended in an error."""
        if self._answer is None:
            return Reply({"role": "assistant", "content": None})
        return read_reply(self._answer.whole(), is_whole=self.is_whole)


class _Delta(NamedTuple):
    """What an event adds. `is_token` is also set for a piece of a call."""

    text: str = ""
    thought: str = ""
    is_token: bool = False


class _Accumulator(ABC):
    """Accumulates the events of one format."""

    is_whole = False
    has_begun = True

    @abstractmethod
    def add(self, event: Part) -> _Delta: ...

    @abstractmethod
    def whole(self) -> Part:
        """Return the response so far, in the shape of an unstreamed one."""


_NOTHING: Final = _Delta()
_HELPER_EVENTS: Final = ("content.", "refusal.", "logprobs.", "tool_calls.")
"""Events that OpenAI's streaming helper derives from the chunks."""
_BLOCKS: Final = ("message_start", "content_block_start", "content_block_delta", "message_delta")


def _choose_accumulator(event: Part) -> _Accumulator | None:
    kind = event.get("type")
    match event:
        case {"choices": [{"message": Mapping()}, *_]} | {"type": "message"}:
            return _UnstreamedAccumulator()
        case {"object": "response", "output": [*_]}:
            return _UnstreamedAccumulator()
        case {"choices": _}:
            return _ChatAccumulator()
        case {"candidates": _} | {"usageMetadata": _} | {"promptFeedback": _}:
            return _GeminiAccumulator()
        case _ if kind in _BLOCKS:
            return _AnthropicAccumulator()
        case _ if isinstance(kind, str) and kind.startswith("response."):
            return _ResponsesAccumulator()
        case _:
            return None


class _UnstreamedAccumulator(_Accumulator):
    """The response of a server that does not stream."""

    def __init__(self) -> None:
        self._whole: Part = {}

    def add(self, event: Part) -> _Delta:
        if self.is_whole:
            return _NOTHING
        reply = read_reply(event)
        self._whole, self.is_whole = event, True
        return _Delta(reply.text, reply.thinking, bool(reply.calls))

    def whole(self) -> Part:
        return self._whole


# Chat completions


class _ChatAccumulator(_Accumulator):
    """Chunks of a chat completion; only the first choice is read."""

    has_begun = False

    def __init__(self) -> None:
        self._other_fields: dict[str, Any] = {}
        self._finish: object = None
        self._content: list[str] = []
        self._thoughts: list[str] = []
        """Thinking among the parts of the content."""
        self._thinking: dict[str, list[str]] = {}
        self._signed: dict[str, list[dict[str, Any]]] = {}
        self._more: dict[str, Any] = {}
        self._calls: list[_StreamedCall] = []

    def add(self, event: Part) -> _Delta:
        choices = filter_mappings(event.get("choices"))
        choice: Part = next((choice for choice in choices if not choice.get("index")), {})
        self.has_begun = self.has_begun or bool(choice)
        usage = event.get("usage") or choice.get("usage")
        usage = usage or get_mapping(event, "x_groq").get("usage")
        fields = {"usage": usage, "model": event.get("model"), "timings": event.get("timings")}
        self._other_fields |= {key: value for key, value in fields.items() if value}
        if choice.get("finish_reason"):
            self._finish, self.is_whole = choice["finish_reason"], True
        return self._add(get_mapping(choice, "delta"))

    def _add(self, delta: Part) -> _Delta:
        text, thought = split_content(delta.get("content"))
        self._content.append(text)
        self._thoughts.append(thought)
        if not text and isinstance(refusal := delta.get("refusal"), str):
            self._content.append(refusal)
            text = refusal
        for field in PLAIN_THINKING:
            if isinstance(piece := delta.get(field), str) and piece:
                self._thinking.setdefault(field, []).append(piece)
                thought = thought or piece
        for field in SIGNED_THINKING:
            _merge(self._signed.setdefault(field, []), filter_mappings(delta.get(field)))
        if delta.get("extra_content"):
            self._more["extra_content"] = delta["extra_content"]
        pieces = filter_mappings(delta.get("tool_calls"))
        for piece in pieces:
            self._call_of(piece).add(piece)
        return _Delta(text, thought, bool(pieces))

    def _call_of(self, piece: Part) -> _StreamedCall:
        """Return the call that a piece continues; its index may be missing, or always the same."""
        index, name = piece.get("index"), piece.get("id")
        begins = bool(name and get_mapping(piece, "function").get("name"))
        if isinstance(index, int):
            same = (call for call in reversed(self._calls) if call.index == index)
            found = next(same, None)
        else:
            found = self._calls[-1] if self._calls and not begins else None
        if found is None or (begins and found.id and found.id != name):
            found = _StreamedCall(index)
            self._calls.append(found)
        return found

    def whole(self) -> Part:
        text: Any = "".join(self._content)
        if thoughts := "".join(self._thoughts):
            thinking = {"type": "thinking", "thinking": [{"type": "text", "text": thoughts}]}
            text = [thinking, *([{"type": "text", "text": text}] if text else ())]
        message = {
            "content": text,
            "tool_calls": [call.whole() for call in self._calls],
            **{field: "".join(pieces) for field, pieces in self._thinking.items()},
            **self._signed,
            **self._more,
        }
        return {
            **self._other_fields,
            "choices": [{"message": message, "finish_reason": self._finish}],
        }


class _StreamedCall:
    """A call that arrives in pieces: the first has its name, all of them parts of its arguments."""

    def __init__(self, index: object) -> None:
        self.index = index
        self.id = ""
        self._name = ""
        self._arguments: list[str] = []
        self._other_fields: dict[str, Any] = {}

    def add(self, piece: Part) -> None:
        function = get_mapping(piece, "function") or get_mapping(piece, "custom")
        self.id = self.id or to_text(piece.get("id") or "")
        self._name = self._name or to_text(function.get("name") or "")
        self._arguments.append(to_text(function.get("arguments") or function.get("input") or ""))
        known = ("index", "id", "function", "custom")
        self._other_fields |= {
            key: value for key, value in piece.items() if key not in known and value is not None
        }

    def whole(self) -> Part:
        arguments = "".join(self._arguments)
        kind, field = ("function", "arguments")
        if self._other_fields.get("type") == "custom":
            kind, field = ("custom", "input")
        return {**self._other_fields, "id": self.id, kind: {"name": self._name, field: arguments}}


def _merge(whole: list[dict[str, Any]], pieces: Iterable[Part]) -> None:
    """Add pieces of signed thinking to the entries that they continue: same type, same index."""
    for piece in pieces:
        last = whole[-1] if whole else {}
        if last and all(last.get(key) == piece.get(key) for key in ("type", "index")):
            for key, value in piece.items():
                grows = key in ("text", "summary", "thinking") and isinstance(value, str)
                if grows:
                    last[key] = to_text(last.get(key) or "") + value
                elif value is not None:
                    last[key] = value
        else:
            whole.append(dict(piece))


# Anthropic messages


class _AnthropicAccumulator(_Accumulator):
    """Blocks of an Anthropic message; each has events for its start, its deltas and its end."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}

    def add(self, event: Part) -> _Delta:
        index = event.get("index")
        place = index if isinstance(index, int) else len(self._blocks)
        match event.get("type"):
            case "message_start":
                self._message = {**get_mapping(event, "message")}
                self._add_usage(self._message)
            case "content_block_start":
                block = self._blocks[place] = {**get_mapping(event, "content_block")}
                text, thought = (_text(block.get(key)) for key in ("text", "thinking"))
                return _Delta(text, thought, block.get("type") not in ("text", "thinking"))
            case "content_block_delta":
                return self._add_piece(place, get_mapping(event, "delta"))
            case "message_delta":
                self._message |= get_mapping(event, "delta")
                self._add_usage(event)
                self.is_whole = self.is_whole or bool(self._message.get("stop_reason"))
            case "message_stop":
                self.is_whole = True
        return _NOTHING

    def _add_usage(self, event: Part) -> None:
        """Update the counts; those that a later event omits are kept."""
        usage = get_mapping(event, "usage")
        self._usage |= {key: value for key, value in usage.items() if value is not None}

    def _add_piece(self, place: int, delta: Part) -> _Delta:
        block = self._blocks.setdefault(place, {})
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                block["type"] = "text"
                self._pieces.setdefault(place, []).append(text)
                return _Delta(text)
            case {"type": "thinking_delta", "thinking": str(thought)}:
                block["type"] = "thinking"
                self._pieces.setdefault(place, []).append(thought)
                return _Delta(thought=thought)
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                self._pieces.setdefault(place, []).append(piece)
                return _Delta(is_token=True)
            case {"type": "signature_delta", "signature": str(signature)}:
                block["signature"] = _text(block.get("signature")) + signature
            case {"type": "citations_delta", "citation": citation}:
                block["citations"] = [*(block.get("citations") or ()), citation]
            case {"type": "compaction_delta", "content": content}:
                block["content"] = content
        return _NOTHING

    def whole(self) -> Part:
        blocks = [self._block(place) for place in sorted(self._blocks)]
        return {**self._message, "role": "assistant", "content": blocks, "usage": self._usage}

    def _block(self, place: int) -> Part:
        block, added = self._blocks[place], "".join(self._pieces.get(place, ()))
        match block.get("type"):
            case "text" | "thinking" as key:
                return {**block, key: _text(block.get(key)) + added}
            case _ if added:
                return {**block, "input": parse_arguments(added), ARGUMENTS_FIELD: added}
            case _:
                return block


# Gemini


class _GeminiAccumulator(_Accumulator):
    """Chunks of a Gemini stream; only the first candidate is read."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[Part] = []

    def add(self, event: Part) -> _Delta:
        self._response |= event
        candidates = filter_mappings(event.get("candidates"))
        candidate = candidates[0] if candidates else {}
        self._candidate |= candidate
        parts = filter_mappings(get_mapping(candidate, "content").get("parts"))
        self._parts += parts
        if candidate.get("finishReason") or get_mapping(event, "promptFeedback"):
            self.is_whole = True
        words = [part for part in parts if isinstance(part.get("text"), str)]
        return _Delta(
            "".join(part["text"] for part in words if not part.get("thought")),
            "".join(part["text"] for part in words if part.get("thought")),
            any("functionCall" in part for part in parts),
        )

    def whole(self) -> Part:
        candidate = {**self._candidate, "content": {"role": "model", "parts": self._parts}}
        return {**self._response, "candidates": [candidate]}


# Responses


_TERMINAL: Final = ("response.completed", "response.incomplete", "response.failed")
_MESSAGE: Final = {"type": "message", "role": "assistant"}
_REASONING: Final = {"type": "reasoning"}
_TEXT_EVENTS: Final[Mapping[str, tuple[Part, str, str, str]]] = {
    "response.output_text.delta": (_MESSAGE, "content", "output_text", "text"),
    "response.refusal.delta": (_MESSAGE, "content", "refusal", "refusal"),
    "response.reasoning_text.delta": (_REASONING, "content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": (_REASONING, "summary", "summary_text", "text"),
}
"""Per event type: the item, its field, the type of its part, and the key of the text."""
_CALL_EVENTS: Final = {
    "response.function_call_arguments.delta": ("function_call", "arguments"),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input"),
}
_DELTA_EVENTS: Final = frozenset((*_TEXT_EVENTS, *_CALL_EVENTS))


class _ResponsesAccumulator(_Accumulator):
    """Items of a response; the last event of an item has all of it, that of the response all."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, Part] = {}
        self._pieces: dict[int, dict[tuple[str, int], list[str]]] = {}
        """Text added to an item since its start, by event type and part index."""
        self._has_text = False

    def add(self, event: Part) -> _Delta:
        kind, index = event.get("type"), event.get("output_index")
        place = index if isinstance(index, int) else max(self._items, default=0)
        response, item = get_mapping(event, "response"), get_mapping(event, "item")
        self._response |= {key: value for key, value in response.items() if value is not None}
        if kind in _TERMINAL:
            return self._end(response)
        if item:
            self._items[place] = item
            self._pieces.pop(place, None)
            is_begun = kind == "response.output_item.added"
            return _Delta(is_token=is_begun and item.get("type") not in ("message", "reasoning"))
        piece = event.get("delta")
        if isinstance(kind, str) and isinstance(piece, str) and piece:
            return self._add_piece(kind, place, event, piece)
        return _NOTHING

    def _add_piece(self, kind: str, place: int, event: Part, piece: str) -> _Delta:
        if kind not in _DELTA_EVENTS:
            return _NOTHING
        number = event.get("summary_index", event.get("content_index"))
        part = (kind, number if isinstance(number, int) else 0)
        self._pieces.setdefault(place, {}).setdefault(part, []).append(piece)
        self._items.setdefault(place, {})
        if kind in _CALL_EVENTS:
            return _Delta(is_token=True)
        if "reasoning" in kind:
            return _Delta(thought=piece)
        self._has_text = True
        return _Delta(piece)

    def _end(self, response: Part) -> _Delta:
        self.is_whole = response.get("status") != "failed"
        items = filter_mappings(response.get("output"))
        if items:
            self._items = dict(enumerate(items))
            self._pieces = {}
        if self._has_text or not self.is_whole:
            return _NOTHING
        return _Delta(join_item_text(items))

    def whole(self) -> Part:
        output = [self._item(place) for place in sorted(self._items)]
        return {**self._response, "output": output}

    def _item(self, place: int) -> Part:
        item = self._items[place]
        for (kind, number), pieces in sorted(self._pieces.get(place, {}).items()):
            item = _append_text(item, kind, number, "".join(pieces))
        return item


def _append_text(item: Part, kind: str, number: int, text: str) -> Part:
    """Return an item with text added."""
    if kind in _CALL_EVENTS:
        type_, field = _CALL_EVENTS[kind]
        return {"type": type_, **item, field: _text(item.get(field)) + text}
    begun, field, type_, key = _TEXT_EVENTS[kind]
    parts = [dict(part) for part in filter_mappings(item.get(field))]
    if not 0 <= number < len(parts):
        number = len(parts)
        parts.append({"type": type_})
    parts[number][key] = _text(parts[number].get(key)) + text
    return {**begun, **item, field: parts}


# Reading untrusted values


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
