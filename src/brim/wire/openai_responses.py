"""OpenAI responses: a list of items, of which an assistant's turn may take several.

Reasoning, messages and calls that follow each other are one turn; each output is a turn of its
own. Reasoning is signed and bound to the item after it, so it leaves only with its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError, MessageError
from brim.marks import gap_note
from brim.messages import Call, Message, Role
from brim.wire import turns as shared
from brim.wire.media import image_data, input_media
from brim.wire.turns import Parts, Turn, is_private, opaque, public, text_of

if TYPE_CHECKING:
    from brim.plan import Plan

MESSAGES: Final = "input"
"""Where the conversation stands in a body."""
REPLY_KEYS: Final = ("max_output_tokens",)

Item = Mapping[str, Any]
Entry = tuple[int, int, Item]
"""What goes out, by its place: the item, and whether it stands before it (0), there or after it."""

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT: Final = ("input_text", "output_text", "text")
_TAKES_TEXT: Final = tuple(
    f"{kind}_call_output" for kind in ("function", "custom_tool", "local_shell", "apply_patch")
)
_NOTE_END: Final = gap_note(2, 2).partition(" tokens)")[2]


def fittable(body: Mapping[str, Any]) -> bool:
    """Whether the whole conversation is here: what the server keeps can only be relayed."""
    return not body.get("previous_response_id") and not body.get("conversation")


def view(body: Mapping[str, Any]) -> list[Message]:
    """The turns of a body, the instructions first."""
    given = body.get(MESSAGES)
    head = _instructions(body)
    if given is None:
        return head
    if isinstance(given, str):
        return [*head, Message("user", (given,))]
    items = _items(given)
    turns = _turns(items)
    messages = [_read(turn, items) for turn in turns]
    return head + _with_unseen_calls(messages, turns, items)


def _instructions(body: Mapping[str, Any]) -> list[Message]:
    instructions = body.get("instructions")
    return [Message("system", (text_of(instructions),))] if instructions else []


def _items(given: object) -> list[Item]:
    if not isinstance(given, Sequence):
        raise InputError(f"`input` must be text or a list of items, not {type(given).__name__}")
    return [shared.mapping(item, index) for index, item in enumerate(given)]


def _turns(items: Sequence[Item]) -> list[Turn]:
    grouped: list[Turn] = []
    for index, item in enumerate(items):
        role = _role(item, index)
        if grouped and role == grouped[-1].role == "assistant":
            grouped[-1].places.append((index, 0))
        else:
            grouped.append(Turn(role, [(index, 0)]))
    turns: list[Turn] = []
    for turn in shared.joined(grouped, lambda place: items[place[0]], _offers, _needs):
        if turns and _is_aside(items[turn.places[0][0]], turns[-1], items):
            turns[-1].places += turn.places
        else:
            turns.append(turn)
    return turns


def _role(item: Item, index: int) -> Role:
    name, kind = item.get("role"), item.get("type")
    if isinstance(name, str) and name:
        return _ROLES.get(name, "other")
    if kind == "configuration_update":
        return "system"
    if (isinstance(kind, str) and kind) or (_is_reference(item) and "id" in item):
        return "assistant" if _answers(item) is None else "tool"
    raise MessageError(index, "has neither a role nor a type")


def _answers(item: Item) -> str | None:
    """The id of the call that an item is the output of."""
    match item:
        case {"type": "mcp_approval_response", "approval_request_id": str(name)}:
            return name
        case {"type": str(kind), "call_id": str(name)} if kind.endswith("_output"):
            return name
        case {"type": "local_shell_call_output", "id": str(name)}:
            return name
        case _:
            return None


def _is_aside(item: Item, last: Turn, items: Sequence[Item]) -> bool:
    """Whether this is a note about a gap, for which the output before it had no place."""
    if last.role != "tool" or _takes_text(items[last.places[0][0]]):
        return False
    match item:
        case {"role": "user", "content": [{"type": "input_text", "text": str(note)}]}:
            return note.startswith("[brim: ") and note.endswith(_NOTE_END)
        case _:
            return False


def _takes_text(output: Item) -> bool:
    return output.get("type") in _TAKES_TEXT or isinstance(output.get("output"), str)


def _offers(item: Item) -> str | None:
    name = item.get("call_id")
    return name if item.get("type") == "program" and isinstance(name, str) else None


def _needs(item: Item) -> Iterator[str]:
    """The programs that an item belongs to."""
    match item:
        case {"type": "program_output", "call_id": str(name)}:
            yield name
        case {"caller": {"caller_id": str(name)}}:
            yield name


# Reading


def _read(turn: Turn, items: Sequence[Item]) -> Message:
    own = [items[index] for index, _ in turn.places]
    parts = Parts(turn.places[0][0], _TEXT, input_media)
    with shared.reading(parts.index):
        if turn.role != "tool":
            _gather(parts, own)
            return parts.message(turn.role, own)
        _gather_output(parts, own[0])
        _gather(parts, own[1:])
        return parts.message("tool", own, _answers(own[0]))


def _gather(parts: Parts, items: Sequence[Item]) -> None:
    answered = {_answers(item) for item in items}
    for item in items:
        call = _call(item)
        if _is_message(item):
            parts.add_content(item.get("content"), parts.words)
        elif call and call.id not in answered:
            parts.calls.append(call)
        elif item.get("type") == "image_generation_call" and item.get("result"):
            parts.media.append(image_data(text_of(item["result"])))
        else:
            parts.extras.append(opaque(item))


def _gather_output(parts: Parts, item: Item) -> None:
    output = item.get("output")
    if isinstance(output, Mapping):
        parts.add(output, parts.outputs)
    elif output is not None:
        parts.add_content(output, parts.outputs)
    elif not _takes_text(item):
        parts.extras.append(opaque(item))


def _is_message(item: Item) -> bool:
    return "role" in item and item.get("type") in (None, "message")


def _is_reference(item: Item) -> bool:
    """Whether an item stands on the server; its type may be left out."""
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)


def _call(item: Item) -> Call | None:
    kind = item.get("type")
    name = item.get("id" if kind == "mcp_approval_request" else "call_id")
    if not isinstance(kind, str) or not isinstance(name, str):
        return None
    if kind in ("function_call", "custom_tool_call", "mcp_approval_request"):
        given = item.get("arguments", item.get("input", ""))
        return Call(name, str(item.get("name", "")), text_of(given))
    return Call(name, kind, opaque(item)) if kind.endswith("_call") else None


def _with_unseen_calls(
    messages: list[Message], turns: Sequence[Turn], items: Sequence[Item]
) -> list[Message]:
    """Give a turn with references the calls that its outputs answer: they stand on the server."""
    caller = -1
    for index, (message, turn) in enumerate(zip(messages, turns, strict=True)):
        if message.role == "assistant":
            caller = index if any(_is_reference(items[place]) for place, _ in turn.places) else -1
        elif message.role in ("user", "other"):
            caller = -1
        elif message.role == "tool" and caller >= 0:
            calls = messages[caller].calls
            if message.answers is not None and message.answers not in {call.id for call in calls}:
                unseen = Call(message.answers, "", "")
                messages[caller] = replace(messages[caller], calls=(*calls, unseen))
    return messages


# Writing


def apply(body: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The body that goes out: the same objects where nothing was touched."""
    given = body.get(MESSAGES)
    if given is None or isinstance(given, str):
        return dict(body)
    if shared.is_untouched(plan):
        return {**body, MESSAGES: list(given)}
    items = _items(given)
    entries = sorted(_entries(items, plan, len(_instructions(body))), key=lambda entry: entry[:2])
    return {**body, MESSAGES: [item for *_, item in entries]}


