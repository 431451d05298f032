"""Fit a client's body into the bytes that go to its upstream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from brim.fitting.feedback import is_text
from brim.fitting.fitter import BodyFitter, ParsedBody
from brim.fitting.flow import (
    CountJob,
    CountMode,
    Measurement,
    PlanFlow,
    confirm_reply,
    is_certain,
    plan_request,
)
from brim.fitting.plan import Plan, count_since_trim
from brim.fitting.planner import Planner
from brim.fitting.policies import OFF
from brim.gateway import bodies
from brim.gateway.cost_fields import has_duplicate_fields
from brim.gateway.errors import GatewayError
from brim.wire import openai_responses, to_anthropic
from brim.wire.formats import (
    ANTHROPIC,
    CHAT,
    EMBEDDINGS,
    RESPONSES,
    BodyFormat,
    find_reply_limit,
    list_tool_kinds,
    read_tools,
)

CLIENT_TOOL_TYPES: Final = (None, "function", "custom", "functionDeclarations")
"""Types of tools that the client runs and whose definitions are in the body."""
EXTENDING_FIELDS: Final = ("mcp_servers", "web_search_options", "plugins", "prompt", "container")
"""Fields that let an upstream add to the prompt."""


@dataclass(slots=True)
class RequestFit:
    """A body being fitted, step by step, without waiting for anything.

    Each step returns the fitted request, or a job to count, whose result the next step is given.
    """

    fitter: BodyFitter
    request: ClientRequest
    additions: BodyAdditions
    count: CountMode
    measurement: Measurement | None
    """What the upstream reported when it rejected the body."""
    rejected_plan: Plan | None = None
    """What it rejected."""
    _parsed: ParsedBody | None = None
    _flow: PlanFlow | None = None

    def step(self, tokens: int | None = None) -> CountJob | FittedRequest:
        parsed, request = self._parsed, self.request
        if parsed is None:
            parse = self.fitter.parse_once if self._is_embedding else self.fitter.parse
            parsed = self._parsed = parse(request.body, request.format)
            if self.measurement is None and self.count != "always":
                plan = parsed.plan_untrimmed()
                limit = find_reply_limit(request.body, request.format)
                if plan is not None and (limit is None or limit <= plan.reply_room):
                    return self._finish(parsed, plan)  # nearly always
        if self._flow is None:
            self._flow = _plan_body(parsed, self.count, self._measure(parsed.planner))
        try:
            return self._flow.send(tokens)
        except StopIteration as done:
            return self._finish(parsed, done.value)

    def _measure(self, planner: Planner) -> Measurement | None:
        """Return the measurement for the counter of a planner, which was calibrated since.

        As in a session, the counters are compared with what would be sent without another trim.
        """
        if self.measurement is None or (plan := self.rejected_plan) is None:
            return self.measurement
        if planner.policy.share is None:
            before, now = plan.before, planner.plan_all().tokens
        else:
            before, now = plan.tokens, planner.count_plan(plan)
        return self.measurement.rescale(now / max(1, before))

    @property
    def _is_embedding(self) -> bool:
        return self.request.format is EMBEDDINGS

    def _finish(self, parsed: ParsedBody, plan: Plan) -> FittedRequest:
        if self._is_embedding:
            check_inputs(plan, parsed.planner.counter.uncertainty)
        if plan.exact and not is_certain(plan):
            plan = replace(plan, exact=False)
        return build_request(parsed, plan, self.request, self.additions)

    def close(self) -> None:
        """Return the conversation to the prefix cache."""
        if self._parsed is not None:
            self._parsed.close()


def check_inputs(plan: Plan, uncertainty: float) -> None:
    """Raise `GatewayError` if an input of embeddings is longer than the model's window.

    Each input has the whole window. An estimate is rejected only if it must be wrong otherwise.
    """
    window = plan.budget.window
    for index in range(plan.length):
        tokens = plan.history.tokens(index)
        if tokens > window * (1 + uncertainty):
            raise GatewayError(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {window} tokens, but input {index} has "
                f"{tokens} tokens. Split it.",
                param="input",
            )


def _plan_body(parsed: ParsedBody, count: CountMode, measurement: Measurement | None) -> PlanFlow:
    """Decide what to send of a body; the plan depends on the history alone.

    So a client that sends its growing history finds the beginning of it in the provider's cache,
    whichever gateway handles it.
    """
    planner = parsed.planner
    if not parsed.is_complete:
        return parsed.plan()
    if parsed.fitter.policy is OFF:
        return planner.plan_all()
    if (cleared := parsed.plan_cleared()) is not None:
        return cleared
    plan = yield from plan_request(
        planner, parsed.apply_template, count=count, measurement=measurement, continues=False
    )
    limit = find_reply_limit(parsed.body, parsed.format)
    return (yield from confirm_reply(plan, parsed.apply_template, count, limit))


class ClientRequest(NamedTuple):
    """A client's request to a model."""

    body: Mapping[str, Any]
    raw: bytes
    format: BodyFormat
    path: bodies.ModelPath | None = None
    """What the path says, if the format names the model there."""

    @property
    def model(self) -> object:
        return self.body.get("model") if self.path is None else self.path.model

    @property
    def is_stream(self) -> bool:
        return bodies.is_stream(self.body) if self.path is None else self.path.is_stream


