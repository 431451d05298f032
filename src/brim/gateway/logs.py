"""The gateway's log: one line for each event, for people or for programs.

Log calls pass their fields as `extra={"fields": …}`. Of an exception, the log has its type and
location but not its message, which may quote message content.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import orjson

from brim.gateway.records import RequestRecord

Style = Literal["json", "text"]

LOGGERS: Final = ("brim", "uvicorn.error")
SILENCED_LOGGERS: Final = ("asyncpg",)
"""Loggers of libraries whose errors the gateway reports itself."""
FAILED_ENDS: Final = ("failed", "upstream_failed")
"""How a request ends if the gateway or its upstream failed."""
FLUSH_DELAY: Final = 0.2
"""Seconds that a line may wait to be written together with others."""
MAX_BUFFERED_LINES: Final = 64
_root_logger: Final = logging.getLogger(LOGGERS[0])
_request_logger: Final = logging.getLogger("brim.gateway")


def configure_logging(style: Style, stream: TextIO) -> None:
    """Send all log lines of the gateway to a stream."""
    handler = _BufferingHandler(stream) if style == "json" else logging.StreamHandler(stream)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    for name in SILENCED_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _root_logger.setLevel(logging.INFO)
    # No line shows them, and collecting them takes a fifth of the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class _BufferingHandler(MemoryHandler):
    """Writes lines in batches, which takes less time for each; warnings are written immediately."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(MAX_BUFFERED_LINES, logging.WARNING)
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if len(self.buffer) == 1:
            try:
                asyncio.get_running_loop().call_later(FLUSH_DELAY, self.flush)
            except RuntimeError:  # no event loop would flush it later
                self.flush()

    def flush(self) -> None:
        self.acquire()
        try:
            records, self.buffer = self.buffer, []
            if records:
                self._write("".join(map(self._format_line, records)), records[-1])
        finally:
            self.release()

    def _format_line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self.format(record)}\n"
        except Exception:
            self.handleError(record)
            return ""

    def _write(self, lines: str, last: logging.LogRecord) -> None:
        try:
            self._stream.write(lines)
            self._stream.flush()
        except Exception:  # such as a full disk: requests continue without a log
            self.handleError(last)


def flush() -> None:
    """Write all buffered lines."""
    for handler in _root_logger.handlers:
        handler.flush()


def log_request(record: RequestRecord) -> None:
    """Log a finished request, without message content."""
    has_failed = record.status >= 500 or record.end in FAILED_ENDS
    level = logging.WARNING if has_failed else logging.INFO
    if not _request_logger.isEnabledFor(level):
        return
    fields = {name: value for name, value in record.to_dict().items() if value is not None}
    del fields["time"]  # of its arrival; the line has its own
    fields["milliseconds"] = round(fields.pop("seconds") * 1_000, 1)
    if (first := fields.pop("first_byte", None)) is not None:
        fields["first_byte_ms"] = round(first * 1_000, 1)
    # Not `log`, which looks for the caller's line; that is a fifth of the time of a line.
    values = (_request_logger.name, level, "", 0, "request", (), None)
    _request_logger.handle(_request_logger.makeRecord(*values, extra={"fields": fields}))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        common = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        return _dump_ascii(common | _extra_fields(record))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone()
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        known = {name: value for name, value in _extra_fields(record).items() if value is not None}
        fields = "".join(f" {name}={_format_value(value)}" for name, value in known.items())
        return f"{time:%H:%M:%S} {level}{record.getMessage()}{fields}"


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {**getattr(record, "fields", {})}
    if record.exc_info and (error := record.exc_info[1]) is not None:
        fields["error"] = type(error).__name__
        fields["at"] = [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__, limit=-10)
        ]
    return fields


def _dump_ascii(fields: dict[str, Any]) -> str:
    """Return JSON in ASCII, so that no control character of a client reaches the log."""
    with suppress(TypeError):  # a lone surrogate, or a number of more than 64 bits
        raw = orjson.dumps(fields, default=str)
        if raw.isascii():
            return raw.decode()
    return json.dumps(fields, default=str)


def _format_value(value: object) -> str:
    """Return a value that cannot end the line or move the cursor: names come from clients."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    is_plain = text.isprintable() and " " not in text
    return text if is_plain or not isinstance(value, str) else json.dumps(text)
