"""Any request is understood or rejected with a message.

`python -m tests.support.gateway.fuzz` sends other requests, without a limit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.gateway import bodies
from brim.gateway import headers as heads
from brim.gateway.bodies import PATHS, detect_format
from brim.gateway.errors import GatewayError
from brim.gateway.headers import RequestOptions, parse_options
from brim.testing import ErrorReply, ScriptedServer
from brim.wire.formats import FORMATS
from tests.support.gateway.fuzz import WINDOW, ask, client_of_a_gateway
from tests.support.gateway.process import config_of, run_gateway
from tests.support.gateway.requests import MESSAGES, body_of
from tests.support.gateway.strategies import BODIES, events, mutate, requests, streams, values

objects = st.dictionaries(st.text(max_size=4), values, max_size=4)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_of_a_gateway() as client:
        yield client


@settings(max_examples=5 * settings().max_examples)
@given(requests())
def test_no_request_causes_an_internal_error(
    client: httpx.Client, request_: tuple[str, bytes, dict[str, str]]
) -> None:
    ask(client, *request_)


@pytest.mark.parametrize("path", BODIES)
def test_the_unmutated_requests_succeed(client: httpx.Client, path: str) -> None:
    assert client.post(path, json=BODIES[path]).status_code == 200


# Answers

AS_IT_IS = {"brim-fitting": "off"}
"""So that a body that looks like a context-length error is not retried."""
HELLO = body_of(MESSAGES, "Hi", model="gpt-4o")


class Upstream:
    """Answers each request with the bytes that were set last."""

    def __init__(self) -> None:
        self.fault = ErrorReply()

    def __call__(self, _: Any) -> ErrorReply:
        return self.fault


@pytest.fixture(scope="module")
def odd() -> Upstream:
    return Upstream()


@pytest.fixture(scope="module")
def behind(odd: Upstream) -> Iterator[httpx.Client]:
    """A client of a gateway in front of that upstream."""
    with (
        ScriptedServer(odd) as upstream,
        run_gateway(config_of(upstream.url, window=WINDOW, reply=50)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        yield client


REPLY_PATHS = [path for path, format in PATHS.items() if format in FORMATS.values()]
"""The paths that the scripted server serves, with and without a stream."""

answers = events.map(lambda answer: json.dumps(answer).encode()) | st.binary(max_size=40)


@given(answers, st.sampled_from([200, 203, 400, 404, 413, 429, 500]), st.sampled_from(REPLY_PATHS))
def test_every_response_is_returned_unchanged(
    behind: httpx.Client, odd: Upstream, raw: bytes, status: int, path: str
) -> None:
    odd.fault = ErrorReply(status, raw=raw)
    answer = behind.post(path, json=HELLO, headers=AS_IT_IS)
    assert (answer.status_code, answer.content) == (status, raw)
    record = behind.get(f"/brim/requests/{answer.headers['brim-request-id']}")
    assert record.json()["status"] == status


@given(streams().filter(bool), st.sampled_from(REPLY_PATHS))
def test_every_stream_is_returned(
    behind: httpx.Client, odd: Upstream, raw: bytes, path: str
) -> None:
    odd.fault = ErrorReply(raw=raw, in_stream=True)
    answer = behind.post(path, json={**HELLO, "stream": True}, headers=AS_IT_IS)
    assert behind.get("/healthz").status_code == 200
    (record,) = behind.get("/brim/requests?last=1").json()["data"]
    if record["end"] == "completed":
        assert answer.status_code == 200
        assert answer.content.endswith(raw) or b"usage" in raw
    else:  # it ends incomplete, or empty
        assert (answer.status_code, record["end"]) in ((200, "upstream_failed"), (502, "failed"))
        assert b"error" in answer.content


# Bodies


@given(objects)
def test_valid_json_is_parsed(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    assert _read(json.dumps(bodies.parse_body(raw))) == _read(raw)
    valid = json.dumps(body, ensure_ascii=False).encode("utf-16", "surrogatepass")
    assert _read(bodies.serialize(body)) == _read(valid.decode("utf-16", "replace"))


def _read(raw: bytes | str) -> Any:
    """Return the value with all numbers as doubles, which lose digits of long integers."""
    return json.loads(raw, parse_int=float)


@given(st.binary(max_size=60) | objects.map(lambda body: json.dumps(body).encode()), st.data())
def test_every_body_is_parsed_or_rejected(raw: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(raw)))
    broken = raw[:place] + data.draw(st.binary(max_size=2)) + raw[place:]
    with contextlib.suppress(GatewayError):
        assert isinstance(bodies.parse_body(broken), dict)


@given(objects, st.sampled_from([None, 1, "\t"]), st.text(" \n\r\t", max_size=3))
def test_an_inserted_field_changes_nothing_else(
    body: dict[str, Any], indent: int | str | None, blanks: str
) -> None:
    body.pop("stream_options", None)
    raw = (blanks + json.dumps(body, indent=indent) + blanks).encode()
    changed, sent = bodies.request_usage(bodies.parse_body(raw), raw)
    assert bodies.parse_body(sent) == {
        "stream_options": {"include_usage": True},
        **bodies.parse_body(raw),
    }
    assert sent.endswith(raw[raw.index(b"{") + 1 :])
    assert changed == bodies.parse_body(sent)


@given(st.sampled_from([*FORMATS.values()]), objects | st.sampled_from([*BODIES.values()]).flatmap(
    mutate))  # fmt: skip
def test_every_body_has_a_format_or_is_rejected(format: Any, body: dict[str, Any]) -> None:
    assert detect_format(format, body) in FORMATS.values()


# Headers

_names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
_given = st.lists(
    st.tuples(
        (_names | st.sampled_from(["authorization", "brim-policy", "host", "cookie", "x-a"])).map(
            lambda name: name.lower().encode()
        ),
        st.binary(max_size=20),
    )
)


@given(_given, st.booleans())
def test_all_headers_can_be_forwarded(given_: list[tuple[bytes, bytes]], keyless: bool) -> None:
    own = heads.UpstreamHeaders.of({"Authorization": "Bearer own"})
    sent = heads.build_forwarded_headers(heads.read_headers(given_), own, drop_credentials=keyless)
    names = [name for name, _ in sent]
    assert not any(name.startswith(b"brim-") for name in names)
    assert (b"Authorization", b"Bearer own") in sent
    assert not {b"authorization", b"host", b"cookie"} & set(names)


@given(st.lists(st.tuples(_names, st.binary(max_size=20))))
def test_all_response_headers_can_be_filtered(given_: list[tuple[str, bytes]]) -> None:
    answered = heads.filter_response_headers([(name.encode(), value) for name, value in given_])
    known = {(name.lower().encode(), value) for name, value in given_}
    assert set(answered) <= known
    assert not {name for name, _ in answered} & {b"set-cookie", b"content-length", b"brim-trimmed"}


_options = st.dictionaries(
    _names.map(lambda name: f"brim-{name}") | st.sampled_from(["brim-policy", "brim-fitting"]),
    st.text(max_size=9) | st.sampled_from([" Rolling ", "OFF", "dry-run"]),
)


@given(_options)
def test_every_option_is_parsed_or_rejected(headers: dict[str, str]) -> None:
    raw = {name.encode(): value.encode() for name, value in headers.items()}
    with contextlib.suppress(GatewayError):
        assert isinstance(parse_options(raw), RequestOptions)
