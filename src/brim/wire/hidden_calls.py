"""Replies without the calls of one tool, which the sender of a request answers itself.

The client sees one reply, made of the visible parts of several: each reply that consists of hidden
calls alone is continued by the next one. Replies are in the format of their server, whole or as the
events of a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from brim.messages import Call
from brim.wire.body_parts import Part, filter_mappings, get_mapping, to_text
from brim.wire.formats import ANTHROPIC, CHAT, GEMINI, RESPONSES, BodyFormat
from brim.wire.reply_parser import ARGUMENTS_FIELD

_FINISHED: Final = ("tool_calls", "tool_use", "function_call", "stop", "STOP", "completed")
"""Why a reply ends that can be continued; after others, such as a length limit, it is not."""
_THINKING: Final = ("thinking", "redacted_thinking", "reasoning")
"""Items that belong to the call after them: servers reject them without it."""


def add_tool(body: Part, format: BodyFormat, tool: Part) -> dict[str, Any]:
    """Return a body that offers another tool, defined in the chat shape."""
    turn = {"role": "user", "content": ""}
    tools = format.build([turn], model=None, reply=1, tools=[tool])["tools"]
    return {**body, "tools": [*(body.get("tools") or ()), *tools]}


def continue_body(
    body: Part, format: BodyFormat, reply: Part, results: Sequence[tuple[Call, str]]
) -> dict[str, Any]:
    """Return the body of the next request: with a reply, and the results of its calls."""
    given = body.get(format.messages_key) or ()
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    added = _CONTINUATIONS[format.name](reply, results)
    return {**body, format.messages_key: [*given, *added]}


def _continue_chat(reply: Part, results: Sequence[tuple[Call, str]]) -> list[Part]:
    message = get_mapping(filter_mappings(reply.get("choices"))[0], "message")
    tools = ({"role": "tool", "tool_call_id": call.id, "content": text} for call, text in results)
    return [{**message, "role": "assistant"}, *tools]


def _continue_anthropic(reply: Part, results: Sequence[tuple[Call, str]]) -> list[Part]:
    blocks = [
        {key: value for key, value in block.items() if key != ARGUMENTS_FIELD}
        for block in filter_mappings(reply.get("content"))
    ]
    answers = [
        {"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results
    ]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]


def _continue_responses(reply: Part, results: Sequence[tuple[Call, str]]) -> list[Part]:
    answers = (
        {"type": "function_call_output", "call_id": call.id, "output": text}
        for call, text in results
    )
    return [*filter_mappings(reply.get("output")), *answers]


def _continue_gemini(reply: Part, results: Sequence[tuple[Call, str]]) -> list[Part]:
    content = get_mapping(filter_mappings(reply.get("candidates"))[0], "content")
    parts = filter_mappings(content.get("parts"))
    calls = filter(None, (get_mapping(part, "functionCall") for part in parts))
    answers = []
    for call, (_, text) in zip(calls, results, strict=True):
        named = {key: call[key] for key in ("id", "name") if call.get(key)}
        answers.append({"functionResponse": {**named, "response": {"result": text}}})
    return [{**content, "role": "model"}, {"role": "user", "parts": answers}]


_CONTINUATIONS: Final[
    Mapping[str, Callable[[Part, Sequence[tuple[Call, str]]], Sequence[Part]]]
] = {
    CHAT.name: _continue_chat,
    ANTHROPIC.name: _continue_anthropic,
    RESPONSES.name: _continue_responses,
    GEMINI.name: _continue_gemini,
}


class CallHider(ABC):
    """Hides the calls of a tool in the replies to one client request, one reply after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_following = False
        """Whether an earlier reply was continued."""
        self.may_continue = True
        """Whether a reply of hidden calls alone may be continued."""
        self._has_hidden_calls = self._has_visible_calls = False
        self.is_continued = False
        """Whether the next request continues the current reply."""

    def start_reply(self) -> None:
        """Begin with the next reply."""
        self.is_following, self.is_continued = True, False
        self._has_hidden_calls = self._has_visible_calls = False

    @abstractmethod
    def hide_event(self, event: Part) -> Sequence[Part]:
        """Return the events to show in place of one."""

    @abstractmethod
    def hide(self, reply: Part) -> Part:
        """Return a whole reply without the hidden calls."""

    def _finish(self, reason: object) -> bool:
        """Decide at the end of a reply whether it is continued."""
        is_alone = self._has_hidden_calls and not self._has_visible_calls
        self.is_continued = self.may_continue and is_alone and reason in _FINISHED
        return self.is_continued

    def _is_hidden(self, call: Part) -> bool:
        """Note a call, and return whether it is hidden."""
        if call.get("name") == self._name:
            self._has_hidden_calls = True
            return True
        self._has_visible_calls = True
        return False


