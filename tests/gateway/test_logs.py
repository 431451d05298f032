"""The gateway's log: a line for each thing, and nothing in it that somebody said."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from brim.gateway import logs

LOG = logging.getLogger("brim.gateway")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines go; afterwards all loggers are as they were."""
    loggers = [logging.getLogger(name) for name in logs.LOGGERS]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    yield io.StringIO()
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def test_a_line_of_json_has_what_stands_beside_the_words(stream: io.StringIO) -> None:
    logs.set_up("json", stream)
    LOG.info("answered", extra={"id": "brim_1", "status": 200, "cut": {"dropped": 3}})
    told = json.loads(stream.getvalue())
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "info",
        "message": "answered",
        "id": "brim_1",
        "status": 200,
        "cut": {"dropped": 3},
    }


def test_a_line_of_text_leaves_out_what_is_not_known(stream: io.StringIO) -> None:
    logs.set_up("text", stream)
    LOG.warning("answered", extra={"status": 200, "code": None})
    assert stream.getvalue().partition(" ")[2] == "warning: answered status=200\n"


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_name_from_a_client_cannot_end_the_line_or_move_the_cursor(
    stream: io.StringIO, style: logs.Style
) -> None:
    logs.set_up(style, stream)
    LOG.info("answered", extra={"model": "x\nfaked line\x1b[2J\u2028"})
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "text"])
def test_an_exception_is_told_by_its_kind_and_place_not_by_its_words(
    stream: io.StringIO, style: logs.Style
) -> None:
    logs.set_up(style, stream)
    try:
        int("what somebody said")
    except ValueError:
        LOG.exception("request failed", extra={"id": "brim_1"})
    assert "ValueError" in stream.getvalue()
    assert "test_logs.py:" in stream.getvalue()
    assert "somebody" not in stream.getvalue()
