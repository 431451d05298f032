"""The models under the names that the user gave them: their connections, and which one is asked."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from brim.config import Config, ModelConfig, RoutingConfig
from brim.fitting.policies import resolve_policy
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import Summarizer
from brim.providers.from_config import LOCAL, ModelChoice, choose_model, open_client, server_name
from brim.session.driver import ASSUMED_WINDOW, SessionDriver
from brim.session.session import Session, create_scratch, get_driver
from brim.session.summaries import Turn

if TYPE_CHECKING:
    from brim.providers.client import Client

SLIDING_TURNS: Final = 40
"""Turns that `sliding` sends if the window is unknown."""


class ModelClients:
    """The available models, one client each, and the current one; thread-safe."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str],
        found: Mapping[str, ModelConfig] | None = None,
    ) -> None:
        """`found` are models that are not in the configuration."""
        self.config = replace(config, models={**config.models, **(found or {})})
        self.current = ""
        """The user's name for the model of the conversation."""
        self._environment = environment
        self._open = ExitStack()
        self._clients: dict[str, Client] = {}
        self._lock = threading.RLock()
        self._profiles: dict[str, ModelProfile] = {}
        """Profiles that the server has completed."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.config.models, LOCAL]))

    def override(self, name: str, **settings: Any) -> None:
        """Change settings of a model for this run."""
        model = replace(self.choice(name).model, **settings)
        self.config = replace(self.config, models={**self.config.models, name: model})

    def choice(self, name: str | None) -> ModelChoice:
        return choose_model(self.config, name, self._environment)

    def client(self, name: str) -> Client:
        """Return the client of a model; the first use opens its connection."""
        with self._lock:
            if name not in self._clients:
                opened = open_client(self.choice(name), self.config, self._environment)
                self._clients[name] = self._open.enter_context(opened)
            return self._clients[name]

    def describe_endpoint(self, name: str) -> str:
        choice = self.choice(name)
        return "on this machine" if choice.is_embedded else choice.model.endpoint or ""

    def profile(self, name: str) -> ModelProfile:
        """Return the profile from the server if it was queried, else from the configuration."""
        if name in self._profiles:
            return self._profiles[name]
        choice = self.choice(name)
        known = choice.model
        return ModelProfile(
            server_name(choice),
            known.window,
            known.reply,
            template=known.template,
            price=known.price,
            margin=known.margin,
            price_basis="free" if choice.is_embedded else "list",
            called=name,
        )

    def prepare(self, session: Session, name: str) -> None:
        """Complete the session's profile with what the server reports, above all the window."""
        tokens = self.config.context.token_budget or ASSUMED_WINDOW
        driver = get_driver(session)
        driver.profile = replace(driver.profile, guess=tokens)
        self.client(name).prepare(session)
        self._profiles[name] = driver.profile
        self._set_sliding_limits(driver)

    def _set_sliding_limits(self, driver: SessionDriver) -> None:
        """Limit `sliding` by turns and tokens as long as the window is unknown."""
        context, state = self.config.context, driver.composer.state
        if state.policy.name != "sliding":
            return
        is_guessed = driver.profile.is_guessed
        policy = resolve_policy(
            "sliding",
            keep_recent=context.keep_recent,
            max_turns=context.max_turns or (SLIDING_TURNS if is_guessed else None),
            token_budget=context.token_budget or (ASSUMED_WINDOW if is_guessed else None),
        )
        if policy.identity != state.policy.identity:
            driver.composer.change(replace(state, policy=policy))

    def query_profile(self, name: str) -> ModelProfile:
        """Return the profile of a model, completed by its server."""
        return get_driver(self._open_scratch(name, None)).profile

    # Requests outside the conversation: they are billed to its ledger, but are not part of it

    def ask_separately(self, prompt: str, session: Session) -> str:
        """Return the current model's reply to a prompt that is not part of the conversation."""
        scratch = self._open_scratch(self.current, session)
        scratch.user(prompt)
        return self.client(self.current).send(scratch).text

    def build_summarizer(self, name: str, session: Session, focus: str | None = None) -> Summarizer:
        """Return a function that writes summaries with this model."""

        def summarize(previous: str | None, evicted: Sequence[Turn] | None) -> object:
            scratch, max_chars = self._open_scratch(name, session), self.config.summary.max_chars
            write = self.client(name).summarizer(scratch, focus=focus, max_chars=max_chars)
            return write(previous, evicted)

        return summarize

    def _open_scratch(self, name: str, session: Session | None) -> Session:
        """Return a temporary session with a model, billed to this session."""
        scratch = create_scratch(self.profile(name), session)
        self.prepare(scratch, name)
        return scratch

    def close(self) -> None:
        with self._lock:
            self._open.close()
            self._clients.clear()


# Routes

MAX_MATCHED_CHARS: Final = 10_000
"""Rules match only the first characters of a message: patterns can be slow."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message goes; every field is None if no rule matches."""

    class_: str | None = None
    model: str | None = None
    """The user's name for the model; None for the current one."""
    system: str | None = None
    """The base of the system prompt; None for the usual one."""
    rule: int | None = None
    """Index of the rule that matched."""


def choose_route(message: str, config: RoutingConfig) -> Route:
    """Return the route of the first rule that matches, ignoring case."""
    start = message[:MAX_MATCHED_CHARS]
    for index, rule in enumerate(config.rules):
        if re.search(rule.match, start, re.IGNORECASE):
            system = config.system_prompts.get(rule.class_) if rule.class_ else None
            return Route(rule.class_, rule.model, system, index)
    return Route()


def fallback_for(
    failed: str, models: Mapping[str, ModelConfig], tried: Collection[str]
) -> str | None:
    """Return the model to try after one failed; None if none is configured or left to try."""
    from brim.providers.errors import choose_fallback

    fallback = models[failed].fallback if failed in models else None
    return choose_fallback(failed, fallback, tried)
