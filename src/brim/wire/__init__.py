"""The formats that go over the wire, each read into messages and written back from a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from brim.errors import InputError
from brim.wire import openai_chat

if TYPE_CHECKING:
    from brim.messages import Message
    from brim.plan import Plan


class Format(Protocol):
    """What each format's module offers."""

    MESSAGES: str
    """The key of a body under which the conversation stands."""
    REPLY_KEYS: Sequence[str]
    """The keys under which a caller says how long the answer may be."""

    def view(self, body: Mapping[str, Any]) -> list[Message]: ...

    def apply(self, body: Mapping[str, Any], plan: Plan) -> dict[str, Any]: ...


def format_of(body: Mapping[str, Any]) -> Format:
    """The format of a request body, told by its shape."""
    if not isinstance(body.get("messages"), Sequence) or isinstance(body.get("messages"), str):
        raise InputError("a request body has a list of `messages`, or an `input`")
    return openai_chat
