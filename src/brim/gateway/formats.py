"""Forms: the three formats as the gateway's clients speak them, and what tells one from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brim import wire
from brim.errors import InputError
from brim.wire import anthropic, openai_chat, openai_responses

if TYPE_CHECKING:
    from brim.providers.endpoint import ApiFormat


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """One format: where it is asked for, and how it is read."""

    name: ApiFormat
    path: str
    wire: wire.Format
    title: str
    """What people call it."""

    @property
    def param(self) -> str:
        """The field of a body that an error about its length names."""
        return self.wire.MESSAGES


CHAT: Final = BodyFormat("openai", "/v1/chat/completions", openai_chat, "OpenAI chat completions")
MESSAGES: Final = BodyFormat("anthropic", "/v1/messages", anthropic, "Anthropic messages")
RESPONSES: Final = BodyFormat("responses", "/v1/responses", openai_responses, "OpenAI responses")
FORMATS: Final[Mapping[str, BodyFormat]] = {form.name: form for form in (CHAT, MESSAGES, RESPONSES)}
PATHS: Final[Mapping[str, BodyFormat]] = {
    path: form for form in FORMATS.values() for path in (form.path, form.path.removeprefix("/v1"))
}
"""Where each is asked for; some clients leave the version out."""
MAX_MODEL_LENGTH: Final = 256
"""Characters of a model's name; much is remembered by it."""


def detect_format(asked: BodyFormat, body: Mapping[str, Any]) -> BodyFormat:
    """What a body is: what its path says, unless its shape can only be another.

    Some clients post the body of one format to the path of another. A body that both could be is
    what the path says.
    """
    if "messages" not in body and "input" in body:
        return RESPONSES
    if asked is RESPONSES and "messages" in body and "input" not in body:
        return FORMATS["anthropic" if wire.detect_format(body) is anthropic else "openai"]
    if asked is CHAT and "system" in body and isinstance(body["system"], str | list):
        return MESSAGES
    if asked is MESSAGES and _is_chat_only(body):
        return CHAT
    return asked


def check_conversation(form: BodyFormat, body: Mapping[str, Any]) -> None:
    """Raise where the messages of a body are no list; of responses its reader knows more kinds."""
    if isinstance(model := body.get("model"), str) and len(model) > MAX_MODEL_LENGTH:
        raise InputError(f"`model` has more than {MAX_MODEL_LENGTH} characters, which no name has")
    if form is not RESPONSES and not isinstance(body.get(form.wire.MESSAGES), list):
        raise InputError(f"`{form.param}` must be a list of messages")


_CHAT_ROLES: Final = ("developer", "tool", "function")


def _is_chat_only(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (
            message.get("role") in _CHAT_ROLES or "tool_calls" in message
        ):
            return True
    return False