class _Numbers:
    """New numbers for the items that are shown: one sequence for all replies."""

    def __init__(self) -> None:
        self._next = 0
        self._shown: dict[object, int] = {}

    def start_reply(self) -> None:
        self._shown.clear()

    def add(self, number: object) -> None:
        """Show an item; an item that is not added is hidden."""
        self._shown[number] = self._next
        self._next += 1

    def drop(self, number: object) -> None:
        self._shown.pop(number, None)

    def find(self, number: object) -> int | None:
        """Return the new number of an item; None if it is hidden."""
        return self._shown.get(number)


class _ChatHider(CallHider):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._numbers = _Numbers()
        self._id: object = None

    def start_reply(self) -> None:
        super().start_reply()
        self._numbers.start_reply()

    def hide(self, reply: Part) -> Part:
        choices = filter_mappings(reply.get("choices"))
        if not choices:
            return reply
        first, *rest = choices
        message = dict(get_mapping(first, "message"))
        calls = filter_mappings(message.pop("tool_calls", None))
        if shown := [call for call in calls if not self._is_hidden(get_mapping(call, "function"))]:
            message["tool_calls"] = shown
        self._finish(first.get("finish_reason"))
        if not self._has_hidden_calls:
            return reply
        return {**reply, "choices": [self._end({**first, "message": message}), *rest]}

    def _end(self, choice: Part) -> Part:
        """Return a choice whose reason to end fits the calls that are shown."""
        if choice.get("finish_reason") != "tool_calls" or self._has_visible_calls:
            return choice
        return {**choice, "finish_reason": "stop"}

    def hide_event(self, event: Part) -> Sequence[Part]:
        self._id = self._id or event.get("id")
        choices = filter_mappings(event.get("choices"))
        if not choices:
            return () if self.is_continued else (self._rename(event),)
        choice = choices[0]
        delta = dict(get_mapping(choice, "delta"))
        if "tool_calls" in delta:
            pieces = self._show_pieces(filter_mappings(delta.pop("tool_calls")))
            delta |= {"tool_calls": pieces} if pieces else {}
        if self.is_following:
            delta.pop("role", None)
        reason = choice.get("finish_reason")
        if reason and self._finish(reason):
            return ()
        if not reason and not any(delta.values()) and (self._has_hidden_calls or self.is_following):
            return ()
        shown = {**choice, "delta": delta}
        return (
            self._rename(
                {**event, "choices": [self._end(shown) if self._has_hidden_calls else shown]}
            ),
        )

    def _rename(self, event: Part) -> Part:
        return {**event, "id": self._id} if self.is_following and "id" in event else event

    def _show_pieces(self, pieces: Sequence[Part]) -> list[Part]:
        shown: list[Part] = []
        for piece in pieces:
            number, function = piece.get("index", 0), get_mapping(piece, "function")
            if function.get("name"):
                self._numbers.drop(number)
                if not self._is_hidden(function):
                    self._numbers.add(number)
            if (place := self._numbers.find(number)) is not None:
                shown.append({**piece, "index": place})
        return shown


