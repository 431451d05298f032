"""`count`, `fit` and `search`, the functions that most callers need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypedDict

from brim.errors import InputError
from brim.fitting.fitter import BodyFitter
from brim.fitting.passes import Pass
from brim.fitting.plan import Plan, Request, find_trimmed_texts
from brim.fitting.policies import Policy, PolicyName, RollingSettings, resolve_policy
from brim.fitting.prefix_cache import PrefixCache
from brim.fitting.profile import ModelProfile
from brim.fitting.search import (
    Passage,
    PassageCache,
    Source,
    choose_length,
    read_texts,
    search_texts,
)
from brim.fitting.summarizer import Summarizer, check_summarizer
from brim.tokens import Tokenizer, counter_for
from brim.wire.formats import (
    CHAT,
    BodyFormat,
    check_fields,
    detect_format,
    find_messages_key,
    find_reply_limit,
    min_reply_tokens,
    plain_tools,
    read_messages,
    read_tools,
    to_plain_body,
)
from brim.wire.objects import is_array, to_list
from brim.wire.prompt_counter import find_prompt_counter
from brim.wire.template_rules import PERMISSIVE


class Array(Protocol):
    """An array of numpy, or a series of pandas."""

    def tolist(self) -> object: ...


Messages: TypeAlias = Sequence[object] | Iterator[object] | Array
"""Chat messages, Anthropic messages or items of responses: dicts or objects of an SDK."""
Tools: TypeAlias = Sequence[object]
"""Tool definitions: dicts or objects."""


class FitSettings(TypedDict, total=False):
    """The options of `brim.fit` that may hold for many conversations."""

    window: int | None
    reply: int | None
    margin: int | None
    policy: PolicyName | Policy | Sequence[Pass]
    keep_recent: int | None
    max_turns: int | None
    token_budget: int | None
    low_water_mark: float | None
    rolling: RollingSettings | None
    mask: str | None
    template: str | None
    tokenizer: Tokenizer | str | None
    summarize: Summarizer | None


class FitOptions(FitSettings, total=False):
    """The options of `brim.fit`."""

    model: str | None
    tools: Tools | None
    pins: Iterable[int]
    recall_hint: str
    """What notes say about reading what was trimmed."""


_PROFILE_OPTIONS: Final = ("window", "reply", "margin", "template", "tokenizer")
_POLICY_OPTIONS: Final = ("keep_recent", "max_turns", "token_budget", "low_water_mark", "rolling")
MAX_FITTERS: Final = 100

prefix_cache = PrefixCache()
"""The last conversations of `fit`. `brim.fitting.api.prefix_cache.clear()` empties it."""


class Count(int):
    """A number of tokens and its parts."""

    exact: bool
    """Whether the model will count the same number; otherwise it is an estimate."""
    parts: dict[str, int]
    """Tokens of each part; they add up to the number."""

    def __new__(cls, parts: Mapping[str, int], *, exact: bool) -> Count:
        count = super().__new__(cls, sum(parts.values()))
        count.exact = exact
        count.parts = dict(parts)
        return count

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Count, exact=self.exact), (self.parts,)


def count(
    text_or_messages: str | Mapping[str, object] | Messages,
    *,
    model: str | None = None,
    tools: Tools | None = None,
    template: str | None = None,
    tokenizer: Tokenizer | str | None = None,
) -> Count:
    """Return the tokens of a text, a conversation or a whole request body.

    Without a model, the count is an estimate with o200k, the vocabulary of OpenAI's models. With
    the text or the path of the model's chat template, and its own vocabulary, chat messages and
    tools are counted exactly.
    """
    if isinstance(text_or_messages, str):
        counter = counter_for(model, tokenizer=tokenizer)
        parts = {"text": counter.text(text_or_messages)}
        if tools:
            parts["tools"] = counter.tools(plain_tools(tools))
        return Count(parts, exact=not counter.uncertainty and not tools)
    body = _build_body(text_or_messages, model, tools)
    format = detect_format(body)
    check_fields(body, format)
    body = to_plain_body(body, format)
    prompt = find_prompt_counter(template, body.get("model"), tokenizer)
    if prompt is not None and format is CHAT and (tokens := prompt.count(body)) is not None:
        return Count({"prompt": tokens}, exact=True)
    counter = counter_for(body.get("model"), tokenizer=tokenizer)
    messages = read_messages(body, format)
    offered = read_tools(body)
    parts = {"framing": counter.overhead, "tools": counter.tools(offered)}
    for message in messages:
        parts[message.role] = parts.get(message.role, 0) + counter.message(message)
    return Count(parts, exact=counter.exact(messages, offered))


def fit(
    messages_or_body: Mapping[str, object] | Messages,
    *,
    model: str | None = None,
    window: int | None = None,
    reply: int | None = None,
    margin: int | None = None,
    tools: Tools | None = None,
    policy: PolicyName | Policy | Sequence[Pass] = "steady",
    keep_recent: int | None = None,
    pins: Iterable[int] = (),
    max_turns: int | None = None,
    token_budget: int | None = None,
    low_water_mark: float | None = None,
    rolling: RollingSettings | None = None,
    mask: str | None = None,
    template: str | None = None,
    tokenizer: Tokenizer | str | None = None,
    summarize: Summarizer | None = None,
) -> Request:
    """Return a request that fits the model's context window, trimmed no more than needed.

    Takes a list of chat messages, or a whole body for OpenAI chat completions, Anthropic messages
    or OpenAI responses, and returns the same shape, ready to be unpacked into the client's call.
    Messages may be objects of an SDK; unchanged ones are returned as they are.
    `.plan` lists what was trimmed and why. The input is never changed. `margin` replaces the tokens
    that are kept free for the uncertainty of the count. `low_water_mark` is the share of the limit
    that a trim of `steady` or `thrift` reaches, `rolling` has the numbers of that policy.
    `template` is the name, the text
    or the path of a strict chat template whose rules the messages must follow.

    `summarize` is called with (previous summary or None, dropped messages), and returns a text that
    is sent in place of them. It is called once for each trim of a conversation that grows from call
    to call; with None in place of the messages, it shortens its summary. Raise
    `ContextOverflowError` if the messages that must be sent are larger than the limit.
    """
    options = FitOptions(
        model=model,
        window=window,
        reply=reply,
        margin=margin,
        tools=tools,
        policy=policy,
        keep_recent=keep_recent,
        pins=pins,
        max_turns=max_turns,
        token_budget=token_budget,
        low_water_mark=low_water_mark,
        rolling=rolling,
        mask=mask,
        template=template,
        tokenizer=tokenizer,
        summarize=summarize,
    )
    return ConversationFitter(options, prefix_cache).fit(messages_or_body)


class ConversationFitter:
    """`fit` with the same options for many conversations, which are evaluated once."""

    def __init__(self, options: FitOptions, prefix_cache: PrefixCache | None = None) -> None:
        """Without a cache, no conversation is expected to continue another one."""
        check_options(options, FitOptions.__annotations__)
        self._options: Mapping[str, Any] = options
        self._pins = _check_pins(options.get("pins", ()))
        self._prefix_cache = prefix_cache
        self._fitters: dict[tuple[object, ...], BodyFitter] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return ConversationFitter, (self._options,)

    def fit(
        self,
        messages_or_body: Mapping[str, object] | Messages,
        encoded_messages: Sequence[bytes] | None = None,
    ) -> Request:
        """Return the request that fits; see `BodyFitter.parse` for encoded messages."""
        given = self._options
        body = _build_body(messages_or_body, given.get("model"), given.get("tools"))
        format = detect_format(body)
        check_fields(body, format)
        return self._find_fitter(body, format).fit(body, format, encoded_messages)

    def _find_fitter(self, body: Mapping[str, Any], format: BodyFormat) -> BodyFitter:
        model, least = body.get("model"), min_reply_tokens(body)
        key = repr(model), format.name, least, find_reply_limit(body, format)
        if key not in self._fitters:
            if len(self._fitters) >= MAX_FITTERS:
                self._fitters.clear()  # the numbers come from the bodies
            self._fitters[key] = self._create_fitter(model, format, *key[2:])
        return self._fitters[key]

    def _create_fitter(
        self, model: Any, format: BodyFormat, least: int, most: int | None
    ) -> BodyFitter:
        """Return the fitter of bodies that ask for replies of `least` to `most` tokens."""
        given = self._options
        _check_template(given.get("template"), format)
        known = {name: given[name] for name in _PROFILE_OPTIONS if name in given}
        profile = ModelProfile(model, trial=PERMISSIVE, is_calibrated=False, **known)
        counter = profile.counter()
        numbers = {name: given[name] for name in _POLICY_OPTIONS if name in given}
        policy = resolve_policy(given.get("policy", "steady"), **numbers)
        mask, summarize = given.get("mask"), check_summarizer(given.get("summarize"))
        return BodyFitter(
            counter,
            profile.budget(counter, least, most),
            policy,
            self._prefix_cache,
            profile.rules(),
            self._pins,
            mask,
            profile.prompt_counter(),
            summarize,
            given.get("recall_hint", ""),
        )


def search(
    messages_or_plan: Plan | Mapping[str, object] | Messages,
    query: str,
    *,
    tokens: int,
    model: str | None = None,
    window: int | None = None,
    tokenizer: Tokenizer | str | None = None,
) -> list[Passage]:
    """Return the passages that match a query best, at most `tokens` together, in history order.

    Of a plan or request, only what is not sent is searched: the trimmed messages and the trimmed
    parts of clipped outputs. Of messages or a body, all is searched except the system text. The
    passages have about 500 characters, or 200 for a window up to 8,192 tokens, by default that of
    the plan. Without a model, their tokens are counted with o200k.
    """
    if not isinstance(query, str):
        raise InputError(f"The query is not a text: {type(query).__name__}. Pass a string.")
    if isinstance(messages_or_plan, Request):
        messages_or_plan = messages_or_plan.plan
    if isinstance(messages_or_plan, Plan):
        window = messages_or_plan.budget.window if window is None else window
        sources, cache = (
            find_trimmed_texts(messages_or_plan),
            messages_or_plan.history.passage_cache,
        )
    else:
        body = _build_body(messages_or_plan, model, None)
        model, sources, cache = body.get("model"), _read_sources(body), PassageCache()
    counter = counter_for(model, tokenizer=tokenizer)
    return search_texts(sources, query, tokens, counter.text, choose_length(window), cache)


def _read_sources(body: Mapping[str, Any]) -> Iterator[Source]:
    format = detect_format(body)
    check_fields(body, format)
    for index, message in enumerate(read_messages(to_plain_body(body, format), format)):
        if message.role != "system":
            yield from (Source(index, message.role, text) for text in read_texts(message))


def _build_body(
    given: Mapping[str, object] | Messages, model: str | None, tools: Tools | None
) -> Mapping[str, Any]:
    """Return a request body; arguments replace the values of a given body."""
    arguments = {"model": model, "tools": tools}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    if not isinstance(given, Mapping):
        if not (isinstance(given, list | tuple) or is_array(given)):
            raise InputError(
                "The conversation is not a list of messages or a request body: "
                f'{type(given).__name__}. Pass a list such as [{{"role": "user", "content": "…"}}].'
            )
        messages = to_list(given)
        return {find_messages_key(messages): messages, **arguments}
    lists = {key: to_list(given[key]) for key in ("messages", "input") if is_array(given.get(key))}
    return {**given, **lists, **arguments}


def _check_template(template: str | None, format: BodyFormat) -> None:
    if template is not None and format is not CHAT:
        raise InputError(
            "A chat template needs chat messages. Remove template=... for this format."
        )


def check_options(options: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `InputError` for an option that is not known."""
    if unknown := sorted({*options}.difference(known)):
        raise InputError(f"Unknown option: {unknown[0]}. Use one of {', '.join(known)}.")


def _check_pins(pins: Iterable[int]) -> frozenset[int]:
    numbers = list(pins) if isinstance(pins, Iterable) else [pins]
    if not all(isinstance(number, int) for number in numbers):
        raise InputError(f"pins are not message indices: {pins!r}. Use a list of integers.")
    return frozenset(numbers)
