"""Routes: which upstream gets a model's requests, and what is known about the model there.

A model's name selects its upstream: one that lists the name, else one with a matching pattern,
else one without a list. Reports and context-length errors update the model's profile, which is
saved, and moves the trims only in steps, so that prompt caches stay warm. Many clients share a
route, so a client's errors change only what holds for all.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from brim.config import Config, UpstreamConfig
from brim.errors import Overflow
from brim.fitting import feedback
from brim.fitting.budget import MAX_DEFAULT_REPLY
from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.fitting.fitter import BodyFitter
from brim.fitting.flow import CountMode, Measurement, is_certain
from brim.fitting.policies import OFF, POLICIES, resolve_policy
from brim.fitting.prefix_cache import PrefixCache
from brim.fitting.profile import ModelProfile
from brim.gateway.errors import GatewayError
from brim.gateway.fit_request import BodyAdditions, FittedRequest
from brim.gateway.headers import UpstreamHeaders
from brim.gateway.records import CountSource
from brim.providers.endpoint import Endpoint
from brim.providers.server_counter import ServerCounter
from brim.providers.server_info import (
    ProfileSource,
    ServerInfo,
    ServerKind,
    Window,
    apply_server_info,
)
from brim.providers.template_finder import TemplateFinder
from brim.providers.transport import Transport, credential_headers
from brim.storage.calibration_store import CalibrationStore
from brim.wire.formats import FORMATS, BodyFormat, FormatName, read_tools
from brim.wire.template_rules import PERMISSIVE
from brim.wire.template_trial import ALL_FEATURES, find_features

FLAG_UPSTREAM: Final = "default"
"""Name of the upstream that command-line flags describe."""
LOCAL_UPSTREAM: Final = "local"
"""Name of the upstream that is the embedded model."""
UNCONFIGURED_UPSTREAMS: Final = (FLAG_UPSTREAM, LOCAL_UPSTREAM)
"""Upstreams without settings in a configuration file."""
MAX_ROUTES: Final = 1_000
"""Routes that are kept; names come from clients."""
MAX_FITTERS: Final = 64
PREFIX_CACHE_BYTES: Final = 96_000_000
"""Size of the cache of parsed conversations."""
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
INITIAL_REPORTS: Final = 8
REPORT_INTERVAL: Final = 16
"""After the first reports, only one in so many is evaluated."""
MAX_OVERHEAD: Final = 1_000
"""Tokens that a server may add to a prompt, as long as few reports show how many it does add."""
OVERHEAD_REPORTS: Final = 3
"""Reports of similar requests that show what the server adds."""
MAX_REQUEST_KINDS: Final = 64


_OPENAI_HOSTS: Final = ("api.openai.com", ".openai.azure.com")

HeadersFor = Callable[["ModelRoute"], Mapping[str, str]]
"""Returns the client's headers for a request that brim itself makes to a route's upstream."""


class UpstreamApi(NamedTuple):
    """What requests in one format need to reach an upstream."""

    connection: Transport
    headers: UpstreamHeaders
    counter: ServerCounter
    reply_key: str
    """The field that limits the length of a reply."""

    @classmethod
    def of(cls, config: UpstreamConfig, format: FormatName, key: str | None) -> UpstreamApi:
        endpoint = Endpoint(config.endpoint, format, key, config.headers, config.timeout, retries=0)
        connection = Transport(endpoint)
        json = {"content-type": "application/json"}
        own = UpstreamHeaders.of({**credential_headers(endpoint), **endpoint.headers, **json})
        # Newer models of OpenAI reject the old name, and most other servers know only that one.
        is_openai = endpoint.host.endswith(_OPENAI_HOSTS)
        reply_key = FORMATS[format].reply_keys[0 if is_openai else -1]
        return cls(connection, own, ServerCounter(connection), reply_key)


class Upstream:
    """A server that requests are forwarded to."""

    def __init__(
        self, name: str, config: UpstreamConfig, key: str | None, store: CalibrationStore
    ) -> None:
        self.name = name
        self.config = config
        self.key = key
        self.formats = [FORMATS[format] for format in config.formats]
        self._apis = {format: UpstreamApi.of(config, format, key) for format in config.formats}
        self.server = ServerInfo(self.first_api.connection)
        self.profiles = ProfileSource(self.server, store)
        self.templates = TemplateFinder(self.profiles)

    def api(self, format: BodyFormat) -> UpstreamApi:
        return self._apis[format.name]

    @property
    def first_api(self) -> UpstreamApi:
        """The API for requests that are not in a body format."""
        return self.api(self.formats[0])

    def match_rank(self, model: str) -> int:
        """Return how well its list matches a model: 3 by name, 2 by pattern, 1 any, 0 not."""
        return match_rank(self.config.models, model)

    async def close(self) -> None:
        for api in self._apis.values():
            await api.connection.close()


RequestKind = tuple[bool, frozenset[str]]
"""Whether there are tools, and the roles: what the additions of a template depend on."""


def _request_kind(out: FittedRequest) -> RequestKind:
    return bool(read_tools(out.body)), frozenset(message.role for message in out.plan.sent)


class RejectedRequest(NamedTuple):
    """What is known about a request that the server rejected, for its second try only."""

    profile: ModelProfile
    measurement: Measurement | None = None
    """Its size, after a context-length error."""


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
        source.server.forget(self.model)
        window = await source.server.window_of(self.model, headers)
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
        if out.is_plain and not plan.exact:
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
        if not reports and len(self._overheads) >= MAX_REQUEST_KINDS:
            return
        added = (tokens - plan.size) / max(1, len(plan.sent_indices))
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
        return RejectedRequest(profile, measurement)

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
        if is_significant_change(self.profile.calibration, calibration):
            self._set_profile(self.profile.with_calibration(calibration))

    async def save(self) -> None:
        """Save the calibration if it has changed."""
        source = self.upstream.profiles
        if self._is_ready and self._latest != source.load(self.model):
            await asyncio.to_thread(source.save, self.model, self._latest)


def is_significant_change(known: Calibration, latest: Calibration) -> bool:
    """Return whether a calibration is worth moving the trims: up for safety, down for a lot."""
    if latest.window != known.window:
        return True
    uncertainties = known.uncertainty(1.0), latest.uncertainty(1.0)
    return (
        _differs(known.ratio, latest.ratio)
        or _differs(known.density, latest.density)
        or _differs(known.offset, latest.offset, OFFSET_DROP)
        or uncertainties[1] > uncertainties[0]
        or uncertainties[1] <= uncertainties[0] / 2
    )


def _differs(known: float, latest: float, down: float = RATIO_DROP) -> bool:
    return latest > known or latest * down < known


class ModelRoutes:
    """All upstreams, and the route of each requested model."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        calibrations = CalibrationStore()
        self.upstreams = tuple(
            Upstream(name, upstream, environment.get(upstream.key_env or ""), calibrations)
            for name, upstream in config.upstreams.items()
        )
        self._config = config
        self._cache = PrefixCache(config.gateway.conversations, PREFIX_CACHE_BYTES)
        self._routes: OrderedDict[tuple[str, str], ModelRoute] = OrderedDict()
        self._found: dict[tuple[str | None, str], Upstream] = {}
        """The upstream of each model in each format, once it has been found."""

    def find(self, model: object, format: BodyFormat) -> ModelRoute:
        """Return the route of a model in a format. Raise `GatewayError` if there is none."""
        if model is not None and not isinstance(model, str):
            raise GatewayError(400, "invalid_request", "`model` must be a string.", param="model")
        key = (model, format.name)
        upstream = self._found.get(key)
        if upstream is None:
            if len(self._found) > MAX_ROUTES:
                self._found.clear()
            upstream = self._found[key] = self._upstream(model, format)
        return self._route(upstream, model or "")

    def _upstream(self, model: str | None, format: BodyFormat) -> Upstream:
        matching = self.find_upstreams(model or "")
        if not matching:
            raise GatewayError(404, "model_not_found", self._explain_unknown(model), param="model")
        for upstream in matching:
            if format in upstream.formats:
                return upstream
        paths = " or ".join(
            other.versioned_path for upstream in matching for other in upstream.formats
        )
        raise GatewayError(
            400,
            "wrong_format",
            f"{model} is not available as {format.title}: its upstream uses another format, and "
            f"the gateway does not translate. Send requests for this model to {paths}.",
            param="model",
        )

    def find_upstreams(self, model: str) -> list[Upstream]:
        """Return the upstreams whose lists match a model best."""
        if not model:
            return list(self.upstreams) if len(self.upstreams) == 1 else []
        best = max((upstream.match_rank(model) for upstream in self.upstreams), default=0)
        return [
            upstream for upstream in self.upstreams if best and upstream.match_rank(model) == best
        ]

    def _explain_unknown(self, model: str | None) -> str:
        if not model:
            return "The body has no `model`, and there are several upstreams. Add `model`."
        served = ", ".join(name for each in self.upstreams for name in each.config.models)
        return f"No upstream serves the model {model[:100]!r}. Available: {served or 'none'}."

    def _route(self, upstream: Upstream, model: str) -> ModelRoute:
        key = (upstream.name, model)
        route = self._routes.get(key)
        if route is not None:
            self._routes.move_to_end(key)
        else:
            route = self._routes[key] = ModelRoute(upstream, model, self._config, self._cache)
            if len(self._routes) > MAX_ROUTES:
                self._routes.popitem(last=False)
        return route

    def profile_of(self, upstream: Upstream, model: str) -> ModelProfile:
        """Return what is known about a model, without asking its server."""
        route = self._routes.get((upstream.name, model))
        return create_profile(upstream.config, model) if route is None else route.profile

    def __iter__(self) -> Iterator[ModelRoute]:
        return iter(list(self._routes.values()))

    async def close(self) -> None:
        for upstream in self.upstreams:
            await upstream.close()


# Model names and patterns


WILDCARD: Final = "*"


def is_pattern(name: str) -> bool:
    """Return whether a name may match several models."""
    return WILDCARD in name


def match_rank(names: Sequence[str], model: str) -> int:
    """Return how well a list matches a model: 3 by name, 2 by pattern, 1 if empty, 0 not."""
    if not names:
        return 1
    if model in names:
        return 3
    patterns = filter(is_pattern, names)
    return 2 if any(_compile_pattern(name).fullmatch(model) for name in patterns) else 0


@lru_cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(WILDCARD))), re.DOTALL)
