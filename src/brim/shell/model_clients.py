"""The models under the names that the user gave them, and their connections."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brim.config import Config, ModelConfig
from brim.fitting.profile import ModelProfile
from brim.providers.from_config import LOCAL, ModelChoice, choose_model, open_client, server_name
from brim.session.driver import ASSUMED_WINDOW
from brim.session.session import Session, get_driver

if TYPE_CHECKING:
    from brim.providers.client import Client


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
            called=name,
        )

    def prepare(self, session: Session, name: str) -> None:
        """Complete the session's profile with what the server reports, above all the window."""
        tokens = self.config.context.token_budget or ASSUMED_WINDOW
        driver = get_driver(session)
        driver.profile = replace(driver.profile, guess=tokens)
        self.client(name).prepare(session)
        self._profiles[name] = driver.profile

    def query_profile(self, name: str) -> ModelProfile:
        """Return the profile of a model, completed by its server."""
        scratch = Session()
        driver = get_driver(scratch)
        driver.profile = self.profile(name)
        self.prepare(scratch, name)
        return driver.profile

    def close(self) -> None:
        with self._lock:
            self._open.close()
            self._clients.clear()
