"""The two calls that most people need: `count` and `fit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brim import wire
from brim.errors import InputError
from brim.fitting.budget import compute_budget
from brim.fitting.fitter import Fitter, read_tools
from brim.fitting.policies import resolve_policy
from brim.fitting.prefix_cache import PrefixCache
from brim.tokens import counter_for
from brim.wire import openai_chat
from brim.wire.templates import PERMISSIVE, TemplateRules, find_rules, wrap_counter

if TYPE_CHECKING:
    from brim.fitting.passes import Pass
    from brim.fitting.plan import Request
    from brim.fitting.policies import Policy
    from brim.tokens import Tokenizer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]

prefix_cache = PrefixCache()
"""What stateless callers sent last. `brim.fitting.api.memory.clear()` forgets it."""


class Count(int):
    """A number of tokens, and where it comes from."""

    exact: bool
    """Whether the whole was counted as the model will count it; otherwise an estimate."""
    parts: dict[str, int]
    """What the number is made of; the parts add up to it."""

    def __new__(cls, parts: Mapping[str, int], *, exact: bool) -> Count:
        count = super().__new__(cls, sum(parts.values()))
        count.exact = exact
        count.parts = dict(parts)
        return count


def count(
    text_or_messages: str | Messages | Mapping[str, Any],
    *,
    model: str | None = None,
    tools: Tools | None = None,
    tokenizer: Tokenizer | str | None = None,
) -> Count:
    """How many tokens a text, a conversation or a whole request body takes.

    Without a model it is an estimate with o200k, the vocabulary of the current OpenAI models.
    """
    if isinstance(text_or_messages, str):
        counter = counter_for(model, tokenizer=tokenizer)
        parts = {"text": counter.text(text_or_messages)}
        if tools:
            parts["tools"] = counter.tools(read_tools({"tools": tools}))
        return Count(parts, exact=not counter.uncertainty and not tools)
    body = _build_body(text_or_messages, model, tools)
    counter = counter_for(body.get("model"), tokenizer=tokenizer)
    messages = wire.read_messages(body, wire.detect_format(body))
    offered = read_tools(body)
    parts = {"framing": counter.overhead, "tools": counter.tools(offered)}
    for message in messages:
        parts[message.role] = parts.get(message.role, 0) + counter.message(message)
    return Count(parts, exact=counter.exact(messages, offered))


def fit(
    messages_or_body: Messages | Mapping[str, Any],
    *,
    model: str | None = None,
    window: int | None = None,
    reply: int | None = None,
    tools: Tools | None = None,
    policy: str | Policy | Sequence[Pass] = "steady",
    keep_recent: int | None = None,
    pins: Iterable[int] = (),
    max_turns: int | None = None,
    token_budget: int | None = None,
    mask: str | None = None,
    template: str | None = None,
    tokenizer: Tokenizer | str | None = None,
) -> Request:
    """Make a conversation fit the model's window, leaving out no more than needed.

    Takes a list of chat messages, or a whole body of OpenAI chat completions, Anthropic messages
    or OpenAI responses, and gives back the same shape, ready to be unpacked into the client's
    call. What was left out, and why, is in `.plan`. The input is never changed. `template` names
    the rules of a strict chat template, by which the messages then go out. Raises
    `ContextOverflowError` where what must stay is larger than the limit.
    """
    body = _build_body(messages_or_body, model, tools)
    form = wire.detect_format(body)
    rules = _find_rules(template, form)
    counter = wrap_counter(counter_for(body.get("model"), tokenizer=tokenizer), rules)
    least = wire.min_reply_tokens(body)
    budget = compute_budget(body.get("model"), window, reply, counter.uncertainty, least)
    chosen = resolve_policy(
        policy, keep_recent=keep_recent, max_turns=max_turns, token_budget=token_budget
    )
    fitter = Fitter(counter, budget, chosen, prefix_cache, rules, _check_pins(pins), mask)
    return fitter.fit(body, form)


def _build_body(
    given: Messages | Mapping[str, Any], model: str | None, tools: Tools | None
) -> Mapping[str, Any]:
    """A body whatever was given; what is said beside it goes before what stands in it."""
    beside = {"model": model, "tools": tools}
    said = {key: value for key, value in beside.items() if value is not None}
    if isinstance(given, Mapping):
        wire.detect_format(given)
        return {**given, **said}
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InputError(
            f"a conversation is a list of messages or a request body, not {type(given).__name__}"
        )
    return {"messages": given if isinstance(given, list | tuple) else list(given), **said}


def _find_rules(template: str | None, form: wire.Format) -> TemplateRules:
    if template is None:
        return PERMISSIVE
    if form is not openai_chat:
        raise InputError("a template's rules are for chat messages, not for this format")
    return find_rules(template)


def _check_pins(pins: Iterable[int]) -> frozenset[int]:
    numbers = list(pins) if isinstance(pins, Iterable) else [pins]
    if not all(isinstance(number, int) for number in numbers):
        raise InputError(f"pins are the numbers of messages, not {pins!r}")
    return frozenset(numbers)
