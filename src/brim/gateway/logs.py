"""The gateway's log: a line for each thing that happened, for people or for programs.

What is logged beside the words, as `told` in the record's `extra`, stands in the line by its name.
Of an exception its kind and its place are told and not its words, because they may quote what
somebody said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import orjson

if TYPE_CHECKING:
    from brim.gateway.records import RequestRecord

Style = Literal["json", "text"]

LOGGERS: Final = ("brim", "uvicorn.error")
SILENCED_LOGGERS: Final = ("asyncpg",)
"""Those whose troubles the gateway tells in its own words."""
FAILED_ENDS: Final = ("failed", "upstream broke")
"""How a request ends for which brim or its upstream is to blame."""
_root_logger: Final = logging.getLogger(LOGGERS[0])
_request_logger: Final = logging.getLogger("brim.gateway")
FLUSH_DELAY: Final = 0.2
"""Seconds that a line may wait for others to be written with."""
MAX_BUFFERED_LINES: Final = 64
REQUEST_MESSAGE: Final = "request"
"""What the line of a request says."""


def configure_logging(style: Style, stream: TextIO) -> None:
    """Let all that the gateway logs go to a stream."""
    handler = _Batches(stream) if style == "json" else logging.StreamHandler(stream)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    for name in SILENCED_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _root_logger.setLevel(logging.INFO)


class _Batches(logging.StreamHandler[TextIO]):
    """Makes and writes lines together: many at once take a third of the time of each alone.

    What is wrong is written at once, with all that came before it.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting: list[logging.LogRecord | tuple[float, int, RequestRecord]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._wait(record, record.levelno)

    def tell(self, level: int, request: RequestRecord) -> None:
        """The line of a request, without the detour by a record of the library."""
        self._wait((time.time(), level, request), level)

    def _wait(self, line: logging.LogRecord | tuple[float, int, RequestRecord], level: int) -> None:
        self._waiting.append(line)
        if level > logging.INFO or len(self._waiting) >= MAX_BUFFERED_LINES:
            self.flush()
        elif len(self._waiting) == 1:
            try:
                asyncio.get_running_loop().call_later(FLUSH_DELAY, self.flush)
            except RuntimeError:  # nobody would come back to it
                self.flush()

    def flush(self) -> None:
        with self.lock or nullcontext():
            waiting, self._waiting = self._waiting, []
            if waiting:
                self.stream.write("\n".join(map(self._line, waiting)) + "\n")
            super().flush()

    def _line(self, line: logging.LogRecord | tuple[float, int, RequestRecord]) -> str:
        if isinstance(line, logging.LogRecord):
            return self.format(line)
        when, level, request = line
        return _dump_ascii(_common_fields(when, level, REQUEST_MESSAGE) | _request_fields(request))


def _common_fields(when: float, level: int, words: str) -> dict[str, Any]:
    """What every line begins with."""
    at = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return {"time": at, "level": logging.getLevelName(level).lower(), "message": words}


def flush() -> None:
    """Write what still waits."""
    for handler in _root_logger.handlers:
        handler.flush()


def log_event(words: str, beside: dict[str, Any]) -> None:
    """Log something of the gateway as a whole."""
    _root_logger.info(words, extra={"told": beside})


def log_request(record: RequestRecord) -> None:
    """Log a request that is over: what became of it, and nothing of what it said."""
    is_bad = record.status >= 500 or record.end in FAILED_ENDS
    level = logging.WARNING if is_bad else logging.INFO
    if not _request_logger.isEnabledFor(level):
        return
    for handler in _root_logger.handlers:
        if isinstance(handler, _Batches):
            handler.tell(level, record)
            return
    _request_logger.log(level, REQUEST_MESSAGE, extra={"told": _request_fields(record)})


def _request_fields(record: RequestRecord) -> dict[str, Any]:
    """The request by the names that /brim/requests has for it, without what is not known."""
    told = record.known()
    del told["time"]  # of its arrival; each line has one of its own
    told["milliseconds"] = round(told.pop("seconds") * 1_000, 1)
    if (first := told.pop("first_byte", None)) is not None:
        told["first_byte_ms"] = round(first * 1_000, 1)
    return told


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = _common_fields(record.created, record.levelno, record.getMessage())
        return _dump_ascii(head | _extra_fields(record))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone()
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        told = {name: value for name, value in _extra_fields(record).items() if value is not None}
        beside = "".join(f" {name}={_format_value(value)}" for name, value in told.items())
        return f"{time:%H:%M:%S} {level}{record.getMessage()}{beside}"


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    told: dict[str, Any] = {**getattr(record, "told", {})}
    if record.exc_info and (error := record.exc_info[1]) is not None:
        told["error"] = type(error).__name__
        told["at"] = [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__, limit=-10)
        ]
    return told


def _dump_ascii(told: dict[str, Any]) -> str:
    """JSON in which no sign of a client's gets through as it is."""
    with suppress(TypeError):  # half a surrogate pair, or a number of more than 64 bits
        raw = orjson.dumps(told, default=str)
        if raw.isascii():
            return raw.decode()
    return json.dumps(told, default=str)


def _format_value(value: object) -> str:
    """A value that can neither end the line nor move the cursor: names come from clients."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    is_plain = text.isprintable() and " " not in text
    return text if is_plain or not isinstance(value, str) else json.dumps(text)
