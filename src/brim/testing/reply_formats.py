"""Scripted replies in the formats of OpenAI and Anthropic; no I/O.

The same reply to the same request gives the same bytes: no clock, no randomness, no counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, ClassVar, Final

from brim.models.pricing import Usage
from brim.testing.prompt_cache import PROMPT
from brim.testing.script import Body, ErrorReply, ReceivedRequest, TextReply, split_words
from brim.wire.formats import FORMATS_BY_PATH

Fields = dict[str, Any]

_CREATED: Final = 1_767_225_600
"""Creation time of every reply: constant, so that replies can be compared."""


class ReplyFormat:
    """Builds responses, streams and errors in one format."""

    events_before_reply: ClassVar = 1
    """Events of a stream before the first one with content."""
    events_before_hold: ClassVar = 1
    """Events of a stream up to the first words."""

    def build_response(self, reply: TextReply, name: str, model: str, usage: Usage) -> Fields:
        """Return a complete response."""
        raise NotImplementedError

    def iter_events(self, response: Body, request: Body) -> Iterator[str]:
        """Return the events of a streamed response."""
        raise NotImplementedError

    def build_context_length_error(self, prompt: int, room: int, window: int) -> Fields:
        """Return the error of a prompt that leaves no room for output."""
        raise NotImplementedError

    def build_error_body(self, error: Body) -> Fields:
        return {"error": error}

    def build_error_event(self, response: Body, error: Body) -> str:
        """Return the error event that ends a stream."""
        del response
        return _format_event(self.build_error_body(error))

    def build_count_response(self, tokens: int) -> Fields:
        return {"object": "response.input_tokens", "input_tokens": tokens}


def _format_event(event: Body) -> str:
    """Return an event of a stream; its type, if it has one, is also in an `event` line."""
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event)}\n\n"


class _ChatFormat(ReplyFormat):
    """OpenAI chat completions; of the servers, only llama.cpp counts them."""

    events_before_hold = 2

    def build_response(self, reply: TextReply, name: str, model: str, usage: Usage) -> Fields:
        calls = [
            {"id": f"call_{name}_{n}", "type": "function", "index": n,
             "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for n, call in enumerate(reply.calls)
        ]  # fmt: skip
        message = {"role": "assistant", "content": reply.text or None if calls else reply.text}
        finish = reply.finish or ("tool_calls" if calls else "stop")
        return {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion",
            "created": _CREATED,
            "model": model,
            "choices": [{"index": 0, "message": message | ({"tool_calls": calls} if calls else {}),
                         "finish_reason": finish}],
            "usage": {"prompt_tokens": usage.input, "completion_tokens": usage.output,
                      "total_tokens": usage.input + usage.output,
                      "prompt_tokens_details": {"cached_tokens": usage.cached}},
        }  # fmt: skip

    def iter_events(self, response: Body, request: Body) -> Iterator[str]:
        """Return the events of a streamed response; usage is included only if requested."""
        (choice,) = response["choices"]
        message, finish = choice["message"], choice["finish_reason"]
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": word} for word in split_words(message["content"] or "")]
        deltas += [{"tool_calls": [call]} for call in message.get("tool_calls", ())]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        chunk = {key: value for key, value in response.items() if key != "usage"}
        chunk["object"] = "chat.completion.chunk"
        for each in (*choices, {"index": 0, "delta": {}, "finish_reason": finish}):
            yield _format_event(chunk | {"choices": [each]})
        if (request.get("stream_options") or {}).get("include_usage"):
            yield _format_event(chunk | {"choices": [], "usage": response["usage"]})
        yield "data: [DONE]\n\n"

    def build_context_length_error(self, prompt: int, room: int, window: int) -> Fields:
        return {
            "message": f"This model's maximum context length is {window} tokens. However, you "
            f"requested {prompt + room} tokens ({prompt} in the messages, {room} in the "
            "completion). Please reduce the length of the messages or completion.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }


class _AnthropicFormat(ReplyFormat):
    """Anthropic messages."""

    events_before_hold = 3
    _STOPS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}

    def build_response(self, reply: TextReply, name: str, model: str, usage: Usage) -> Fields:
        blocks: list[Any] = [{"type": "text", "text": reply.text}] if reply.text else []
        for n, call in enumerate(reply.calls):
            given = {"name": call.name, "input": call.arguments}
            blocks.append({"type": "tool_use", "id": f"toolu_{name}_{n}", **given})
        finish = reply.finish or ("tool_calls" if reply.calls else "stop")
        return {
            "id": f"msg_{name}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": blocks,
            "stop_reason": self._STOPS.get(finish, finish),
            "stop_sequence": None,
            "usage": {"input_tokens": usage.input - usage.cached - usage.written,
                      "cache_creation_input_tokens": usage.written,
                      "cache_read_input_tokens": usage.cached,
                      "output_tokens": usage.output},
        }  # fmt: skip

    def iter_events(self, response: Body, request: Body) -> Iterator[str]:
        del request
        usage = {**response["usage"], "output_tokens": 1}
        begun = {**response, "content": [], "stop_reason": None, "usage": usage}
        yield _format_event({"type": "message_start", "message": begun})
        for place, block in enumerate(response["content"]):
            for event in self._iter_block_events(block):
                yield _format_event({**event, "index": place})
        ended = {"stop_reason": response["stop_reason"], "stop_sequence": None}
        yield _format_event({"type": "message_delta", "delta": ended, "usage": response["usage"]})
        yield _format_event({"type": "message_stop"})

    def _iter_block_events(self, block: Body) -> Iterator[Fields]:
        if block["type"] == "text":
            opened: Fields = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": word} for word in split_words(block["text"])]
        else:
            opened = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield {"type": "content_block_start", "content_block": opened}
        for delta in deltas:
            yield {"type": "content_block_delta", "delta": delta}
        yield {"type": "content_block_stop"}

    def build_context_length_error(self, prompt: int, room: int, window: int) -> Fields:
        message = f"prompt is too long: {prompt + room} tokens > {window} maximum"
        return {"type": "invalid_request_error", "message": message}

    def build_error_body(self, error: Body) -> Fields:
        return {"type": "error", "error": error}

    def build_count_response(self, tokens: int) -> Fields:
        return {"input_tokens": tokens}


class _ResponsesFormat(ReplyFormat):
    """OpenAI responses."""

    events_before_reply = 2
    events_before_hold = 5
    _CUT_SHORT: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}

    def build_response(self, reply: TextReply, name: str, model: str, usage: Usage) -> Fields:
        reason = self._CUT_SHORT.get(reply.finish or "")
        return {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": _CREATED,
            "status": "incomplete" if reason else "completed",
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": model,
            "output": self._build_items(reply, name),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {"input_tokens": usage.input,
                      "input_tokens_details": {"cached_tokens": usage.cached,
                                               "cache_write_tokens": 0},
                      "output_tokens": usage.output,
                      "output_tokens_details": {"reasoning_tokens": 0},
                      "total_tokens": usage.input + usage.output},
        }  # fmt: skip

    def _build_items(self, reply: TextReply, name: str) -> list[Fields]:
        items: list[Fields] = []
        if reply.text or not reply.calls:
            part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
            items.append({"id": f"msg_{name}", "type": "message", "status": "completed",
                          "role": "assistant", "content": [part]})  # fmt: skip
        for n, call in enumerate(reply.calls):
            given = {"name": call.name, "arguments": json.dumps(call.arguments)}
            items.append({"id": f"fc_{name}_{n}", "type": "function_call", "status": "completed",
                          "call_id": f"call_{name}_{n}", **given})  # fmt: skip
        return items

    def iter_events(self, response: Body, request: Body) -> Iterator[str]:
        del request
        for number, event in enumerate(self._iter_events(response)):
            yield _format_event({**event, "sequence_number": number})

    def _iter_events(self, response: Body) -> Iterator[Fields]:
        yield {"type": "response.created", "response": self._start_response(response)}
        yield {"type": "response.in_progress", "response": self._start_response(response)}
        for place, item in enumerate(response["output"]):
            is_text = item["type"] == "message"
            empty: Body = {"content": []} if is_text else {"arguments": ""}
            begun = {**item, **empty, "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": place, "item": begun}
            for event in (_iter_text_events if is_text else _iter_call_events)(item):
                yield {**event, "item_id": item["id"], "output_index": place}
            yield {"type": "response.output_item.done", "output_index": place, "item": item}
        yield {"type": f"response.{response['status']}", "response": response}

    def _start_response(self, response: Body) -> Fields:
        """Return a response without content, as it is at its start."""
        empty: Fields = {"incomplete_details": None, "output": [], "usage": None}
        return {**response, "status": "in_progress", **empty}

    def build_error_event(self, response: Body, error: Body) -> str:
        code = error["code"] if isinstance(error.get("code"), str) else error.get("type")
        failure = {"code": code, "message": error.get("message")}
        response = self._start_response(response) | {"status": "failed", "error": failure}
        event = {"type": "response.failed", "response": response}
        return _format_event({**event, "sequence_number": self.events_before_reply})

    def build_context_length_error(self, prompt: int, room: int, window: int) -> Fields:
        """Return the error of a prompt that leaves no room for output; it contains no numbers."""
        del prompt, room, window
        return {
            "message": "Your input exceeds the context window of this model. Please adjust your "
            "input and try again.",
            "type": "invalid_request_error",
            "param": "input",
            "code": "context_length_exceeded",
        }


def _iter_text_events(item: Body) -> Iterator[Fields]:
    (part,) = item["content"]
    empty, place = {**part, "text": ""}, {"content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": empty}
    for word in split_words(part["text"]):
        yield {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _iter_call_events(item: Body) -> Iterator[Fields]:
    arguments = item["arguments"]
    yield {"type": "response.function_call_arguments.delta", "delta": arguments}
    yield {"type": "response.function_call_arguments.done", "arguments": arguments}


class _GeminiFormat(ReplyFormat):
    """Gemini's generateContent."""

    events_before_reply = 0
    events_before_hold = 1
    _FINISHES: Final = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}

    def build_response(self, reply: TextReply, name: str, model: str, usage: Usage) -> Fields:
        parts: list[Any] = [{"text": reply.text}] if reply.text else []
        parts += [
            {"functionCall": {"name": call.name, "args": call.arguments}} for call in reply.calls
        ]
        finish = self._FINISHES.get(reply.finish or "", reply.finish or "STOP")
        candidate = {
            "content": {"role": "model", "parts": parts},
            "finishReason": finish,
            "index": 0,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": {"promptTokenCount": usage.input,
                              "cachedContentTokenCount": usage.cached,
                              "candidatesTokenCount": usage.output,
                              "totalTokenCount": usage.input + usage.output},
            "modelVersion": model,
            "responseId": name,
        }  # fmt: skip

    def iter_events(self, response: Body, request: Body) -> Iterator[str]:
        del request
        (candidate,) = response["candidates"]
        pieces: list[Any] = []
        for part in candidate["content"]["parts"]:
            pieces += (
                [{"text": word} for word in split_words(part["text"])] if "text" in part else [part]
            )
        for piece in pieces or [{"text": ""}]:
            content = {"role": "model", "parts": [piece]}
            yield _format_event({**response, "candidates": [{"content": content, "index": 0}]})
        content = {"role": "model", "parts": [{"text": ""}]}
        yield _format_event({**response, "candidates": [{**candidate, "content": content}]})

    def build_context_length_error(self, prompt: int, room: int, window: int) -> Fields:
        message = (
            f"The input token count ({prompt + room}) exceeds the maximum number of tokens allowed "
            f"({window})."
        )
        return {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}

    def build_count_response(self, tokens: int) -> Fields:
        return {"totalTokens": tokens}


