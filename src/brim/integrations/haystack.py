"""Haystack: `CompactionHook(BrimCompactor(window=8192), context_window=8192, ...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from haystack.dataclasses import ChatMessage
from haystack.tools import Tool

from brim.integrations.adapter import AdapterSettings, MessageFitter, RunHistory, map_back


class BrimCompactor:
    """Fits the messages of an agent.

    Haystack replaces the agent's messages by the fitted ones, so the compactor keeps the whole
    `history`, and fits it again each time. `tools` are those of the agent, to be counted.
    """

    def __init__(self, tools: Sequence[Tool] = (), **settings: Unpack[AdapterSettings]) -> None:
        self._run = RunHistory[ChatMessage]()
        self._tools = [{"type": "function", "function": tool.tool_spec} for tool in tools]
        self._fitter = MessageFitter(**settings)

    @property
    def history(self) -> list[ChatMessage]:
        """All messages of the run."""
        return self._run.messages

    def compact(
        self, messages: list[ChatMessage], target_tokens: int = 0, token_counter: object = None
    ) -> list[ChatMessage] | None:
        """Return the messages that fit, or None if all do; the budget is brim's own."""
        history = self._run.extend(messages)
        bodies = [message.to_openai_dict_format() for message in history]
        fitted = self._fitter.fit(bodies, None, self._tools)
        sent = map_back(fitted, history, _create, _change)
        self._run.record(sent)
        return sent if sent != messages else None

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int = 0, token_counter: object = None
    ) -> list[ChatMessage] | None:
        return self.compact(messages)


def _create(body: dict[str, Any]) -> ChatMessage:
    return ChatMessage.from_openai_dict_format(body)


def _change(message: ChatMessage, body: dict[str, Any]) -> ChatMessage:
    """Return a copy with other text and the same name, id and metadata."""
    data, changed = message.to_dict(), _create(body).to_dict()
    return ChatMessage.from_dict({**data, "content": changed["content"]})
