"""The reports of a shell through its named pipe, for one token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """The status of a finished command, as the shell reports it."""

    code: int
    flags: str
    jobs: str
    """Stopped jobs, if the exit code suggests that the command was stopped."""
    folder: str


class StatusReports:
    """Collects the fields after the token; everything else in the pipe is ignored."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._data = bytearray()
        self.is_started = False
        self.done: CommandStatus | None = None
        self.traps = ""
        self.answer: str | None = None

    def feed(self, data: bytes) -> None:
        self._data += data
        if b"\0" in data:
            self._read()

    def _read(self) -> None:
        traps = ""
        answer = None
        for part in bytes(self._data).split(self.token.encode() + b"\0")[1:]:
            kind, _, rest = part.partition(b"\0")
            fields = [_decode(field) for field in rest.split(b"\0")]
            if kind == b"started":
                self.is_started = True
            elif kind == b"trap" and len(fields) > 1:
                traps = fields[0] or traps
            elif kind == b"done" and len(fields) > 4:
                self.done = _parse_status(fields)
            elif kind == b"answer":
                answer = _decode(rest[:-1])
            elif kind == b"answered":
                self.answer = answer
        self.traps = traps


def _parse_status(fields: list[str]) -> CommandStatus:
    code, flags, jobs, folder = fields[:4]
    return CommandStatus(
        int(code) if code.isdecimal() else 0, flags, jobs, folder.removesuffix("\n")
    )


def _decode(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
