"""Headers: what is sent to an upstream, what is returned to the client, and brim's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode

from brim.fitting.policies import POLICIES
from brim.gateway.errors import GatewayError
from brim.gateway.records import RequestRecord
from brim.providers.http_connection import Header, encode_headers

FittingMode = Literal["on", "off", "dry-run"]

BRIM_PREFIX: Final = b"brim-"
POLICY: Final = "brim-policy"
FITTING: Final = "brim-fitting"
CACHE_MARKS: Final = "brim-cache-marks"
RECALL: Final = "brim-recall"
"""Whether the gateway offers the tool `recall` and answers its calls."""
SESSION: Final = "brim-session"
"""Names the conversation, for session affinity."""

_NO_COMPRESSION: Final = (b"accept-encoding", b"identity")
"""Responses are read while they pass through, so they must not be compressed."""
_NO_OPTIONS: Final[Mapping[bytes, bytes]] = {}
_HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"trailers", b"transfer-encoding", b"upgrade", b"proxy-connection"),
    )
)
_NOT_SENT: Final = _HOP_BY_HOP | frozenset(
    (
        *(b"host", b"content-length", b"accept-encoding", b"content-encoding", b"cookie"),
        *(b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host"),
        *(b"x-forwarded-proto", b"x-real-ip"),
    )
)
_CREDENTIALS: Final = frozenset(
    (
        *(b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"),
        *(b"openai-organization", b"openai-project"),
    )
)
"""Headers that say who pays."""
_PROVIDER_PREFIXES: Final = (b"anthropic-", b"openai-")
"""Prefixes of headers that select features of a provider."""
_NOT_RETURNED: Final = _HOP_BY_HOP | frozenset(
    (b"content-length", b"content-encoding", b"set-cookie", b"server", b"date", b"alt-svc")
)


class ClientHeaders(NamedTuple):
    """The headers of a client's request, in order and by name."""

    pairs: Sequence[Header]
    by_name: Mapping[bytes, bytes]
    """The last value of each header."""
    options: Mapping[bytes, bytes]
    """The `brim-` headers: options for this request."""

    @property
    def origin(self) -> str | None:
        """The origin of the web page that sent the request; all values, if there are several."""
        if b"origin" not in self.by_name:
            return None
        return _decode(b", ".join(value for name, value in self.pairs if name == b"origin"))


QUERY_KEY: Final = "key"
"""The field of a query in which Google's clients may send their key."""
_KEY_HEADER: Final = b"x-goog-api-key"


def take_query_key(pairs: Sequence[Header], query: bytes) -> tuple[Sequence[Header], str]:
    """Return the headers with the key of a query, and the query without it.

    Queries are written to logs of other programs; headers are not.
    """
    text = query.decode("latin-1")
    if QUERY_KEY not in text:
        return pairs, text
    fields = parse_qsl(text, keep_blank_values=True)
    keys = [value for name, value in fields if name == QUERY_KEY]
    if not keys:
        return pairs, text
    rest = urlencode([field for field in fields if field[0] != QUERY_KEY])
    return [*pairs, (_KEY_HEADER, keys[-1].encode("latin-1", "replace"))], rest


def read_headers(pairs: Sequence[Header]) -> ClientHeaders:
    by_name = dict(pairs)
    if BRIM_PREFIX not in b" ".join(by_name):  # the usual case
        return ClientHeaders(pairs, by_name, _NO_OPTIONS)
    options = {name: value for name, value in by_name.items() if name.startswith(BRIM_PREFIX)}
    return ClientHeaders(pairs, by_name, options)


class UpstreamHeaders(NamedTuple):
    """The headers that every request to an upstream has."""

    pairs: Sequence[Header]
    replaced: frozenset[bytes]
    """Client headers that are not forwarded."""
    replaced_with_credentials: frozenset[bytes]
    """The same, with the client's credentials."""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> UpstreamHeaders:
        pairs = [pair for pair in encode_headers(values) if pair[0].lower() != _NO_COMPRESSION[0]]
        replaced = _NOT_SENT.union(name.lower() for name, _ in pairs)
        return cls([*pairs, _NO_COMPRESSION], replaced, replaced | _CREDENTIALS)

    def without(self, name: bytes) -> UpstreamHeaders:
        """Return the same headers except one, which the client may set."""
        pairs = [pair for pair in self.pairs if pair[0].lower() != name]
        return UpstreamHeaders(
            pairs, self.replaced - {name}, self.replaced_with_credentials - {name}
        )