class BodyAdditions(NamedTuple):
    """Fields that brim adds to a body though the client did not set them."""

    cache_marks: bool = False
    stream_usage: bool = False
    reply_key: str | None = None
    """The field that limits the reply, if brim has to set it."""


class FittedRequest(NamedTuple):
    """A request as it goes to an upstream, with the plan that explains it."""

    raw: bytes
    body: Mapping[str, Any]
    plan: Plan
    parsed: ParsedBody
    hides_usage: bool = False
    """Whether brim asked for a usage event that the client does not expect."""

    @property
    def is_whole(self) -> bool:
        """Whether the body contains the whole conversation, and not a part that a server keeps."""
        return self.parsed.is_complete

    @property
    def is_open_ended(self) -> bool:
        """Whether the upstream adds to the prompt what is not in the body."""
        format = self.parsed.format
        if _extends_prompt(self.body, format) or has_remote_file(self.plan):
            return True
        return format.server_format == RESPONSES.name and openai_responses.has_references(self.body)

    @property
    def is_plain(self) -> bool:
        """Whether the upstream counts only what brim counts too."""
        return (
            self.is_whole
            and is_text(self.plan)
            and not _extends_prompt(self.body, self.parsed.format)
        )

    def mentions(self, number: int) -> bool:
        """Return whether a number is in the client's own text, which an error may just repeat."""
        digits = "[,_]?".join(str(number))
        # A number after a key is a setting, not text; inside of a text a quote is escaped.
        pattern = rf'(?<![^\\]":)(?<![0-9]){digits}(?![0-9])'
        return re.search(pattern.encode(), bodies.serialize(self.body)) is not None

    @property
    def can_adapt(self) -> bool:
        """Whether the messages can get another shape for a strict chat template."""
        return self.parsed.format is CHAT and self.plan.policy != OFF.name

    @property
    def can_shrink(self) -> bool:
        return self.is_whole and self.plan.policy != OFF.name


def _extends_prompt(body: Mapping[str, Any], format: BodyFormat) -> bool:
    """Return whether an upstream adds to the prompt: results of its own tools, or a template."""
    if any(map(body.get, EXTENDING_FIELDS)):
        return True
    if not body.get("tools"):
        return False
    tools = (tool for tool in read_tools(body) if isinstance(tool, Mapping))
    kinds = chain.from_iterable(list_tool_kinds(tool, format) for tool in tools)
    return any(kind not in CLIENT_TOOL_TYPES for kind in kinds)


def has_remote_file(plan: Plan) -> bool:
    """Return whether a file is sent by reference, so that brim does not see its content."""
    return any(
        media.kind == "file" and not media.size for message in plan.sent for media in message.media
    )


def build_request(
    parsed: ParsedBody, plan: Plan, request: ClientRequest, additions: BodyAdditions
) -> FittedRequest:
    """Return the request of a plan, with the client's own bytes if nothing has to change."""
    format, reply_key = request.format, additions.reply_key
    is_off = plan.policy == OFF.name  # then even the length of the reply stays as it is
    body: Mapping[str, Any] = parsed.apply(plan) if is_off else parsed.build_body(plan)
    if additions.cache_marks and format is ANTHROPIC:
        body = add_cache_marks(body, plan)
    unchanged = request.raw if body is parsed.body else None
    if reply_key and unchanged is not None and has_duplicate_fields(unchanged, body):
        unchanged = None
    hides = format is CHAT and additions.stream_usage and bodies.is_stream(body)
    hides = hides and not bodies.has_usage_option(body)
    if hides:
        body, unchanged = bodies.request_usage(body, unchanged)
    if reply_key is not None and find_reply_limit(body, format) is None:
        key, value = format.with_option(body, reply_key, plan.budget.reply)
        body, unchanged = bodies.set_field(body, unchanged, key, value)
    raw = bodies.serialize(body) if unchanged is None else unchanged
    return FittedRequest(raw, body, plan, parsed, hides)


def add_cache_marks(body: Mapping[str, Any], plan: Plan) -> Mapping[str, Any]:
    """Return an Anthropic body with marks for the provider's cache, if the client set none."""
    if any(to_anthropic.iter_cache_marks(body)):
        return body
    since = count_since_trim(plan)
    boundary = None if since is None else to_anthropic.index_before(body["messages"], since)
    return to_anthropic.add_cache_marks(body, boundary)
