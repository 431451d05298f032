"""Anthropic messages: content in blocks, results of tools inside of the user's messages.

A user's message with results is several turns: one for each result, then one for what else is in
it. A cut may take some of them and leave the others; the message is then made anew from the
blocks that stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from brim.errors import MessageError
from brim.messages import Call, Message, Role
from brim.wire import turns as shared
from brim.wire.media import block_media
from brim.wire.turns import Parts, Place, Turn, is_private, parts_of, public, text_of

if TYPE_CHECKING:
    from brim.plan import Plan

MESSAGES: Final = "messages"
"""Where the conversation stands in a body."""
REPLY_KEYS: Final = ("max_tokens",)

Block = Mapping[str, Any]
Entry = tuple[int, int, int, Block]
"""What goes out, by its place: message, block, and 0 for a note that stands before it."""

_ROLES: Final[Mapping[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
_TEXT: Final = ("text",)
_THINKING: Final = ("thinking", "redacted_thinking")
_SERVER_CALLS: Final = ("server_tool_use", "mcp_tool_use")


def view(body: Mapping[str, Any]) -> list[Message]:
    """The turns of a body, the system text first."""
    source = _Source(body[MESSAGES])
    turns = [_read(turn, source) for turn in source.turns()]
    return _system(body) + _with_kept_thinking(turns)


class _Source:
    """The messages of a body and their blocks; a content of plain text is one block."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.messages: Sequence[Mapping[str, Any]] = messages
        self.blocks = [_blocks(raw, index) for index, raw in enumerate(messages)]

    def at(self, place: Place) -> Block:
        message, number = place
        return self.blocks[message][number] if number >= 0 else {}

    def turns(self) -> list[Turn]:
        """A turn for each result, and one for the rest of a message."""
        turns: list[Turn] = []
        for index, (raw, blocks) in enumerate(zip(self.messages, self.blocks, strict=True)):
            role = _ROLES.get(raw["role"], "other")
            rest: list[Place] = []
            for number, block in enumerate(blocks):
                if role == "user" and block.get("type") == "tool_result":
                    turns.append(Turn("tool", [(index, number)]))
                else:
                    rest.append((index, number))
            if rest or not blocks:
                turns.append(Turn(role, rest or [(index, -1)]))
        return shared.joined(turns, self.at, _offers, _needs)


def _blocks(raw: object, index: int) -> list[Block]:
    message = shared.mapping(raw, index)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise MessageError(index, "has no role")
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [] if content is None else parts_of(content, index, "content")


def _offers(block: Block) -> str | None:
    name = block.get("id")
    return name if block.get("type") in _SERVER_CALLS and isinstance(name, str) else None


def _needs(block: Block) -> Iterator[str]:
    """The server's calls without which a block means nothing."""
    if block.get("type") != "tool_result" and isinstance(block.get("tool_use_id"), str):
        yield block["tool_use_id"]
    match block.get("caller"):
        case {"tool_id": str(name)}:
            yield name


def _is_text(block: Block) -> bool:
    return shared.is_text(block, _TEXT)


# Reading


def _system(body: Mapping[str, Any]) -> list[Message]:
    system = body.get("system")
    if not system:
        return []
    parts = Parts(0, _TEXT, block_media)
    parts.add_content(system, parts.words)
    return [parts.message("system", () if isinstance(system, str) else system)]


def _read(turn: Turn, source: _Source) -> Message:
    blocks = [source.at(place) for place in turn.places]
    numbers = list(dict.fromkeys(message for message, _ in turn.places))
    sources = [*(source.messages[number] for number in numbers), *blocks]
    parts = Parts(numbers[0], _TEXT, block_media)
    with shared.reading(numbers[0]):
        if turn.role != "tool":
            _gather(parts, blocks)
            return parts.message(turn.role, sources)
        parts.add_content(blocks[0].get("content"), parts.outputs)
        return parts.message("tool", sources, _answers(blocks[0]))


def _answers(block: Block) -> str | None:
    name = block.get("tool_use_id")
    return None if name is None else str(name)


def _gather(parts: Parts, blocks: Sequence[Block]) -> None:
    answered = {_answers(block) for block in blocks if block.get("type") == "tool_result"}
    for block in filter(None, blocks):
        if block.get("type") in _THINKING:
            parts.thinking.append(_thought(block))
        elif block.get("type") == "tool_use" and str(block.get("id")) not in answered:
            parts.calls.append(_call(block))
        else:
            parts.add(block, parts.words)
    if parts.thinking and not (any(parts.words) or parts.calls or parts.media or parts.extras):
        # Without its thinking nothing would be left of the message, so it is not to go.
        parts.words, parts.thinking = _as_words(parts.thinking, parts.words), []


def _thought(block: Block) -> str:
    """What was thought; where the provider hides it, a text of about that size."""
    shown = block.get("thinking")
    if shown:
        return text_of(shown)
    return shared.hidden(text_of(block.get("signature") or block.get("data") or ""))


def _call(block: Block) -> Call:
    name, given = block.get("name", ""), block.get("input", {})
    return Call(str(block.get("id", "")), str(name), text_of(given))


