"""Clients that send sessions to a server and record the replies.

The session makes all decisions; a client counts and sends what the session asks for. After a
context-length error it trims the request further and sends it once more.
"""

from __future__ import annotations

import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypedDict, TypeVar, Unpack, get_args
from weakref import WeakSet

from brim.errors import BudgetError, ContextLengthError, InputError, ProviderError
from brim.fitting.api import Count
from brim.fitting.api import count as count_offline
from brim.fitting.flow import CountMode, Flow, Job, SummaryJob
from brim.fitting.plan import Plan, Request, TextCount
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import MAX_SUMMARY_CHARS, Summarizer
from brim.providers.endpoint import Endpoint
from brim.providers.errors import find_error, is_free_of_charge, is_template_rejection
from brim.providers.server_counter import ServerCounter
from brim.providers.server_info import (
    ProfileSource,
    ServerInfo,
    ServerKind,
    apply_server_info,
    detect_truncation,
)
from brim.providers.summarizers import AsyncSummarizer, BlockingSummarizer, call_summarizer_async
from brim.providers.sync import Portal
from brim.providers.template_finder import TemplateFinder
from brim.providers.transport import Transport
from brim.session.driver import RequestSettings, SessionDriver
from brim.session.ledger import Category
from brim.session.recall import MAX_RECALLS, is_recall_forced
from brim.session.reply_stream import AsyncReplyStream
from brim.session.session import Session, create_scratch, get_driver
from brim.session.short_view import ShortView
from brim.session.summaries import Turn, build_summary_messages
from brim.storage.calibration_store import CalibrationStore
from brim.wire.formats import FORMATS, FormatName
from brim.wire.reply import Reply

T = TypeVar("T")
Args = ParamSpec("Args")


