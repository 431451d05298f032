"""The keys: a field is a key, its type says what may stand there, its line explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from brim.config.kinds import (
    EndpointUrl,
    Format,
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
)
from brim.models.pricing import Price

HOST_FORMATS: Final[Mapping[str, tuple[Format, ...]]] = {
    "api.openai.com": ("openai", "responses"),
    "api.anthropic.com": ("anthropic",),
}
"""What well-known hosts speak; all others are taken to speak OpenAI's chat completions."""


def _example(value: object) -> dict[str, object]:
    """A value that a field without a default could have."""
    return {"example": value}


def _empty_mapping() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model under a name of your own."""

    endpoint: EndpointUrl | None = field(
        default=None, metadata=_example("https://api.openai.com/v1")
    )
    """The address of its server."""
    format: Format = "openai"
    """What the server speaks: openai, anthropic or responses."""
    model: str | None = field(default=None, metadata=_example("gpt-5-mini"))
    """What the server calls it, where that is another name."""
    key_env: VariableName | None = field(default=None, metadata=_example("OPENAI_API_KEY"))
    """The environment variable that holds the key; the key itself is in no file."""
    headers: Mapping[str, Secret] = field(
        default_factory=_empty_mapping, metadata=_example({"X-Team": "docs"})
    )
    """Sent with every request."""
    timeout: Seconds = 600.0
    """Seconds without a single byte, before the answer and in its middle."""
    window: PositiveInt | None = field(default=None, metadata=_example(128_000))
    """Tokens that it holds, answer included, where neither server nor catalog knows."""
    reply: NonNegativeInt | None = field(default=None, metadata=_example(4_096))
    """Tokens kept free for the answer."""
    max_tokens: PositiveInt | None = field(default=None, metadata=_example(1_024))
    """The longest answer that is asked for."""
    template: Template | None = field(default=None, metadata=_example("mistral"))
    """Whose chat template it follows, where its name does not tell."""
    short_view: bool = False
    """A small model: it is shown the last few turns only."""
    price: Price | None = field(
        default=None,
        metadata=_example({"input": 0.25, "cached": 0.025, "output": 2.0, "written": 0.25}),
    )
    """Dollars per million tokens, before the price list."""
    fallback: str | None = field(default=None, metadata=_example("local"))
    """The model that is tried once when this one fails; `local` is the embedded one."""


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """What is left out of a conversation that is too long."""

    policy: PolicyName = "steady"
    """steady: few changes of the prefix, for prompt caches. thrift: the same, cut lower.
    rolling: old outputs masked first. sliding: the oldest leave."""
    max_turns: PositiveInt | None = field(default=None, metadata=_example(40))
    """With sliding and rolling: never more turns than this."""
    token_budget: PositiveInt | None = field(default=None, metadata=_example(4_096))
    """With sliding and rolling: never more tokens than this, however large the window is."""
    keep_recent: NonNegativeInt | None = field(default=None, metadata=_example(5))
    """So many of the newest units are given up last."""


@dataclass(frozen=True, slots=True)
class ShortViewConfig:
    """What a model with `short_view = true` is shown."""

    keep_turns: PositiveInt = 2
    """The last turns, and always the last user's."""
    max_turn_chars: PositiveInt = 800
    """Results and assistant text are cut to their last characters."""


@dataclass(frozen=True, slots=True)
class SummaryConfig:
    """Summaries of what was left out."""

    model: str | None = field(default=None, metadata=_example("fast"))
    """The model that writes them whenever something leaves; `self` is the one that is talked to.
    Without it only :compact asks for a summary."""
    max_chars: PositiveInt = 2_000
    """A longer one is compressed."""


@dataclass(frozen=True, slots=True)
class CountConfig:
    """How tokens are counted."""

    server: ServerCount = "near"
    """When a server that can count is asked: near the limit, always, or never (off)."""


