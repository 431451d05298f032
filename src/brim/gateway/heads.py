"""Heads: which headers go on to an upstream, which come back, and those that brim adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

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
_NOT_SENT: Final = _HOP | frozenset(
    (
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


def wished(heads: Iterable[Head]) -> dict[str, str]:
    """What a client asks of brim itself."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in heads
        if name.startswith(OWN)
    }


def onward(heads: Iterable[Head], own: Mapping[str, str], *, keyless: bool) -> dict[str, str]:
    """What an upstream is sent: the client's headers, and the upstream's own over them.

    `keyless` keeps the client's own key from it.
    """
    lowered = {name.lower() for name in own}
    sent: dict[str, str] = {}
    for name, value in heads:
        if name.startswith(OWN):
            continue
        text = name.decode("latin-1")
        if text in _NOT_SENT or text in lowered or (keyless and text in _KEYS):
            continue
        said = _text(value)
        sent[text] = f"{sent[text]}, {said}" if text in sent else said
    sent |= own
    sent["accept-encoding"] = "identity"
    return sent


def asking(heads: Iterable[Head], own: Mapping[str, str], *, keyless: bool) -> dict[str, str]:
    """What a question of brim's own carries of a client's headers: its key, and its features."""
    told = onward(heads, own, keyless=keyless)
    return {
        name: value
        for name, value in told.items()
        if name not in own and (name in _KEYS or name.startswith(_PROVIDERS))
    }


def _text(value: bytes) -> str:
    """A value as the client library takes it, which writes UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def back(headers: CIMultiDictProxy[str]) -> list[Head]:
    """What a client is answered of an upstream's headers."""
    return [
        (name.lower().encode("latin-1"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
        if name.lower() not in _NOT_ANSWERED and not name.lower().startswith("brim-")
    ]


def added(record: Record) -> list[Head]:
    """What brim says that it did."""
    heads = [(b"brim-request-id", record.id.encode())]
    heads += [
        (name, str(value).encode("latin-1", "replace"))
        for name, value in (
            (b"brim-upstream", record.upstream),
            (b"brim-tokens-before", record.before),
            (b"brim-tokens", record.tokens),
            (b"brim-limit", record.limit),
            (b"brim-count", record.count),
            (b"brim-cut", record.cut_in_words),
            (b"brim-policy", record.policy),
            (b"brim-resent", record.resent or None),
            (b"brim-fallback", record.fallback),
        )
        if value is not None
    ]
    return heads
