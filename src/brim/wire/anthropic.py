"""Anthropic messages: content in blocks, results of tools inside of the user's messages.

A user's message with results is several turns: one for each result, then one for what else is in
it. A cut may take some of them and leave the others; the message is then made anew from the
blocks that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Final

from brim.errors import MessageError
from brim.messages import Call, Message, Role
from brim.wire import body_parts as shared
from brim.wire.body_parts import (
    MessageBuilder,
    Place,
    TurnSpan,
    copy_public,
    require_parts,
    strip_private,
    to_text,
)
from brim.wire.media_parts import block_media

if TYPE_CHECKING:
    from brim.wire.body_parts import PlanView

MESSAGES: Final = "messages"
"""Where the conversation stands in a body."""
SYSTEM: Final = "system"
REPLY_KEYS: Final = ("max_tokens",)

Block = Mapping[str, Any]

_ROLES: Final[Mapping[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
_TEXT: Final = ("text",)
_PLAIN: Final = frozenset(("type", "text", "cache_control"))
_THINKING: Final = ("thinking", "redacted_thinking")
_SERVER_CALLS: Final = ("server_tool_use", "mcp_tool_use")
_GET_THINKING: Final = attrgetter("thinking")


def fittable(body: Mapping[str, Any]) -> bool:
    """Whether the whole conversation is here: what a thread goes on from is kept by the server."""
    if "thread" not in body:
        return True
    thread = body["thread"]
    return not (isinstance(thread, Mapping) and thread.get("previous_message_id"))


class Reader:
    """Reads a conversation that grows, each message of it once."""

    def __init__(self) -> None:
        self._joining = shared.TurnGrouper(_find_offered_id, _iter_needed_ids)
        self._seen = 0
        self._head = -1
        """How many turns stand before the messages, once anything was read."""
        self._private = False
        self._last: Role = "system"
        """Who spoke last, system turns aside; of use while there is thinking that could go."""
        self._thinks = False
        """Whether the last assistant turn has such thinking."""

    def read(self, body: Mapping[str, Any]) -> list[Message] | None:
        """The turns that came since; None where they change how earlier ones are to be read."""
        messages, grouped = body[MESSAGES], self._joining.turns
        if len(messages) == self._seen and self._head >= 0:
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
        if self._head < 0:
            head = _system(body)
            self._head = len(head)
            turns = head + turns
        self._seen = len(messages)
        self._private = self._private or any(map(shared.IS_PRIVATE, turns))
        return turns

    def _join(self, source: _Source, index: int) -> int:
        """Take in the turns of a message; gives the first turn that is not as it was."""
        return min(
            self._joining.add(turn, [source.at(place) for place in turn.places])
            for turn in source.turns(index)
        )

    def _keep_thinking(self, turns: list[Message]) -> bool:
        """Make words of the thinking of a step whose results came together with the user's words.

        The API wants the thinking before the last results back, also where the user goes on in
        the same breath; but with the user's words the step is closed, and its thinking could go.
        False where that step was read before.
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

    def apply(self, body: Mapping[str, Any], plan: PlanView) -> Mapping[str, Any]:
        """The body that goes out: the same objects where nothing was touched, or all of it."""
        if not plan.is_trimmed and not self._private:
            return body
        source = _Source(body[MESSAGES])
        writing = _BodyWriter(source, self._joining.turns, self._head, self._private)
        out = {**body, MESSAGES: writing.messages(plan)}
        if self._head and plan.history.messages[0].private:
            out["system"] = [copy_public(block) for block in body["system"]]
        return out


