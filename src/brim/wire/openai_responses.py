"""OpenAI responses: a list of items, several of which may form an assistant turn.

Consecutive reasoning, messages and calls are one turn; each output is a turn of its own. Reasoning
is signed and bound to the item after it, so it is dropped only with its whole turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from brim.errors import InputError, MessageError
from brim.messages import Call, Message, Role
from brim.wire.body_parts import (
    MessageBuilder,
    dump_opaque,
    is_text,
    read_image_data,
    read_input_media,
    replace_texts,
    require_mapping,
    strip_private,
    to_message_error,
    to_text,
)
from brim.wire.body_reader import (
    BodyReader,
    PlanView,
    TurnGrouper,
    TurnSpan,
    WrittenBody,
    find_dropped,
)
from brim.wire.notes import gap_note

Item = Mapping[str, Any]

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_REPLY_ITEMS: Final = frozenset(("reasoning", "compaction", "mcp_list_tools"))
_TEXT: Final = ("input_text", "output_text", "text")
_TAKES_TEXT: Final = tuple(
    f"{kind}_call_output" for kind in ("function", "custom_tool", "local_shell", "apply_patch")
)
_NOTE_END: Final = gap_note(2, 2).partition("about 2")[2]


def is_reply_item(kind: str) -> bool:
    """Whether this is the type of an item of a reply that is not a message."""
    return kind in _REPLY_ITEMS or kind.endswith("_call")


def is_item(value: object) -> bool:
    """Whether a value is an item that is not a message: one of a reply, or the output of a call."""
    role, kind = (
        (value.get("role"), value.get("type"))
        if isinstance(value, Mapping)
        else (getattr(value, "role", None), getattr(value, "type", None))
    )
    return not role and isinstance(kind, str) and is_reply_item(kind.removesuffix("_output"))


def has_references(body: Mapping[str, Any]) -> bool:
    """Whether the body refers to items that are kept by the server."""
    items = body.get("input")
    return isinstance(items, list | tuple) and any(
        isinstance(item, Mapping) and _is_reference(item) for item in items
    )


class ResponsesReader(BodyReader):
    """Reads items of OpenAI responses, several of which may be one turn."""

    def __init__(self) -> None:
        super().__init__()
        self._joining = TurnGrouper(_find_offered_id, _iter_needed_ids)
        self._turns: list[TurnSpan] = []
        self._leading = -1
        """Number of turns before the items; -1 until something was read."""
        self._last: Role = "system"
        """The role of the last item."""
        self._refers = False
        """Whether calls of the last assistant turn may be kept by the server."""

    def _read(self, body: Mapping[str, Any]) -> list[Message] | None:
        leading, given = [], body.get("input")
        if self._leading < 0 and (instructions := body.get("instructions")):
            leading = [Message("system", (to_text(instructions),))]
        if given is None:
            return leading
        if isinstance(given, str):
            return [*leading, Message("user", (given,))]
        items, start = _items(given, self._seen), len(self._turns)
        if not self._group(items):
            return None
        turns = [_read_turn(turn, items) for turn in self._turns[start:]]
        if not self._add_unseen_calls(turns, self._turns[start:], items):
            return None
        self._seen = len(items)
        self._leading = max(self._leading, len(leading))
        return leading + turns

    def _group(self, items: Sequence[Item]) -> bool:
        """Group new items into turns; return False if they continue an earlier turn."""
        own, start = len(self._turns), len(self._joining.turns)
        for turn in self._grouped(items):
            parts = [items[position] for position, _ in turn.positions]
            if turn.role == self._last == "assistant" or self._joining.add(turn, parts) < start:
                return False
            self._last = turn.role
        for turn in self._joining.turns[start:]:
            if not self._turns or not _is_separate_note(
                items[turn.positions[0][0]], self._turns[-1], items
            ):
                self._turns.append(turn)
            elif len(self._turns) > own:
                self._turns[-1].positions += turn.positions
            else:
                return False
        return True

    def _grouped(self, items: Sequence[Item]) -> list[TurnSpan]:
        """Return the new items as turns; consecutive assistant items are one turn."""
        turns: list[TurnSpan] = []
        for index in range(self._seen, len(items)):
            role = _role(items[index], index)
            if turns and role == turns[-1].role == "assistant":
                turns[-1].positions.append((index, 0))
            else:
                turns.append(TurnSpan(role, [(index, 0)]))
        return turns

    def _add_unseen_calls(
        self, messages: list[Message], turns: Sequence[TurnSpan], items: Sequence[Item]
    ) -> bool:
        """Add the calls that outputs answer to a turn with references: the server keeps them.

        Return False if that turn was read before.
        """
        caller = -1
        for index, (message, turn) in enumerate(zip(messages, turns, strict=True)):
            if message.role == "assistant":
                caller = index
                self._refers = any(_is_reference(items[position]) for position, _ in turn.positions)
            elif message.role in ("user", "other"):
                self._refers = False
            elif message.role == "tool" and self._refers:
                if caller < 0:
                    return False
                messages[caller] = _add_call(messages[caller], message.answers)
        return True

    def _write(self, body: Mapping[str, Any], plan: PlanView) -> WrittenBody:
        items = body.get("input")
        if items is None or isinstance(items, str):
            return WrittenBody(body)
        written, notes = self._written(items, plan)
        out: list[Item] = []
        origins: list[int | None] = []
        for position, item in enumerate(items):
            parts = written.get(position, [item])
            out += parts
            origins += [None if id(part) in notes else position for part in parts]
        return WrittenBody({**body, "input": out}, origins)

    def _written(
        self, items: Sequence[Item], plan: PlanView
    ) -> tuple[dict[int, list[Item]], set[int]]:
        """Return the replacements of items that are not sent unchanged, and the ids of notes."""
        seen, notes = plan.history.messages, set[int]()
        written: dict[int, list[Item]] = {}
        for index in find_dropped(plan):
            written.update((position, []) for position in self._positions(index))
        for index in plan.sent_indices if self._private else ():
            if seen[index].private:
                written.update(
                    (position, [strip_private(items[position])])
                    for position in self._positions(index)
                )
        for index, message in plan.changed_messages.items():
            positions = self._positions(index)
            own, added = _rewrite_items(
                [items[position] for position in positions], seen[index], message
            )
            written.update(
                (position, [strip_private(item)])
                for position, item in zip(positions, own, strict=True)
            )
            written[positions[-1]] += added
            notes.update(map(id, added))
        for note in plan.notes:
            if note.role != "paragraph":
                position = self._positions(note.at)[0]
                item = {"type": "message", "role": note.role, "content": note.text}
                written[position] = [item, *written.get(position, (items[position],))]
                notes.add(id(item))
        return written, notes

    def _positions(self, index: int) -> list[int]:
        """Return the positions of the items of a turn; none for the instructions."""
        turn = index - self._leading
        return [position for position, _ in self._turns[turn].positions] if turn >= 0 else []


def _items(given: object, start: int) -> Sequence[Item]:
    """Return the items of a body; those before `start` were checked before."""
    if not isinstance(given, Sequence):
        raise InputError(f"`input` must be text or a list of items, not {type(given).__name__}")
    for index in range(start, len(given)):
        require_mapping(given[index], index)
    return given


def _role(item: Item, index: int) -> Role:
    name, kind = item.get("role"), item.get("type")
    if isinstance(name, str) and name:
        return _ROLES.get(name, "other")
    if kind == "configuration_update":
        return "system"
    if (isinstance(kind, str) and kind) or (_is_reference(item) and "id" in item):
        return "assistant" if _answered_call_id(item) is None else "tool"
    raise MessageError(index, "has neither a role nor a type")


def _answered_call_id(item: Item) -> str | None:
    """Return the id of the call that an item is the output of."""
    match item:
        case {"type": "mcp_approval_response", "approval_request_id": str(name)}:
            return name
        case {"type": str(kind), "call_id": str(name)} if kind.endswith("_output"):
            return name
        case {"type": "local_shell_call_output", "id": str(name)}:
            return name
        case _:
            return None


def _is_separate_note(item: Item, last: TurnSpan, items: Sequence[Item]) -> bool:
    """Whether this is a note about a gap that the preceding output could not contain."""
    if last.role != "tool" or _takes_text(items[last.positions[0][0]]):
        return False
    match item:
        case {"role": "user", "content": [{"type": "input_text", "text": str(note)}]}:
            return note.startswith("[brim: ") and note.endswith(_NOTE_END)
        case _:
            return False


def _takes_text(output: Item) -> bool:
    return output.get("type") in _TAKES_TEXT or isinstance(output.get("output"), str)


def _find_offered_id(item: Item) -> str | None:
    name = item.get("call_id")
    return name if item.get("type") == "program" and isinstance(name, str) else None


def _iter_needed_ids(item: Item) -> Iterator[str]:
    """Return the programs that an item belongs to."""
    match item:
        case {"type": "program_output", "call_id": str(name)}:
            yield name
        case {"caller": {"caller_id": str(name)}}:
            yield name


# Reading


def _read_turn(turn: TurnSpan, items: Sequence[Item]) -> Message:
    own = [items[index] for index, _ in turn.positions]
    parts = MessageBuilder(turn.positions[0][0], _TEXT, read_input_media)
    try:
        if turn.role != "tool":
            _gather(parts, own)
            return parts.message(turn.role, own)
        _gather_output(parts, own[0])
        _gather(parts, own[1:])
        return parts.message("tool", own, _answered_call_id(own[0]))
    except (RecursionError, ValueError) as error:
        raise to_message_error(error, parts.index) from None


def _gather(parts: MessageBuilder, items: Sequence[Item]) -> None:
    answered = {_answered_call_id(item) for item in items}
    for item in items:
        call = _call(item)
        if _is_message(item):
            parts.add_content(item.get("content"), parts.words)
        elif call and call.id not in answered:
            parts.calls.append(call)
        elif item.get("type") == "image_generation_call" and item.get("result"):
            parts.media.append(read_image_data(to_text(item["result"])))
        else:
            parts.extras.append(dump_opaque(item))


def _gather_output(parts: MessageBuilder, item: Item) -> None:
    output = item.get("output")
    if isinstance(output, Mapping):
        parts.add(output, parts.outputs)
    elif output is not None:
        parts.add_content(output, parts.outputs)
    elif not _takes_text(item):
        parts.extras.append(dump_opaque(item))


def _is_message(item: Item) -> bool:
    return "role" in item and item.get("type") in (None, "message")


def _is_reference(item: Item) -> bool:
    """Whether an item is kept by the server; its type may be missing."""
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)


def _call(item: Item) -> Call | None:
    kind = item.get("type")
    name = item.get("id" if kind == "mcp_approval_request" else "call_id")
    if not isinstance(kind, str) or not isinstance(name, str):
        return None
    if kind in ("function_call", "custom_tool_call", "mcp_approval_request"):
        given = item.get("arguments", item.get("input", ""))
        return Call(name, str(item.get("name", "")), to_text(given))
    return Call(name, kind, dump_opaque(item)) if kind.endswith("_call") else None


def _add_call(message: Message, name: str | None) -> Message:
    """Return a turn that makes a call with this id."""
    if name is None or name in (call.id for call in message.calls):
        return message
    return message._replace(calls=(*message.calls, Call(name, "", "")))


# Writing


def _rewrite_items(
    items: Sequence[Item], before: Message, after: Message
) -> tuple[list[Item], list[Item]]:
    """Return the items of a turn with its changes, and the items to add."""
    if before.role == "tool":
        first, *rest = items
        if _takes_text(first):
            return [_replace_output(first, after.outputs), *rest], []
        return list(items), [
            {"role": "user", "content": [part]} for part in _input_texts(after.outputs)
        ]
    left = list(after.words)
    out: list[Item] = []
    for item in items:
        texts = _texts(item)
        own, left = left[: len(texts)], left[len(texts) :]
        out.append(item if own == texts else _replace_words(item, own))
    if before.role == "assistant":
        added = {"type": "message", "role": "assistant"}
        return out, [{**added, "content": text} for text in left]
    if left:
        content = [*(out[-1].get("content") or ()), *_input_texts(left)]
        out[-1] = {**out[-1], "content": content}
    return out, []


def _texts(item: Item) -> list[str]:
    content = item.get("content") if _is_message(item) else None
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if is_text(part, _TEXT)]


def _replace_words(item: Item, texts: Sequence[str]) -> Item:
    if isinstance(item["content"], str):
        return {**item, "content": texts[0]}
    return {**item, "content": replace_texts(item["content"], texts, _TEXT)}


def _replace_output(item: Item, texts: Sequence[str]) -> Item:
    output = item.get("output")
    if output is None or isinstance(output, str):
        return {**item, "output": "".join(texts)}
    given = [output] if isinstance(output, Mapping) else output
    return {**item, "output": replace_texts(given, texts, _TEXT) or ""}


def _input_texts(texts: Sequence[str]) -> list[Item]:
    return [{"type": "input_text", "text": text} for text in texts]
