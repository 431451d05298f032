"""Lanes: the way of a model's requests to its upstream, with all that is known about the model.

A model's name picks its upstream: the one that names it, else one with a pattern that it matches,
else one without a list. What answers and refusals teach is kept for the next run, and moves the
cuts only in steps: a prompt cache outlives it. Many clients share a lane, so what one of them
brings about teaches only what holds for all.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from brim.fitting import feedback
from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.fitting.fitter import Fitter
from brim.fitting.flow import is_certain
from brim.fitting.policies import OFF, POLICIES
from brim.fitting.profile import ModelProfile
from brim.gateway.errors import GatewayError
from brim.gateway.fit_request import BodyAdditions
from brim.gateway.formats import FORMATS, BodyFormat
from brim.gateway.headers import UpstreamHeaders
from brim.providers.endpoint import Endpoint
from brim.providers.server_counter import ServerCounter
from brim.providers.server_info import MIN_REPLY_TOKENS, SELF_HOSTED, ServerInfo
from brim.providers.transport import Transport, credential_headers

if TYPE_CHECKING:
    from brim.config import UpstreamConfig
    from brim.errors import Overflow
    from brim.fitting.flow import CountMode, Measurement
    from brim.fitting.prefix_cache import PrefixCache
    from brim.gateway.fit_request import FittedRequest
    from brim.gateway.records import CountSource
    from brim.providers.endpoint import ApiFormat
    from brim.providers.server_info import ServerKind
    from brim.storage.calibration_store import CalibrationStore

FLAG_UPSTREAM: Final = "default"
"""Name of the upstream that command-line flags describe."""
LOCAL_UPSTREAM: Final = "local"
"""Name of the upstream that is the embedded model."""
UNCONFIGURED_UPSTREAMS: Final = (FLAG_UPSTREAM, LOCAL_UPSTREAM)
"""Upstreams without settings in a configuration file."""
MAX_ROUTES: Final = 1_000
"""Models that are remembered; names come from clients."""
MAX_FITTERS: Final = 64
UNKNOWN_WINDOW: Final = 1 << 30
"""The window of a model whose window nobody knows: nothing is cut before a server refuses."""
REFRESH_SECONDS: Final = 300.0
"""Seconds after which a server is asked again for its window: it may have been restarted."""
FIRST_RETRY_SECONDS: Final = 2.0
"""The same for one that did not tell, doubled each time: it may just not be up yet."""
CEILING_SECONDS: Final = 3_600.0
"""Seconds for which a limit is kept that was guessed from a refusal without numbers, and for which
what was answered says what a server takes."""
MIN_CEILING_SHARE: Final = 0.5
"""Below that share of the window, a refusal without numbers is of something else."""
MIN_CEILING: Final = 2_048
"""The same in tokens, where nobody knows the window."""
RATIO_DROP: Final = 1.06
"""What was learned moves up at once, and down only by more than this."""
OFFSET_DROP: Final = 1.5
"""The same for what a server adds to each request."""
INITIAL_REPORTS: Final = 8
REPORT_INTERVAL: Final = 16
"""Each of the first reports teaches, later one in so many."""


_OPENAI_HOSTS: Final = ("api.openai.com", ".openai.azure.com")

HeadersFor = Callable[["ModelRoute"], Mapping[str, str]]
"""What a question of brim's own to a lane's upstream carries of its client's headers."""


class Upstream:
    """A server that requests are passed on to."""

    def __init__(
        self, name: str, config: UpstreamConfig, key: str | None, learned: CalibrationStore
    ) -> None:
        self.name = name
        self.config = config
        self.key = key
        self.learned = learned
        self.formats = config.formats
        self._connections = {format: self._connection(format) for format in self.formats}
        self._counters = {
            format: ServerCounter(connection) for format, connection in self._connections.items()
        }
        self._headers = {
            format: _own_headers(connection) for format, connection in self._connections.items()
        }
        self.server = ServerInfo(self._connections[self.formats[0]])

    def _connection(self, format: ApiFormat) -> Transport:
        config = self.config
        return Transport(
            Endpoint(config.endpoint, format, self.key, config.headers, config.timeout, retries=0)
        )

    def connection(self, form: BodyFormat) -> Transport:
        return self._connections[form.name]

    def headers(self, form: BodyFormat) -> UpstreamHeaders:
        return self._headers[form.name]

    def reply_key(self, form: BodyFormat) -> str:
        """Where a request says how long its answer may be."""
        if form.name != "openai":
            return form.wire.REPLY_KEYS[0]
        # OpenAI's newer models refuse the old name, and most other servers know no other.
        is_theirs = self._connections[form.name].endpoint.host.endswith(_OPENAI_HOSTS)
        return "max_completion_tokens" if is_theirs else "max_tokens"

    def counter(self, form: BodyFormat) -> ServerCounter:
        return self._counters[form.name]

    def speaks(self, form: BodyFormat) -> bool:
        return form.name in self._connections

    @property
    def forms(self) -> list[BodyFormat]:
        return [FORMATS[format] for format in self.formats]

    def names(self, model: str) -> int:
        """How well its list of models means this one: 3 by name, 2 by pattern, 1 all, 0 not."""
        return match_rank(self.config.models, model)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


