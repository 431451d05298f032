"""The client that knows no limit, for comparison: it sends all that was said, as it was said."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from brim.providers.local import LocalServer

PATIENCE: Final = 60.0
"""Seconds."""
CHAT: Final = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request with the whole conversation."""

    tokens: int
    """As the server counts them."""
    status: int | None = None
    """What the server answered; None where it was only counted, because it still fits."""
    error: str = ""
    """The server's own word for what is wrong."""
    counted: int | None = None
    """What the server says that it was sent, and what it takes."""
    window: int | None = None

    @property
    def refused(self) -> bool:
        return self.status is not None and self.status >= 400


class Naive:
    """Speaks to the server without anything of brim."""

    def __init__(self, server: LocalServer, system: str, **options: Any) -> None:
        self._server = server
        self._options = {"model": server.model, **options}
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}]

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def outcome(self) -> Outcome:
        """Count all of it; what is too long is sent, to see what happens.

        What fits is not: its answer would be one more to wait for.
        """
        body = {**self._options, "messages": self.messages}
        tokens = int(self._post(f"{CHAT}/input_tokens", body)[1]["input_tokens"])
        if tokens < self._server.window:
            return Outcome(tokens)
        status, answer = self._post(CHAT, body)
        error = answer.get("error") or {}
        numbers = error.get("n_prompt_tokens"), error.get("n_ctx")
        return Outcome(tokens, status, error.get("type", ""), *numbers)

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON. No proxy is asked the way to a loopback port."""
        where = urlsplit(self._server.url)
        headers = {
            "Authorization": f"Bearer {self._server.key}",
            "Content-Type": "application/json",
        }
        with closing(HTTPConnection(where.netloc, timeout=PATIENCE)) as connection:
            connection.request("POST", where.path + path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.load(response)