class AsyncClient:
    """Sends sessions to one endpoint. Use it as `async with`, or call `close`."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        format: FormatName = "openai",
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        retries: int = 2,
        count: CountMode = "near",
        calibration_store: CalibrationStore | None = None,
    ) -> None:
        """Create a client; `count` says when to ask the server for its count of a request.

        `calibration_store` keeps what servers report about their limits and counts; None: a file
        in the user's state folder.
        """
        if count not in get_args(CountMode):
            known = ", ".join(get_args(CountMode))
            raise InputError(f"Unknown count mode: {count!r}. Use one of {known}.")
        if format == "gemini":
            raise InputError(
                "Clients do not send Gemini's format. Use Gemini's OpenAI API: "
                "https://generativelanguage.googleapis.com/v1beta/openai."
            )
        self.endpoint = Endpoint(url, format, key, headers or {}, timeout, retries)
        self.connection = Transport(self.endpoint)
        self.server = ServerInfo(self.connection)
        self.counter = ServerCounter(self.connection, enabled=count != "off")
        self.count_mode: CountMode = count
        self.profiles = ProfileSource(self.server, calibration_store or CalibrationStore())
        self.templates = TemplateFinder(self.profiles)
        self.context_length_errors = 0
        """The number of context-length errors so far."""
        self._kind: ServerKind = "unknown"
        self._busy: WeakSet[Session] = WeakSet()
        self._warned: WeakSet[Session] = WeakSet()
        """Sessions that have been warned that the server truncates their requests."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connection.close()

    async def models(self) -> list[str]:
        """Return the names of the models that the server offers."""
        return await self.server.models()

    async def count(
        self,
        text_or_messages: str | Sequence[Mapping[str, object]],
        *,
        model: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> Count:
        """Return the tokens of a text or of chat messages, as the server counts them.

        `model` is by default the first one that the server offers. If the server does not count,
        the result is brim's own count; `.exact` tells whether it is only an estimate.
        """
        name = model
        if name is None and self.counter.enabled:
            with suppress(ProviderError):
                name = next(iter(await self.server.models()), None)
        if isinstance(text_or_messages, str) and not tools:
            tokens = await self.counter.count_text(name or "", text_or_messages)
        else:
            parts = text_or_messages
            if isinstance(parts, str):
                parts = [{"role": "user", "content": parts}]
            build = FORMATS[self.endpoint.format].build
            tokens = await self.counter.count(build(parts, model=name, reply=1, tools=tools))
        if tokens is None:
            return count_offline(text_or_messages, model=name, tools=tools)
        return Count({"server": tokens}, exact=not isinstance(tokens, TextCount))

    async def send(
        self,
        /,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Reply:
        """Send the next request of a session, and record the reply."""
        if options.get("stream"):
            raise InputError("`send` does not accept `stream`. Call `stream()` instead.")
        settings = RequestSettings(system, short_view, category, self.endpoint.format, options)
        path = self.endpoint.chat_path
        with self._lock(session):
            for _ in range(MAX_RECALLS):
                request, answer = await self._deliver(
                    session,
                    settings,
                    lambda request, payment: self.connection.post(path, request, payment),
                )
                reply: Reply = self._receive(session, request, answer)
                if not _is_continued(session, reply):
                    break
                settings = _without_forced_call(settings)
            return reply

    async def stream(
        self,
        /,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> AsyncReplyStream[dict[str, object]]:
        """Send the next request, and return the server's events with the `reply` at the end."""
        options = {**options, **build_stream_fields(self.endpoint.format, options)}
        settings = RequestSettings(system, short_view, category, self.endpoint.format, options)
        stream = await self._send_streamed(session, settings)
        requests = 1

        async def follow() -> AsyncReplyStream[dict[str, object]] | None:
            nonlocal requests
            if not _is_continued(session, stream.reply) or requests == MAX_RECALLS:
                return None
            requests += 1
            return await self._send_streamed(session, _without_forced_call(settings))

        stream.follow = follow
        return stream

    async def _send_streamed(
        self, session: Session, settings: RequestSettings
    ) -> AsyncReplyStream[dict[str, object]]:
        with self._lock(session):
            request, events = await self._deliver(session, settings, self._open_stream)
            return self._receive(session, request, events)  # type: ignore[no-any-return]

    async def request(
        self,
        /,
        session: Session,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: Category = "main",
        **options: object,
    ) -> Request:
        """Return the request that `send` would send, counted by the server if that matters."""
        settings = RequestSettings(system, short_view, category, self.endpoint.format, options)
        return await self._make_request(session, settings)

    async def prepare(self, session: Session) -> None:
        """Complete the session's profile with what the server says, such as the window."""
        driver = get_driver(session)
        if driver.clock is None:
            driver.clock = time.time
        target = driver.profile
        if target.model is None and (offered := await self.server.models()):
            target = replace(target, model=offered[0])
        model = target.model or ""
        window = await self.server.window_of(model)
        if window.kind == "ollama" and (target.window or 0) > (window.tokens or 0):
            model = await self.server.provide_window(model, target.window or 0)
            target, window = replace(target, model=model), await self.server.window_of(model)
        self._kind = window.kind
        profile = apply_server_info(
            target.with_stored(self.profiles.load(model)), window, self.endpoint
        )
        driver.profile = await self.templates.complete(profile, window, driver.template_features)

    def summarizer(
        self,
        session: Session,
        *,
        model: str | None = None,
        focus: str | None = None,
        max_chars: int = MAX_SUMMARY_CHARS,
        **options: object,
    ) -> AsyncSummarizer:
        """Return a summarizer that asks a model of this server.

        `focus` is what the summaries are mainly about, `max_chars` their maximum length. `options`
        are sent with its requests. Their cost counts for the session and its caps.
        """
        sent: dict[str, Any] = dict(options)

        async def summarize(previous: str | None, evicted: Sequence[Turn] | None) -> str:
            profile = get_driver(session).profile
            if model not in (None, profile.model):
                known = profile.window, profile.reply
                profile = ModelProfile(model, *known, guess=session.budget.window)
            scratch = create_scratch(profile, session)
            await self.prepare(scratch)
            room, count = scratch.budget.limit, get_driver(scratch).count_text
            instructions, request = build_summary_messages(
                previous, evicted, room=room, count=count, max_chars=max_chars, focus=focus
            )
            scratch.system = instructions["content"]
            scratch.user(request["content"])
            return (await self.send(scratch, category="summary", **sent)).text

        return summarize

    # Making a request

    async def _make_request(self, session: Session, settings: RequestSettings) -> Request:
        await self.prepare(session)
        try:
            flow = get_driver(session).plan_request(settings, self.count_mode)
            return await self._run_flow(flow, session)
        except BudgetError as error:
            window = await self.server.window_of(session.model or "")
            if window.tokens is not None:
                raise
            await self.server.models()  # raises if the server is unreachable
            raise BudgetError(f"{error} ({window.source})") from None

    async def _run_flow(self, flow: Flow[T], session: Session) -> T:
        result: object = None
        while True:
            try:
                job = flow.send(result)
            except StopIteration as done:
                made: T = done.value
                return made
            result = await self._run_job(job, session)

    async def _run_job(self, job: Job, session: Session) -> object:
        if isinstance(job, SummaryJob):
            if session.summarize is None:
                return None
            return await call_summarizer_async(session.summarize, job)
        tokens = await self.counter.count(job.body)
        if tokens is None or isinstance(tokens, TextCount):
            exact = get_driver(session).count_prompt(self.endpoint.format, job.body)
            return tokens if exact is None else exact
        return tokens

    async def _deliver(
        self,
        session: Session,
        settings: RequestSettings,
        deliver: Callable[[Request, _Payment], Awaitable[T]],
        *,
        is_adapted: bool = False,
    ) -> tuple[Request, T]:
        """Send a request, and once more, trimmed further, after a context-length error.

        If its template rejects the conversation, it is adapted and sent again too.
        """
        request = await self._make_request(session, settings)
        payment = _Payment(get_driver(session))
        try:
            with payment:
                return request, await deliver(request, payment)
        except ContextLengthError as error:
            self._record_rejection(session, error)
        except ProviderError as error:
            if is_adapted or not await self._adapt_template(session, error):
                raise
            return await self._deliver(session, settings, deliver, is_adapted=True)
        request = await self._make_request(session, settings)
        try:
            with payment:
                return request, await deliver(request, payment)
        except ContextLengthError as again:
            raise self._explain_second_error(session, again) from again

    async def _adapt_template(self, session: Session, error: ProviderError) -> bool:
        """Return whether the next request has another shape, after a template rejected the last."""
        driver = get_driver(session)
        if not is_template_rejection(error.status, error.body):
            return False
        known, window = driver.profile, await self.server.window_of(session.model or "")
        driver.profile = await self.templates.adapt(known, window, driver.template_features)
        return driver.profile.rules() != known.rules()

    def _record_rejection(self, session: Session, error: ContextLengthError) -> None:
        self.context_length_errors += 1
        get_driver(session).handle_context_length_error(error.overflow)
        self._save(session)

    def _explain_second_error(
        self, session: Session, error: ContextLengthError
    ) -> ContextLengthError:
        """Return the error for a request that was trimmed further and is still too long."""
        self._record_rejection(session, error)
        return ContextLengthError(
            f"{error} The request had already been trimmed after a first error. The next one will "
            "be smaller still. To be certain, set the session's window to the server's.",
            error.overflow,
            status=error.status,
            body=error.body,
        )

    @contextmanager
    def _lock(self, session: Session) -> Iterator[None]:
        """Allow one request of a session at a time: the next one depends on the reply."""
        if not isinstance(session, Session):
            raise InputError(
                f"The conversation is not a Session: {type(session).__name__}. Create one with "
                "brim.Session(model) and append the messages to it."
            )
        if session in self._busy:
            raise InputError("This session already has a request in flight.")
        self._busy.add(session)
        try:
            yield
        finally:
            self._busy.discard(session)

    # Sending and receiving

    def _receive(self, session: Session, request: Request, answer: Any) -> Any:
        return get_driver(session).receive(
            answer, lambda reply: self._finish(session, request, reply)
        )

    async def _open_stream(
        self, request: Request, payment: _Payment
    ) -> AsyncIterator[dict[str, Any]]:
        """Return the events of a stream that has begun. Raise its errors before the first event."""
        events = self.connection.stream(self.endpoint.chat_path, request, payment)
        first = await anext(events)
        if (failure := find_error(self.endpoint, self.endpoint.chat_path, first)) is not None:
            await events.aclose()
            raise failure

        async def iterate() -> AsyncIterator[dict[str, Any]]:
            try:
                yield first
                async for event in events:
                    failure = find_error(self.endpoint, self.endpoint.chat_path, event)
                    if failure is not None:
                        raise failure
                    yield event
            finally:
                await events.aclose()

        return iterate()

    def _finish(self, session: Session, request: Request, reply: Reply) -> None:
        self._save(session)
        if reply.usage is None:
            return
        plan = request.plan
        if isinstance(plan.server_tokens, TextCount):
            self.counter.record_report(request, reply.usage.input)
        window = get_driver(session).profile.server_window
        warning = detect_truncation(self._kind, window, plan.size, reply.usage.input)
        if warning and session not in self._warned:
            self._warned.add(session)
            session.warnings.append(warning)

    def _save(self, session: Session) -> None:
        calibration = get_driver(session).profile.calibration
        self.profiles.save(session.model or "", calibration)


def _is_continued(session: Session, reply: Reply) -> bool:
    """Return whether the session has answered all calls of a reply itself."""
    return session.has_open_step and not reply.calls


def _without_forced_call(settings: RequestSettings) -> RequestSettings:
    """Return the settings of the request after a forced call: the model may answer."""
    options = dict(settings.options)
    if is_recall_forced(options.get("tool_choice")):
        del options["tool_choice"]
    return replace(settings, options=options)


class _Payment:
    """Reserves what a request can cost before each attempt, and ends reservations that failed."""

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver

    async def before_send(self) -> None:
        self._driver.reserve()

    def on_failure(self, error: BaseException) -> None:
        self._driver.release(is_charged=not is_free_of_charge(error))

    def __enter__(self) -> None:
        """Begin to send a request."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.on_failure(error)


def build_stream_fields(format: FormatName, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make a request a stream with its usage."""
    if format != "openai":
        return {"stream": True}
    given = options.get("stream_options")
    if given is not None and not isinstance(given, Mapping):
        kind = type(given).__name__
        raise InputError(f"`stream_options` must be a mapping, not {kind}.")
    return {"stream": True, "stream_options": {"include_usage": True, **(given or {})}}


class ClientSettings(TypedDict, total=False):
    """The arguments of `AsyncClient` and `Client`."""

    key: str | None
    format: FormatName
    headers: Mapping[str, str] | None
    timeout: float
    retries: int
    count: CountMode
    calibration_store: CalibrationStore | None


def _make_blocking(
    method: Callable[Concatenate[AsyncClient, Args], Coroutine[object, object, T]],
) -> Callable[Concatenate[Client, Args], T]:
    """Return the method of `Client` that waits for one of `AsyncClient`."""

    @wraps(method)
    def run(self: Client, /, *args: Args.args, **named: Args.kwargs) -> T:
        return self._portal.run(method(self.asynchronous, *args, **named))

    return run


class Client:
    """A synchronous `AsyncClient`; Ctrl-C closes the connection and is raised."""

    def __init__(self, url: str, **settings: Unpack[ClientSettings]) -> None:
        """Create a client; the arguments are those of `AsyncClient`."""
        # In this order: without `close`, the connection is released while its loop still runs.
        self.asynchronous = AsyncClient(url, **settings)
        self._portal = Portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._portal.run(self.asynchronous.close())
        self._portal.close()

    models = _make_blocking(AsyncClient.models)
    count = _make_blocking(AsyncClient.count)
    prepare = _make_blocking(AsyncClient.prepare)
    request = _make_blocking(AsyncClient.request)
    send = _make_blocking(AsyncClient.send)

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
        summarize = self.asynchronous.summarizer(
            session, model=model, focus=focus, max_chars=max_chars, **options
        )
        return BlockingSummarizer(summarize, self._portal)

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
    """A streamed reply for a `for` loop; leaving the loop early keeps the text so far."""

    def __init__(self, received: AsyncReplyStream[dict[str, object]], portal: Portal) -> None:
        self._received = received
        self._portal = portal

    def __iter__(self) -> Iterator[dict[str, object]]:
        return self._portal.iterate(self._received)

    def texts(self) -> Iterator[str]:
        """Yield the text, piece by piece."""
        return self._portal.iterate(self._received.texts())

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield the thinking and the text of each event that has any."""
        for _ in self:
            piece = self._received.thought, self._received.added
            if any(piece):
                yield piece

    @property
    def reply(self) -> Reply:
        """The reply so far."""
        return self._received.reply

    @property
    def plan(self) -> Plan | None:
        """The plan of the request."""
        return self._received.plan

    def close(self) -> None:
        """Stop the stream, and keep the text so far."""
        self._portal.run(self._received.aclose())
