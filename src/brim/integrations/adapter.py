"""What the adapters of frameworks share: fitting messages, and mapping them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack

from brim.fitting.api import FitSettings, fit
from brim.fitting.plan import Plan, Request

T = TypeVar("T")
OnPlan = Callable[[Plan], object]


class AdapterSettings(FitSettings, total=False):
    """The arguments of every adapter."""

    model: str | None
    """Replaces the framework's name of the model."""
    on_plan: OnPlan | None
    """Called with the plan of each request."""


class MessageFitter:
    """Fits the messages of a framework, and reports each plan."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        options: dict[str, Any] = dict(settings)
        self._model: str | None = options.pop("model", None)
        self._on_plan: OnPlan | None = options.pop("on_plan", None)
        self._options = options

    def fit(
        self,
        given: Sequence[object] | Mapping[str, object],
        model: object = None,
        tools: Iterable[object] | None = None,
    ) -> Request:
        """Return the request for messages or a body; `model` is the framework's, if it is text."""
        name = self._model or (model if isinstance(model, str) else None)
        request = fit(given, model=name, tools=[*(tools or ())] or None, **self._options)
        if self._on_plan is not None:
            self._on_plan(request.plan)
        return request


def map_back(
    request: Request,
    given: Sequence[T],
    create: Callable[[Any], T],
    change: Callable[[T, Any], T],
) -> list[T]:
    """Return the framework's own messages for what is sent.

    `create` makes one of a note, `change` a copy of one with new content.
    """
    return [
        create(out.message)
        if out.origin is None
        else (change(given[out.origin], out.message) if out.changed else given[out.origin])
        for out in request.outgoing
    ]


class RunHistory(Generic[T]):
    """All messages of a run, for frameworks that replace them by the fitted ones."""

    def __init__(self) -> None:
        self.messages: list[T] = []
        self._sent: list[T] = []

    def extend(self, messages: Sequence[T]) -> list[T]:
        """Return the whole history, with what the framework added since the last request."""
        known = len(self._sent)
        if known and list(messages[:known]) == self._sent:
            self.messages = [*self.messages, *messages[known:]]
        else:  # another run
            self.messages = list(messages)
        return self.messages

    def record(self, sent: Sequence[T]) -> None:
        """Record the messages that replace the history."""
        self._sent = list(sent)


def describe_call(id: str, name: str, arguments: object) -> dict[str, object]:
    """Return the call of a tool in the chat shape."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def describe_tool(name: str, description: str | None, parameters: object) -> dict[str, object]:
    """Return the definition of a tool in the chat shape."""
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}
