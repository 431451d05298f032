"""All settings: a field is a key, its type is checked, and its docstring explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from brim.config.value_types import (
    PLAIN,
    EndpointUrl,
    Formats,
    NonNegativeInt,
    PathList,
    Pattern,
    PolicyName,
    PolicyOrOff,
    Port,
    PositiveInt,
    Seconds,
    Secret,
    ServerCount,
    StoreUnavailable,
    Template,
    TextList,
    Url,
    VariableName,
    one_of,
)
from brim.models.pricing import Price
from brim.wire.formats import FormatName

HOST_FORMATS: Final[Mapping[str, tuple[FormatName, ...]]] = {
    "api.openai.com": ("openai", "responses"),
    "api.anthropic.com": ("anthropic",),
}
"""The formats of well-known hosts; other hosts are assumed to speak OpenAI chat completions."""


def _empty_mapping() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model, under a name that you choose."""

    endpoint: EndpointUrl | None = None
    """URL of its server."""
    format: FormatName = "openai"
    """API format of the server: openai, anthropic or responses."""
    model: str | None = None
    """Name of the model on the server, if it differs from yours."""
    key_env: VariableName | None = None
    """Environment variable with the API key; the key itself is never in a file."""
    headers: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    """HTTP headers sent with every request."""
    timeout: Seconds = 600.0
    """Seconds without any data, before and during the response."""
    window: PositiveInt | None = None
    """Context window in tokens, if neither the server nor the catalog knows it."""
    reply: NonNegativeInt | None = None
    """Tokens reserved for the reply."""
    max_tokens: PositiveInt | None = None
    """Maximum length of a reply in tokens."""
    template: Template | None = None
    """Chat template family, if the name of the model does not tell."""
    short_view: bool = False
    """For small models: send only the last few turns (see [short_view])."""
    price: Price | None = None
    """Dollars per million tokens; overrides the price list."""
    fallback: str | None = None
    """Model to try once if this one fails; `local` is the embedded model."""


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How conversations are fitted into the context window."""

    policy: PolicyName = "steady"
    """steady: change the prefix rarely, for prompt caches. thrift: the same, but trim more.
    rolling: mask old outputs first. sliding: drop the oldest messages."""
    max_turns: PositiveInt | None = None
    """Maximum number of turns, with sliding and rolling."""
    token_budget: PositiveInt | None = None
    """Maximum number of tokens, with sliding and rolling, even if the window is larger."""
    keep_recent: NonNegativeInt | None = None
    """Number of recent units that are dropped last."""


@dataclass(frozen=True, slots=True)
class ShortViewConfig:
    """What is sent to a model with `short_view = true`."""

    keep_turns: PositiveInt = 2
    """Number of recent turns; the last user message is always included."""
    max_turn_chars: PositiveInt = 800
    """Maximum characters of a tool result or a reply; the end of the text is kept."""


@dataclass(frozen=True, slots=True)
class SummaryConfig:
    """Summaries of dropped messages."""

    model: str | None = None
    """Model that summarizes messages when they are dropped; `self` is the model of the
    conversation. If unset, only :compact writes summaries."""
    max_chars: PositiveInt = 2_000
    """Maximum characters of a summary; a longer one is compressed."""


@dataclass(frozen=True, slots=True)
class CountConfig:
    """How tokens are counted."""

    server: ServerCount = "near"
    """When to ask a server that can count tokens: near the limit, always, or never (off)."""


@dataclass(frozen=True, slots=True)
class CostConfig:
    """Spending limits."""

    warn_at_dollars: Decimal | None = None
    """Warn once when the session reaches this cost."""
    warn_at_tokens: PositiveInt | None = None
    """Warn once when the session reaches this number of tokens."""
    cap_at_dollars: Decimal | None = None
    """Reject a request that could raise the cost of the session above this."""
    cap_per_day_dollars: Decimal | None = None
    """Reject a request that could raise the cost of the day above this, over all sessions."""


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Facts that are sent to the model."""

    inject_max_chars: NonNegativeInt = 2_000
    """Maximum characters of facts in a request."""


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The project's file tree in the system prompt."""

    auto_tree: bool = True
    """Add the tree when the shell starts."""
    depth: PositiveInt = 3
    """Levels of folders."""
    max_chars: PositiveInt = 2_000
    """Maximum characters of the tree."""


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
    """A regular expression for the user's message, and its class or model."""
    system_prompts: Mapping[str, str] = field(default_factory=_empty_mapping)
    """System prompt of each class."""


