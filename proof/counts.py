"""With the server asked always: brim's count before sending is the server's `prompt_tokens`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import brim
from brim.local import LocalServer
from brim.providers import Learned
from brim.providers.client import Client
from proof.judge import Judge
from proof.material import Conversation
from proof.replay import requests


@dataclass(frozen=True)
class Compared:
    """A request that was really sent."""

    conversation: str
    kind: str
    brim: int | None
    server: int

    @property
    def equal(self) -> bool:
        return self.brim == self.server


def compared(
    server: LocalServer, conversations: Iterable[Conversation], learned: Learned, every: int = 1
) -> Iterator[Compared]:
    """Each (or each `every`th) request of growing conversations, counted and then sent."""
    judge = Judge(server)
    with Client(server.url, key=server.key, count="always", learned=learned) as client:
        for conversation in conversations:
            session = brim.Session(server.model, reply=1, tools=conversation.tools or None)
            going = requests(conversation, session, client.request)
            request = next(going, None)
            number = 0
            while request is not None:
                tokens = None
                if not isinstance(request, brim.ContextOverflowError):
                    tokens = request.plan.size
                    if number % every == 0:
                        status, answer = judge.send(request)
                        tokens = answer["usage"]["prompt_tokens"] if status == 200 else -status
                        yield Compared(
                            conversation.name, conversation.kind, request.plan.counted, tokens
                        )
                    number += 1
                try:
                    request = going.send(tokens)
                except StopIteration:
                    request = None
    judge.close()
