"""From the configuration to somebody to talk to: a session, and the client that sends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from brim.config import Config, ModelConfig
from brim.errors import InputError
from brim.fitting.policies import resolve_policy
from brim.session.driver import ASSUMED_WINDOW
from brim.session.ledger import SpendingLimits
from brim.session.session import Session
from brim.session.short_view import ShortView

if TYPE_CHECKING:
    from brim.providers.client import Client
    from brim.session.session import SessionSettings

OPENAI: Final = "https://api.openai.com/v1"
ANTHROPIC: Final = "https://api.anthropic.com"
LOCAL: Final = "local"
"""The name of the embedded model."""
NO_MODEL: Final = (
    "there is no model to ask. Name one in the configuration (`brim config --example` shows how), "
    "set OPENAI_API_KEY or ANTHROPIC_API_KEY and give -m, or get a small one for this machine with "
    "`brim local`."
)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model to talk to, under the user's name for it."""

    name: str
    model: ModelConfig
    is_embedded: bool = False


def choose_model(config: Config, name: str | None, environment: Mapping[str, str]) -> ModelChoice:
    """The model of that name; without one the first that is configured, or that can be had.

    A name that is not configured is taken for a model of the provider whose key is there.
    """
    if name is None and config.models:
        name = next(iter(config.models))
    if name is not None and name in config.models:
        model = config.models[name]
        if name == LOCAL and model.endpoint is None:
            return _embedded(model)
        return ModelChoice(name, model)
    if name == LOCAL or (name is None and _provider(environment) is None):
        return _embedded()
    provider = _provider(environment)
    if name is None or provider is None:
        raise InputError(_unknown(name, config) if name else NO_MODEL)
    return ModelChoice(name, replace(provider, model=name))


def _embedded(model: ModelConfig | None = None) -> ModelChoice:
    from brim.providers.local import default_model

    if default_model() is None:
        raise InputError(NO_MODEL)
    return ModelChoice(LOCAL, model or ModelConfig(), is_embedded=True)


def _provider(environment: Mapping[str, str]) -> ModelConfig | None:
    """Whose key the environment holds."""
    if environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL"):
        endpoint = environment.get("OPENAI_BASE_URL") or OPENAI
        return ModelConfig(endpoint=endpoint, key_env="OPENAI_API_KEY")
    if environment.get("ANTHROPIC_API_KEY"):
        return ModelConfig(endpoint=ANTHROPIC, format="anthropic", key_env="ANTHROPIC_API_KEY")
    return None


def _unknown(name: str, config: Config) -> str:
    near = get_close_matches(name, config.models, n=1)
    if near:
        return f"no model is called {name}; did you mean {near[0]}?"
    if config.models:
        return f"no model is called {name}; there are {', '.join(config.models)}"
    return f"no model is called {name}: {NO_MODEL}"


@contextmanager
def open_client(
    choice: ModelChoice, config: Config, environment: Mapping[str, str]
) -> Iterator[Client]:
    """A client for as long as it is needed; with it ends what had to be started for it."""
    if choice.is_embedded:
        from brim.providers.local import LocalServer

        window = choice.model.window or config.context.token_budget or ASSUMED_WINDOW
        started = LocalServer.start(window=window)
        with started as server, _client(choice.model, config, server.url, server.key) as client:
            yield client
        return
    if choice.model.endpoint is None:
        raise InputError(f"models.{choice.name} has no endpoint; give the address of its server")
    key = environment.get(choice.model.key_env) if choice.model.key_env else None
    if choice.model.key_env and key is None and choice.model.key_env != "OPENAI_API_KEY":
        raise InputError(f"the key of {choice.name} is to stand in {choice.model.key_env}, unset")
    with _client(choice.model, config, choice.model.endpoint, key) as client:
        yield client


def _client(model: ModelConfig, config: Config, url: str, key: str | None) -> Client:
    from brim.providers.client import Client  # here, because what it needs takes a while to load

    return Client(
        url,
        key=key,
        format=model.format,
        headers=model.headers,
        timeout=model.timeout,
        count=config.count.server,
    )


def server_name(choice: ModelChoice) -> str | None:
    """What its server calls a model; None asks for whichever it has."""
    return choice.model.model or (None if choice.is_embedded else choice.name)


def create_session(choice: ModelChoice, config: Config, *, system: str | None = None) -> Session:
    """A session as the configuration wants it."""
    settings = session_settings(choice, config)
    settings["system"] = system
    return Session(**settings)


def session_settings(choice: ModelChoice, config: Config) -> SessionSettings:
    """Return the arguments of a session with a model."""
    context, cost = config.context, config.cost
    slides = context.policy in ("sliding", "rolling")
    policy = resolve_policy(
        context.policy,
        keep_recent=context.keep_recent,
        max_turns=context.max_turns if slides else None,
        token_budget=context.token_budget if slides else None,
    )
    limits = SpendingLimits(cost.warn_at_dollars, cost.warn_at_tokens, cost.cap_at_dollars)
    return {
        "model": server_name(choice),
        "window": choice.model.window,
        "reply": choice.model.reply,
        "policy": policy,
        "template": choice.model.template,
        "price": choice.model.price,
        "limits": limits,
        "summary_chars": config.summary.max_chars,
    }


def request_options(choice: ModelChoice, max_tokens: int | None = None) -> dict[str, Any]:
    """What goes into each request to a model: how long its answer may be."""
    longest = choice.model.max_tokens if max_tokens is None else max_tokens
    if longest is None:
        return {}
    return {"max_output_tokens" if choice.model.format == "responses" else "max_tokens": longest}


def create_short_view(choice: ModelChoice, config: Config) -> ShortView | None:
    view = config.short_view
    return ShortView(view.keep_turns, view.max_turn_chars) if choice.model.short_view else None
