"""Models by the names that the user gives them, each with a connection that is opened once."""

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
    """All that can be talked to; safe to use from several threads."""

    def __init__(
        self,
        config: Config,
        environment: Mapping[str, str],
        found: Mapping[str, ModelConfig] | None = None,
    ) -> None:
        """`found` are models that no configuration names."""
        self.config = replace(config, models={**config.models, **(found or {})})
        self._environment = environment
        self._open = ExitStack()
        self._clients: dict[str, Client] = {}
        self._lock = threading.RLock()
        self._known: dict[str, ModelProfile] = {}
        """What was found out about models."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.config.models, LOCAL]))

    def change(self, name: str, **known: Any) -> None:
        """Know something else about a model, for this run."""
        model = replace(self.choice(name).model, **known)
        self.config = replace(self.config, models={**self.config.models, name: model})

    def choice(self, name: str | None) -> ModelChoice:
        return choose_model(self.config, name, self._environment)

    def client(self, name: str) -> Client:
        """A connection to a model; what it needs is started at the first use."""
        with self._lock:
            if name not in self._clients:
                opened = open_client(self.choice(name), self.config, self._environment)
                self._clients[name] = self._open.enter_context(opened)
            return self._clients[name]

    def endpoint(self, name: str) -> str:
        """Where a model is, in words."""
        choice = self.choice(name)
        return "on this machine" if choice.is_embedded else choice.model.endpoint or ""

    def target(self, name: str) -> ModelProfile:
        """What is known about a model: what was found out, else what the configuration says."""
        if name in self._known:
            return self._known[name]
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
        """Let a session know what the server says of its model, the window above all."""
        tokens = self.config.context.token_budget or ASSUMED_WINDOW
        driver = get_driver(session)
        driver.profile = replace(driver.profile, guess=tokens)
        self.client(name).prepare(session)
        self._known[name] = driver.profile

    def found_out(self, name: str) -> ModelProfile:
        """What its server says of a model."""
        scratch = Session()
        driver = get_driver(scratch)
        driver.profile = self.target(name)
        self.prepare(scratch, name)
        return driver.profile

    def close(self) -> None:
        with self._lock:
            self._open.close()
            self._clients.clear()