def _as_words(thinking: Sequence[str], words: Sequence[str]) -> list[str]:
    """Thinking that must stay, before the words; there is always a place for a note after it."""
    return [*thinking, *(words or ("",))]


def _with_kept_thinking(turns: list[Message]) -> list[Message]:
    """Make words of the thinking of a step whose results came together with the user's words.

    The API wants the thinking before the last results back, also where the user goes on in the
    same breath; but with the user's words the step is closed, and its thinking could go.
    """
    caller, before = -1, ""
    for index, message in enumerate(turns):
        if message.role == "assistant":
            caller = index
        elif message.role == "user" and before == "tool" and caller >= 0:
            step = turns[caller]
            if step.thinking:
                words = tuple(_as_words(step.thinking, step.words))
                turns[caller] = replace(step, words=words, thinking=())
        if message.role != "system":
            before = message.role
    return turns


# Writing


def apply(body: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The body that goes out: the same objects where nothing was touched."""
    if shared.is_untouched(plan):
        return {**body, MESSAGES: list(body[MESSAGES])}
    head = len(_system(body))
    out = {**body, MESSAGES: _messages(_Source(body[MESSAGES]), plan, head)}
    if head and plan.history.messages[0].private:
        out["system"] = [public(block) for block in body["system"]]
    return out


def _messages(source: _Source, plan: Plan, head: int) -> list[Block]:
    entries = sorted(_entries(source, plan, head), key=lambda entry: entry[:3])
    out: list[Block] = []
    last = -1
    for (index, is_block), group in groupby(entries, key=lambda entry: (entry[0], entry[2])):
        if not is_block:
            out += [note for *_, note in group]
            continue
        blocks = [block for _, number, _, block in group if number >= 0]
        message = _rebuilt(source.messages[index], source.blocks[index], blocks)
        if out and index != last + 1 and _continues(out[-1], message):
            content = [*out[-1]["content"], *_blocks(message, index)]
            out[-1] = {**out[-1], **message, "content": content}
        else:
            out.append(message)
        last = index
    return out


def _entries(source: _Source, plan: Plan, head: int) -> Iterator[Entry]:
    turns = source.turns()
    seen, changed = plan.history.messages, plan.changed
    notes = {note.at: note for note in plan.notes if note.role != "paragraph"}
    for index in plan.kept[head:]:
        turn = turns[index - head]
        if index in notes:
            note = notes[index]
            yield *turn.places[0], 0, {"role": note.role, "content": note.text}
        if index in changed:
            yield from _written(turn, source, seen[index], changed[index])
        else:
            for place in turn.places:
                yield *place, 1, source.at(place)


def _written(turn: Turn, source: _Source, before: Message, after: Message) -> Iterator[Entry]:
    """The blocks of a turn with what was changed of it put in."""
    blocks = [source.at(place) for place in turn.places]
    thoughts = [block for block in blocks if block.get("type") in _THINKING]
    texts = list(after.words if before.thinking else after.words[len(thoughts) :])
    for place, block in zip(turn.places, blocks, strict=True):
        if block in thoughts and before.thinking and not after.thinking:
            continue
        if turn.role == "tool":
            yield *place, 1, _write_result(block, after.outputs)
        elif _is_text(block) and (text := texts.pop(0)) != block["text"]:
            yield *place, 1, {**block, "text": text}
        else:
            yield *place, 1, block
    message = turn.places[-1][0]
    for text in filter(None, texts):
        yield message, len(source.blocks[message]), 1, {"type": "text", "text": text}


def _write_result(block: Block, outputs: Sequence[str]) -> Block:
    """A tool_result with other text; its other blocks and fields stay."""
    content = block.get("content")
    written: str | list[Block] = "".join(outputs)
    if content is not None and not isinstance(content, str):
        parts, left = shared.with_texts(content, outputs, _TEXT)
        written = [*parts, *({"type": "text", "text": text} for text in left)]
    out = {**block, "content": written or ""}
    if not written and block.get("is_error"):
        del out["is_error"]  # an error without a text is refused
    return out


def _rebuilt(raw: Block, before: Sequence[Block], blocks: Iterable[Block]) -> Block:
    """A message of the blocks that stay; itself where all of them do, as they were."""
    own = [public(block) if is_private(block) else block for block in blocks]
    if len(own) == len(before) and all(map(is_, own, before)):
        return public(raw) if is_private(raw) else raw
    if isinstance(raw.get("content"), str) and len(own) == 1:
        return {**public(raw), "content": own[0]["text"]}
    return {**public(raw), "content": own}


def _continues(last: Block, message: Block) -> bool:
    """Whether a user's words come right after results that they did not stand beside before.

    Then they go into the message of the results: not every server takes two of the user's.
    """
    if any(last[key] != message[key] for key in last.keys() & message.keys() - {"content"}):
        return False
    results, words = last["content"], message["content"]
    if isinstance(results, str) or not results or results[-1].get("type") != "tool_result":
        return False
    return bool(words) and (isinstance(words, str) or words[0].get("type") != "tool_result")
