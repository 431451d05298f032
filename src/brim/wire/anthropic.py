"""Anthropic messages: content in blocks, tool results inside user messages.

A user message with results is several turns: one per result, then one for the other blocks. If a
trim drops some of them, the message is rebuilt from the remaining blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any, Final

from brim.errors import MessageError
from brim.messages import Call, Message, Role
from brim.wire.body_parts import (
    THINKING_BLOCKS,
    MessageBuilder,
    copy_public,
    is_text,
    make_text,
    read_block_media,
    read_thinking,
    replace_texts,
    require_mapping,
    require_parts,
    strip_private,
    to_message_error,
    to_text,
)
from brim.wire.body_reader import (
    BodyReader,
    PlanView,
    Position,
    TurnGrouper,
    TurnSpan,
    WrittenBody,
    find_dropped,
)

Block = Mapping[str, Any]

_ROLES: Final[Mapping[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
_TEXT: Final = ("text",)
_PLAIN: Final = frozenset(("type", "text", "cache_control"))
_SERVER_CALLS: Final = ("server_tool_use", "mcp_tool_use")
_GET_THINKING: Final = attrgetter("thinking")


class AnthropicReader(BodyReader):
    """Reads Anthropic messages, each of which may be several turns."""

    def __init__(self) -> None:
        super().__init__()
        self._joining = TurnGrouper(_find_offered_id, _iter_needed_ids)
        self._leading = -1
        """Number of turns before the messages; -1 until something was read."""
        self._last: Role = "system"
        """The last role except system; needed while there is thinking that could be dropped."""
        self._thinks = False
        """Whether the last assistant turn has such thinking."""

    def _read(self, body: Mapping[str, Any]) -> list[Message] | None:
        messages, grouped = body["messages"], self._joining.turns
        if len(messages) == self._seen and self._leading >= 0:
            return []
        source, start = _Source(messages), len(grouped)
        for index in range(self._seen, len(messages)):
            if (plain := _read_plain_turn(messages[index], index)) is not None:
                grouped.append(plain)
            elif self._join(source, index) < start:
                return None
        turns = [turn.message or _read_turn(turn, source) for turn in grouped[start:]]
        if not self._keep_thinking(turns):
            return None
        if self._leading < 0:
            leading = _system(body)
            self._leading = len(leading)
            turns = leading + turns
        self._seen = len(messages)
        return turns

    def _join(self, source: _Source, index: int) -> int:
        """Add the turns of a message; return the index of the first turn that changed."""
        return min(
            self._joining.add(turn, [source.at(position) for position in turn.positions])
            for turn in source.turns(index)
        )

    def _keep_thinking(self, turns: list[Message]) -> bool:
        """Turn thinking into text if the results of its step are in one message with user text.

        The API requires the thinking before the last results even if user text follows them in the
        same message. But the user text closes the step, and the thinking of a closed step may be
        dropped. Return False if that step was read before.
        """
        if not self._thinks and not any(map(_GET_THINKING, turns)):
            return True
        caller = -1
        for index, turn in enumerate(turns):
            if turn.role == "assistant":
                caller, self._thinks = index, bool(turn.thinking)
            elif turn.role == "user" and self._last == "tool" and self._thinks:
                if caller < 0:
                    return False
                step = turns[caller]
                words = tuple(_keep_as_text(step.thinking, step.words))
                turns[caller] = step._replace(words=words, thinking=())
                self._thinks = False
            if turn.role != "system":
                self._last = turn.role
        return True

    def _write(self, body: Mapping[str, Any], plan: PlanView) -> WrittenBody:
        source = _Source(body["messages"])
        writing = _BodyWriter(source, self._joining.turns, self._leading, self._private)
        messages, origins = writing.messages(plan)
        out = {**body, "messages": messages}
        if self._leading and plan.history.messages[0].private:
            out["system"] = [copy_public(block) for block in body["system"]]
        return WrittenBody(out, origins)


class _Source:
    """The messages of a body and their blocks; plain text content is one block."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.messages: Sequence[Mapping[str, Any]] = messages
        self._blocks: dict[int, Sequence[Block]] = {}

    def blocks(self, index: int) -> Sequence[Block]:
        found = self._blocks.get(index)
        if found is None:
            found = self._blocks[index] = _blocks(self.messages[index])
        return found

    def at(self, position: Position) -> Block:
        message, number = position
        return self.blocks(message)[number] if number >= 0 else {}

    def turns(self, index: int) -> Iterator[TurnSpan]:
        """Return the turns of a message: one per result and one for the other blocks."""
        _check_message(self.messages[index], index)
        blocks = self.blocks(index)
        role = _ROLES.get(self.messages[index]["role"], "other")
        rest: list[Position] = []
        for number, block in enumerate(blocks):
            if role == "user" and _is_result(block):
                yield TurnSpan("tool", [(index, number)])
            else:
                rest.append((index, number))
        if rest or not blocks:
            yield TurnSpan(role, rest or [(index, -1)])


