"""Fitting: a client's body, made into the bytes that go to its upstream.

The same history gives the same cuts, whoever asks and whenever: nothing is remembered that could
change them. So a client that sends its growing history finds the prefix of it in the provider's
cache. A server's own count decides only whether anything has to be cut at all.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from brim.errors import ContextOverflowError
from brim.fitting import flow
from brim.fitting.feedback import is_text
from brim.fitting.fitter import read_tools
from brim.fitting.flow import CountJob, Measurement, estimate_bounds
from brim.fitting.policies import OFF
from brim.gateway import bodies
from brim.gateway.formats import CHAT, MESSAGES
from brim.gateway.max_cost import has_duplicate_fields
from brim.wire import openai_responses, to_anthropic

if TYPE_CHECKING:
    from brim.fitting.fitter import Fitter, ParsedBody
    from brim.fitting.flow import CountMode
    from brim.fitting.plan import Plan
    from brim.gateway.formats import BodyFormat

Deciding = Generator[CountJob, "int | None", "Plan"]

CLIENT_TOOL_TYPES: Final = frozenset((None, "function", "custom"))
"""Tools that the client runs, and whose definitions stand in the body."""
EXTENDING_FIELDS: Final = ("mcp_servers", "web_search_options", "plugins", "prompt", "container")
"""Fields by which an upstream is told to bring in more."""


def deciding(reading: ParsedBody, ask: CountMode) -> Deciding:
    """What is sent of a body: by brim's own count, and by the server's where only that tells."""
    if not reading.is_whole:
        return reading.plan()
    if reading.fitter.policy is OFF:
        return reading.planner.whole()
    plan = yield from _fitted(reading, ask)
    if ask != "always" or plan.server_tokens is not None:
        return plan
    true = yield CountJob(_drawing(reading)(plan))
    if true is None or true <= plan.budget.room:
        return replace(plan, server_tokens=true)
    return shrinking(reading, Measurement.of(plan, true, refused=True))


def _fitted(reading: ParsedBody, ask: CountMode) -> Deciding:
    try:
        plan = reading.plan()
    except ContextOverflowError as error:
        true = yield from _count(reading, error.plan, ask)
        if true is None or true > error.plan.budget.room:
            raise
        return replace(error.plan, server_tokens=true)
    if not plan.is_trimmed or reading.conversation.is_too_long:
        return plan
    whole = reading.planner.whole()
    true = yield from _count(reading, whole, ask)
    if true is not None and true <= whole.budget.room:
        return replace(whole, server_tokens=true)
    # Old thinking counts for nothing, so a history with some of it may grow and take less.
    reading.conversation.is_too_long = true is not None and not _has_thinking(whole)
    return plan


def _count(
    reading: ParsedBody, plan: Plan, ask: CountMode
) -> Generator[CountJob, int | None, int | None]:
    """The server's count of a plan that brim's own would not let pass, where that may be wrong."""
    room = plan.budget.room
    if ask == "off" or is_sure(plan) or estimate_bounds(plan, reading.planner, None)[0] > room:
        return None
    return (yield CountJob(_drawing(reading)(plan)))


def _has_thinking(plan: Plan) -> bool:
    return any(message.thinking for message in plan.sent)


def is_sure(plan: Plan) -> bool:
    """Whether an exact count is what the server takes: some were seen to add to every request."""
    return plan.exact and not plan.budget.margin


def shrinking(reading: ParsedBody, reported: Measurement) -> Plan:
    """What is sent of a body that was refused, by what the refusal said."""
    asking = flow.plan_request(reading.planner, _drawing(reading), reported=reported)
    return flow.run_flow(asking, lambda _: None)


def _drawing(reading: ParsedBody) -> flow.BuildBody:
    return reading.shaped


class Fitting:
    """A body being fitted, step by step; nothing here waits.

    Each step gives what goes out, or asks for the server's count, which the next one is given.
    """

    def __init__(
        self,
        fitter: Fitter,
        asked: ClientRequest,
        extras: BodyAdditions,
        ask: CountMode,
        reported: Measurement | None,
    ) -> None:
        self._fitter = fitter
        self._asked = asked
        self._extras = extras
        self._ask = ask
        self._reported = reported
        """What an upstream said of this body when it refused it."""
        self._reading: ParsedBody | None = None
        self._deciding: Deciding | None = None

    def step(self, tokens: int | None = None) -> CountJob | FittedRequest:
        reading = self._reading
        if reading is None:
            asked = self._asked
            reading = self._reading = self._fitter.reading(asked.body, asked.form.wire)
            if self._reported is not None:
                return self._outgoing(reading, shrinking(reading, self._reported))
            plan = None if self._ask == "always" else reading.untouched()
            if plan is not None:
                return self._outgoing(reading, plan)
        if self._deciding is None:
            self._deciding = deciding(reading, self._ask)
        try:
            return self._deciding.send(tokens)
        except StopIteration as done:
            return self._outgoing(reading, done.value)

    def _outgoing(self, reading: ParsedBody, plan: Plan) -> FittedRequest:
        if plan.exact and not is_sure(plan):
            plan = replace(plan, exact=False)
        return outgoing(reading, plan, self._asked, self._extras)

    def close(self) -> None:
        """Give back what others may go on with."""
        if self._reading is not None:
            self._reading.close()


class ClientRequest(NamedTuple):
    """What a client wants of a model."""

    body: Mapping[str, Any]
    raw: bytes
    form: BodyFormat


class BodyAdditions(NamedTuple):
    """What brim adds to a body that the client did not ask for."""

    cache_marks: bool = False
    stream_usage: bool = False
    reply_key: str | None = None
    """Where the length of the answer is to be said, if the client says nothing of it."""


class FittedRequest(NamedTuple):
    """What goes to an upstream, and why it looks like that."""

    raw: bytes
    body: Mapping[str, Any]
    plan: Plan
    reading: ParsedBody
    hides_usage: bool = False
    """Whether usage was asked for that the client does not expect."""

    @property
    def is_whole(self) -> bool:
        """Whether the conversation is all here; what a server keeps of it cannot be counted."""
        return self.reading.is_whole

    @property
    def is_open_ended(self) -> bool:
        """Whether the upstream adds to the prompt what does not stand in the body."""
        if _extends_prompt(self.body) or has_remote_file(self.plan):
            return True
        return self.reading.form is openai_responses and openai_responses.has_references(self.body)

    @property
    def is_plain(self) -> bool:
        """Whether the upstream counts nothing but what brim counts too."""
        return self.is_whole and is_text(self.plan) and not _extends_prompt(self.body)

    def says(self, number: int) -> bool:
        """Whether a number stands in the client's own words, which an upstream may only repeat."""
        digits = "[,_]?".join(str(number))
        # What stands behind a key is a setting, and no words; within words a quote is escaped.
        pattern = rf'(?<![^\\]":)(?<![0-9]){digits}(?![0-9])'
        return re.search(pattern.encode(), bodies.serialize(self.body)) is not None

    @property
    def may_shrink(self) -> bool:
        return self.is_whole and self.plan.policy != OFF.name


