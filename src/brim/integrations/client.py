"""`brim.wrap`: an OpenAI or Anthropic client that fits every request.

The wrapped client is an instance of a subclass of the client's own class, whose `post` fits the
bodies of completions, responses and messages. All methods of these SDKs send through `post`, which
they document for other endpoints, so everything else stays as it is. Copies (`with_options`)
belong to the same subclass and are wrapped too.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import iscoroutinefunction
from operator import attrgetter
from typing import Any, Final, TypeVar, Unpack

from brim.errors import InputError
from brim.fitting.api import FitSettings
from brim.fitting.plan import Plan, Request
from brim.integrations.client_fitter import ClientFitter
from brim.integrations.client_recall import ClientRecall
from brim.integrations.client_stream import parse_rejection, read_opening, read_opening_async
from brim.session.recall import RECALL_HINT
from brim.wire.formats import FORMATS, FORMATS_BY_PATH, BodyFormat

C = TypeVar("C")

SDKS: Final = ("openai", "anthropic")
_FORMATS: Final = {format.path: format for format in FORMATS.values()} | dict(FORMATS_BY_PATH)
_STREAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": ("completions",),
    "responses": ("",),
    "messages": ("",),
    "beta": ("chat.completions", "messages", "responses"),
}
"""The resources of a client, and where their streaming helpers are."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """What brim did to a request: the attribute `brim` of its response."""

    plan: Plan
    retried: bool = False
    """Whether the server rejected the first request as too long, so that a smaller one was sent."""


_latest: ContextVar[FitReport] = ContextVar("brim_latest_report")
"""The report of the last request in this context, for streaming helpers."""


def wrap(
    client: C,
    *,
    on_plan: Callable[[Plan], object] | None = None,
    recall: bool = False,
    **settings: Unpack[FitSettings],
) -> C:
    """Return a copy of an OpenAI or Anthropic client that fits every request.

    Works for sync and async clients. The copy is an instance of the client's class. Responses and
    streams have the plan as `response.brim.plan`; `on_plan` is called with each plan as well. A
    request that the server rejects as too long is sent once more, smaller. With `recall`, requests
    offer the tool `recall`, with which the model reads what was trimmed; the client answers its
    calls, and sends again. `settings` are the options of `brim.fit`.
    """
    package = next((name for name in map(_package_of, type(client).__mro__) if name in SDKS), None)
    if package is None or not hasattr(client, "post"):
        raise InputError(
            f"The client is not one of openai or anthropic: {type(client).__name__}. "
            "Use brim.fit, or a module of brim.integrations."
        )
    fitter = ClientFitter(RECALL_HINT if recall else "", **settings)
    sender = _Sender(fitter, sys.modules[package], on_plan, recalls=recall)
    wrapped = copy.copy(client)
    wrapped.__class__ = _create_class(type(client), sender)
    renewed: C = wrapped.copy()  # type: ignore[attr-defined]  # without the resources of `client`
    return renewed


def _package_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]


class _Sender:
    """Sends the requests of one client."""

    def __init__(
        self,
        fitter: ClientFitter,
        sdk: Any,
        on_plan: Callable[[Plan], object] | None,
        *,
        recalls: bool,
    ) -> None:
        self._recalls = recalls
        self._fitter = fitter
        self._sdk = sdk
        """The package of the client."""
        self._on_plan = on_plan

    def exchange(self, path: str, body: Any) -> Generator[Any, Any, Any]:
        """Yield the bodies to send; return the response with its report.

        Is sent each response with the context-length error at the beginning of its stream.
        """
        format = _find_format(path, body)
        if format is None:
            return (yield body)[0]
        body = self._strip(body)
        request, retried = self._fitter.fit(body, format), False
        try:
            response, overflow = yield self._announce(request)
            smaller = overflow and self._fitter.shrink(body, format, request.plan, overflow)
        except self._sdk.APIStatusError as error:
            overflow = parse_rejection(error)
            smaller = overflow and self._fitter.shrink(body, format, request.plan, overflow)
            if smaller is None:
                raise
        if smaller is not None:
            request, retried = smaller, True
            response, overflow = yield self._announce(request)
        if overflow is None:
            self._fitter.record_accepted(body, request.plan)
        report = FitReport(request.plan, retried)
        _latest.set(report)
        return _attach(response, report)

    def _announce(self, request: Request) -> dict[str, Any]:
        if self._on_plan is not None:
            self._on_plan(request.plan)
        return dict(request)

    def start_recall(self, path: str, body: Any) -> ClientRecall | None:
        """Return what answers the calls of `recall`; None if the tool is not offered."""
        format = _find_format(path, body) if self._recalls else None
        if format is None or not format.is_fittable(body := self._strip(body)):
            return None
        return None if body.get("n", 1) != 1 else ClientRecall(body, format)

    def _strip(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in body.items() if not self._is_omitted(value)}

    def _is_omitted(self, value: object) -> bool:
        """Whether a value is the SDK's mark for an argument that was not given."""
        given = self._sdk.NotGiven, getattr(self._sdk, "Omit", self._sdk.NotGiven)
        return isinstance(value, given)


