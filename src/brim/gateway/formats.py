"""The paths of the body formats, and how the gateway detects the format of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brim import wire
from brim.errors import InputError
from brim.wire.formats import ANTHROPIC, CHAT, FORMATS, RESPONSES, BodyFormat

PATHS: Final[Mapping[str, BodyFormat]] = {
    path: format for format in FORMATS.values() for path in (format.versioned_path, format.path)
}
"""Paths of each format; some clients omit the version."""
MAX_MODEL_LENGTH: Final = 256
"""Characters of a model's name, which is a key of several caches."""


def detect_format(asked: BodyFormat, body: Mapping[str, Any]) -> BodyFormat:
    """Return the format of a body: that of its path, unless its shape can only be another.

    Some clients post the body of one format to the path of another.
    """
    if "messages" not in body and "input" in body:
        return RESPONSES
    if asked is RESPONSES and "messages" in body and "input" not in body:
        return ANTHROPIC if wire.detect_format(body) is ANTHROPIC else CHAT
    if asked is CHAT and "system" in body and isinstance(body["system"], str | list):
        return ANTHROPIC
    if asked is ANTHROPIC and _is_chat_only(body):
        return CHAT
    return asked


def check_conversation(format: BodyFormat, body: Mapping[str, Any]) -> None:
    """Raise `InputError` if the messages of a body are not a list.

    The parser of the responses format checks its own input.
    """
    if isinstance(model := body.get("model"), str) and len(model) > MAX_MODEL_LENGTH:
        raise InputError(f"`model` is too long. Use at most {MAX_MODEL_LENGTH} characters.")
    if format is not RESPONSES and not isinstance(body.get(format.messages_key), list):
        raise InputError(f"`{format.messages_key}` must be a list of messages.")


_CHAT_ROLES: Final = ("developer", "tool", "function")


def _is_chat_only(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (
            message.get("role") in _CHAT_ROLES or "tool_calls" in message
        ):
            return True
    return False
