"""Count requests in every way that brim and others have, next to what the server counts."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import brim
from benchmarks import environment
from benchmarks.promises.material import Conversation
from benchmarks.promises.reference_server import ReferenceServer, TemplateRejectionError
from benchmarks.recordings import request_points
from benchmarks.truth.requests import MAX_CHARS
from brim.fitting.plan import TextCount
from brim.providers.endpoint import Endpoint
from brim.providers.local import LocalServer
from brim.providers.server_counter import CountStates, ServerCounter
from brim.providers.transport import Transport
from brim.storage.calibration_store import CalibrationStore

PER_CONVERSATION: Final = 5
KWARGS: Final = {"enable_thinking": False, "thinking": False}
"""Servers differ in what they assume; so every request says it."""
GAPS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
"""A request is offered to windows that are too small for it by these shares, and one token."""
SERVER: Final = "brim, server counts"
TEXTS: Final = "brim, server only tokenizes"
TEMPLATE: Final = "brim, template and own vocabulary"
OWN: Final = "brim, own vocabulary"
FALLBACK: Final = "brim, unknown model"
LITELLM: Final = "litellm"
CHARS: Final = "chars/4"


@dataclass
class Score:
    """How one way of counting compares with the server."""

    requests: int = 0
    equal: int = 0
    errors: list[float] = field(default_factory=list)
    """Relative errors; negative: too low."""
    beyond: int = 0
    """Counts that are too low by more than their margin."""
    offered: int = 0
    sent: int = 0
    """Requests that would be sent to a window that is too small for them."""

    def add(self, counted: int, truth: int, accepts: Sequence[bool]) -> None:
        self.requests += 1
        self.equal += counted == truth
        self.errors.append(counted / truth - 1)
        self.beyond += accepts[0]
        self.offered += len(accepts)
        self.sent += sum(accepts)


class Peer:
    """LiteLLM's counter, in its own process."""

    def __init__(self) -> None:
        command = [str(environment.PYTHON), "-m", "benchmarks.truth.peer_counts"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=environment.ROOT,
            env={**os.environ, "PYTHONPATH": str(environment.ROOT)},
        )

    def count(self, body: Mapping[str, Any]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(body), file=self._process.stdin, flush=True)
        tokens: int | None = json.loads(self._process.stdout.readline())
        return tokens

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Ways:
    """Everything that counts, for one model at one server."""

    model: str
    template: str
    server: LocalServer
    peer: Peer | None
    store: CalibrationStore
    scores: dict[str, Score] = field(default_factory=lambda: defaultdict(Score))
    failures: list[str] = field(default_factory=list)

    def run(self, conversations: Sequence[Conversation], most: int) -> int:
        """Compare `most` requests; return how many there were."""
        return asyncio.run(self._run(conversations, most))

    async def _run(self, conversations: Sequence[Conversation], most: int) -> int:
        client = brim.AsyncClient(
            self.server.url, key=self.server.key, count="always", calibration_store=self.store
        )
        transport = Transport(Endpoint(self.server.url, "openai", self.server.key, {}, 60.0, 0))
        texts = ServerCounter(transport, states=CountStates())
        texts._state(self.model, "request").untried.clear()
        made = 0
        with closing(ReferenceServer(self.server)) as reference:
            async with client:
                for conversation in conversations:
                    for session in _grow(conversation, self.server.model):
                        request = await client.request(session, chat_template_kwargs=KWARGS)
                        made += await self._compare(request, reference, texts)
                        if made >= most:
                            break
                    if made >= most:
                        break
        await transport.close()
        return made

    async def _compare(
        self, request: brim.Request, reference: ReferenceServer, texts: ServerCounter
    ) -> bool:
        body = {**request, "messages": request.messages}
        status, answer = reference.send(body)
        if status == 200:
            truth: int = answer["usage"]["prompt_tokens"]
        else:  # with some templates, llama.cpp does not accept what random weights answer
            self.failures.append(f"{self.model}: {str(answer)[:200]}")
            try:
                truth = reference.count(body)
            except TemplateRejectionError:
                return False
        messages, tools = body["messages"], body.get("tools")
        self._add_exact(SERVER, request.plan.server_tokens, truth)
        tokens = await texts.count({**body, "model": self.model})
        if isinstance(tokens, TextCount):
            self._add(TEXTS, tokens, truth, tokens.margin)
            texts.record_report({**body, "model": self.model}, truth)
        exact = brim.count(body, model=self.model, template=self.template)
        self._add_exact(TEMPLATE, exact if exact.exact else None, truth)
        for name, model in ((OWN, self.model), (FALLBACK, "my-local-model")):
            counted = brim.count(messages, model=model, tools=tools)
            accepts = [_accepts(messages, tools, model, room) for room in _rooms(truth)]
            self.scores[name].add(counted, truth, accepts)
        self._add(CHARS, _count_chars(messages, tools), truth)
        if self.peer and (peers := self.peer.count({"messages": messages, "tools": tools})):
            self._add(LITELLM, peers, truth)
        return True

    def _add_exact(self, name: str, tokens: int | None, truth: int) -> None:
        if tokens is not None:
            self._add(name, tokens, truth)

    def _add(self, name: str, tokens: int, truth: int, margin: int = 0) -> None:
        accepts = [tokens + margin <= room for room in _rooms(truth)]
        self.scores[name].add(tokens, truth, accepts)


def _rooms(truth: int) -> Iterator[int]:
    return (math.floor((truth - 1) * (1 - gap)) for gap in GAPS)


def _accepts(messages: Any, tools: Any, model: str, room: int) -> bool:
    """Whether brim sends a request as it is to a window with such a room."""
    try:
        request = brim.fit(messages, model=model, tools=tools, window=room + 1, reply=1)
    except brim.ContextOverflowError:
        return False
    return not request.plan.is_trimmed


def _count_chars(messages: Any, tools: Any) -> int:
    total = len(json.dumps(tools, ensure_ascii=False)) if tools else 0
    for message in messages:
        total += len(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            total += len(call["function"]["name"]) + len(call["function"]["arguments"])
    return total // 4


def _grow(conversation: Conversation, model: str) -> Iterator[brim.Session]:
    """Yield a session at some request points of a conversation, evenly spaced."""
    points = request_points(conversation.messages)
    chosen = set(points[:: max(1, len(points) // PER_CONVERSATION)])
    session = brim.Session(model, window=1_000_000, reply=1, tools=conversation.tools or None)
    length = len(str(conversation.tools))
    for place, message in enumerate(conversation.messages):
        if place in chosen:
            yield session
        length += len(str(message))
        if length > MAX_CHARS:
            return
        try:
            session.append(message)
        except brim.MessageError as error:
            print(f"{conversation.name}: {error}", file=sys.stderr)
            return