def _read_plain_turn(raw: object, index: int) -> TurnSpan | None:
    """Return the turn of a message that has only text, as most do; None for other messages."""
    if type(raw) is not dict or len(raw) != 2:
        return None
    name, content = raw.get("role"), raw.get("content")
    if type(name) is not str or not name:
        return None
    role = _ROLES.get(name, "other")
    if type(content) is str:
        return TurnSpan(role, [(index, 0)], Message(role, (content,)))
    texts = _texts(content)
    if texts is None:
        return None
    return TurnSpan(role, [(index, number) for number in range(len(texts))], Message(role, texts))


def _texts(content: object) -> tuple[str, ...] | None:
    """Return the texts of the blocks; None if one of them is not plain text."""
    if type(content) is not list or not content or not all(map(_is_plain, content)):
        return None
    return tuple([block["text"] for block in content])


def _is_plain(block: object) -> bool:
    """Whether a block has only text, and possibly a cache mark."""
    if type(block) is not dict or not block.keys() <= _PLAIN:
        return False
    return block.get("type") == "text" and type(block.get("text")) is str


def _check_message(raw: object, index: int) -> None:
    """Raise `MessageError` if it is not a message."""
    message = require_mapping(raw, index)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise MessageError(index, "has no role")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        require_parts(content, index, "content")


def _blocks(message: Block) -> Sequence[Block]:
    content = message.get("content")
    if isinstance(content, str):
        return [make_text(content)]
    return content or ()


def _find_offered_id(block: Block) -> str | None:
    name = block.get("id")
    return name if block.get("type") in _SERVER_CALLS and isinstance(name, str) else None


def _iter_needed_ids(block: Block) -> Iterator[str]:
    """Return the ids of the server-side calls that a block depends on."""
    if block.get("type") != "tool_result" and isinstance(block.get("tool_use_id"), str):
        yield block["tool_use_id"]
    match block.get("caller"):
        case {"tool_id": str(name)}:
            yield name


def _is_result(block: Block) -> bool:
    return block.get("type") == "tool_result"


# Reading


def _system(body: Mapping[str, Any]) -> list[Message]:
    system = body.get("system")
    if not system:
        return []
    texts = (system,) if type(system) is str else _texts(system)
    if texts is not None:
        return [Message("system", texts)]
    parts = MessageBuilder(0, _TEXT, read_block_media)
    parts.add_content(system, parts.words)
    return [parts.message("system", () if isinstance(system, str) else system)]


def _read_turn(turn: TurnSpan, source: _Source) -> Message:
    blocks = [source.at(position) for position in turn.positions]
    numbers = list({message: None for message, _ in turn.positions})
    sources = [*map(source.messages.__getitem__, numbers), *blocks]
    parts = MessageBuilder(numbers[0], _TEXT, read_block_media)
    try:
        if turn.role != "tool":
            _gather(parts, blocks)
            message = parts.message(turn.role, sources)
            follows_results = turn.role == "user" and any(
                map(_is_result, source.blocks(numbers[0]))
            )
            return message._replace(follows_results=True) if follows_results else message
        parts.add_content(blocks[0].get("content"), parts.outputs)
        return parts.message("tool", sources, _answered_call_id(blocks[0]))
    except (RecursionError, ValueError) as error:
        raise to_message_error(error, numbers[0]) from None


def _answered_call_id(block: Block) -> str | None:
    name = block.get("tool_use_id")
    return None if name is None else str(name)


def _gather(parts: MessageBuilder, blocks: Sequence[Block]) -> None:
    answered = {_answered_call_id(block) for block in blocks if _is_result(block)}
    for block in filter(None, blocks):
        if block.get("type") in THINKING_BLOCKS:
            parts.thinking.append(read_thinking(block))
        elif block.get("type") == "tool_use" and str(block.get("id")) not in answered:
            parts.calls.append(_call(block))
        else:
            parts.add(block, parts.words)
    if parts.thinking and not (any(parts.words) or parts.calls or parts.media or parts.extras):
        # Without its thinking the message would be empty, so the thinking is not dropped.
        parts.words, parts.thinking = _keep_as_text(parts.thinking, parts.words), []


def _call(block: Block) -> Call:
    name, given = block.get("name", ""), block.get("input", {})
    return Call(str(block.get("id", "")), str(name), to_text(given))


