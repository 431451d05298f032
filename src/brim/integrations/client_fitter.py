"""Fitting the bodies that a client sends, with the limits that its servers report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from brim.errors import ContextOverflowError, Overflow
from brim.fitting.api import MAX_FITTERS, FitSettings, check_options, prefix_cache
from brim.fitting.feedback import evaluate_rejection
from brim.fitting.fitter import BodyFitter
from brim.fitting.flow import Measurement, plan_request, run_flow
from brim.fitting.plan import Plan, Request
from brim.fitting.policies import resolve_policy
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import check_summarizer
from brim.wire.formats import CHAT, BodyFormat, find_reply_limit, min_reply_tokens
from brim.wire.template_rules import PERMISSIVE


class ClientFitter:
    """Fits request bodies, and remembers for each model what context-length errors showed."""

    def __init__(self, recall_hint: str = "", **settings: Unpack[FitSettings]) -> None:
        check_options(settings, FitSettings.__annotations__)
        rest: dict[str, Any] = dict(settings)
        names = ("window", "reply", "margin", "tokenizer", "template")
        given = {name: rest.pop(name) for name in names if name in rest}
        self._profile = ModelProfile(trial=PERMISSIVE, **given)
        self._recall_hint = recall_hint
        self._mask = rest.pop("mask", None)
        self._summarize = check_summarizer(rest.pop("summarize", None))
        self._policy = resolve_policy(rest.pop("policy", "steady"), **rest)
        self._profiles: dict[str | None, ModelProfile] = {}
        self._fitters: dict[tuple[object, ...], BodyFitter] = {}

    def fit(self, body: Mapping[str, Any], format: BodyFormat) -> Request:
        """Return the request that fits; raise `ContextOverflowError` if none does."""
        return self._find_fitter(body, format).fit(body, format)

    def shrink(
        self, body: Mapping[str, Any], format: BodyFormat, rejected: Plan, overflow: Overflow
    ) -> Request | None:
        """Return a smaller request after a context-length error; None if there is none."""
        if not format.is_fittable(body):
            return None
        profile, measurement = evaluate_rejection(rejected, overflow, self._find_profile(body))
        self._set_profile(body, profile)
        try:
            request = self._refit(body, format, measurement)
        except ContextOverflowError:
            return None
        return None if request.plan.tokens >= rejected.tokens else request

    def _refit(
        self, body: Mapping[str, Any], format: BodyFormat, measurement: Measurement
    ) -> Request:
        with self._find_fitter(body, format).parse(body, format) as parsed:
            flow = plan_request(
                parsed.planner, parsed.apply_template, measurement=measurement, continues=False
            )
            plan = run_flow(flow, lambda _: None)
            if not plan.fits:  # by an estimate with a margin, which the measurement replaces
                plan = replace(plan, calibrated_tokens=round(plan.tokens * measurement.ratio))
            return parsed.build_request(plan)

    def record_accepted(self, body: Mapping[str, Any], plan: Plan) -> None:
        """Record that a server accepted a request, which disproves a smaller limit."""
        if (known := self._profiles.get(body.get("model"))) is not None:
            self._set_profile(body, known.with_accepted(plan.size))

    def _find_profile(self, body: Mapping[str, Any]) -> ModelProfile:
        model = body.get("model")
        return self._profiles.get(model) or replace(self._profile, model=model)

    def _set_profile(self, body: Mapping[str, Any], profile: ModelProfile) -> None:
        if profile != self._profiles.get(body.get("model")):
            self._fitters.clear()
        self._profiles[body.get("model")] = profile

    def _find_fitter(self, body: Mapping[str, Any], format: BodyFormat) -> BodyFitter:
        least, most = min_reply_tokens(body), find_reply_limit(body, format)
        key = body.get("model"), format.name, least, most
        if key not in self._fitters:
            if len(self._fitters) >= MAX_FITTERS:
                self._fitters.clear()  # the numbers come from the bodies
            self._fitters[key] = self._create_fitter(self._find_profile(body), format, least, most)
        return self._fitters[key]

    def _create_fitter(
        self, profile: ModelProfile, format: BodyFormat, least: int, most: int | None
    ) -> BodyFitter:
        counter = profile.counter()
        budget = profile.budget(counter, least, most)
        rules = profile.rules() if format is CHAT else PERMISSIVE
        return BodyFitter(
            counter,
            budget,
            self._policy,
            prefix_cache,
            rules,
            mask=self._mask,
            summarize=self._summarize,
            recall_hint=self._recall_hint,
        )