class _Source:
    """The messages of a body and their blocks; a content of plain text is one block."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.messages: Sequence[Mapping[str, Any]] = messages
        self._blocks: dict[int, Sequence[Block]] = {}

    def blocks(self, index: int) -> Sequence[Block]:
        found = self._blocks.get(index)
        if found is None:
            found = self._blocks[index] = _blocks(self.messages[index])
        return found

    def at(self, place: Place) -> Block:
        message, number = place
        return self.blocks(message)[number] if number >= 0 else {}

    def turns(self, index: int) -> Iterator[TurnSpan]:
        """The turns of a message: one for each result and one for the rest."""
        _check_message(self.messages[index], index)
        blocks = self.blocks(index)
        role = _ROLES.get(self.messages[index]["role"], "other")
        rest: list[Place] = []
        for number, block in enumerate(blocks):
            if role == "user" and _is_result(block):
                yield TurnSpan("tool", [(index, number)])
            else:
                rest.append((index, number))
        if rest or not blocks:
            yield TurnSpan(role, rest or [(index, -1)])


def _read_plain_turn(raw: object, index: int) -> TurnSpan | None:
    """The turn of a message that is nothing but words, as most are: it needs no second look."""
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
    """What stands in the blocks of a content, where they are nothing but texts."""
    if type(content) is not list or not content or not all(map(_is_plain, content)):
        return None
    return tuple([block["text"] for block in content])


def _is_plain(block: object) -> bool:
    """Whether a block is a text that nothing is said about, but where a cache may end."""
    if type(block) is not dict or not block.keys() <= _PLAIN:
        return False
    return block.get("type") == "text" and type(block.get("text")) is str


def _check_message(raw: object, index: int) -> None:
    """Raise for what is no message."""
    message = shared.require_mapping(raw, index)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise MessageError(index, "has no role")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        require_parts(content, index, "content")


def _blocks(message: Block) -> Sequence[Block]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content or ()


def _find_offered_id(block: Block) -> str | None:
    name = block.get("id")
    return name if block.get("type") in _SERVER_CALLS and isinstance(name, str) else None


def _iter_needed_ids(block: Block) -> Iterator[str]:
    """The server's calls without which a block means nothing."""
    if block.get("type") != "tool_result" and isinstance(block.get("tool_use_id"), str):
        yield block["tool_use_id"]
    match block.get("caller"):
        case {"tool_id": str(name)}:
            yield name


def _is_result(block: Block) -> bool:
    return block.get("type") == "tool_result"


def _is_text(block: Block) -> bool:
    return shared.is_text(block, _TEXT)


# Reading


def _system(body: Mapping[str, Any]) -> list[Message]:
    system = body.get("system")
    if not system:
        return []
    texts = (system,) if type(system) is str else _texts(system)
    if texts is not None:
        return [Message("system", texts)]
    parts = MessageBuilder(0, _TEXT, block_media)
    parts.add_content(system, parts.words)
    return [parts.message("system", () if isinstance(system, str) else system)]


def _read_turn(turn: TurnSpan, source: _Source) -> Message:
    blocks = [source.at(place) for place in turn.places]
    numbers = list({message: None for message, _ in turn.places})
    sources = [*map(source.messages.__getitem__, numbers), *blocks]
    parts = MessageBuilder(numbers[0], _TEXT, block_media)
    try:
        if turn.role != "tool":
            _gather(parts, blocks)
            message = parts.message(turn.role, sources)
            beside = turn.role == "user" and any(map(_is_result, source.blocks(numbers[0])))
            return message._replace(beside=True) if beside else message
        parts.add_content(blocks[0].get("content"), parts.outputs)
        return parts.message("tool", sources, _answered_call_id(blocks[0]))
    except (RecursionError, ValueError) as error:
        raise shared.to_message_error(error, numbers[0]) from None


def _answered_call_id(block: Block) -> str | None:
    name = block.get("tool_use_id")
    return None if name is None else str(name)


def _gather(parts: MessageBuilder, blocks: Sequence[Block]) -> None:
    answered = {_answered_call_id(block) for block in blocks if _is_result(block)}
    for block in filter(None, blocks):
        if block.get("type") in _THINKING:
            parts.thinking.append(_thinking_text(block))
        elif block.get("type") == "tool_use" and str(block.get("id")) not in answered:
            parts.calls.append(_call(block))
        else:
            parts.add(block, parts.words)
    if parts.thinking and not (any(parts.words) or parts.calls or parts.media or parts.extras):
        # Without its thinking nothing would be left of the message, so it is not to go.
        parts.words, parts.thinking = _keep_as_text(parts.thinking, parts.words), []


def _thinking_text(block: Block) -> str:
    """What was thought; where the provider hides it, a text of about that size."""
    shown = block.get("thinking")
    if shown:
        return to_text(shown)
    return shared.shorten_encrypted(to_text(block.get("signature") or block.get("data") or ""))


def _call(block: Block) -> Call:
    name, given = block.get("name", ""), block.get("input", {})
    return Call(str(block.get("id", "")), str(name), to_text(given))


def _keep_as_text(thinking: Sequence[str], words: Sequence[str]) -> list[str]:
    """Thinking that must stay, before the words; there is always a place for a note after it."""
    return [*thinking, *(words or ("",))]


# Writing