class _ItemHider(CallHider):
    """Formats whose replies are lists of numbered items, each with events of its own."""

    items_key: str
    """The field of the items."""
    number_key: str
    """The field of an event with the number of its item."""
    call_type: str
    """The type of an item that is a call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._numbers = _Numbers()
        self._held: list[Part] = []
        """Events of thinking, which is shown only if no hidden call follows."""
        self._is_holding = False

    def start_reply(self) -> None:
        super().start_reply()
        self._numbers.start_reply()
        self._held = []

    def _show_items(self, reply: Part) -> list[Part]:
        shown: list[Part] = []
        for item in filter_mappings(reply.get(self.items_key)):
            if item.get("type") != self.call_type or not self._is_hidden(item):
                shown.append(item)
            elif shown and shown[-1].get("type") in _THINKING:
                shown.pop()
        return shown

    def _start_item(self, event: Part, item: Part) -> Sequence[Part]:
        number, kind = event.get(self.number_key), item.get("type")
        self._is_holding = kind in _THINKING
        if kind == self.call_type and self._is_hidden(item):
            self._held = []
            return ()
        if self._is_holding:
            return (*self._release(), *self._forward(event))
        released = self._release()
        self._numbers.add(number)
        return (*released, *self._forward(event))

    def _forward(self, event: Part) -> Sequence[Part]:
        """Return an event of an item with its new number; nothing if the item is hidden."""
        if self._is_holding:
            self._held.append(event)
            return ()
        number = self._numbers.find(event.get(self.number_key))
        return () if number is None else ({**event, self.number_key: number},)

    def _release(self) -> Sequence[Part]:
        """Return the events of the thinking that was held back."""
        held, self._held = self._held, []
        if held:
            self._numbers.add(held[0].get(self.number_key))
        number = self._numbers.find(held[0].get(self.number_key)) if held else None
        return [{**event, self.number_key: number} for event in held]


class _AnthropicHider(_ItemHider):
    items_key, number_key, call_type = "content", "index", "tool_use"

    def hide(self, reply: Part) -> Part:
        shown = self._show_items(reply)
        self._finish(reply.get("stop_reason"))
        return {**self._end(reply), "content": shown} if self._has_hidden_calls else reply

    def _end(self, fields: Part) -> Part:
        """Return fields whose reason to stop fits the calls that are shown."""
        if fields.get("stop_reason") != "tool_use" or self._has_visible_calls:
            return fields
        return {**fields, "stop_reason": "end_turn"}

    def hide_event(self, event: Part) -> Sequence[Part]:
        match event.get("type"):
            case "message_start" if self.is_following:
                return ()
            case "content_block_start":
                return self._start_item(event, get_mapping(event, "content_block"))
            case "content_block_delta" | "content_block_stop":
                return self._forward(event)
            case "message_delta":
                delta = get_mapping(event, "delta")
                if self._finish(delta.get("stop_reason")):
                    return ()
                self._is_holding = False
                shown = {**event, "delta": self._end(delta)} if self._has_hidden_calls else event
                return (*self._release(), shown)
            case "message_stop" if self.is_continued:
                return ()
            case _:
                return (event,)


_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_BEGINNINGS: Final = ("response.created", "response.in_progress", "response.queued")


class _ResponsesHider(_ItemHider):
    items_key, number_key, call_type = "output", "output_index", "function_call"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._shown: list[Part] = []
        """The items of earlier replies that were shown."""
        self._sequence = 0
        self._id: object = None
        """The id of the first response, which all events have: OpenAI's library requires it."""

    def hide(self, reply: Part) -> Part:
        shown = self._show_items(reply)
        self._finish(reply.get("status", "completed"))
        return {**reply, "output": shown} if self._has_hidden_calls else reply

    def hide_event(self, event: Part) -> Sequence[Part]:
        return [self._number(shown) for shown in self._choose(event)]

    def _number(self, event: Part) -> Part:
        self._sequence += 1
        return {**event, "sequence_number": self._sequence - 1}

    def _choose(self, event: Part) -> Sequence[Part]:
        kind = event.get("type")
        if kind in _ENDS:
            return self._end(event, get_mapping(event, "response"))
        if kind in _BEGINNINGS:
            self._id = self._id or get_mapping(event, "response").get("id")
            return () if self.is_following else (event,)
        if kind == "response.output_item.added":
            return self._start_item(event, get_mapping(event, "item"))
        return self._forward(event) if self.number_key in event else (event,)

    def _end(self, event: Part, response: Part) -> Sequence[Part]:
        self._is_holding = False
        kept = self._show_items(response)
        if self._finish(to_text(response.get("status", "completed"))):
            self._shown += [item for item in kept if item.get("type") not in _THINKING]
            return ()
        output = [*self._shown, *kept]
        shown = {**response, "output": output}
        if self._id is not None:
            shown["id"] = self._id
        return (*self._release(), {**event, "response": shown})


class _GeminiHider(CallHider):
    def hide(self, reply: Part) -> Part:
        return next(iter(self._show(reply, is_whole=True)))

    def hide_event(self, event: Part) -> Sequence[Part]:
        return self._show(event, is_whole=False)

    def _show(self, event: Part, *, is_whole: bool) -> Sequence[Part]:
        candidates = filter_mappings(event.get("candidates"))
        if not candidates:
            return (event,)
        first, *rest = candidates
        content = get_mapping(first, "content")
        parts = filter_mappings(content.get("parts"))
        shown = [part for part in parts if not self._is_hidden_part(part)]
        reason = first.get("finishReason")
        is_continued = bool(reason) and self._finish(reason)
        if not is_whole and ((is_continued and not shown) or (parts and not shown and not reason)):
            return ()
        if is_continued and not is_whole:
            first = {key: value for key, value in first.items() if key != "finishReason"}
        if len(shown) == len(parts) and not is_continued:
            return (event,)
        return (
            {**event, "candidates": [{**first, "content": {**content, "parts": shown}}, *rest]},
        )

    def _is_hidden_part(self, part: Part) -> bool:
        return "functionCall" in part and self._is_hidden(get_mapping(part, "functionCall"))


_HIDERS: Final[Mapping[str, type[CallHider]]] = {
    CHAT.name: _ChatHider,
    ANTHROPIC.name: _AnthropicHider,
    RESPONSES.name: _ResponsesHider,
    GEMINI.name: _GeminiHider,
}


def create_hider(format: BodyFormat, name: str) -> CallHider:
    """Return what hides the calls of a tool in replies of a format."""
    return _HIDERS[format.name](name)
