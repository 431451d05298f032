"""Heads: which headers go on to an upstream, which come back, and those that brim adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

    from brim.gateway.records import Record

Head = tuple[bytes, bytes]

OWN: Final = b"brim-"
_HOP: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "trailers", "transfer-encoding", "upgrade", "proxy-connection"),
    )
)
"""What concerns only two neighbours, and not those behind them."""
_NOT_SENT: Final = frozenset(
    name.encode()
    for name in (
        *_HOP,
        *("host", "content-length", "accept-encoding", "content-encoding", "cookie", "expect"),
        *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
    )
)
_KEYS: Final = frozenset(
    (
        *("authorization", "x-api-key", "api-key", "x-goog-api-key"),
        *("openai-organization", "openai-project"),
    )
)
"""What says who pays."""
_PROVIDERS: Final = ("anthropic-", "openai-")
"""How the headers begin that say what a provider is to do."""
_NOT_ANSWERED: Final = _HOP | frozenset(
    ("content-length", "content-encoding", "set-cookie", "server", "date", "alt-svc")
)


class Given(NamedTuple):
    """A client's headers, read once."""

    passed: list[tuple[str, str]]
    """What may go on to an upstream."""
    wished: dict[str, str]
    """What is asked of brim itself."""
    length: bytes
    """The size of the body, if it was announced."""
    origin: bytes | None
    """The web page that asks."""
    host: bytes
    """The name by which the gateway was called."""

    def named(self, name: str) -> str | None:
        return next((value for known, value in self.passed if known == name), None)


def given(heads: Iterable[Head]) -> Given:
    """What a client says, put where it is looked for."""
    passed: list[tuple[str, str]] = []
    wished: dict[str, str] = {}
    length, host, origin = b"", b"", None
    for name, value in heads:
        if name in _NOT_SENT:
            if name == b"content-length":
                length = value
            elif name == b"host":
                host = value
        elif name.startswith(OWN):
            wished[name.decode("latin-1")] = value.decode("latin-1")
        else:
            if name == b"origin":
                origin = value if origin is None else origin + b", " + value
            try:  # the client library writes UTF-8
                text = value.decode()
            except UnicodeDecodeError:
                text = value.decode("latin-1")
            passed.append((name.decode("latin-1"), text))
    return Given(passed, wished, length, origin, host)


class Own(NamedTuple):
    """The headers that each request to an upstream carries, whatever its client sent."""

    values: Mapping[str, str]
    names: frozenset[str]
    """The same in small letters."""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Own:
        return cls(values, frozenset(name.lower() for name in values))


def onward(given: Given, own: Own, *, keyless: bool) -> dict[str, str]:
    """What an upstream is sent: the client's headers, and the upstream's own over them.

    `keyless` keeps the client's own key from it.
    """
    hidden = own.names | _KEYS if keyless else own.names
    sent: dict[str, str] = {}
    for name, value in given.passed:
        if name not in hidden:
            sent[name] = f"{sent[name]}, {value}" if name in sent else value
    sent |= own.values
    sent["accept-encoding"] = "identity"
    return sent


def asking(given: Given, own: Own, *, keyless: bool) -> dict[str, str]:
    """What a question of brim's own carries of a client's headers: its key, and its features."""
    told = onward(given, own, keyless=keyless)
    return {
        name: value
        for name, value in told.items()
        if name not in own.values and (name in _KEYS or name.startswith(_PROVIDERS))
    }


def back(headers: CIMultiDictProxy[str]) -> list[Head]:
    """What a client is answered of an upstream's headers."""
    answered: list[Head] = []
    for name, value in headers.items():
        name = name.lower()
        if name not in _NOT_ANSWERED and not name.startswith("brim-"):
            answered.append((name.encode("latin-1"), value.encode("utf-8", "surrogateescape")))
    return answered


def added(record: Record) -> list[Head]:
    """What brim says that it did."""
    heads = [(b"brim-request-id", record.id.encode())]
    if record.upstream is not None:
        heads.append((b"brim-upstream", _signs(record.upstream)))
    if record.before is not None and record.tokens is not None:
        heads += (
            (b"brim-tokens-before", b"%d" % record.before),
            (b"brim-tokens", b"%d" % record.tokens),
            (b"brim-count", _signs(record.count)),
            (b"brim-cut", _signs(record.cut_in_words)),
            (b"brim-policy", _signs(record.policy)),
        )
    if record.limit is not None:
        heads.append((b"brim-limit", b"%d" % record.limit))
    if record.resent:
        heads.append((b"brim-resent", b"%d" % record.resent))
    if record.fallback is not None:
        heads.append((b"brim-fallback", _signs(record.fallback)))
    return heads


def _signs(text: object) -> bytes:
    return str(text).encode("latin-1", "replace")