def _keep_as_text(thinking: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the thinking as text before the other text; a note can always follow it."""
    return [*thinking, *(words or ("",))]


# Writing


@dataclass(slots=True)
class _BodyWriter:
    """Writes the messages that are sent according to a plan."""

    _source: _Source
    _turns: Sequence[TurnSpan]
    _leading: int
    _private: bool
    """Whether any message may have reserved fields."""
    _written: dict[int, dict[int, Block | None]] = field(default_factory=dict)
    """Per changed message: the new block, or None if it is dropped, by block index."""
    _notes: dict[Position, Block] = field(default_factory=dict)
    """Notes between messages, by the block that they precede."""

    def messages(self, plan: PlanView) -> tuple[list[Block], list[int | None]]:
        """Return the messages, and the index of the input of each, None for a note."""
        self._write(plan)
        notes = {id(note) for note in self._notes.values()}
        out: list[Block] = []
        origins: list[int | None] = []
        last = -1
        for index, raw in enumerate(self._source.messages):
            for message in self._rebuilt(index) if index in self._written else (raw,):
                if index != last + 1 and out and _follows_results(out[-1], message):
                    content = [*out[-1]["content"], *_blocks(message)]
                    out[-1] = {**out[-1], **message, "content": content}
                else:
                    out.append(message)
                    origins.append(None if id(message) in notes else index)
                last = index
        return out, origins

    def _write(self, plan: PlanView) -> None:
        seen = plan.history.messages
        for index in find_dropped(plan):
            for position in self._positions(index):
                self._put(position, None)
        for index, after in plan.changed_messages.items():
            positions = self._positions(index)
            for position, block in _rewrite_blocks(positions, self._source, seen[index], after):
                self._put(position, block)
        for note in plan.notes:
            if note.role != "paragraph":
                self._notes[self._positions(note.at)[0]] = {"role": note.role, "content": note.text}
                self._touch(note.at)
        for index in plan.sent_indices if self._private else ():
            if seen[index].private:
                self._touch(index)

    def _touch(self, index: int) -> None:
        """Have the messages of a turn rebuilt."""
        for message, _ in self._positions(index):
            self._written.setdefault(message, {})

    def _put(self, position: Position, block: Block | None) -> None:
        self._written.setdefault(position[0], {})[position[1]] = block

    def _positions(self, index: int) -> Sequence[Position]:
        """Return the positions of the blocks of a turn; none for the system text."""
        return self._turns[index - self._leading].positions if index >= self._leading else ()

    def _rebuilt(self, index: int) -> Iterator[Block]:
        """Return a message of the remaining blocks, split where a note is inserted."""
        raw, before = self._source.messages[index], self._source.blocks(index)
        written = self._written[index]
        own: list[Block] = []
        if (index, -1) in self._notes:
            yield self._notes[index, -1]
        for number, block in {**dict(enumerate(before)), **written}.items():
            if number >= 0 and (index, number) in self._notes:
                if own:
                    yield self._message(raw, before, own)
                    own = []
                yield self._notes[index, number]
            if block is not None:
                own.append(block)
        if own or not (before or written):
            yield self._message(raw, before, own)

    def _message(self, raw: Block, before: Sequence[Block], own: Sequence[Block]) -> Block:
        """Return a message with these blocks; the same object if they are unchanged."""
        if self._private:
            raw, own = strip_private(raw), [strip_private(block) for block in own]
        if len(own) == len(before) and all(map(is_, own, before)):
            return raw
        if isinstance(raw.get("content"), str) and len(own) == 1:
            return {**raw, "content": own[0]["text"]}
        return {**raw, "content": own}


def _rewrite_blocks(
    positions: Sequence[Position], source: _Source, before: Message, after: Message
) -> Iterator[tuple[Position, Block | None]]:
    """Return the changed blocks of a turn with their positions."""
    blocks = [source.at(position) for position in positions]
    if before.role == "tool":
        yield positions[0], _write_result(blocks[0], after.outputs)
        return
    thoughts = [block for block in blocks if block.get("type") in THINKING_BLOCKS]
    texts = list(after.words if before.thinking else after.words[len(thoughts) :])
    for position, block in zip(positions, blocks, strict=True):
        if block in thoughts and before.thinking and not after.thinking:
            yield position, None
        elif is_text(block) and (text := texts.pop(0)) != block["text"]:
            yield position, {**block, "text": text}
    message = positions[-1][0]
    for number, text in enumerate(filter(None, texts), len(source.blocks(message))):
        yield (message, number), make_text(text)


def _write_result(block: Block, outputs: Sequence[str]) -> Block:
    """Return a tool_result with new text; its other blocks and fields stay."""
    content = block.get("content")
    written: str | list[Block] = "".join(outputs)
    if content is not None and not isinstance(content, str):
        written = replace_texts(content, outputs)
    out = {**block, "content": written or ""}
    if not written and block.get("is_error"):
        del out["is_error"]  # an error without text is rejected
    return out


def _follows_results(last: Block, message: Block) -> bool:
    """Whether user text now directly follows results that were in another message.

    Then it is added to the message of the results: not every server accepts two user messages in a
    row.
    """
    if any(last[key] != message[key] for key in last.keys() & message.keys() - {"content"}):
        return False
    results, words = last["content"], message["content"]
    if isinstance(results, str) or not results or results[-1].get("type") != "tool_result":
        return False
    return bool(words) and (isinstance(words, str) or words[0].get("type") != "tool_result")
