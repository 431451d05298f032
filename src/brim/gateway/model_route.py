"""A route: one model at one upstream, and what is known about it.

Reports and context-length errors update the model's profile, which is saved, and moves the trims
only in steps, so that prompt caches stay warm. Many clients share a route, so a client's errors
change only what holds for all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from brim.config import Config, UpstreamConfig
from brim.errors import Overflow
from brim.fitting import feedback
from brim.fitting.budget import MAX_DEFAULT_REPLY
from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.fitting.fitter import BodyFitter
from brim.fitting.flow import CountMode, Measurement, is_certain
from brim.fitting.plan import Plan, TextCount
from brim.fitting.policies import OFF, POLICIES, resolve_policy
from brim.fitting.prefix_cache import PrefixCache
from brim.fitting.profile import ModelProfile
from brim.gateway.fit_request import BodyAdditions, FittedRequest
from brim.gateway.health import RouteHealth
from brim.gateway.records import CountSource
from brim.gateway.upstreams import Upstream
from brim.providers.server_info import ServerKind, Window, apply_server_info
from brim.wire.formats import BodyFormat, read_tools
from brim.wire.template_rules import PERMISSIVE
from brim.wire.template_trial import ALL_FEATURES, find_features

MAX_FITTERS: Final = 64
UNKNOWN_WINDOW: Final = 1 << 30
"""Stands for an unknown window: nothing is trimmed before a context-length error."""
REFRESH_SECONDS: Final = 300.0
"""The interval between queries for a server's window: it may have been restarted."""
FIRST_RETRY_SECONDS: Final = 2.0
"""The first such interval if the window is unknown, doubled each time."""
UNPROVEN_SECONDS: Final = 3_600.0
"""How long an unproven limit holds, and how long an answered request disproves limits."""
MIN_PROMPT_SHARE: Final = 0.5
"""Below this share of the window, an error without numbers is about something else."""
MIN_PROMPT: Final = 512
"""The same in tokens, if the window is unknown."""
RATIO_DROP: Final = 1.06
"""A calibration ratio rises immediately, and falls only by more than this factor."""
OFFSET_DROP: Final = 1.5
"""The same for the tokens that a server adds to each request."""
LOWER_REPORTS: Final = 64
"""A calibration falls only after this many consecutive reports: otherwise it would soon rise again,
and each change moves the trims and discards the counts."""
INITIAL_REPORTS: Final = 8
REPORT_INTERVAL: Final = 16
"""After the first reports, only one in this many is evaluated."""
MAX_OVERHEAD: Final = 1_000
"""Tokens that a server may add to a prompt, as long as few reports show how many it does add."""
OVERHEAD_REPORTS: Final = 3
"""Reports of similar requests that show what the server adds."""
MAX_REQUEST_KINDS: Final = 64

HeadersFor = Callable[["ModelRoute"], Mapping[str, str]]
"""Returns the client's headers for a request that brim itself makes to a route's upstream."""

RequestKind = tuple[bool, frozenset[str]]
"""Whether there are tools, and the roles: what the additions of a template depend on."""


def _request_kind(out: FittedRequest) -> RequestKind:
    return bool(read_tools(out.body)), frozenset(message.role for message in out.plan.sent)


class RejectedRequest(NamedTuple):
    """What is known about a request that the server rejected, for its second try only."""

    profile: ModelProfile
    measurement: Measurement | None = None
    """Its size, after a context-length error."""
    plan: Plan | None = None
    """What it sent, after a context-length error."""


def create_profile(config: UpstreamConfig, model: str) -> ModelProfile:
    """Return what the configuration and the catalog say about a model at an upstream."""
    return ModelProfile(
        model=model or None,
        window=config.window,
        reply=config.reply,
        template=config.template,
        price=config.price,
        guess=UNKNOWN_WINDOW,
        trial=PERMISSIVE,  # until the template rejects a request
    )


