"""RequestBuilder: builds the body of a request from a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.fitting.plan import Plan, compare_chat_messages, count_since_trim
from brim.wire import openai_chat, to_anthropic
from brim.wire.body_parts import copy_json
from brim.wire.formats import (
    ANTHROPIC,
    CHAT,
    BodyFormat,
    lower_reply_limit,
)
from brim.wire.reply_parser import NATIVE_FIELDS
from brim.wire.template_adapter import apply_template
from brim.wire.template_rules import PERMISSIVE, TemplateRules


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Everything in a request except the conversation."""

    model: str | None
    system: str = ""
    system_role: str = "system"
    format: BodyFormat = CHAT
    rules: TemplateRules = PERMISSIVE
    allows_system: bool = False
    """Whether the template is known to accept a system message between two user messages."""
    tools: Sequence[Mapping[str, Any]] | None = None
    cache_marks: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    def build(self, turns: Sequence[Mapping[str, Any]], plan: Plan) -> dict[str, Any]:
        """Return the body: the planned turns in the provider's format, adapted to its template.

        It shares no objects with the history, so callers may change it.
        """
        keep = () if self.format is CHAT else NATIVE_FIELDS
        # A model that finds notes in its own turns imitates them.
        is_system = self.format is CHAT and self.allows_system
        messages = openai_chat.apply_to_messages(
            turns, plan, keep, separator="system" if is_system else "assistant"
        )
        if self.system:
            messages.insert(0, {"role": self.system_role, "content": self.system})
        shaped, reply = apply_template(messages, self.rules), plan.budget.reply
        body = self.format.build(
            shaped, model=self.model, reply=reply, tools=self.tools, options=self.options
        )
        if self.cache_marks and self.format is ANTHROPIC:
            body = _add_cache_marks(body, shaped, count_since_trim(plan))
        return dict(lower_reply_limit(copy_json(body), self.format, plan.reply_room, reply))

    def find_origins(self, plan: Plan) -> Sequence[tuple[int | None, bool]]:
        """Return the turn of each message and whether it changed; nothing if they are converted."""
        if self.format is not CHAT or not self.rules.free:
            return ()
        system = [(None, True)] if self.system else []
        return [*system, *compare_chat_messages(plan)]


def _add_cache_marks(
    body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], since: int | None
) -> dict[str, Any]:
    """Mark a body for the provider's cache; `since` messages came after the last trim."""
    last = None if since is None else len(messages) - 1 - since
    boundary = None if last is None else to_anthropic.find_message_index(messages, last)
    return to_anthropic.add_cache_marks(body, boundary)