def _entries(items: Sequence[Item], plan: Plan, head: int) -> Iterator[Entry]:
    turns = _turns(items)
    seen, changed = plan.history.messages, plan.changed
    notes = {note.at: note for note in plan.notes if note.role != "paragraph"}
    for index in plan.kept[head:]:
        places = [place for place, _ in turns[index - head].places]
        own = [items[place] for place in places]
        if index in notes:
            note = notes[index]
            yield places[0], 0, {"role": note.role, "content": note.text}
        added: list[Item] = []
        if index in changed:
            own, added = _written(own, seen[index], changed[index])
        for place, item in zip(places, own, strict=True):
            yield place, 1, public(item) if is_private(item) else item
        for item in added:
            yield places[-1], 2, item


def _written(
    items: Sequence[Item], before: Message, after: Message
) -> tuple[list[Item], list[Item]]:
    """The items of a turn with what was changed of it put in, and those to be added."""
    if before.role == "tool":
        first, *rest = items
        if _takes_text(first):
            return [_with_output(first, after.outputs), *rest], []
        return list(items), [
            {"role": "user", "content": [part]} for part in _input_texts(after.outputs)
        ]
    left = list(after.words)
    out: list[Item] = []
    for item in items:
        texts = _texts(item)
        own, left = left[: len(texts)], left[len(texts) :]
        out.append(item if own == texts else _with_words(item, own))
    if before.role == "assistant":
        return out, [{"role": "assistant", "content": text} for text in left]
    if left:
        content = [*(out[-1].get("content") or ()), *_input_texts(left)]
        out[-1] = {**out[-1], "content": content}
    return out, []


def _texts(item: Item) -> list[str]:
    content = item.get("content") if _is_message(item) else None
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if shared.is_text(part, _TEXT)]


def _with_words(item: Item, texts: Sequence[str]) -> Item:
    if isinstance(item["content"], str):
        return {**item, "content": texts[0]}
    return {**item, "content": shared.with_texts(item["content"], texts, _TEXT)[0]}


def _with_output(item: Item, texts: Sequence[str]) -> Item:
    output = item.get("output")
    if output is None or isinstance(output, str):
        return {**item, "output": "".join(texts)}
    given = [output] if isinstance(output, Mapping) else output
    parts, left = shared.with_texts(given, texts, _TEXT)
    return {**item, "output": [*parts, *_input_texts(left)] or ""}


def _input_texts(texts: Sequence[str]) -> list[Item]:
    return [{"type": "input_text", "text": text} for text in texts]
