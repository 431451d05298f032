"""With server counts for every request: brim's count equals the server's `prompt_tokens`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import brim
from benchmarks.promises.material import Conversation
from benchmarks.promises.reference_server import ReferenceServer
from benchmarks.promises.replay import replay_requests
from brim.providers.client import Client
from brim.providers.local import LocalServer
from brim.storage.calibration_store import CalibrationStore


@dataclass(frozen=True)
class Comparison:
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
    server: LocalServer, conversations: Iterable[Conversation], store: CalibrationStore
) -> Generator[Comparison, None, None]:
    """Count and then send requests of growing conversations; yield the results."""
    client = Client(server.url, key=server.key, count="always", calibration_store=store)
    with client, closing(ReferenceServer(server)) as reference:
        for conversation in conversations:
            yield from _compare_conversation(conversation, reference, client)


def _compare_conversation(
    conversation: Conversation, reference: ReferenceServer, client: Client
) -> Iterator[Comparison]:
    window = None if conversation.kind == "recorded" else SMALL
    tools = conversation.tools or None
    session = brim.Session(reference.server.model, window=window, reply=1, tools=tools)
    replies = sum(message["role"] == "assistant" for message in conversation.messages)
    every = max(1, replies // PER_CONVERSATION)
    replay = replay_requests(conversation, session, client.request)
    request = next(replay, None)
    number = 0
    while request is not None:
        tokens = None
        if not isinstance(request, brim.ContextOverflowError):
            tokens = request.plan.size
            if number % every == 0:
                status, answer = reference.send(request)
                tokens = answer["usage"]["prompt_tokens"] if status == 200 else -status
                yield Comparison(
                    conversation.name, conversation.kind, request.plan.server_tokens, tokens
                )
        number += 1
        try:
            request = replay.send(tokens)
        except StopIteration:
            request = None
