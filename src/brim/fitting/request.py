"""Request: what goes to the provider, to be unpacked into the client's own call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.fitting.plan import Plan


class Request(Mapping[str, Any]):
    """The arguments of a call: `client.chat.completions.create(**request)`. The plan is beside."""

    def __init__(self, body: Mapping[str, Any], plan: Plan, messages_key: str = "messages") -> None:
        self._body = body
        self._messages_key = messages_key
        self.plan = plan

    @property
    def messages(self) -> Any:
        """The conversation as it goes out; empty where the server keeps all of it."""
        return self._body.get(self._messages_key, [])

    def __getitem__(self, key: str) -> Any:
        return self._body[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._body)

    def __len__(self) -> int:
        return len(self._body)

    def __repr__(self) -> str:
        return f"Request({', '.join(self._body)}; {self.plan})"
