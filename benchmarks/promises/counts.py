"""With server counts for every request: brim's count equals the server's `prompt_tokens`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import brim
from benchmarks.promises.judge import Judge
from benchmarks.promises.material import Conversation
from benchmarks.promises.replay import requests
from brim.providers import CalibrationStore
from brim.providers.client import Client
from brim.providers.local import LocalServer


@dataclass(frozen=True)
class Compared:
    """A request that was sent."""

    conversation: str
    kind: str
    brim: int | None
    server: int

    @property
    def equal(self) -> bool:
        return self.brim == self.server


PER_CONVERSATION = 5
"""Number of requests sent per conversation, evenly spaced: a prompt takes seconds."""
SMALL = 512


def compare_counts(
    server: LocalServer, conversations: Iterable[Conversation], learned: CalibrationStore
) -> Generator[Compared, None, None]:
    """Count and then send requests of growing conversations; yield the results."""
    client = Client(server.url, key=server.key, count="always", calibration_store=learned)
    with client, closing(Judge(server)) as judge:
        for conversation in conversations:
            yield from _of(conversation, judge, client)


def _of(conversation: Conversation, judge: Judge, client: Client) -> Iterator[Compared]:
    window = None if conversation.kind == "recorded" else SMALL
    tools = conversation.tools or None
    session = brim.Session(judge.server.model, window=window, reply=1, tools=tools)
    asked = sum(message["role"] == "assistant" for message in conversation.messages)
    every = max(1, asked // PER_CONVERSATION)
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
                    conversation.name, conversation.kind, request.plan.server_tokens, tokens
                )
        number += 1
        try:
            request = going.send(tokens)
        except StopIteration:
            request = None
