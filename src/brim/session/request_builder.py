"""RequestBuilder: builds the body of a request from a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from brim import wire
from brim.fitting.plan import count_since_trim
from brim.wire import (
    anthropic,
    openai_chat,
    openai_responses,
    templates,
    to_anthropic,
    to_responses,
)
from brim.wire.json_copy import copy_json
from brim.wire.reply_parser import NATIVE_FIELDS

if TYPE_CHECKING:
    from brim.fitting.plan import Plan

FormatName = Literal["chat", "anthropic", "responses"]
FORMATS: Mapping[str, wire.Format] = {
    "chat": openai_chat,
    "anthropic": anthropic,
    "responses": openai_responses,
}


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Everything in a request except the conversation."""

    model: str | None
    system: str = ""
    system_role: str = "system"
    format: FormatName = "chat"
    rules: templates.TemplateRules = templates.PERMISSIVE
    tools: Sequence[Mapping[str, Any]] | None = None
    cache_marks: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def messages_key(self) -> str:
        return FORMATS[self.format].MESSAGES

    def build(self, turns: Sequence[Mapping[str, Any]], plan: Plan) -> dict[str, Any]:
        """Return the body: the planned turns in the provider's format, adapted to its template."""
        keep = () if self.format == "chat" else NATIVE_FIELDS
        messages = openai_chat.apply_to_messages(turns, plan, keep)
        if self.system:
            messages.insert(0, {"role": self.system_role, "content": self.system})
        shaped = templates.apply_template(messages, self.rules)
        body = {**self._build(shaped, plan), **copy_json(self.options)}
        return dict(wire.lower_reply_limit(body, plan, FORMATS[self.format]))

    def find_reply_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the reply limit of a body, or None if it has none."""
        limits = (body.get(key) for key in FORMATS[self.format].REPLY_KEYS)
        return max((limit for limit in limits if isinstance(limit, int)), default=None)

    def _build(self, messages: Sequence[Mapping[str, Any]], plan: Plan) -> dict[str, Any]:
        """Return a body that shares no objects with the history, so that callers may change it."""
        body: dict[str, Any]
        if self.format == "anthropic":
            body = copy_json(self._build_anthropic(messages, plan))
        elif self.format == "responses":
            built = to_responses.build(messages, model=self.model or "", tools=self.tools)
            body = copy_json(built)
        else:
            fields = {"model": self.model, "tools": copy_json(self.tools)}
            body = {"messages": [copy_json(message) for message in messages]}
            body |= {key: value for key, value in fields.items() if value is not None}
        return body

    def _build_anthropic(self, messages: Sequence[Mapping[str, Any]], plan: Plan) -> dict[str, Any]:
        body = to_anthropic.build(
            messages, model=self.model or "", tools=self.tools, max_tokens=plan.budget.reply
        )
        if not self.cache_marks:
            return body
        since = count_since_trim(plan)
        last = None if since is None else len(messages) - 1 - since
        boundary = None if last is None else to_anthropic.find_message_index(messages, last)
        return to_anthropic.add_cache_marks(body, boundary)