def _own_headers(connection: Transport) -> UpstreamHeaders:
    endpoint = connection.endpoint
    json = {"content-type": "application/json"}
    return UpstreamHeaders.of({**credential_headers(endpoint), **endpoint.headers, **json})


@dataclass(frozen=True, slots=True)
class RouteDefaults:
    """What holds for all upstreams that say nothing else."""

    policy: str = "steady"
    count: CountMode = "near"


class RejectedRequest(NamedTuple):
    """What is known of a request that was refused, for another try of it and nothing else."""

    target: ModelProfile
    reported: Measurement


class ModelRoute:
    """One model at one upstream: its window, how it counts, and what it taught."""

    def __init__(
        self, upstream: Upstream, model: str, settings: RouteDefaults, memory: PrefixCache
    ) -> None:
        config = upstream.config
        self.upstream = upstream
        self.model = model
        self.target = ModelProfile(
            model=model or None,
            window=config.window,
            reply=config.reply,
            template=config.template or "free",
            price=config.price,
            guess=UNKNOWN_WINDOW,
        )
        self.is_guessed = self.target.is_guessed
        """Whether nobody knows the window."""
        self.ask: CountMode = config.count or settings.count
        self.policy = config.policy or settings.policy
        self.extras = BodyAdditions(config.cache_marks, config.stream_usage)
        self.kind: ServerKind = "unknown"
        self.accepted = 0
        """The largest request that was answered, lately."""
        self._memory = memory
        self._fitters: dict[tuple[str, int], Fitter] = {}
        self._reports = 0
        self._learned = self._saved = UNCALIBRATED
        """What was learned last; the target counts with it only where it differs by enough."""
        self._preparing: asyncio.Task[None] | None = None
        self._fresh_until = 0.0
        self._guessed_until = self._accepted_until = 0.0
        self._patience = FIRST_RETRY_SECONDS
        self._is_ready = False

    def fitter(self, policy: str, least_reply: int = 0) -> Fitter:
        """How bodies are fitted for this model, by a policy and with room for such an answer."""
        key = (policy, least_reply)
        fitter = self._fitters.get(key)
        if fitter is None:
            fitter = self.fitter_for(self.target, policy, least_reply)
            if len(self._fitters) > MAX_FITTERS:
                self._fitters.clear()  # the numbers come from clients
            self._fitters[key] = fitter
        return fitter

    def fitter_for(self, target: ModelProfile, policy: str, least_reply: int) -> Fitter:
        """The same for a single request, of which more is known than of others."""
        counter = target.counter()
        budget = target.budget(counter, least_reply)
        chosen = OFF if policy == OFF.name else POLICIES[policy]
        return Fitter(counter, budget, chosen, self._memory, target.rules())

    def count(self, body: Mapping[str, Any], form: BodyFormat) -> tuple[int, CountSource]:
        """The tokens of a body as it is, by brim's own count."""
        with self.fitter(OFF.name).parse(body, form.wire) as reading:
            whole = reading.planner.plan_all()
            return whole.tokens, "exact" if is_certain(whole) else "estimate"

    def _know(self, target: ModelProfile) -> None:
        if target != self.target:
            self.target = target
            self.is_guessed = target.is_guessed
            self._fitters.clear()

    # What the server tells before anything is sent

    async def prepare(self, brought: HeadersFor) -> None:
        """Find out what has to be known for a first request; later ones do not wait for it.

        `brought` gives the headers with which its client may ask, where it comes to that.
        """
        now = time.monotonic()
        if self.target.ceiling is not None and now > self._guessed_until:
            self._know(replace(self.target, ceiling=None))
        if now > self._accepted_until:
            self.accepted, self._accepted_until = 0, now + CEILING_SECONDS
        if self._is_ready and now < self._fresh_until:
            return
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.create_task(self._prepared(brought(self)))
        if not self._is_ready:
            await asyncio.shield(self._preparing)

    async def _prepared(self, brought: Mapping[str, str]) -> None:
        if not self._is_ready:
            found = await asyncio.to_thread(self.upstream.learned.load, *self._place)
            self._saved = self._learned = Calibration.from_dict(found)
            self._know(self.target.learned(self._saved))
        server = self.upstream.server
        server.forget(self.model)
        window = await server.window_of(self.model, brought)
        self.kind = window.kind
        told = window.tokens or self.target.server_window
        own, least = window.kind in SELF_HOSTED, MIN_REPLY_TOKENS.get(window.kind, 0)
        self._know(replace(self.target, server_window=told, least_reply=least, is_local=own))
        self._patience = (
            REFRESH_SECONDS if window.tokens else min(REFRESH_SECONDS, 2 * self._patience)
        )
        self._fresh_until = time.monotonic() + self._patience
        self._is_ready = True

    @property
    def _place(self) -> tuple[str, str]:
        return self.upstream.server.transport.endpoint.url, self.model

    # What answers and refusals teach

    def report(self, out: FittedRequest, tokens: int) -> None:
        """Take in what the server says that a prompt took."""
        plan, planner = out.plan, out.parsed.planner
        self._accept(min(plan.size, tokens))
        if not feedback.is_informative(plan, planner.counter):
            return
        known = self.target.calibration
        self._reports += 1
        is_low = tokens > plan.tokens + (0 if planner.counter.density else known.offset)
        if self._reports > INITIAL_REPORTS and self._reports % REPORT_INTERVAL and not is_low:
            return
        if not out.is_plain:
            return
        latest = self.target.learned(self._learned)
        lesson = feedback.evaluate_report(plan, tokens, planner, latest, known, self.accepted)
        if lesson is not None:
            self._learn(lesson.calibration)

    @property
    def is_learning(self) -> bool:
        """Whether the next report teaches for certain."""
        return self._reports < INITIAL_REPORTS

    def _accept(self, tokens: int) -> None:
        """What was answered disproves every smaller limit."""
        self.accepted = max(self.accepted, tokens)
        learned, ceiling = self._learned, self.target.ceiling
        if learned.window is not None and learned.window < tokens:
            self._learn(learned.with_window(None))
        if ceiling is not None and ceiling < tokens:
            self._know(replace(self.target, ceiling=None))

    def refuse(self, out: FittedRequest, overflow: Overflow) -> RejectedRequest:
        """Say what a request that was too long is to be taken for, and learn what holds for all."""
        plan = out.plan
        target, reported = feedback.evaluate_rejection(plan, overflow, self.target, self.accepted)
        calibration = target.calibration
        if calibration.window != self.target.calibration.window:
            if not out.mentions(calibration.window or 0):
                self._learn(self._learned.with_window(calibration.window, calibration.told))
        elif target.ceiling is not None and self._is_telling(out, overflow):
            self._guess(target.ceiling)
        return RejectedRequest(target, reported)

    def _is_telling(self, out: FittedRequest, overflow: Overflow) -> bool:
        """Whether a refusal without numbers can be of the window, and so of other requests too."""
        is_bare = overflow.limit is None and overflow.kind == "window"
        return is_bare and out.plan.size >= self._least_window and out.is_plain

    @property
    def _least_window(self) -> int:
        """What no guess goes below."""
        known = self.target.proven_window
        return MIN_CEILING if known is None else int(MIN_CEILING_SHARE * known)

    def _guess(self, ceiling: int) -> None:
        self._guessed_until = time.monotonic() + CEILING_SECONDS
        self._know(replace(self.target, ceiling=max(ceiling, self._least_window)))

    def _learn(self, learned: Calibration) -> None:
        self._learned = learned
        if is_significant_change(self.target.calibration, learned):
            self._know(self.target.learned(learned))

    async def keep(self) -> None:
        """Keep what was learned for the next run, if it is news."""
        if self._learned != self._saved:
            self._saved = self._learned
            await asyncio.to_thread(self.upstream.learned.save, *self._place, self._saved.to_dict())


