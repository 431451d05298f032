"""Which headers are forwarded to an upstream, and which its own headers replace."""

from __future__ import annotations

import pytest

from brim.gateway.headers import UpstreamHeaders, build_forwarded_headers, read_headers
from brim.providers.http_connection import Header

IDENTITY = (b"accept-encoding", b"identity")
OWN = UpstreamHeaders.of({"Authorization": "Bearer own", "Content-Type": "application/json"})


def make_headers(
    *heads: Header, own: UpstreamHeaders = OWN, drop_credentials: bool = False
) -> list[Header]:
    return build_forwarded_headers(read_headers(heads), own, drop_credentials=drop_credentials)


@pytest.mark.parametrize("name", ["accept-encoding", "Accept-Encoding"])
def test_compressed_responses_are_never_requested(name: str) -> None:
    own = UpstreamHeaders.of({name: "br"})
    assert make_headers((b"accept-encoding", b"gzip"), own=own) == [IDENTITY]


def test_headers_of_the_upstream_replace_those_of_the_client() -> None:
    heads = (b"content-type", b"text/plain"), (b"authorization", b"Bearer client")
    assert make_headers(*heads) == [*OWN.pairs]


def test_a_removed_upstream_header_may_come_from_the_client() -> None:
    own, kind = OWN.without(b"content-type"), (b"content-type", b"text/plain")
    for drop_credentials in (False, True):
        found = make_headers(kind, own=own, drop_credentials=drop_credentials)
        assert found == [kind, (b"Authorization", b"Bearer own"), IDENTITY]


def test_repeated_headers_keep_their_order() -> None:
    heads = (b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3"), (b"x-a", b"1")
    assert make_headers(*heads, own=UpstreamHeaders.of({})) == [*heads, IDENTITY]


@pytest.mark.parametrize(
    "name",
    [
        *(b"brim-policy", b"brim-", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"proxy-authorization", b"host", b"content-length", b"cookie"),
    ],
)
def test_hop_by_hop_headers_are_not_forwarded(name: bytes) -> None:
    kept = b"x-a", b"1"
    assert make_headers((name, b"1"), kept, (name, b"2"), own=UpstreamHeaders.of({})) == [
        kept,
        IDENTITY,
    ]


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"openai-project"])
def test_credentials_are_forwarded_unless_the_upstream_has_a_key(name: bytes) -> None:
    payer, own = (name, b"client"), UpstreamHeaders.of({})
    assert make_headers(payer, own=own) == [payer, IDENTITY]
    assert make_headers(payer, own=own, drop_credentials=True) == [IDENTITY]
