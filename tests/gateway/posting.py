"""Requests as bytes on a socket, in each of the three formats, and what comes back."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from brim.wire.replies import reply_of
from brim.wire.streams import StreamFold

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
PATHS: Final = (CHAT, MESSAGES, RESPONSES)
_REPLY: Final = {CHAT: "max_tokens", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        """What the model says, whole or in a stream."""
        if self.raw.lstrip().startswith(b"{"):
            return reply_of(self.body).text
        fold = StreamFold()
        for line in self.raw.splitlines():
            if line.startswith(b"data: {"):
                fold.add(json.loads(line.removeprefix(b"data: ")))
        return fold.reply().text


def posted(
    address: str,
    path: str,
    body: bytes | Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> Answered:
    """What a server answers at a path."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)) as connection:
        given = {"content-type": "application/json", **(headers or {})}
        connection.request("POST", path, raw, given)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, found, answer.read())


def body_of(path: str, turns: Sequence[Any], *, reply: int = 20, **more: Any) -> dict[str, Any]:
    """A request for an answer: of (role, text), or of messages as the format has them."""
    said = [
        {"role": turn[0], "content": turn[1]} if isinstance(turn, tuple) else turn for turn in turns
    ]
    key = "input" if path == RESPONSES else "messages"
    return {"model": "m", key: said, _REPLY[path]: reply, **more}


def turns_in(path: str, body: Mapping[str, Any]) -> list[Any]:
    return list(body["input" if path == RESPONSES else "messages"])