def is_significant_change(known: Calibration, learned: Calibration) -> bool:
    """Whether what was learned is worth moving the cuts: up for safety, down for a good deal."""
    if learned.window != known.window:
        return True
    doubts = known.uncertainty(1.0), learned.uncertainty(1.0)
    return (
        _differs(known.ratio, learned.ratio)
        or _differs(known.density, learned.density)
        or _differs(known.offset, learned.offset, OFFSET_DROP)
        or doubts[1] > doubts[0]
        or doubts[1] <= doubts[0] / 2
    )


def _differs(known: float, learned: float, down: float = RATIO_DROP) -> bool:
    return learned > known or learned * down < known


class ModelRoutes:
    """All upstreams, and the lane of each model that was asked for."""

    def __init__(
        self, upstreams: Sequence[Upstream], settings: RouteDefaults, memory: PrefixCache
    ) -> None:
        self.upstreams = tuple(upstreams)
        self._settings = settings
        self._memory = memory
        self._lanes: OrderedDict[tuple[str, str], ModelRoute] = OrderedDict()
        self._found: dict[tuple[str | None, str], Upstream] = {}
        """The upstream of a model in a format, as it was found before."""

    def find(self, model: object, form: BodyFormat) -> ModelRoute:
        """The lane of a model that is asked for in a format; a fault says why there is none."""
        if model is not None and not isinstance(model, str):
            raise GatewayError(400, "invalid_request", "`model` must be a text", param="model")
        key = (model, form.name)
        upstream = self._found.get(key)
        if upstream is None:
            if len(self._found) > MAX_ROUTES:
                self._found.clear()
            upstream = self._found[key] = self._upstream(model, form)
        return self._lane(upstream, model or "")

    def _upstream(self, model: str | None, form: BodyFormat) -> Upstream:
        meant = self.meant(model or "")
        if not meant:
            raise GatewayError(404, "model_not_found", self._unknown(model), param="model")
        for upstream in meant:
            if upstream.speaks(form):
                return upstream
        paths = " or ".join(other.path for upstream in meant for other in upstream.forms)
        raise GatewayError(
            400,
            "wrong_format",
            f"{model} is not served as {form.title}: its upstream speaks another format, and "
            f"nothing is translated. Send this model's requests to {paths}.",
            param="model",
        )

    def meant(self, model: str) -> list[Upstream]:
        """The upstreams that mean a model best."""
        if not model:
            return list(self.upstreams) if len(self.upstreams) == 1 else []
        best = max((upstream.names(model) for upstream in self.upstreams), default=0)
        return [upstream for upstream in self.upstreams if best and upstream.names(model) == best]

    def _unknown(self, model: str | None) -> str:
        if not model:
            return "the body names no `model`, and there are several upstreams"
        served = ", ".join(name for each in self.upstreams for name in each.config.models)
        return f"no upstream serves {model[:100]!r}; there are {served or 'none'}"

    def _lane(self, upstream: Upstream, model: str) -> ModelRoute:
        key = (upstream.name, model)
        lane = self._lanes.get(key)
        if lane is not None:
            self._lanes.move_to_end(key)
        else:
            lane = self._lanes[key] = ModelRoute(upstream, model, self._settings, self._memory)
            if len(self._lanes) > MAX_ROUTES:
                self._lanes.popitem(last=False)
        return lane

    def __iter__(self) -> Iterator[ModelRoute]:
        return iter(list(self._lanes.values()))

    async def close(self) -> None:
        for upstream in self.upstreams:
            await upstream.close()


# Model names and patterns


WILDCARD: Final = "*"


def is_pattern(name: str) -> bool:
    """Whether it may mean several models."""
    return WILDCARD in name


def match_rank(names: Sequence[str], model: str) -> int:
    """How well a list means a model: 3 by name, 2 by pattern, 1 as it means all, 0 not at all."""
    if not names:
        return 1
    if model in names:
        return 3
    patterns = filter(is_pattern, names)
    return 2 if any(_compile_pattern(name).fullmatch(model) for name in patterns) else 0


@lru_cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(WILDCARD))), re.DOTALL)
