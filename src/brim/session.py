"""Session: a conversation that grows, and the request for its next turn.

It talks to nobody: it hands out a request and takes in what was said. Nothing is ever removed
from its history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brim.budget import budget_for
from brim.errors import MessageError
from brim.memory import copied
from brim.planner import Planner
from brim.policies import policy_of
from brim.request import Request
from brim.tokens import counter_for
from brim.wire import openai_chat

if TYPE_CHECKING:
    from brim.passes import Pass
    from brim.policies import Policy
    from brim.tokens import Tokenizer

_ROLES = ("system", "developer", "user", "assistant", "tool")


class Session:
    """A whole conversation; one more turn costs work for that turn."""

    def __init__(
        self,
        model: str | None = None,
        *,
        system: str | None = None,
        window: int | None = None,
        reply: int | None = None,
        policy: str | Policy | Sequence[Pass] = "steady",
        keep_recent: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenizer: Tokenizer | str | None = None,
    ) -> None:
        counter = counter_for(model, tokenizer=tokenizer)
        self.budget = budget_for(model, window, reply, counter.uncertainty)
        chosen = policy_of(policy, keep_recent=keep_recent)
        self._planner = Planner(counter, self.budget, chosen, tools or ())
        self._beside = {"model": model, "tools": tools}
        self._messages: list[dict[str, Any]] = []
        self._system = 0
        if system is not None:
            self.append({"role": "system", "content": system})

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """Every turn, whole, without the system prompt."""
        return tuple(copied(message) for message in self._messages[self._system :])

    def append(self, message: Mapping[str, Any]) -> None:
        """Take in one turn, as a copy. A first system turn becomes the system prompt."""
        index = len(self._messages)
        view = openai_chat.read(message, index)
        self._check(message, index)
        self._messages.append(copied(message))
        self._planner.extend([view])
        if index == 0 and view.role == "system":
            self._system = 1

    def request(self) -> Request:
        """What to send now."""
        plan = self._planner.plan()
        said = {key: value for key, value in self._beside.items() if value is not None}
        body = openai_chat.apply({"messages": self._messages, **said}, plan)
        body["messages"] = [dict(message) for message in body["messages"]]
        return Request(body, plan)

    def _check(self, message: Mapping[str, Any], index: int) -> None:
        """A session is stricter than `fit`: what it takes in, every server accepts."""
        role, content = message["role"], message.get("content")
        if role not in _ROLES:
            raise MessageError(index, f"unknown role {role!r}; there are {', '.join(_ROLES)}")
        if role == "tool":
            self._check_result(message, index)
        elif role == "assistant":
            if not content and not message.get("tool_calls"):
                raise MessageError(index, "an assistant turn needs content or tool calls")
        elif not content:
            raise MessageError(index, f"a {role} turn needs content")

    def _check_result(self, message: Mapping[str, Any], index: int) -> None:
        call = message.get("tool_call_id")
        if not isinstance(call, str) or not call:
            raise MessageError(index, "a tool turn needs a tool_call_id")
        if message.get("content") is None:
            raise MessageError(index, "a tool turn needs content; it may be the empty string")
        units = self._planner.history.units
        if not units or call not in units[-1].pending:
            raise MessageError(index, f"no open call has the id {call!r}")