def _extends_prompt(body: Mapping[str, Any]) -> bool:
    """Whether an upstream adds to a prompt by itself: what its own tools find, or a template."""
    kinds = {tool.get("type") for tool in read_tools(body) if isinstance(tool, Mapping)}
    return bool(kinds - CLIENT_TOOL_TYPES) or any(map(body.get, EXTENDING_FIELDS))


def has_remote_file(plan: Plan) -> bool:
    """Whether it names a file that the upstream has or fetches, and brim does not see."""
    return any(
        media.kind == "file" and not media.size for message in plan.sent for media in message.media
    )


def outgoing(
    reading: ParsedBody, plan: Plan, asked: ClientRequest, extras: BodyAdditions
) -> FittedRequest:
    """The bytes that a plan sends: the client's own where nothing had to change."""
    form = asked.form
    is_off = plan.policy == OFF.name  # then not even the answer's length is touched
    body: Mapping[str, Any] = reading.applied(plan) if is_off else reading.written(plan)
    if extras.cache_marks and form is MESSAGES:
        body = add_cache_marks(body, plan)
    unchanged = asked.raw if body is reading.body else None
    if (
        extras.reply_key is not None
        and unchanged is not None
        and has_duplicate_fields(unchanged, body)
    ):
        unchanged = None
    hides = form is CHAT and extras.stream_usage and bodies.is_stream(body)
    hides = hides and not bodies.has_usage_option(body)
    if hides:
        body, unchanged = bodies.add_usage_option(body, unchanged)
    if extras.reply_key is not None and not _limits_reply(body, form):
        body, unchanged = bodies.set_number(body, unchanged, extras.reply_key, plan.budget.reply)
    raw = bodies.serialize(body) if unchanged is None else unchanged
    return FittedRequest(raw, body, plan, reading, hides)


def _limits_reply(body: Mapping[str, Any], form: BodyFormat) -> bool:
    return any(isinstance(body.get(key), int) for key in form.wire.REPLY_KEYS)


def add_cache_marks(body: Mapping[str, Any], plan: Plan) -> Mapping[str, Any]:
    """An Anthropic body with marks for the provider's cache, if the client has set none."""
    if any(to_anthropic.iter_cache_marks(body)):
        return body
    return to_anthropic.add_cache_marks(body, _frontier(body["messages"], plan))


def _frontier(messages: Sequence[Mapping[str, Any]], plan: Plan) -> int | None:
    """The message up to which the last edit fixed what is sent."""
    if not plan.trim_id:
        return None
    edited = plan.history.units[plan.trim_id - 1].last
    since = sum(1 for index in plan.sent_indices if index > edited)
    for index in reversed(range(len(messages))):
        if since <= 0:
            return index
        since -= _turns_in(messages[index])
    return None


def _turns_in(message: Mapping[str, Any]) -> int:
    """How many turns a message is: each result is one, and all else together."""
    content = message.get("content")
    if not isinstance(content, list):
        return 1
    results = sum(1 for block in content if block.get("type") == "tool_result")
    return results + (results < len(content))
