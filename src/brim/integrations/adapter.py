"""What the adapters of frameworks share: fitting messages, and mapping them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from brim.fitting.api import ConversationFitter, FitSettings, prefix_cache
from brim.fitting.plan import Plan, Request
from brim.fitting.prefix_cache import encode_values
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
        encoded: Sequence[bytes] | None = None,
    ) -> Request:
        """Return the request for messages or a body; `model` is the framework's, if it is text.

        `encoded` are the messages as `encode_values` returns them, if the caller has them.
        """
        body = dict(given) if isinstance(given, Mapping) else {"messages": given}
        if name := self._model or (model if isinstance(model, str) else None):
            body["model"] = name
        if offered := [*(tools or ())]:
            body["tools"] = offered
        request = self._fitter.fit(body, encoded)
        if self._recall is not None:
            self._recall.follow(request.plan, name)
        if self._on_plan is not None:
            self._on_plan(request.plan)
        return request


class _Converted(Generic[T]):
    """A message or a tool of a framework, and what it is in the chat shape."""

    __slots__ = ("body", "encoded", "fields", "own", "rewritten")

    def __init__(self, own: T, body: dict[str, Any]) -> None:
        self.own = own
        self.fields = _copy_mutable(_find_fields(own))
        self.body = body
        encoded = encode_values((body,))
        self.encoded = encoded[0] if encoded else None
        """None if the body is not plain JSON."""
        self.rewritten: tuple[object, T] = None, own
        """The body that the last request had in place of it, and the message made from that."""

    def rewrite(self, body: object, change: Callable[[T, Any], T]) -> T:
        """Return the message with new content, which is often that of the last request."""
        rewritten = self.rewritten
        if rewritten[0] != body:
            rewritten = self.rewritten = body, change(self.own, body)
        return rewritten[1]


def _find_fields(item: object) -> dict[str, Any]:
    return item if isinstance(item, dict) else getattr(item, "__dict__", {})


def _copy_mutable(value: Any) -> Any:
    """Return a copy that stays equal to a value until one of its lists or dicts changes."""
    if isinstance(value, dict):
        return {name: _copy_mutable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_copy_mutable, value))
    return value


class _Conversions(Generic[T]):
    """Converts what requests have in common once, unless its fields, lists or dicts changed."""

    def __init__(self, convert: Callable[[T], dict[str, Any]]) -> None:
        self._convert = convert
        self._known: dict[int, _Converted[T]] = {}
        """By the id of an object of the last request, which keeps its id while it is here."""

    def read(self, items: Iterable[T]) -> list[_Converted[T]]:
        """Return the conversions; the loop runs for every message of every request."""
        before, converted = self._known, []
        for item in items:
            found = before.get(id(item))
            if found is None or found.fields != _find_fields(item):
                found = _Converted(item, self._convert(item))
            converted.append(found)
        self._known = {id(each.own): each for each in converted}
        return converted


class ConvertingFitter(Generic[T]):
    """Fits messages that are converted to the chat shape and back, each of them once.

    `read` converts a message, `create` makes one of a note, `change` a copy of one with new
    content; `describe` converts a tool.
    """

    def __init__(
        self,
        settings: AdapterSettings,
        read: Callable[[T], dict[str, Any]],
        create: Callable[[Any], T],
        change: Callable[[T, Any], T],
        describe: Callable[[Any], dict[str, Any]] = dict,
    ) -> None:
        self._given = settings, read, create, change, describe
        self._create, self._change = create, change
        self._fitter = MessageFitter(**settings)
        self._messages = _Conversions(read)
        self._tools = _Conversions(describe)

    def __reduce__(self) -> tuple[object, ...]:
        return ConvertingFitter, self._given

    def fit(
        self, messages: Iterable[T], model: object = None, tools: Iterable[object] | None = None
    ) -> list[T]:
        """Return the framework's own messages for what is sent."""
        return [message for _, message in self.fit_each(messages, model, tools)]

    def fit_each(
        self, messages: Iterable[T], model: object = None, tools: Iterable[object] | None = None
    ) -> list[tuple[int | None, T]]:
        """Return the messages for what is sent, each with the index of the one it comes from."""
        given = self._messages.read(messages)
        offered = [tool.body for tool in self._tools.read(tools or ())]
        encoded = [each.encoded for each in given if each.encoded is not None]
        known = encoded if len(encoded) == len(given) else None
        request = self._fitter.fit([each.body for each in given], model, offered, known)
        sent: list[tuple[int | None, T]] = []
        for origin, body, changed in request.outgoing:
            if origin is None:
                sent.append((None, self._create(body)))
            elif changed:
                sent.append((origin, given[origin].rewrite(body, self._change)))
            else:
                sent.append((origin, given[origin].own))
        return sent


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
