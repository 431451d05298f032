"""Heads: which headers go on to an upstream, which come back, and those that brim adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from brim.providers.http_connection import Header, encode_headers

if TYPE_CHECKING:
    from brim.gateway.records import RequestRecord

BRIM_PREFIX: Final = b"brim-"
_NO_COMPRESSION: Final = (b"accept-encoding", b"identity")
"""Answers have to be read as they go by."""
_NOTHING: Final[Mapping[bytes, bytes]] = {}
_HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"trailers", b"transfer-encoding", b"upgrade", b"proxy-connection"),
    )
)
"""What concerns only two neighbours, and not those behind them."""
_NOT_SENT: Final = _HOP_BY_HOP | frozenset(
    (
        *(b"host", b"content-length", b"accept-encoding", b"content-encoding", b"cookie"),
        *(b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host"),
        *(b"x-forwarded-proto", b"x-real-ip"),
    )
)
_KEYS: Final = frozenset(
    (
        *(b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"),
        *(b"openai-organization", b"openai-project"),
    )
)
"""What says who pays."""
_PROVIDER_PREFIXES: Final = (b"anthropic-", b"openai-")
"""How the headers begin that say what a provider is to do."""
_NOT_RETURNED: Final = _HOP_BY_HOP | frozenset(
    (b"content-length", b"content-encoding", b"set-cookie", b"server", b"date", b"alt-svc")
)


class ClientHeaders(NamedTuple):
    """A client's headers as they came, and by name."""

    heads: Sequence[Header]
    named: Mapping[bytes, bytes]
    """The last of each name."""
    wished: Mapping[bytes, bytes]
    """What is asked of brim itself."""

    @property
    def origin(self) -> str | None:
        """The web page that asks; all that are named, if one tries to pass for another."""
        if b"origin" not in self.named:
            return None
        return _decode(b", ".join(value for name, value in self.heads if name == b"origin"))


def read_headers(heads: Sequence[Header]) -> ClientHeaders:
    named = dict(heads)
    if BRIM_PREFIX not in b" ".join(named):  # as it is with nearly all
        return ClientHeaders(heads, named, _NOTHING)
    wished = {name: value for name, value in named.items() if name.startswith(BRIM_PREFIX)}
    return ClientHeaders(heads, named, wished)


class UpstreamHeaders(NamedTuple):
    """The headers that each request to an upstream carries, whatever its client sent."""

    heads: Sequence[Header]
    hidden: frozenset[bytes]
    """Those of a client that do not go on beside them."""
    hidden_with_keys: frozenset[bytes]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> UpstreamHeaders:
        heads = [head for head in encode_headers(values) if head[0].lower() != _NO_COMPRESSION[0]]
        hidden = _NOT_SENT.union(name.lower() for name, _ in heads)
        return cls([*heads, _NO_COMPRESSION], hidden, hidden | _KEYS)

    def without(self, name: bytes) -> UpstreamHeaders:
        """The same, but for one that the client may choose."""
        heads = [head for head in self.heads if head[0].lower() != name]
        return UpstreamHeaders(heads, self.hidden - {name}, self.hidden_with_keys - {name})


def build_forwarded_headers(
    given: ClientHeaders, own: UpstreamHeaders, *, keyless: bool
) -> list[Header]:
    """What an upstream is sent: the client's headers, and the upstream's own over them.

    `keyless` keeps the client's own key from it.
    """
    hidden = own.hidden_with_keys if keyless else own.hidden
    if given.wished:
        hidden = hidden.union(given.wished)
    return [*[head for head in given.heads if head[0] not in hidden], *own.heads]


def build_query_headers(
    given: ClientHeaders, own: UpstreamHeaders, *, keyless: bool
) -> dict[str, str]:
    """What a question of brim's own carries of a client's headers: its key, and its features."""
    hidden = own.hidden_with_keys if keyless else own.hidden
    told: dict[str, str] = {}
    for name, value in given.heads:
        if name not in hidden and (name in _KEYS or name.startswith(_PROVIDER_PREFIXES)):
            known, said = _decode(name), _decode(value)
            told[known] = f"{told[known]}, {said}" if known in told else said
    return told


def filter_response_headers(heads: Iterable[Header]) -> list[Header]:
    """What a client is answered of an upstream's headers."""
    answered = [(name.lower(), value) for name, value in heads]
    return [
        head for head in answered if head[0] not in _NOT_RETURNED and head[0][:5] != BRIM_PREFIX
    ]


def build_brim_headers(record: RequestRecord) -> list[Header]:
    """What brim says that it did."""
    heads = [(b"brim-request-id", record.id.encode())]
    if record.upstream is not None:
        heads.append((b"brim-upstream", _encode(record.upstream)))
    if record.before is not None and record.tokens is not None:
        heads += (
            (b"brim-tokens-before", b"%d" % record.before),
            (b"brim-tokens", b"%d" % record.tokens),
            (b"brim-count", _encode(record.count or "")),
            (b"brim-cut", _encode(record.cut_in_words)),
            (b"brim-policy", _encode(record.policy or "")),
        )
    if record.limit is not None:
        heads.append((b"brim-limit", b"%d" % record.limit))
    if record.resent:
        heads.append((b"brim-resent", b"%d" % record.resent))
    if record.fallback is not None:
        heads.append((b"brim-fallback", _encode(record.fallback)))
    return heads


@lru_cache(maxsize=256)
def _encode(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
