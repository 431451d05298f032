"""Growing conversations at many windows: no request too long, none trimmed needlessly.

With the server's counts near the limit (`near`), or with estimates alone (`off`), where a refusal
by the real server is believed and the request made smaller once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import brim
from benchmarks.promises.judge import Judge, ObjectionError
from benchmarks.promises.material import Conversation
from benchmarks.promises.progress import progress
from benchmarks.promises.replay import requests, whole
from brim.fitting.flow import CountMode
from brim.fitting.plan import Request
from brim.providers import CalibrationStore
from brim.providers.client import Client
from brim.providers.local import LocalServer
from brim.session.session import get_driver
from brim.wire.overflow import parse_overflow

WINDOWS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass
class Tally:
    """The results for one window."""

    window: int
    requests: int = 0
    infeasible: int = 0
    """Requests whose protected parts alone do not fit: an error before sending."""
    cut: int = 0
    over: int = 0
    objected: int = 0
    """Sequences that the template rejected."""
    needless: int = 0
    """Conversations that were trimmed although they fit."""
    sent: int = 0
    refused: int = 0
    """Requests that were too long for the server."""
    lost: int = 0
    """Requests rejected again after they were made smaller."""
    naive: int = 0
    """Requests that would have been rejected without fitting."""
    fills: list[float] = field(default_factory=list)
    """Shares of the limit that trimmed requests use."""

    @property
    def fill(self) -> float:
        return sum(self.fills) / len(self.fills) if self.fills else 0.0


class Fitting:
    """One server for each window, all with the same small model."""

    def __init__(
        self,
        model: Any,
        learned: CalibrationStore,
        ask: CountMode,
        windows: Sequence[int] = WINDOWS,
    ) -> None:
        self._stack = ExitStack()
        self._learned = learned
        self._ask: CountMode = ask
        self.tallies = {window: Tally(window) for window in windows}
        self._judges = {}
        self._clients = {}
        for window in windows:
            server = self._stack.enter_context(LocalServer.start(model, window=window, threads=1))
            self._judges[window] = judge = Judge(server)
            self._stack.callback(judge.close)
            client = Client(server.url, key=server.key, count=ask, calibration_store=learned)
            self._clients[window] = self._stack.enter_context(client)

    def close(self) -> None:
        self._stack.close()

    def run(self, conversations: Sequence[Conversation], most: int, sends: int) -> None:
        """Build `most` requests, and send those of some complete conversations: about `sends`.

        A conversation that is sent request by request has most of each in the server's cache.
        """
        every = most // sends if sends else 0
        made = 0
        for place in count():
            round_, number = divmod(place, len(conversations))
            window = list(self.tallies)[(number + number // 2 + round_) % len(self.tallies)]
            sending = bool(every) and place % every == 0
            for _ in self._grown(conversations[number], window, sending):
                made += 1
                progress(made, most)
                if made >= most:
                    return

    def _grown(self, conversation: Conversation, window: int, sending: bool) -> Iterator[None]:
        tally, judge = self.tallies[window], self._judges[window]
        session = brim.Session(judge.server.model, reply=1, tools=conversation.tools or None)
        going = requests(conversation, session, self._clients[window].request)
        request = next(going, None)
        while request is not None:
            tokens = None
            if isinstance(request, brim.ContextOverflowError):
                tally.infeasible += 1
            else:
                tokens = self._judged(request, session, tally, judge)
                if tokens is not None and sending:
                    self._send(request, tally, judge)
                yield
            try:
                request = going.send(tokens)
            except StopIteration:
                request = None

    def _send(self, request: Request, tally: Tally, judge: Judge) -> None:
        tally.sent += 1
        status, answer = judge.send(request)
        too_long = parse_overflow(status, answer) is not None
        tally.refused += too_long
        tally.objected += status != 200 and not too_long

    def _judged(
        self, request: Request, session: brim.Session, tally: Tally, judge: Judge
    ) -> int | None:
        room = tally.window - 1
        tally.requests += 1
        try:
            tokens = judge.count(request)
            if tokens > room and self._ask == "off":
                tally.refused += 1
                again = self._recover(request, session, judge)
                if again is None:
                    tally.infeasible += 1
                    return None
                request, tokens = again, judge.count(again)
                tally.lost += tokens > room
        except ObjectionError:
            tally.objected += 1
            return None
        everything = judge.count(whole(session))
        tally.over += tokens > room
        tally.naive += everything > room
        tally.cut += request.plan.is_trimmed
        if everything <= room:
            tally.needless += request.plan.is_trimmed
        else:
            tally.fills.append(tokens / room)
        return tokens

    def _recover(self, request: Request, session: brim.Session, judge: Judge) -> Request | None:
        """Handle a context-length error of the server; return a smaller request, or None."""
        status, answer = judge.send(request)
        overflow = parse_overflow(status, answer)
        assert overflow is not None, answer
        get_driver(session).handle_context_length_error(overflow)
        try:
            return session.request()
        except brim.ContextOverflowError:
            hard = [m for m in request.messages if m["role"] == "system"]
            hard.append([m for m in request.messages if m["role"] == "user"][-1])
            assert judge.count({**request, "messages": hard}) >= judge.server.window
            return None