@dataclass(frozen=True, slots=True)
class CostConfig:
    """What may be spent."""

    warn_at_dollars: Decimal | None = field(default=None, metadata=_example(1.0))
    """Warn once when the session has cost this much."""
    warn_at_tokens: PositiveInt | None = field(default=None, metadata=_example(1_000_000))
    """Warn once when the session has used this many tokens."""
    cap_at_dollars: Decimal | None = field(default=None, metadata=_example(5.0))
    """Refuse a call that could bring the session above this."""
    cap_per_day_dollars: Decimal | None = field(default=None, metadata=_example(20.0))
    """Refuse a call that could bring the day above this, all runs together."""


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Facts that are told to the model."""

    inject_max_chars: NonNegativeInt = 2_000
    """The most characters of them in a request."""


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The project's file tree in the system text."""

    auto_tree: bool = True
    """Put it there at the start."""
    depth: PositiveInt = 3
    """So many levels of folders."""
    max_chars: PositiveInt = 2_000
    """The most characters of it."""


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """Which requests go elsewhere, and where."""

    match: Pattern = ""
    """A regular expression that is looked for in the user's words."""
    class_: str | None = None
    model: str | None = None

    def fault(self) -> str | None:
        """What is missing for it to mean something."""
        if not self.match:
            return "has no match"
        return None if self.class_ or self.model else "needs a class or a model"


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Which model gets what; the first rule that matches counts."""

    rules: tuple[RoutingRule, ...] = field(
        default=(),
        metadata={"example": [{"match": r"\btranslate\b", "class": "text", "model": "fast"}]},
    )
    """A regular expression for the user's words, and the class or the model that they get."""
    system_prompts: Mapping[str, str] = field(
        default_factory=_empty_mapping, metadata=_example({"text": "Answer with the text only."})
    )
    """A system prompt for each class."""


@dataclass(frozen=True, slots=True)
class McpConfig:
    """An MCP server: a command that is run, or an address."""

    command: str | None = field(default=None, metadata=_example("mcp-server-files"))
    """The program that is started."""
    args: TextList = ()
    """Its arguments."""
    env: Mapping[str, Secret] = field(
        default_factory=_empty_mapping, metadata=_example({"LOG_LEVEL": "error"})
    )
    """What is added to its environment."""
    url: Url | None = field(default=None, metadata={"instead": "https://example.com/mcp"})
    """The address, where no command is given."""
    headers: Mapping[str, Secret] = field(
        default_factory=_empty_mapping, metadata=_example({"X-Team": "docs"})
    )
    """Sent to the address with every request."""
    allow: TextList = ()
    """Its tools that run without being asked about; destructive ones are asked about always."""

    def fault(self) -> str | None:
        """What is missing, or too much."""
        if self.command and self.url:
            return "has both a command and a url; one of them is meant"
        return None if self.command or self.url else "needs a command or a url"


@dataclass(frozen=True, slots=True)
class GoalConfig:
    """Where goal mode ends by itself."""

    max_steps: PositiveInt = 25
    """After so many steps."""
    max_tokens: PositiveInt = 500_000
    """After so many tokens, prompts and answers together."""
    max_dollars: Decimal = Decimal("1.0")
    """After so many dollars, where prices are known."""


