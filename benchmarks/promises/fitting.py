"""Growing conversations at many windows: no request too long, none trimmed needlessly.

With the server's counts near the limit (`near`), or with estimates alone (`off`), when a
context-length error of the real server makes brim shorten the request once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import brim
from benchmarks.promises.material import Conversation
from benchmarks.promises.progress import progress
from benchmarks.promises.reference_server import ReferenceServer, TemplateRejectionError
from benchmarks.promises.replay import build_unfitted_body, replay_requests
from brim.fitting.flow import CountMode
from brim.fitting.plan import Request
from brim.providers.client import Client
from brim.providers.local import LocalServer
from brim.session.session import get_driver
from brim.storage.calibration_store import CalibrationStore
from brim.wire.overflow import parse_overflow
from brim.wire.template_adapter import apply_template

WINDOWS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass
class Tally:
    """The results for one window."""

    window: int
    requests: int = 0
    infeasible: int = 0
    """Requests whose protected parts alone do not fit: an error before sending."""
    trimmed: int = 0
    over: int = 0
    template_errors: int = 0
    """Sequences that the template rejected."""
    needless: int = 0
    """Requests that were trimmed although the conversation fits, in the form that its template
    renders without loss."""
    sent: int = 0
    rejected: int = 0
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
        store: CalibrationStore,
        count_mode: CountMode,
        windows: Sequence[int] = WINDOWS,
    ) -> None:
        self._stack = ExitStack()
        self._store = store
        self._count_mode: CountMode = count_mode
        self.tallies = {window: Tally(window) for window in windows}
        self._references = {}
        self._clients = {}
        for window in windows:
            server = self._stack.enter_context(LocalServer.start(model, window=window, threads=1))
            self._references[window] = reference = ReferenceServer(server)
            self._stack.callback(reference.close)
            client = Client(server.url, key=server.key, count=count_mode, calibration_store=store)
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
            for _ in self._grow(conversations[number], window, sending):
                made += 1
                progress(made, most)
                if made >= most:
                    return

    def _grow(self, conversation: Conversation, window: int, sending: bool) -> Iterator[None]:
        tally, reference = self.tallies[window], self._references[window]
        session = brim.Session(reference.server.model, reply=1, tools=conversation.tools or None)
        replay = replay_requests(conversation, session, self._clients[window].request)
        request = next(replay, None)
        while request is not None:
            tokens = None
            if isinstance(request, brim.ContextOverflowError):
                tally.infeasible += 1
            else:
                tokens = self._check(request, session, tally, reference)
                if tokens is not None and sending:
                    self._send(request, tally, reference)
                yield
            try:
                request = replay.send(tokens)
            except StopIteration:
                request = None
            self._save(session, window)

    def _save(self, session: brim.Session, window: int) -> None:
        """Keep the calibration for the next conversations, as `Client.send` does."""
        profiles = self._clients[window].asynchronous.profiles
        profiles.save(session.model or "", get_driver(session).profile.calibration)

    def _send(self, request: Request, tally: Tally, reference: ReferenceServer) -> None:
        tally.sent += 1
        status, answer = reference.send(request)
        too_long = parse_overflow(status, answer) is not None
        tally.rejected += too_long
        tally.template_errors += status != 200 and not too_long

    def _check(
        self, request: Request, session: brim.Session, tally: Tally, reference: ReferenceServer
    ) -> int | None:
        room = tally.window - 1
        tally.requests += 1
        try:
            tokens = reference.count(request)
            if tokens > room and self._count_mode == "off":
                tally.rejected += 1
                again = self._recover(request, session, reference)
                if again is None:
                    tally.infeasible += 1
                    return None
                request, tokens = again, reference.count(again)
                tally.lost += tokens > room
        except TemplateRejectionError:
            tally.template_errors += 1
            return None
        unfitted = build_unfitted_body(session)
        everything = reference.count(unfitted)
        tally.over += tokens > room
        tally.naive += everything > room
        tally.trimmed += request.plan.is_trimmed
        if everything > room:
            tally.fills.append(tokens / room)
        elif request.plan.is_trimmed:
            rules = get_driver(session).profile.rules()
            shaped = apply_template(unfitted["messages"], rules)
            tally.needless += reference.count({**unfitted, "messages": shaped}) <= room
        return tokens

    def _recover(
        self, request: Request, session: brim.Session, reference: ReferenceServer
    ) -> Request | None:
        """Handle a context-length error of the server; return a smaller request, or None."""
        status, answer = reference.send(request)
        overflow = parse_overflow(status, answer)
        assert overflow is not None, answer
        get_driver(session).handle_context_length_error(overflow)
        try:
            return session.request()
        except brim.ContextOverflowError:
            required = [m for m in request.messages if m["role"] == "system"]
            required.append([m for m in request.messages if m["role"] == "user"][-1])
            assert reference.count({**request, "messages": required}) >= reference.server.window
            return None
