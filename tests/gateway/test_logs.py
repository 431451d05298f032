"""The gateway's log: one line per event, without message content."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from brim.gateway import logs
from brim.gateway.records import RequestRecord
from brim.testing import ErrorReply, ScriptedServer
from tests.support.gateway.process import config_of, restored_loggers, run_gateway
from tests.support.gateway.requests import CHAT, PATHS, ask, get_record

LOG = logging.getLogger("brim.gateway")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The stream of log lines."""
    with restored_loggers():
        yield io.StringIO()


def test_a_json_line_has_all_fields(stream: io.StringIO) -> None:
    logs.configure_logging("json", stream)
    LOG.info(
        "answered", extra={"fields": {"id": "brim_1", "status": 200, "trimmed": {"dropped": 3}}}
    )
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "message": "answered",
        "id": "brim_1",
        "status": 200,
        "trimmed": {"dropped": 3},
    }


def test_a_text_line_omits_unknown_fields(stream: io.StringIO) -> None:
    logs.configure_logging("text", stream)
    LOG.warning("answered", extra={"fields": {"status": 200, "code": None}})
    assert stream.getvalue().partition(" ")[2] == "warning: answered status=200\n"


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_name_from_a_client_cannot_end_the_line_or_move_the_cursor(
    stream: io.StringIO, style: logs.Style
) -> None:
    logs.configure_logging(style, stream)
    LOG.info("answered", extra={"model": "x\nfaked line\x1b[2J\u2028"})
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "text"])
def test_an_exception_is_logged_without_its_message(stream: io.StringIO, style: logs.Style) -> None:
    logs.configure_logging(style, stream)
    try:
        int("content of a message")
    except ValueError:
        LOG.exception("request failed", extra={"id": "brim_1"})
    assert "ValueError" in stream.getvalue()
    assert "test_logs.py:" in stream.getvalue()
    assert "content of a message" not in stream.getvalue()


# Requests

TURNS = [f"turn {place}: " + "some words that take room " * 20 for place in range(41)]


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("path", PATHS)
def test_a_request_is_logged_in_one_line(path: str, stream: io.StringIO) -> None:
    logs.configure_logging("json", stream)
    with (
        ScriptedServer("Hello.") as provider,
        run_gateway(config_of(provider.url, window=3_000)) as server,
    ):
        request = get_record(server, ask(server, path, *TURNS))
    (line,) = lines_of(stream)
    assert (line.pop("level"), line.pop("message")) == ("info", "request")
    assert line.pop("time").endswith("+00:00")
    assert line.pop("milliseconds") == pytest.approx(request.pop("seconds") * 1_000, abs=0.1)
    assert line.pop("first_byte_ms") == pytest.approx(request.pop("first_byte") * 1_000, abs=0.1)
    for other in ("object", "plan", "time"):
        del request[other]
    assert line == {name: value for name, value in request.items() if value is not None}
    assert line["id"].startswith("brim_")
    assert line["trimmed"]


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        (ErrorReply(400), "info"),
        (ErrorReply(429), "info"),
        (ErrorReply(500), "warning"),
        (ErrorReply(529), "warning"),
    ],
    ids=str,
)
def test_an_upstream_failure_is_a_warning(
    answer: ErrorReply, level: str, stream: io.StringIO
) -> None:
    logs.configure_logging("json", stream)
    with ScriptedServer(answer) as provider, run_gateway(config_of(provider.url)) as server:
        ask(server, CHAT, "hi")
    (line,) = lines_of(stream)
    assert (line["level"], line["status"]) == (level, answer.status)


def test_an_unreachable_upstream_is_a_warning_with_its_code(stream: io.StringIO) -> None:
    logs.configure_logging("json", stream)
    with run_gateway(config_of("http://127.0.0.1:9")) as server:
        ask(server, CHAT, "hi")
    (line,) = lines_of(stream)
    assert (line["level"], line["code"]) == ("warning", "upstream_unreachable")


def test_every_model_name_is_logged_in_one_short_line(
    stream: io.StringIO,
) -> None:
    logs.configure_logging("text", stream)
    with ScriptedServer("Hello.") as provider, run_gateway(config_of(provider.url)) as server:
        ask(server, CHAT, "hi", model="\nfaked status=200 \u2028\x9b" + "x" * 5_000)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert len(line) < 1_000


def test_no_line_is_built_if_logging_is_disabled(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure_logging("json", stream)
    LOG.parent.setLevel(logging.ERROR)  # type: ignore[union-attr]
    monkeypatch.delattr(RequestRecord, "to_dict")
    logs.log_request(RequestRecord("/v1/messages", "anthropic"))
    assert stream.getvalue() == ""


def test_messages_of_store_drivers_are_not_logged(
    stream: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    logs.configure_logging("json", stream)
    logging.getLogger("asyncpg.pool").warning("restore failed", exc_info=OSError("gone"))
    assert not caplog.records