@dataclass(frozen=True, slots=True)
class ShellConfig:
    """The shell itself."""

    prompt: str | None = field(default=None, metadata=_example("You are a careful engineer."))
    """What the model is told first, in place of brim's own words."""
    status: str | None = field(
        default=None, metadata=_example("{model} {bar} {ctx_used}/{ctx_limit} {cost} {cwd}")
    )
    """The status line; there are model, bar, ctx_used, ctx_limit, ctx_percent, cost, route, cwd,
    session and goal."""
    program: str | None = field(default=None, metadata=_example("/bin/bash"))
    """The shell that commands run in, where it is not that of the user."""
    keep_days: NonNegativeInt = 90
    """Days that a conversation is kept after its last turn; 0 keeps all. Costs are kept always."""


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """A server that the gateway sends requests to."""

    endpoint: EndpointUrl = field(default="", metadata=_example("https://api.openai.com/v1"))
    """Its address; the one key that an upstream must have."""
    format: Formats = field(default=(), metadata=_example(["openai", "responses"]))
    """What it speaks, one or more of openai, anthropic and responses, where its host does not
    tell."""
    models: TextList = field(default=(), metadata=_example(["gpt-5*", "o3"]))
    """The models that it gets, `*` for any letters; without it all that no other upstream names."""
    key_env: VariableName | None = field(default=None, metadata=_example("OPENAI_API_KEY"))
    """The environment variable that holds its key; without it the client's own is passed on."""
    headers: Mapping[str, Secret] = field(
        default_factory=_empty_mapping, metadata=_example({"X-Team": "docs"})
    )
    """Sent with every request."""
    timeout: Seconds = 600.0
    """Seconds without a single byte, before the answer and in its middle."""
    window: PositiveInt | None = field(default=None, metadata=_example(128_000))
    """Tokens that its models hold, answer included, where neither server nor catalog knows."""
    reply: NonNegativeInt | None = field(default=None, metadata=_example(4_096))
    """Tokens kept free for the answer."""
    price: Price | None = field(
        default=None,
        metadata=_example({"input": 0.25, "cached": 0.025, "output": 2.0, "written": 0.25}),
    )
    """Dollars per million tokens, before the price list."""
    policy: PolicyOrOff | None = field(default=None, metadata=_example("rolling"))
    """What is left out, where it is not as gateway.policy says; off relays all as it is."""
    template: Template | None = field(default=None, metadata=_example("mistral"))
    """Whose chat template its models follow, where their names do not tell."""
    count: ServerCount | None = field(default=None, metadata=_example("always"))
    """When it is asked to count, where that is not as count.server says."""
    fallback: str | None = field(default=None, metadata=_example("gpt-5-mini"))
    """The name of a model that gets a request once, on its own upstream, when this one fails."""
    cache_marks: bool = False
    """Set Anthropic's cache marks where the client set none."""
    stream_usage: bool = True
    """Ask for the usage at the end of a stream; false for servers without stream_options."""

    @property
    def formats(self) -> tuple[Format, ...]:
        """What it speaks, told by its host where nothing is said."""
        return self.format or HOST_FORMATS.get(urlsplit(self.endpoint).hostname or "", ("openai",))

    def fault(self) -> str | None:
        """What is missing for requests to get there."""
        return None if self.endpoint else "needs an endpoint"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway itself."""

    host: str = "127.0.0.1"
    """The address it listens on; one that other machines reach needs keys."""
    port: Port = 8484
    """Its port; 0 takes a free one."""
    policy: PolicyName = "steady"
    """What is left out of a conversation that is too long, as context.policy does for the shell."""
    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    """The largest request."""
    max_requests: PositiveInt = 1_000
    """So many at once; what comes above that is told to come again."""
    body_seconds: Seconds = 30.0
    """The longest silence while a request comes in."""
    send_seconds: Seconds = 60.0
    """The longest wait for a client that does not read its answer."""
    stop_seconds: Seconds = 30.0
    """The time that running answers have when it is stopped."""
    drain_seconds: NonNegativeInt = 0
    """After SIGTERM, requests are taken for so long while /readyz says that it stops: the time that
    a load balancer needs to see that."""
    keep_requests: NonNegativeInt = 1_000
    """So many of the last requests can be asked about at /brim/requests/ID."""
    conversations: NonNegativeInt = 500
    """So many conversations are remembered, so that their next turn is faster."""
    origins: TextList = field(default=(), metadata=_example(["https://chat.example.com"]))
    """Web pages that may send requests, beside those of this machine."""
    passthrough_paths: PathList = ()
    """Other paths that are relayed uncounted: /v1/embeddings, or /v1/files/* for all below one."""
    require_keys: bool = False
    """Refuse requests without a key of `brim keys` even before the first one is made."""
    store: Secret = field(default="", metadata=_example("postgresql://brim@db.example.com/brim"))
    """Where keys, caps and spending are kept: a file, or for several gateways a postgresql:// or
    redis:// address; without it a file beside the shell's own."""
    store_unavailable: StoreUnavailable = "reject"
    """What becomes of requests while that cannot be reached; allow sends them uncounted."""
    lease_seconds: Seconds = 60.0
    """After so long without a sign of life from its gateway, a request counts as spent in full."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set."""

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