@dataclass(frozen=True, slots=True)
class McpConfig:
    """An MCP server: a program or a URL."""

    command: str | None = None
    """Program to start."""
    args: TextList = ()
    """Arguments of the program."""
    env: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    """Variables added to the program's environment."""
    url: Url | None = None
    """URL of the server, instead of a command."""
    headers: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    """HTTP headers sent to the URL with every request."""
    allow: TextList = ()
    """Tools that run without confirmation; destructive tools always need one."""

    def find_problem(self) -> str | None:
        """Return what is missing or contradictory, or None."""
        if self.command and self.url:
            return "has both a command and a url. Remove one of them."
        return None if self.command or self.url else "needs a command or a url"


@dataclass(frozen=True, slots=True)
class GoalConfig:
    """Limits of goal mode."""

    max_steps: PositiveInt = 25
    """Maximum number of steps."""
    max_tokens: PositiveInt = 500_000
    """Maximum tokens, prompts and replies together."""
    max_dollars: Decimal = Decimal("1.0")
    """Maximum cost in dollars, if prices are known."""


@dataclass(frozen=True, slots=True)
class ShellConfig:
    """The shell."""

    prompt: str | None = None
    """System prompt, instead of brim's own."""
    status: str | None = None
    """Format of the status line. Fields: model, bar, ctx_used, ctx_limit, ctx_percent, cost,
    route, cwd, session and goal."""
    program: str | None = None
    """Shell that runs commands, if not the user's login shell."""
    keep_days: NonNegativeInt = 90
    """Days to keep a conversation after its last turn (0 = forever). Costs are always kept."""


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """A server that the gateway sends requests to."""

    endpoint: EndpointUrl = ""
    """URL of the server (required)."""
    format: Formats = ()
    """API formats of the server: openai, anthropic, responses. Known hosts need no value."""
    models: TextList = ()
    """Models to send there, with `*` as a wildcard. If unset: all that no other upstream names."""
    key_env: VariableName | None = None
    """Environment variable with its API key. If unset, the client's own key is forwarded."""
    headers: Mapping[str, Secret] = field(default_factory=_empty_mapping)
    """HTTP headers sent with every request."""
    timeout: Seconds = 600.0
    """Seconds without any data, before and during the response."""
    window: PositiveInt | None = None
    """Context window in tokens, if neither the server nor the catalog knows it."""
    reply: NonNegativeInt | None = None
    """Tokens reserved for the reply."""
    price: Price | None = None
    """Dollars per million tokens; overrides the price list."""
    policy: PolicyOrOff | None = None
    """Overrides gateway.policy; off forwards requests unchanged."""
    template: Template | None = None
    """Chat template family, if the names of the models do not tell."""
    count: ServerCount | None = None
    """Overrides count.server."""
    fallback: str | None = None
    """Model to try once, on its own upstream, if this upstream fails."""
    cache_marks: bool = False
    """Add Anthropic's cache markers to requests without any."""
    stream_usage: bool = True
    """Request the usage at the end of a stream; false for servers without stream_options."""

    @property
    def formats(self) -> tuple[FormatName, ...]:
        """The configured formats, or those of the host."""
        return self.format or HOST_FORMATS.get(urlsplit(self.endpoint).hostname or "", ("openai",))

    def find_problem(self) -> str | None:
        """Return what is missing, or None."""
        return None if self.endpoint else "needs an endpoint"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway."""

    host: str = "127.0.0.1"
    """Address to listen on; an address that other machines can reach requires keys."""
    port: Port = 8484
    """Port to listen on (0 = any free port)."""
    policy: PolicyName = "steady"
    """Fitting policy; the values are those of context.policy."""
    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    """Maximum size of a request body."""
    max_requests: PositiveInt = 1_000
    """Maximum number of concurrent requests; further requests get HTTP 503."""
    body_seconds: Seconds = 30.0
    """Timeout for each read of a request body."""
    send_seconds: Seconds = 60.0
    """Timeout for a client that does not read its response."""
    stop_seconds: Seconds = 30.0
    """Seconds that running requests have to finish when the gateway stops."""
    drain_seconds: NonNegativeInt = 0
    """Seconds to accept requests after SIGTERM while /readyz already fails, so that load balancers
    notice."""
    keep_requests: NonNegativeInt = 1_000
    """Number of recent requests available at /brim/requests/ID."""
    conversations: NonNegativeInt = 500
    """Number of conversations to cache, so that their next turn is faster."""
    origins: TextList = ()
    """Origins of web pages that may send requests, besides those of this machine."""
    passthrough_paths: PathList = ()
    """Other paths to forward without counting: /v1/embeddings, or /v1/files/* for all below it."""
    require_keys: bool = False
    """Reject requests without a key even before the first key is created with `brim keys`."""
    store: Secret = ""
    """Account store with keys, caps and the ledger: a file, or a postgresql:// or redis:// URL for
    several gateways. If unset, a file in the state folder."""
    store_unavailable: StoreUnavailable = "reject"
    """Whether to reject requests or allow them uncounted while the account store is unavailable."""
    lease_seconds: Seconds = 60.0
    """Seconds without a renewal after which a reservation is charged in full."""


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