def _find_format(path: str, body: Any) -> BodyFormat | None:
    """Return the format of a body that can be fitted."""
    format = _FORMATS.get(path.partition("?")[0])
    is_known = format is not None and isinstance(body, Mapping) and format.messages_key in body
    return format if is_known else None


def _attach(response: Any, report: FitReport) -> Any:
    """Set the attribute `brim`, which is not a field: the response's JSON stays as it is."""
    with suppress(AttributeError, TypeError):  # a response without attributes
        object.__setattr__(response, "brim", report)
    return response


def _run(exchange: Generator[Any, Any, Any], post: Callable[[Any], Any]) -> Any:
    try:
        body = next(exchange)
        while True:
            try:
                response = post(body)
            except Exception as error:
                body = exchange.throw(error)
            else:
                body = exchange.send((response, read_opening(response)))
    except StopIteration as done:
        return done.value


async def _run_async(exchange: Generator[Any, Any, Any], post: Callable[[Any], Any]) -> Any:
    try:
        body = next(exchange)
        while True:
            try:
                response = await post(body)
            except Exception as error:
                body = exchange.throw(error)
            else:
                body = exchange.send((response, await read_opening_async(response)))
    except StopIteration as done:
        return done.value


# Classes


def _create_class(kind: Any, sender: _Sender) -> type:
    """Return a subclass of a client's class whose requests are fitted."""

    def post(self: object, path: str, *, body: object = None, **options: object) -> Any:
        is_async = iscoroutinefunction(kind.post)

        def send(body: object) -> Any:
            run = _run_async if is_async else _run
            return run(
                sender.exchange(path, body),
                lambda body: kind.post(self, path, body=body, **options),
            )

        recall = sender.start_recall(path, body)
        if recall is None:
            return send(body)
        return recall.run_async(send) if is_async else recall.run(send)

    members: dict[str, Any] = {"post": post, "__module__": kind.__module__}
    for name in _STREAMS:
        if hasattr(kind, name):
            members[name] = cached_property(partial(_read_resource, kind, name))
    return type(kind.__name__, (kind,), members)


def _read_resource(kind: Any, name: str, client: object) -> Any:
    """Return a resource of a client whose streaming helpers expose their reports."""
    resource = getattr(kind, name).__get__(client)
    for path in _STREAMS[name]:
        with suppress(AttributeError):
            owner = attrgetter(path)(resource) if path else resource
            owner.stream = partial(_open_stream, owner.stream)
    return resource


def _open_stream(stream: Callable[..., Any], *arguments: object, **options: object) -> Any:
    manager = stream(*arguments, **options)
    manager.__class__ = _create_manager_class(type(manager))
    return manager


def _create_manager_class(kind: Any) -> type:
    """Return a subclass of a manager of streams whose streams have the report of their request."""

    def enter(manager: object) -> Any:
        return _attach(kind.__enter__(manager), _latest.get())

    async def enter_async(manager: object) -> Any:
        return _attach(await kind.__aenter__(manager), _latest.get())

    own = {"__enter__": enter} if hasattr(kind, "__enter__") else {"__aenter__": enter_async}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **own})
