"""All settings: a field is a key, and its type is checked.

`data/config_example.toml` explains every key; `brim config --example` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from brim.config.value_types import (
    PLAIN,
    Claims,
    EndpointUrl,
    Formats,
    Names,
    NonNegativeInt,
    PathList,
    Pattern,
    PolicyName,
    PolicyOrOff,
    Port,
    PositiveInt,
    SandboxUse,
    Seconds,
    Secret,
    ServerCount,
    Share,
    StoreUnavailable,
    Template,
    TextList,
    Url,
    VariableName,
    Weight,
    one_of,
)
from brim.fitting.policies import RollingSettings
from brim.models.pricing import Price
from brim.wire.formats import FormatName

HOST_FORMATS: Final[Mapping[str, tuple[FormatName, ...]]] = {
    "api.openai.com": ("openai", "responses"),
    "api.anthropic.com": ("anthropic",),
    "generativelanguage.googleapis.com": ("gemini",),
}
"""The formats of well-known hosts; other hosts are assumed to speak OpenAI chat completions."""


def _empty_mapping() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model, under a name that you choose."""

    endpoint: EndpointUrl | None = None
    format: FormatName = "openai"
    model: str | None = None
    key_env: VariableName | None = None
    headers: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    timeout: Seconds = 600.0
    window: PositiveInt | None = None
    reply: NonNegativeInt | None = None
    margin: NonNegativeInt | None = None
    max_tokens: PositiveInt | None = None
    template: Template | None = None
    short_view: bool = False
    vision: bool | None = None
    price: Price | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How conversations are fitted into the context window."""

    policy: PolicyName = "steady"
    low_water_mark: Share | None = None
    max_turns: PositiveInt | None = None
    token_budget: PositiveInt | None = None
    keep_recent: NonNegativeInt | None = None
    recall: bool = False
    rolling: RollingSettings = field(default_factory=RollingSettings)


@dataclass(frozen=True, slots=True)
class ShortViewConfig:
    """What is sent to a model with `short_view = true`."""

    keep_turns: PositiveInt = 2
    max_turn_chars: PositiveInt = 800


@dataclass(frozen=True, slots=True)
class SummaryConfig:
    """Summaries of dropped messages."""

    model: str | None = None
    max_chars: PositiveInt = 2_000


@dataclass(frozen=True, slots=True)
class CountConfig:
    """How tokens are counted."""

    server: ServerCount = "near"


@dataclass(frozen=True, slots=True)
class CostConfig:
    """Spending limits."""

    warn_at_dollars: Decimal | None = None
    warn_at_tokens: PositiveInt | None = None
    cap_at_dollars: Decimal | None = None
    cap_per_day_dollars: Decimal | None = None


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Facts that are sent to the model."""

    inject_max_chars: NonNegativeInt = 2_000


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The project's file tree in the system prompt."""

    auto_tree: bool = True
    depth: PositiveInt = 3
    max_chars: PositiveInt = 2_000


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A rule that sends some messages to another model or system prompt."""

    match: Pattern = ""
    """A regular expression that is searched in the user's message."""
    class_: str | None = None
    model: str | None = None

    def find_problem(self) -> str | None:
        """Return what is missing, or None."""
        if not self.match:
            return "has no match"
        return None if self.class_ or self.model else "needs a class or a model"


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Rules that choose the model; the first rule that matches applies."""

    rules: tuple[RoutingRule, ...] = ()
    system_prompts: Mapping[str, str] = field(default_factory=_empty_mapping)


@dataclass(frozen=True, slots=True)
class McpConfig:
    """An MCP server: a program or a URL."""

    command: str | None = None
    args: TextList = ()
    env: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    url: Url | None = None
    headers: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    allow: TextList = ()

    def find_problem(self) -> str | None:
        """Return what is missing or contradictory, or None."""
        if self.command and self.url:
            return "has both a command and a url. Remove one of them."
        return None if self.command or self.url else "needs a command or a url"


@dataclass(frozen=True, slots=True)
class GoalConfig:
    """Goal mode: its limits, and where its commands run."""

    max_steps: PositiveInt = 25
    max_tokens: PositiveInt = 500_000
    max_dollars: Decimal = Decimal("1.0")
    sandbox: SandboxUse = "auto"
    network: bool = False


@dataclass(frozen=True, slots=True)
class ShellConfig:
    """The shell."""

    prompt: str | None = None
    status: str | None = None
    program: str | None = None
    keep_days: NonNegativeInt = 90


UpstreamProblem = Literal[
    "unreachable", "timeout", "rate_limit", "server_error", "access", "context_length"
]
"""Why an upstream did not answer a request."""
UPSTREAM_PROBLEMS: Final[tuple[UpstreamProblem, ...]] = get_args(UpstreamProblem)
TEMPORARY_PROBLEMS: Final = UPSTREAM_PROBLEMS[:4]
"""Problems for which `fallback` applies; the others need a chain of their own."""


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """A server that the gateway sends requests to."""

    endpoint: EndpointUrl = ""
    format: Formats = ()
    models: TextList = ()
    names: Mapping[str, str] = field(default_factory=_empty_mapping)
    weight: Weight = 1.0
    key_env: VariableName | None = None
    auth: Literal["aws", "azure", "google"] | None = None
    api_version: str = ""
    headers: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    timeout: Seconds = 600.0
    window: PositiveInt | None = None
    reply: NonNegativeInt | None = None
    price: Price | None = None
    policy: PolicyOrOff | None = None
    template: Template | None = None
    count: ServerCount | None = None
    fallback: Names = ()
    fallback_by_error: Mapping[str, Names] = field(default_factory=_empty_mapping)
    cache_marks: bool = False
    stream_usage: bool = True
    usage_path: str = ""

    @property
    def formats(self) -> tuple[FormatName, ...]:
        """The configured formats, or those of the host."""
        parts = urlsplit(self.endpoint)
        is_compatible = "openai" in parts.path.split("/")  # Google's imitation of OpenAI's API
        known = HOST_FORMATS.get(parts.hostname or "")
        return self.format or (None if is_compatible else known) or ("openai",)

    def find_problem(self) -> str | None:
        """Return what is missing or unknown, or None."""
        unknown = ", ".join(self.fallback_by_error.keys() - set(UPSTREAM_PROBLEMS))
        if unknown:
            known = ", ".join(UPSTREAM_PROBLEMS)
            return f"has an unknown error in fallback_by_error: {unknown}; use {known}"
        if self.usage_path and "{id}" not in self.usage_path:
            return "has a usage_path without {id}"
        if self.api_version and self.auth != "azure":
            return 'has an api_version, which needs auth = "azure"'
        if self.key_env and self.auth == "google":
            return 'has key_env and auth = "google". Remove one of them.'
        return None if self.endpoint else "needs an endpoint"

    def fallbacks_for(self, problem: UpstreamProblem) -> Sequence[str]:
        """Return the models to try after a problem, in this order."""
        default = self.fallback if problem in TEMPORARY_PROBLEMS else ()
        return self.fallback_by_error.get(problem, default)


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """The log of finished requests as files for other programs."""

    folder: str = ""
    format: Literal["jsonl", "parquet"] = "jsonl"
    megabytes: PositiveInt = 64
    days: NonNegativeInt = 30


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """An OpenID Connect provider: sign-in for the dashboard, and its tokens as keys."""

    issuer: EndpointUrl | None = None
    public_url: EndpointUrl | None = None
    client_id: str = ""
    client_secret_env: VariableName | None = None
    session_secret_env: VariableName | None = None
    scopes: TextList = ("openid", "profile", "email")
    operators: Claims = ()
    audience: str = ""
    key: str = ""
    key_claim: str = ""
    user_claim: str = "sub"

    def find_problem(self) -> str | None:
        """Return what is missing or unsafe, or None."""
        if self.issuer is None:
            return None if self == OidcConfig() else "needs an issuer"
        for name in ("issuer", "public_url"):
            if not _is_confidential(getattr(self, name)):
                return f"has {name} without https, which only an address of this machine may be"
        if bool(self.client_id) != bool(self.public_url):
            return "needs both client_id and public_url for sign-in, or neither"
        if not (self.client_id or self.audience):
            return "needs client_id and public_url for sign-in, or audience for tokens as keys"
        if bool(self.audience) != bool(self.key or self.key_claim):
            return "needs audience, and key or key_claim, for tokens as keys"
        return None


def _is_confidential(address: str | None) -> bool:
    parts = urlsplit(address or "https:")
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway."""

    host: str = "127.0.0.1"
    port: Port = 8484
    policy: PolicyName = "steady"
    low_water_mark: Share | None = None
    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    max_requests: PositiveInt = 1_000
    body_seconds: Seconds = 30.0
    send_seconds: Seconds = 60.0
    stop_seconds: Seconds = 30.0
    drain_seconds: NonNegativeInt = 0
    keep_requests: NonNegativeInt = 1_000
    history_days: NonNegativeInt = 30
    retrieve: bool = False
    conversations: NonNegativeInt = 500
    aliases: Mapping[str, str] = field(default_factory=_empty_mapping)
    affinity: bool = True
    origins: TextList = ()
    passthrough_paths: PathList = ()
    allowed_fields: TextList = ()
    otlp_endpoint: EndpointUrl | None = None
    require_keys: bool = False
    store: Secret = ""
    user_header: str = ""
    alert_url: Secret = ""
    alert_secret_env: str = ""
    keep_ledger_days: NonNegativeInt = 0
    store_unavailable: StoreUnavailable = "reject"
    lease_seconds: Seconds = 60.0
    export: ExportConfig = ExportConfig()
    oidc: OidcConfig = field(default_factory=OidcConfig)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings."""

    models: Mapping[str, ModelConfig] = field(default_factory=_empty_mapping)
    context: ContextConfig = ContextConfig()
    short_view: ShortViewConfig = ShortViewConfig()
    summary: SummaryConfig = SummaryConfig()
    count: CountConfig = CountConfig()
    cost: CostConfig = CostConfig()
    memory: MemoryConfig = MemoryConfig()
    project: ProjectConfig = ProjectConfig()
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    mcp: Mapping[str, McpConfig] = field(default_factory=_empty_mapping)
    goal: GoalConfig = GoalConfig()
    shell: ShellConfig = ShellConfig()
    upstreams: Mapping[str, UpstreamConfig] = field(default_factory=_empty_mapping)
    gateway: GatewayConfig = GatewayConfig()


# The settings as a tree


@dataclass(frozen=True, slots=True)
class Leaf:
    """A single value, and the function that checks it."""

    read: Callable[[object], object]
    is_text: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A table with known keys, and its class."""

    made: type[Any]
    keys: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class Named:
    """A table whose keys the user chooses."""

    inner: Group | Leaf


@dataclass(frozen=True, slots=True)
class Rows:
    """A list of tables."""

    inner: Group


Node: TypeAlias = Leaf | Group | Named | Rows


@cache
def group_of(made: type[Any]) -> Group:
    """Return the keys of a class as a tree."""
    hints = get_type_hints(made, include_extras=True)
    return Group(made, {key_of(each.name): _node(hints[each.name]) for each in fields(made)})


def _node(hint: Any) -> Node:
    parts = get_args(hint)
    if hasattr(hint, "__metadata__"):
        return Leaf(hint.__metadata__[0], hint.__origin__ is str)
    if get_origin(hint) is Literal:
        return Leaf(one_of(*parts), is_text=True)
    if get_origin(hint) is Mapping:
        inner = _node(parts[1])
        assert isinstance(inner, Group | Leaf)
        return Named(inner)
    if get_origin(hint) is tuple:
        return Rows(group_of(parts[0]))
    if parts:  # or None
        return _node(parts[0])
    return Leaf(PLAIN[hint], hint is str) if hint in PLAIN else group_of(hint)


def key_of(name: str) -> str:
    """Return the key of a field; `class_` has an underscore because `class` is reserved."""
    return name.rstrip("_")
