"""A session and its client, as the configuration describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from brim.config import Config, ModelConfig
from brim.errors import InputError
from brim.fitting.policies import POLICIES, resolve_policy
from brim.session.driver import ASSUMED_WINDOW
from brim.session.ledger import SpendingLimits
from brim.session.session import Session, SessionSettings, get_driver
from brim.session.short_view import ShortView
from brim.wire.formats import FORMATS

if TYPE_CHECKING:
    from brim.providers.client import Client

OPENAI: Final = "https://api.openai.com/v1"
ANTHROPIC: Final = "https://api.anthropic.com"
LOCAL: Final = "local"
"""The name of the embedded model."""
NO_MODEL: Final = (
    "No model is configured. Add one to the configuration (see `brim config --example`), set "
    "OPENAI_API_KEY or ANTHROPIC_API_KEY and use -m, or download a small local model with "
    "`brim local`."
)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and the user's name for it."""

    name: str
    model: ModelConfig
    is_embedded: bool = False


def choose_model(config: Config, name: str | None, environment: Mapping[str, str]) -> ModelChoice:
    """Return the model of that name; without a name, the first one configured or available.

    A name that is not configured is a model of the provider whose key is in the environment.
    """
    if name is None and config.models:
        name = next(iter(config.models))
    if name is not None and name in config.models:
        model = config.models[name]
        if name == LOCAL and model.endpoint is None:
            return _choose_embedded(model)
        return ModelChoice(name, model)
    if name == LOCAL or (name is None and _provider(environment) is None):
        return _choose_embedded()
    provider = _provider(environment)
    if name is None or provider is None:
        raise InputError(_describe_unknown(name, config) if name else NO_MODEL)
    return ModelChoice(name, replace(provider, model=name))


def _choose_embedded(model: ModelConfig | None = None) -> ModelChoice:
    from brim.providers.local import default_model

    if default_model() is None:
        raise InputError(NO_MODEL)
    return ModelChoice(LOCAL, model or ModelConfig(), is_embedded=True)


def _provider(environment: Mapping[str, str]) -> ModelConfig | None:
    """Return the provider whose key is in the environment."""
    if environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL"):
        endpoint = environment.get("OPENAI_BASE_URL") or OPENAI
        return ModelConfig(endpoint=endpoint, key_env="OPENAI_API_KEY")
    if environment.get("ANTHROPIC_API_KEY"):
        return ModelConfig(endpoint=ANTHROPIC, format="anthropic", key_env="ANTHROPIC_API_KEY")
    return None


def _describe_unknown(name: str, config: Config) -> str:
    near = get_close_matches(name, config.models, n=1)
    if near:
        return f"Unknown model: {name}. Did you mean {near[0]}?"
    if config.models:
        return f"Unknown model: {name}. Configured models: {', '.join(config.models)}."
    return f"Unknown model: {name}. {NO_MODEL}"


@contextmanager
def open_client(
    choice: ModelChoice, config: Config, environment: Mapping[str, str]
) -> Iterator[Client]:
    """Open a client, with a local server if it needs one; both end with the block."""
    if choice.is_embedded:
        from brim.providers.local import LocalServer

        window = choice.model.window or config.context.token_budget or ASSUMED_WINDOW
        started = LocalServer.start(window=window)
        with started as server, _client(choice.model, config, server.url, server.key) as client:
            yield client
        return
    if choice.model.endpoint is None:
        raise InputError(
            f"models.{choice.name}.endpoint is missing. Set the address of its server."
        )
    key = environment.get(choice.model.key_env) if choice.model.key_env else None
    if choice.model.key_env and key is None and choice.model.key_env != "OPENAI_API_KEY":
        raise InputError(f"The key of {choice.name} is missing. Set {choice.model.key_env}.")
    with _client(choice.model, config, choice.model.endpoint, key) as client:
        yield client


def _client(model: ModelConfig, config: Config, url: str, key: str | None) -> Client:
    from brim.providers.client import Client  # deferred: its imports are slow

    return Client(
        url,
        key=key,
        format=model.format,
        headers=model.headers,
        timeout=model.timeout,
        count=config.count.server,
    )


def server_name(choice: ModelChoice) -> str | None:
    """Return the server's name for a model; None for the model that the server has loaded."""
    return choice.model.model or (None if choice.is_embedded else choice.name)


def create_session(
    choice: ModelChoice, config: Config, data: dict[str, Any] | None = None
) -> Session:
    """Return a session with the configured settings, new or from saved data."""
    settings = session_settings(choice, config)
    if data is None:
        session = Session(**settings)
    else:
        settings["tools"] = None
        session = Session.from_dict(data, **settings)
    driver = get_driver(session)
    driver.profile = replace(driver.profile, called=choice.name)
    return session


def session_settings(choice: ModelChoice, config: Config) -> SessionSettings:
    """Return the configured arguments of a session."""
    context, cost = config.context, config.cost
    slides = POLICIES[context.policy].share is None
    policy = resolve_policy(
        context.policy,
        keep_recent=context.keep_recent,
        max_turns=context.max_turns if slides else None,
        token_budget=context.token_budget if slides else None,
        low_water_mark=None if slides else context.low_water_mark,
        rolling=context.rolling if context.policy == "rolling" else None,
    )
    limits = SpendingLimits(cost.warn_at_dollars, cost.warn_at_tokens, cost.cap_at_dollars)
    return {
        "model": server_name(choice),
        "window": choice.model.window,
        "reply": choice.model.reply,
        "margin": choice.model.margin,
        "policy": policy,
        "recall": context.recall,
        "template": choice.model.template,
        "price": choice.model.price,
        "limits": limits,
        "summary_chars": config.summary.max_chars,
    }


def request_options(choice: ModelChoice, max_tokens: int | None = None) -> dict[str, Any]:
    """Return the options of every request to a model: the maximum length of a reply."""
    limit = choice.model.max_tokens if max_tokens is None else max_tokens
    if limit is None:
        return {}
    return {FORMATS[choice.model.format].reply_keys[-1]: limit}


def create_short_view(choice: ModelChoice, config: Config) -> ShortView | None:
    view = config.short_view
    return ShortView(view.keep_turns, view.max_turn_chars) if choice.model.short_view else None
