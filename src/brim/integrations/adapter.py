"""What the adapters of frameworks share: fitting messages, and mapping them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from brim.fitting.api import ConversationFitter, FitSettings, prefix_cache
from brim.fitting.plan import Plan, Request
from brim.session.recall import NOTHING_FOUND, RECALL_HINT, RecallAnswerer
from brim.tokens import counter_for

T = TypeVar("T")
OnPlan = Callable[[Plan], object]


class RecallTool:
    """A tool of one agent with which its model reads what was trimmed.

    Give its method `recall` to the framework as a tool, and the object to the adapter.
    """

    def __init__(self) -> None:
        self._answerer: RecallAnswerer | None = None

    def recall(self, query: str = "", message: int = -1) -> str:
        """Read messages of this conversation that were omitted to save space.

        A note like [brim: ... omitted] is in their place. Give either a query or a message.

        Args:
            query: Words to search for.
            message: The number of one message.
        """
        if self._answerer is None:
            return NOTHING_FOUND
        return self._answerer.find(query) if message < 0 else self._answerer.read(message)

    def follow(self, plan: Plan, model: str | None) -> None:
        """Answer from what this plan trimmed."""
        self._answerer = RecallAnswerer(plan, counter_for(model).text)


class AdapterSettings(FitSettings, total=False):
    """The arguments of every adapter."""

    model: str | None
    """Replaces the framework's name of the model."""
    on_plan: OnPlan | None
    """Called with the plan of each request."""
    recall: RecallTool | None
    """The tool that the notes name."""


class MessageFitter:
    """Fits the messages of a framework, and reports each plan."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        options: Any = dict(settings)
        self._settings = settings
        self._model: str | None = options.pop("model", None)
        self._on_plan: OnPlan | None = options.pop("on_plan", None)
        self._recall: RecallTool | None = options.pop("recall", None)
        if self._recall is not None:
            options["recall_hint"] = RECALL_HINT
        self._fitter = ConversationFitter(options, prefix_cache)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(MessageFitter, **self._settings), ()

    def fit(
        self,
        given: Sequence[object] | Mapping[str, object],
        model: object = None,
        tools: Iterable[object] | None = None,
    ) -> Request:
        """Return the request for messages or a body; `model` is the framework's, if it is text."""
        body = dict(given) if isinstance(given, Mapping) else {"messages": given}
        if name := self._model or (model if isinstance(model, str) else None):
            body["model"] = name
        if offered := [*(tools or ())]:
            body["tools"] = offered
        request = self._fitter.fit(body)
        if self._recall is not None:
            self._recall.follow(request.plan, name)
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


class Conversions(Generic[T]):
    """Converts the messages of a growing history to the chat shape, each of them once.

    Only for frameworks that never change a message in place.
    """

    def __init__(self, convert: Callable[[T], dict[str, Any]]) -> None:
        self._convert = convert
        self._known: dict[int, tuple[T, dict[str, Any]]] = {}
        """By the id of a message of the last request, which keeps its id while it is here."""

    def read(self, messages: Sequence[T]) -> list[dict[str, Any]]:
        """Return the messages in the chat shape. The caller must not change them."""
        known = self._known
        pairs = [known.get(id(each)) or (each, self._convert(each)) for each in messages]
        self._known = {id(pair[0]): pair for pair in pairs}
        return [body for _, body in pairs]


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
