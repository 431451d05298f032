"""Clients: a session sent to a server, and the answer taken in.

All decisions are the session's: it says what to ask and what to send, and a client only asks and
sends. A server that says that a request is too long is believed, and the request sent once more.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, Unpack, get_args
from weakref import WeakSet

from brim.errors import BudgetError, ContextLengthError, InputError
from brim.fitting.flow import CountJob, CountMode, SummaryJob
from brim.providers.endpoint import Endpoint
from brim.providers.errors import find_error
from brim.providers.profile_source import ProfileSource, apply_server_info
from brim.providers.server_counter import ServerCounter
from brim.providers.server_info import ServerInfo, detect_truncation
from brim.providers.summarizers import call_summarizer_async
from brim.providers.sync import Portal
from brim.providers.transport import Transport
from brim.session.driver import RequestSettings
from brim.session.session import get_driver
from brim.session.summaries import MAX_SUMMARY_CHARS, build_summary_messages
from brim.storage.calibration_store import CalibrationStore
from brim.wire import to_anthropic, to_responses
from brim.wire.reply_parser import parse_reply

if TYPE_CHECKING:
    from brim.fitting.flow import Flow, Job
    from brim.fitting.plan import Plan, Request
    from brim.providers.endpoint import ApiFormat
    from brim.providers.server_info import ServerKind, Window
    from brim.session.ledger import Category
    from brim.session.reply_stream import AsyncReplyStream
    from brim.session.request_builder import FormatName
    from brim.session.session import Session
    from brim.session.short_view import ShortView
    from brim.session.summaries import Summarizer, Turn
    from brim.wire.reply import Reply

T = TypeVar("T")

_FORMATS: Final[Mapping[ApiFormat, FormatName]] = {
    "openai": "chat",
    "anthropic": "anthropic",
    "responses": "responses",
}


class AsyncClient:
    """Sends sessions to one endpoint. Use it as `async with`, or call `close`."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        format: ApiFormat = "openai",
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        retries: int = 2,
        count: CountMode = "near",
        learned: CalibrationStore | None = None,
    ) -> None:
        """`count` says when the server is asked what a request takes: near, always or off.

        `learned` is where it is kept what servers said of their limits and counts; without one
        it is the user's own file.
        """
        if count not in get_args(CountMode):
            raise InputError(f"count is one of {', '.join(get_args(CountMode))}, not {count!r}")
        self.endpoint = Endpoint(url, format, key, headers or {}, timeout, retries)
        self.connection = Transport(self.endpoint)
        self.server = ServerInfo(self.connection)
        self.counter = ServerCounter(self.connection, enabled=count != "off")
        self.count: CountMode = count
        self.learned = CalibrationStore() if learned is None else learned
        self.refusals = 0
        """How often the server said that a request was too long."""
        self.profiles = ProfileSource(self.server, self.learned)
        self._kind: ServerKind = "unknown"
        self._busy: WeakSet[Session] = WeakSet()
        self._told: WeakSet[Session] = WeakSet()
        """Sessions that know that the server cuts their requests."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connection.close()

    async def models(self) -> list[str]:
        """The names of the models that the server offers."""
        return await self.server.models()

    async def send(
        self,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Reply:
        """Send what a session has to say, and let it take in the answer."""
        if options.get("stream"):
            raise InputError("send waits for the whole answer; `stream` gives it piece by piece")
        settings = self._settings(system, short_view, category, options)
        path = self.endpoint.chat_path
        with self._alone(session):
            request, answer = await self._delivered(
                session, settings, lambda request: self.connection.post(path, request)
            )
            return self._received(session, request, answer)  # type: ignore[no-any-return]

    async def stream(
        self,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> AsyncReplyStream[dict[str, object]]:
        """The same, piece by piece: the events of the server, with the `reply` at the end."""
        options = {**options, **self._streamed(options)}
        settings = self._settings(system, short_view, category, options)
        with self._alone(session):
            request, events = await self._delivered(session, settings, self._opened)
            return self._received(session, request, events)  # type: ignore[no-any-return]

    async def request(
        self,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Request:
        """What `send` would send, counted by the server where that decides; it is not sent."""
        return await self._requested(session, self._settings(system, short_view, category, options))

    async def prepare(self, session: Session) -> None:
        """Let a session know what the server says about the model: its window above all."""
        await self._prepared(session)

    async def _prepared(self, session: Session) -> Window:
        driver = get_driver(session)
        if driver.clock is None:
            driver.clock = time.time
        target = driver.profile
        if target.model is None and (offered := await self.server.models()):
            target = replace(target, model=offered[0])
        model = target.model or ""
        window = await self.server.window_of(model)
        self._kind = window.kind
        profile = target.with_stored(self.profiles.load(model))
        driver.profile = apply_server_info(profile, window)
        return window

    def summarizer(
        self,
        session: Session,
        *,
        model: str | None = None,
        focus: str | None = None,
        max_chars: int = MAX_SUMMARY_CHARS,
        **options: object,
    ) -> Summarizer:
        """A summarizer for a session: a model of this server writes its summaries.

        `focus` says what they are about above all, `max_chars` how many characters they may have.
        `options` go into its requests as they are.
        """

        async def summarize(previous: str | None, evicted: Sequence[Turn] | None) -> str:
            driver, budget = get_driver(session), session.budget
            asked = build_summary_messages(
                previous,
                evicted,
                room=budget.limit,
                count=driver.count_text,
                max_chars=max_chars,
                focus=focus,
            )
            name = model or session.model or ""
            body = _summary_body(self.endpoint.format, name, asked, budget.reply) | options
            reply = parse_reply(await self.connection.post(self.endpoint.chat_path, body))
            counted = sum(driver.count_text(message["content"]) for message in asked)
            driver.record_call(reply, name, "summary", counted=counted)
            return reply.text

        return summarize

    # How a request comes to be

    def _settings(
        self,
        system: str | None,
        short_view: ShortView | bool | None,
        category: Category,
        options: Mapping[str, object],
    ) -> RequestSettings:
        format = _FORMATS[self.endpoint.format]
        return RequestSettings(system, short_view, category, format, options)

    async def _requested(self, session: Session, settings: RequestSettings) -> Request:
        window = await self._prepared(session)
        try:
            flow = get_driver(session).plan_request(settings, self.count)
            return await self._driven(flow, session)
        except BudgetError as error:
            if window.tokens is not None:
                raise
            await self.server.models()  # a server that cannot be reached says so here
            raise BudgetError(f"{error} ({window.source})") from None

    async def _driven(self, asking: Flow[T], session: Session) -> T:
        answer: object = None
        while True:
            try:
                job = asking.send(answer)
            except StopIteration as done:
                made: T = done.value
                return made
            answer = await self._answered(job, session)

    async def _answered(self, job: Job, session: Session) -> object:
        if isinstance(job, SummaryJob):
            if session.summarize is None:
                return None
            return await call_summarizer_async(session.summarize, job)
        tokens = await self.counter.count(job.body)
        if tokens is None:
            await self._learn_text(job, session)
        return tokens

    async def _learn_text(self, job: CountJob, session: Session) -> None:
        """Where a server counts texts alone, let it say how dense these are."""
        if get_driver(session).profile.calibration.ratios:
            return
        texts = (message.get("content") for message in job.body.get("messages", ()))
        text = "\n".join(text for text in texts if isinstance(text, str))
        tokens = await self.counter.count_text(session.model or "", text)
        if tokens:
            get_driver(session).calibrate_text(text, tokens)

    async def _delivered(
        self,
        session: Session,
        settings: RequestSettings,
        deliver: Callable[[Request], Awaitable[T]],
    ) -> tuple[Request, T]:
        """Send a request, and once more if the server says that it is too long."""
        request = await self._requested(session, settings)
        try:
            return request, await deliver(request)
        except ContextLengthError as refusal:
            self._believe(session, refusal)
        request = await self._requested(session, settings)
        try:
            return request, await deliver(request)
        except ContextLengthError as again:
            raise self._given_up(session, again) from again

    def _believe(self, session: Session, refusal: ContextLengthError) -> None:
        self.refusals += 1
        get_driver(session).handle_context_length_error(refusal.overflow)
        self._save(session)

    def _given_up(self, session: Session, refusal: ContextLengthError) -> ContextLengthError:
        """The error of a request that was refused, made smaller and refused again."""
        self._believe(session, refusal)
        return ContextLengthError(
            f"{refusal} It had been made smaller after a first refusal. The next request will be "
            "smaller still; to be sure of it, give the session the window that the server has.",
            refusal.overflow,
            status=refusal.status,
            body=refusal.body,
        )

    @contextmanager
    def _alone(self, session: Session) -> Iterator[None]:
        """A session knows one request at a time: what it says next depends on the answer."""
        if session in self._busy:
            raise InputError("this session waits for an answer; it has one call at a time")
        self._busy.add(session)
        try:
            yield
        finally:
            self._busy.discard(session)

    # What goes out and comes back

    def _received(self, session: Session, request: Request, answer: Any) -> Any:
        plan = request.plan
        return get_driver(session).receive(answer, lambda reply: self._after(session, plan, reply))

    async def _opened(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        """A stream that has begun; a refusal is raised before."""
        events = self.connection.stream(self.endpoint.chat_path, request)
        first = await anext(events)
        if (failure := find_error(self.endpoint, self.endpoint.chat_path, first)) is not None:
            await events.aclose()
            raise failure

        async def from_the_first() -> AsyncIterator[dict[str, Any]]:
            try:
                yield first
                async for event in events:
                    failure = find_error(self.endpoint, self.endpoint.chat_path, event)
                    if failure is not None:
                        raise failure
                    yield event
            finally:
                await events.aclose()

        return from_the_first()

    def _streamed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        wanted: dict[str, Any] = {"stream": True}
        if self.endpoint.format == "openai":
            asked = options.get("stream_options")
            if asked is not None and not isinstance(asked, Mapping):
                raise InputError(f"stream_options are a mapping, not {type(asked).__name__}")
            wanted["stream_options"] = {"include_usage": True, **(asked or {})}
        return wanted

    def _after(self, session: Session, plan: Plan, reply: Reply) -> None:
        self._save(session)
        if reply.usage is None:
            return
        window = get_driver(session).profile.server_window
        said = detect_truncation(self._kind, window, plan.size, reply.usage.input)
        if said and session not in self._told:
            self._told.add(session)
            session.warnings.append(said)

    def _save(self, session: Session) -> None:
        calibration = get_driver(session).profile.calibration
        self.profiles.save(session.model or "", calibration)


def _summary_body(
    format: ApiFormat, model: str, asked: Sequence[Mapping[str, str]], reply: int
) -> dict[str, Any]:
    if format == "anthropic":
        return to_anthropic.build(asked, model=model, max_tokens=reply)
    if format == "responses":
        return to_responses.build(asked, model=model)
    return {"model": model, "messages": asked}


class ClientSettings(TypedDict, total=False):
    """The arguments of `AsyncClient` and `Client`."""

    key: str | None
    format: ApiFormat
    headers: Mapping[str, str] | None
    timeout: float
    retries: int
    count: CountMode
    learned: CalibrationStore | None


class Client:
    """The same for code without `async`; Ctrl-C closes the connection and is raised."""

    def __init__(self, url: str, **settings: Unpack[ClientSettings]) -> None:
        """Create a client; the arguments are those of `AsyncClient`."""
        # In this order: without `close`, the connection is let go of while its loop still runs.
        self.asynchronous = AsyncClient(url, **settings)
        self._portal = Portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._portal.run(self.asynchronous.close())
        self._portal.close()

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        return self._portal.run(self.asynchronous.models())

    def prepare(self, session: Session) -> None:
        """Let a session know what the server says about the model: its window above all."""
        self._portal.run(self.asynchronous.prepare(session))

    def summarizer(
        self,
        session: Session,
        *,
        model: str | None = None,
        focus: str | None = None,
        max_chars: int = MAX_SUMMARY_CHARS,
        **options: object,
    ) -> Summarizer:
        """Return a summarizer that asks a model of this server."""
        return self.asynchronous.summarizer(
            session, model=model, focus=focus, max_chars=max_chars, **options
        )

    def request(
        self,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Request:
        """Return the request that `send` would send."""
        return self._portal.run(
            self.asynchronous.request(
                session, system=system, short_view=short_view, category=category, **options
            )
        )

    def send(
        self,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Reply:
        """Send the next request of a session, and record the reply."""
        return self._portal.run(
            self.asynchronous.send(
                session, system=system, short_view=short_view, category=category, **options
            )
        )

    def stream(
        self,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Stream:
        """Send the next request, and return the reply as a stream."""
        received = self._portal.run(
            self.asynchronous.stream(
                session, system=system, short_view=short_view, category=category, **options
            )
        )
        return Stream(received, self._portal)


class Stream:
    """A streamed answer for a `for` loop; leaving it early keeps what was said."""

    def __init__(self, received: AsyncReplyStream[dict[str, object]], portal: Portal) -> None:
        self._received = received
        self._portal = portal

    def __iter__(self) -> Iterator[dict[str, object]]:
        return self._portal.iterate(self._received)

    def texts(self) -> Iterator[str]:
        """Only the text, piece by piece."""
        return self._portal.iterate(self._received.texts())

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Thinking and text, as much as came of each."""
        for _ in self:
            piece = self._received.thought, self._received.added
            if any(piece):
                yield piece

    @property
    def reply(self) -> Reply:
        """The answer, as far as it came."""
        return self._received.reply

    @property
    def plan(self) -> Plan | None:
        """What was sent, and why the rest was not."""
        return self._received.plan

    def close(self) -> None:
        """Stop here, and keep what was said."""
        self._portal.run(self._received.aclose())