REPLY_FORMATS: Final[Mapping[str, ReplyFormat]] = {
    "openai": _ChatFormat(),
    "anthropic": _AnthropicFormat(),
    "responses": _ResponsesFormat(),
    "gemini": _GeminiFormat(),
}


def find_reply_format(path: str) -> ReplyFormat:
    """Return the format of the replies at a path."""
    return REPLY_FORMATS[FORMATS_BY_PATH[path].name]


def make_reply_id(request: ReceivedRequest, reply: TextReply) -> str:
    """Return the id of a response, a hash of the reply and the prompt."""
    calls = [(call.name, call.arguments) for call in reply.calls]
    prompt = [request.body.get(key) for key in PROMPT]
    return sha256(json.dumps([prompt, reply.text, calls]).encode()).hexdigest()[:16]


def stream_error(
    request: ReceivedRequest, error_reply: ErrorReply, model: str
) -> Iterator[str | bytes]:
    """Return a stream that starts normally and has an error instead of its first token."""
    format, nothing = find_reply_format(request.path), TextReply()
    usage = Usage(request.tokens, 0, 0)
    response = format.build_response(nothing, make_reply_id(request, nothing), model, usage)
    yield from islice(format.iter_events(response, request.body), format.events_before_reply)
    if error_reply.raw is None:
        yield format.build_error_event(response, error_reply.error_object)
    else:
        yield error_reply.raw


def make_context_length_error(
    like: str, request: ReceivedRequest, room: int, window: int
) -> Fields:
    """Return the error of a prompt that leaves no room for output."""
    if like != "llama.cpp":
        format = find_reply_format(request.path)
        return format.build_context_length_error(request.tokens, room, window)
    return {
        "code": 400,
        "message": f"request ({request.tokens} tokens) exceeds the available context size "
        f"({window} tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": request.tokens,
        "n_ctx": window,
    }


def list_models(like: str, model: str, window: int | None) -> Fields:
    """Return the list of models, with the window if the server reports it."""
    row: Fields = {"id": model, "object": "model", "created": 0, "owned_by": "scripted"}
    if like == "llama.cpp":
        row |= {"owned_by": "llamacpp", "meta": {"n_ctx": window}}
    elif window is not None:
        row |= {"context_length": window}
    return {"object": "list", "data": [row]}
