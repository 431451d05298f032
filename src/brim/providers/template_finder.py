"""TemplateFinder: finds the template rules of a server's models by trial, and keeps the verdicts.

Some servers render a conversation without answering it (llama.cpp, vLLM, TGI). The template that
llama.cpp reports is rendered here if the server does not do it and jinja2 is installed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from brim.errors import InputError, ProviderError
from brim.fitting.profile import ModelProfile
from brim.providers.server_info import ProfileSource, ServerKind, Window
from brim.wire.template_rules import find_named_rules
from brim.wire.template_trial import Feature, RenderJob, TemplateVerdict, try_template, try_text

TRIAL_SECONDS: Final = 2.0
"""A trial that takes longer is given up."""
MAX_CONCURRENT: Final = 2
"""Renderings in flight: llama.cpp has few threads, and every open connection holds one."""
PAUSE_SECONDS: Final = 300.0
"""Time until a trial that gave no verdict is repeated."""
REJECTION_STATUSES: Final = (400, 422, 500)
"""Statuses with which a server rejects a conversation that its template cannot render."""

HOSTED: Final = ("openai", "anthropic")
"""Servers without chat templates that can be known."""


@dataclass(frozen=True, slots=True)
class RenderMethod:
    """How a server renders a conversation: a path, fixed fields, and where the prompt is."""

    path: str
    result: str
    """The field of the response with the prompt, or with the texts of its tokens."""
    fixed: Mapping[str, bool]

    def build_body(self, model: str, job: RenderJob) -> dict[str, Any]:
        tools = {"tools": list(job.tools)} if job.tools else {}
        return {"model": model, "messages": list(job.messages), **tools, **self.fixed}

    def read_prompt(self, response: object) -> str:
        value = response.get(self.result) if isinstance(response, Mapping) else None
        if isinstance(value, list):
            return "".join(map(str, value))
        if not isinstance(value, str):
            raise ProviderError(f"{self.path} did not return a prompt.")
        return value


METHODS: Final[Mapping[ServerKind, RenderMethod]] = {
    "llama.cpp": RenderMethod("/apply-template", "prompt", {}),
    "vllm": RenderMethod(
        "/tokenize",
        "token_strs",
        {
            "add_generation_prompt": True,
            "add_special_tokens": False,
            "return_token_strs": True,
        },
    ),
    "tgi": RenderMethod("/chat_tokenize", "templated_text", {}),
}


class TemplateFinder:
    """Completes profiles with the rules of the templates at one server."""

    def __init__(
        self, profiles: ProfileSource, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._profiles = profiles
        self._transport = profiles.server.transport
        self._clock = clock
        self._lock = asyncio.Lock()
        self._paused_until: dict[str, float] = {}

    async def complete(
        self,
        profile: ModelProfile,
        window: Window,
        features: frozenset[Feature],
        headers: Mapping[str, str] | None = None,
    ) -> ModelProfile:
        """Return the profile with the rules that a trial found; a trial is run if there was none.

        `features` are those that the conversation uses. A template that the caller has set is not
        tried.
        """
        if profile.template is not None or self._transport.endpoint.format != "openai":
            return profile
        model, fingerprint = profile.model or "", _fingerprint(window)
        verdict = self._profiles.load_verdict(model)
        if verdict is None or not verdict.covers(features, fingerprint):
            if self._clock() < self._paused_until.get(model, 0.0):
                return profile
            verdict = await self._try(model, window, features, headers)
        return profile if verdict is None else replace(profile, trial=verdict.rules)

    async def adapt(
        self,
        profile: ModelProfile,
        window: Window,
        features: frozenset[Feature],
        headers: Mapping[str, str] | None = None,
    ) -> ModelProfile:
        """Return the profile after a template has rejected a request: the rules of a new trial.

        If the server cannot be tried, these are the strictest rules, and only for this profile.
        """
        if profile.template is not None or window.kind in HOSTED:
            return profile
        verdict = await self._try(profile.model or "", window, features, headers)
        return replace(profile, trial=verdict.rules if verdict else find_named_rules("strict"))

    async def _try(
        self,
        model: str,
        window: Window,
        features: frozenset[Feature],
        headers: Mapping[str, str] | None,
    ) -> TemplateVerdict | None:
        method = METHODS.get(window.kind)
        if method is None or (window.kind == "llama.cpp" and window.template is None):
            return None
        async with self._lock:
            known = self._profiles.load_verdict(model)
            if known is not None and known.fingerprint == _fingerprint(window):
                features |= known.features
            verdict = await self._run(method, model, features, headers)
            if verdict is None and window.template is not None:
                verdict = await asyncio.to_thread(_try_text, window.template, features)
            if verdict is None:
                self._paused_until[model] = self._clock() + PAUSE_SECONDS
                return None
            verdict = replace(verdict, fingerprint=_fingerprint(window))
            if verdict != known:
                self._profiles.save_verdict(model, verdict)
            return verdict

    async def _run(
        self,
        method: RenderMethod,
        model: str,
        features: frozenset[Feature],
        headers: Mapping[str, str] | None,
    ) -> TemplateVerdict | None:
        """Run a trial at the server; return None if the server does not render."""

        slots = asyncio.Semaphore(MAX_CONCURRENT)

        async def render(job: RenderJob) -> str | None:
            body = method.build_body(model, job)
            try:
                async with slots:
                    response = await self._transport.request_json(
                        "POST", method.path, body, retries=0, headers=headers
                    )
            except ProviderError as error:
                if error.status in REJECTION_STATUSES:
                    return None
                raise
            return method.read_prompt(response.body)

        trial = try_template(features)
        prompts: Sequence[str | None] | None = None
        with suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(TRIAL_SECONDS):
                while True:
                    try:
                        jobs = next(trial) if prompts is None else trial.send(prompts)
                    except StopIteration as done:
                        verdict: TemplateVerdict | None = done.value
                        return verdict
                    prompts = await asyncio.gather(*map(render, jobs))
        return None


def _try_text(text: str, features: frozenset[Feature]) -> TemplateVerdict | None:
    with suppress(InputError):  # jinja2 is not installed, or does not know the syntax
        return try_text(text, features)
    return None


def _fingerprint(window: Window) -> str | None:
    if window.template is None:
        return None
    return blake2b(window.template.encode("utf-8", "replace"), digest_size=8).hexdigest()