class ModelRoute:
    """One model at one upstream, with what is known about it."""

    def __init__(
        self, upstream: Upstream, model: str, defaults: Config, cache: PrefixCache
    ) -> None:
        config = upstream.config
        self.upstream = upstream
        self.model = model
        self.name = config.names.get(model, model)
        """What the upstream calls the model."""
        self.health = RouteHealth()
        self.profile = create_profile(config, model)
        self.is_guessed = self.profile.is_guessed
        """Whether the window is unknown."""
        self.count: CountMode = config.count or defaults.count.server
        self.policy = config.policy or defaults.gateway.policy
        self._low_water_mark = defaults.gateway.low_water_mark
        self._rolling = defaults.context.rolling
        self.additions = BodyAdditions(config.cache_marks, config.stream_usage)
        self.kind: ServerKind = "unknown"
        self._window = Window(None, "not asked yet")
        self._cache = cache
        self._fitters: dict[tuple[str, int, int | None], BodyFitter] = {}
        self._reports = 0
        self._lower_reports = 0
        """Reports in a row after which the profile could be lower."""
        self._overheads: dict[RequestKind, tuple[int, float]] = {}
        """Number of reports, and the most tokens that the server added for each message."""
        self._latest = UNCALIBRATED
        """The newest calibration; the profile follows it only if it differs by enough."""
        self._preparation: asyncio.Task[None] | None = None
        self._fresh_until = 0.0
        self._largest_prompt_until = self._accepted_until = 0.0
        self._refresh_seconds = FIRST_RETRY_SECONDS
        self._is_ready = False

    def fitter(
        self, policy: str, least_reply: int = 0, reply_limit: int | None = None
    ) -> BodyFitter:
        """Return the fitter for a policy that leaves room for such a reply."""
        if reply_limit is not None and reply_limit >= MAX_DEFAULT_REPLY:
            reply_limit = None
        key = (policy, least_reply, reply_limit)
        fitter = self._fitters.get(key)
        if fitter is None:
            fitter = self.fitter_for(self.profile, policy, least_reply, reply_limit)
            if len(self._fitters) > MAX_FITTERS:
                self._fitters.clear()  # the numbers come from clients
            self._fitters[key] = fitter
        return fitter

    def fitter_for(
        self, profile: ModelProfile, policy: str, least_reply: int, reply_limit: int | None = None
    ) -> BodyFitter:
        """Return the fitter for a single request with a profile of its own."""
        counter = profile.counter()
        budget = profile.budget(counter, least_reply, reply_limit)
        chosen = OFF if policy == OFF.name else POLICIES[policy]
        if chosen.share is not None:
            chosen = resolve_policy(chosen, low_water_mark=self._low_water_mark)
        if chosen.rolling is not None:
            chosen = resolve_policy(chosen, rolling=self._rolling)
        return BodyFitter(counter, budget, chosen, self._cache, profile.rules())

    def count_tokens(self, body: Mapping[str, Any], format: BodyFormat) -> tuple[int, CountSource]:
        """Return the tokens of a whole body by brim's own count."""
        with self.fitter(OFF.name).parse(body, format) as parsed:
            whole = parsed.planner.plan_all()
            return whole.tokens, "exact" if is_certain(whole) else "estimate"

    def _set_profile(self, profile: ModelProfile) -> None:
        if profile is self.profile:
            return
        is_same = profile == self.profile  # but perhaps for `accepted`
        self.profile = profile
        if not is_same:
            self.is_guessed = profile.is_guessed
            self._fitters.clear()

    # What the server says before anything is sent

    async def prepare(self, headers_for: HeadersFor) -> None:
        """Find out what a first request has to know; later requests do not wait for it.

        `headers_for` returns the client's headers for requests to this route's upstream.
        """
        now = time.monotonic()
        if self.profile.largest_prompt is not None and now > self._largest_prompt_until:
            self._set_profile(replace(self.profile, largest_prompt=None))
        if now > self._accepted_until:
            self.profile = replace(self.profile, accepted=0)
            self._accepted_until = now + UNPROVEN_SECONDS
        if self._is_ready and now < self._fresh_until:
            return
        if self._preparation is None or self._preparation.done():
            self._preparation = asyncio.create_task(self._prepare(headers_for(self)))
        if not self._is_ready:
            await asyncio.shield(self._preparation)

    async def _prepare(self, headers: Mapping[str, str]) -> None:
        source = self.upstream.profiles
        if not self._is_ready:
            self._latest = await asyncio.to_thread(source.load, self.model)
            self._set_profile(self.profile.with_stored(self._latest))
        source.server.forget(self.name)
        window = await source.server.window_of(self.name, headers)
        self.kind = window.kind
        known = replace(window, tokens=window.tokens or self.profile.server_window)
        self._window = known
        self._set_profile(apply_server_info(self.profile, known, source.server.transport.endpoint))
        tried = await self.upstream.templates.complete(self.profile, known, ALL_FEATURES, headers)
        self._set_profile(replace(self.profile, trial=tried.trial))
        self._refresh_seconds = min(REFRESH_SECONDS, 2 * self._refresh_seconds)
        if window.tokens:
            self._refresh_seconds = REFRESH_SECONDS
        self._fresh_until = time.monotonic() + self._refresh_seconds
        self._is_ready = True

    async def adapt_template(
        self, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> RejectedRequest | None:
        """Try the template after it rejected a body; return None if there are no other rules.

        Only rules that a trial found hold for all requests.
        """
        templates = self.upstream.templates
        features = find_features(body["messages"], read_tools(body))
        adapted = await templates.adapt(self.profile, self._window, features, headers)
        if adapted.rules() == self.profile.rules():
            return None
        tried = await templates.complete(self.profile, self._window, features, headers)
        self._set_profile(replace(self.profile, trial=tried.trial))
        return RejectedRequest(adapted)

    # What replies and context-length errors show

    def record_report(self, out: FittedRequest, tokens: int) -> None:
        """Calibrate with the size of a prompt that the server reports."""
        plan, planner = out.plan, out.parsed.planner
        accepted = min(plan.size, tokens)
        if self._latest.window is not None and self._latest.window < accepted:
            self._calibrate(self._latest.with_window(None))
        self._set_profile(self.profile.with_accepted(accepted))
        if isinstance(plan.server_tokens, TextCount) and out.is_plain:
            counter = self.upstream.api(out.parsed.format).counter
            counter.record_report({**out.body, "model": self.name}, tokens)
        if not plan.exact:
            self._record_overhead(out, tokens)
        if not feedback.is_informative(plan, planner.counter):
            return
        known = self.profile.calibration
        self._reports += 1
        is_low = tokens > plan.tokens + (0 if planner.counter.density else known.offset)
        if self._reports > INITIAL_REPORTS and self._reports % REPORT_INTERVAL and not is_low:
            return
        if not out.is_plain:
            return
        latest = self.profile.with_calibration(self._latest)
        result = feedback.evaluate_report(plan, tokens, planner, latest, known)
        if result is not None:
            self._calibrate(result.profile.calibration)

    def _record_overhead(self, out: FittedRequest, tokens: int) -> None:
        kind, plan = _request_kind(out), out.plan
        reports, most = self._overheads.get(kind, (0, 0.0))
        added = (tokens - plan.size) / max(1, len(plan.sent_indices))
        is_known = reports >= OVERHEAD_REPORTS and added <= most
        is_full = not reports and len(self._overheads) >= MAX_REQUEST_KINDS
        if not (is_known or is_full) and out.is_plain:
            self._overheads[kind] = reports + 1, max(most, added)

    def max_overhead(self, out: FittedRequest) -> int:
        """Return how many tokens the server may add to a prompt of which brim sees only the text.

        A template adds the same tokens to each request of a kind, and some for each message.
        """
        reports, most = self._overheads.get(_request_kind(out), (0, 0.0))
        if reports < OVERHEAD_REPORTS:
            return max(MAX_OVERHEAD, round(self.profile.calibration.offset))
        return min(MAX_OVERHEAD, math.ceil(most * len(out.plan.sent_indices)))

    @property
    def is_calibrating(self) -> bool:
        """Whether the next report is certain to be evaluated."""
        return self._reports < INITIAL_REPORTS

    def record_rejection(self, out: FittedRequest, overflow: Overflow) -> RejectedRequest:
        """Evaluate a context-length error, and record what holds for all requests."""
        if overflow.sent and feedback.names_size(overflow) and out.is_plain:
            self._record_size(out, overflow.sent)
        profile, measurement = feedback.evaluate_rejection(out.plan, overflow, self.profile)
        calibration = profile.calibration
        if calibration.window != self.profile.calibration.window:
            if not out.mentions(calibration.window or 0):
                self._calibrate(
                    self._latest.with_window(calibration.window, calibration.advertised)
                )
        elif profile.largest_prompt is not None and self._is_about_window(out, overflow):
            self._largest_prompt_until = time.monotonic() + UNPROVEN_SECONDS
            largest = max(profile.largest_prompt, self._least_largest_prompt)
            self._set_profile(replace(self.profile, largest_prompt=largest))
        return RejectedRequest(profile, measurement, out.plan)

    def _record_size(self, out: FittedRequest, tokens: int) -> None:
        """Calibrate from the size of a rejected request."""
        latest = self.profile.with_calibration(self._latest)
        known, planner = self.profile.calibration, out.parsed.planner
        result = feedback.add_size(out.plan, tokens, planner, latest, known, None)
        self._calibrate(result.calibration)

    def _is_about_window(self, out: FittedRequest, overflow: Overflow) -> bool:
        """Return whether an error without numbers can be about the window of all requests."""
        is_bare = overflow.limit is None and overflow.kind == "window"
        return is_bare and out.plan.size >= self._least_largest_prompt and out.is_plain

    @property
    def _least_largest_prompt(self) -> int:
        known = self.profile.proven_window
        return MIN_PROMPT if known is None else int(MIN_PROMPT_SHARE * known)

    def _calibrate(self, calibration: Calibration) -> None:
        self._latest = calibration
        known = self.profile.calibration
        if is_higher(known, calibration):
            self._lower_reports = 0
        elif is_lower(known, calibration):
            self._lower_reports += 1
            if not self.is_calibrating and self._lower_reports < LOWER_REPORTS:
                return
        else:
            self._lower_reports = 0
            return
        self._set_profile(self.profile.with_calibration(calibration))

    async def save(self) -> None:
        """Save the calibration if it has changed."""
        source = self.upstream.profiles
        if self._is_ready and self._latest != source.load(self.model):
            await asyncio.to_thread(source.save, self.model, self._latest)


def is_higher(known: Calibration, latest: Calibration) -> bool:
    """Return whether a calibration must be followed at once: the known one is too low."""
    return (
        latest.window != known.window
        or latest.ratio > known.ratio
        or latest.density > known.density
        or latest.offset > known.offset
        or latest.uncertainty(1.0) > known.uncertainty(1.0)
    )


def is_lower(known: Calibration, latest: Calibration) -> bool:
    """Return whether a calibration is lower by so much that it is worth moving the trims."""
    return (
        latest.ratio * RATIO_DROP < known.ratio
        or latest.density * RATIO_DROP < known.density
        or latest.offset * OFFSET_DROP < known.offset
        or latest.uncertainty(1.0) <= known.uncertainty(1.0) / 2
    )