class _BodyWriter:
    """The messages that go out by a plan."""

    def __init__(
        self, source: _Source, turns: Sequence[TurnSpan], head: int, private: bool
    ) -> None:
        self._source = source
        self._turns = turns
        self._head = head
        self._private = private
        """Whether any of them may have fields of brim's own."""
        self._written: dict[int, dict[int, Block | None]] = {}
        """For each message that is touched, what stands in place of which block, if anything."""
        self._notes: dict[Place, Block] = {}
        """What is said between the messages, by the block that it stands before."""

    def messages(self, plan: PlanView) -> list[Block]:
        self._write(plan)
        out: list[Block] = []
        last = -1
        for index, raw in enumerate(self._source.messages):
            for message in self._rebuilt(index) if index in self._written else (raw,):
                if index != last + 1 and out and _follows_results(out[-1], message):
                    content = [*out[-1]["content"], *_blocks(message)]
                    out[-1] = {**out[-1], **message, "content": content}
                else:
                    out.append(message)
                last = index
        return out

    def _write(self, plan: PlanView) -> None:
        seen = plan.history.messages
        for index in shared.find_dropped(plan):
            for place in self._places(index):
                self._put(place, None)
        for index, after in plan.changed_messages.items():
            places = self._places(index)
            for place, block in _rewrite_blocks(places, self._source, seen[index], after):
                self._put(place, block)
        for note in plan.notes:
            if note.role != "paragraph":
                self._notes[self._places(note.at)[0]] = {"role": note.role, "content": note.text}
                self._touch(note.at)
        for index in plan.sent_indices if self._private else ():
            if seen[index].private:
                self._touch(index)

    def _touch(self, index: int) -> None:
        """Have the messages of a turn made anew."""
        for message, _ in self._places(index):
            self._written.setdefault(message, {})

    def _put(self, place: Place, block: Block | None) -> None:
        self._written.setdefault(place[0], {})[place[1]] = block

    def _places(self, index: int) -> Sequence[Place]:
        """The blocks of a turn; none for the system text."""
        return self._turns[index - self._head].places if index >= self._head else ()

    def _rebuilt(self, index: int) -> Iterator[Block]:
        """A message of the blocks that stay, in parts where a note stands between them."""
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
        """A message of these blocks; itself where they are all that it had, as they were."""
        if self._private:
            raw, own = strip_private(raw), [strip_private(block) for block in own]
        if len(own) == len(before) and all(map(is_, own, before)):
            return raw
        if isinstance(raw.get("content"), str) and len(own) == 1:
            return {**raw, "content": own[0]["text"]}
        return {**raw, "content": own}


def _rewrite_blocks(
    places: Sequence[Place], source: _Source, before: Message, after: Message
) -> Iterator[tuple[Place, Block | None]]:
    """What was changed of a turn, by the place in which it stands."""
    blocks = [source.at(place) for place in places]
    if before.role == "tool":
        yield places[0], _write_result(blocks[0], after.outputs)
        return
    thoughts = [block for block in blocks if block.get("type") in _THINKING]
    texts = list(after.words if before.thinking else after.words[len(thoughts) :])
    for place, block in zip(places, blocks, strict=True):
        if block in thoughts and before.thinking and not after.thinking:
            yield place, None
        elif _is_text(block) and (text := texts.pop(0)) != block["text"]:
            yield place, {**block, "text": text}
    message = places[-1][0]
    for number, text in enumerate(filter(None, texts), len(source.blocks(message))):
        yield (message, number), {"type": "text", "text": text}


def _write_result(block: Block, outputs: Sequence[str]) -> Block:
    """A tool_result with other text; its other blocks and fields stay."""
    content = block.get("content")
    written: str | list[Block] = "".join(outputs)
    if content is not None and not isinstance(content, str):
        parts, left = shared.replace_texts(content, outputs, _TEXT)
        written = [*parts, *({"type": "text", "text": text} for text in left)]
    out = {**block, "content": written or ""}
    if not written and block.get("is_error"):
        del out["is_error"]  # an error without a text is refused
    return out


def _follows_results(last: Block, message: Block) -> bool:
    """Whether a user's words come right after results that they did not stand beside before.

    Then they go into the message of the results: not every server takes two of the user's.
    """
    if any(last[key] != message[key] for key in last.keys() & message.keys() - {"content"}):
        return False
    results, words = last["content"], message["content"]
    if isinstance(results, str) or not results or results[-1].get("type") != "tool_result":
        return False
    return bool(words) and (isinstance(words, str) or words[0].get("type") != "tool_result")