def build_forwarded_headers(
    client: ClientHeaders, own: UpstreamHeaders, *, drop_credentials: bool
) -> list[Header]:
    """Return the headers to send: the client's, overridden by the upstream's own.

    `drop_credentials` removes the client's own key.
    """
    hidden = own.replaced_with_credentials if drop_credentials else own.replaced
    if client.options:
        hidden = hidden.union(client.options)
    return [*[pair for pair in client.pairs if pair[0] not in hidden], *own.pairs]


def set_header(pairs: Iterable[Header], name: bytes, value: bytes) -> list[Header]:
    """Return headers with one of them replaced."""
    return [*(pair for pair in pairs if pair[0] != name), (name, value)]


def build_query_headers(
    client: ClientHeaders, own: UpstreamHeaders, *, drop_credentials: bool
) -> dict[str, str]:
    """Return the client's headers for a request of brim itself: credentials and features."""
    hidden = own.replaced_with_credentials if drop_credentials else own.replaced
    found: dict[str, str] = {}
    for name, value in client.pairs:
        is_relevant = name in _CREDENTIALS or name.startswith(_PROVIDER_PREFIXES)
        if name not in hidden and is_relevant:
            key, text = _decode(name), _decode(value)
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def filter_response_headers(pairs: Iterable[Header]) -> list[Header]:
    """Return the headers of an upstream's response that the client gets."""
    lowered = [(name.lower(), value) for name, value in pairs]
    return [pair for pair in lowered if pair[0] not in _NOT_RETURNED and pair[0][:5] != BRIM_PREFIX]


def build_brim_headers(record: RequestRecord) -> list[Header]:
    """Return the response headers that say what brim did."""
    trimmed = ", ".join(f"{outcome}={number}" for outcome, number in record.trimmed.items())
    values = {
        b"brim-request-id": record.id,
        b"brim-upstream": record.upstream,
        b"brim-tokens-before": record.tokens_before,
        b"brim-tokens": record.tokens,
        b"brim-count": record.count,
        b"brim-trimmed": None if record.tokens is None else trimmed or "none",
        b"brim-policy": record.policy,
        b"brim-limit": record.limit,
        b"brim-resent": record.resent or None,
        b"brim-fallback": record.fallback,
        b"brim-retrieve-id": record.retrieve_id,
        b"brim-attempts": record.attempts if record.attempts > 1 else None,
    }
    return [
        (name, str(value).encode("latin-1", "replace"))
        for name, value in values.items()
        if value is not None
    ]


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


# Options for one request, set by `brim-` headers


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How to treat one request; None means as the upstream's settings say."""

    policy: str | None = None
    fitting: FittingMode = "on"
    cache_marks: bool | None = None


DEFAULT_OPTIONS: Final = RequestOptions()
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    POLICY: tuple(POLICIES),
    FITTING: ("on", "off", "dry-run"),
    CACHE_MARKS: ("on", "off"),
    RECALL: ("on", "off"),
}


def is_recall_on(options: Mapping[bytes, bytes]) -> bool:
    """Return whether the `brim-` headers ask for the tool `recall`."""
    return options.get(RECALL.encode(), b"").strip().lower() == b"on"


def parse_options(headers: Mapping[bytes, bytes]) -> RequestOptions:
    """Return the options in `brim-` headers. Raise `GatewayError` if one is unknown or invalid."""
    if not headers:
        return DEFAULT_OPTIONS
    chosen: dict[str, str] = {}
    for raw_name, raw_value in headers.items():
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name == SESSION:
            continue
        if name not in _CHOICES:
            known = ", ".join((*_CHOICES, SESSION))
            message = f"Unknown header: {name[:40]!r}. Known: {known}."
            raise GatewayError(400, "unknown_header", message)
        chosen[name] = value.strip().lower()
        if chosen[name] not in _CHOICES[name]:
            choices = ", ".join(_CHOICES[name])
            message = f"Invalid value of {name}: {value[:40]!r}. Use one of {choices}."
            raise GatewayError(400, "invalid_header", message)
    marks = chosen.get(CACHE_MARKS)
    return RequestOptions(
        chosen.get(POLICY),
        chosen.get(FITTING, "on"),  # type: ignore[arg-type]
        None if marks is None else marks == "on",
    )
