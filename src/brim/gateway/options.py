"""Wishes: what a client asks of brim itself, by headers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from brim.fitting.policies import POLICIES
from brim.gateway.errors import GatewayError

FittingMode = Literal["on", "off", "dry-run"]

POLICY: Final = "brim-policy"
FITTING: Final = "brim-fitting"
CACHE_MARKS: Final = "brim-cache-marks"
_SWITCH: Final = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How this one request is to be dealt with; None: as the upstream's settings say."""

    policy: str | None = None
    fitting: FittingMode = "on"
    cache_marks: bool | None = None


DEFAULT_OPTIONS: Final = RequestOptions()
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    POLICY: tuple(POLICIES),
    FITTING: ("on", "off", "dry-run"),
    CACHE_MARKS: tuple(_SWITCH),
}


def parse_options(headers: Mapping[bytes, bytes]) -> RequestOptions:
    """The wishes of a request, by its `brim-` headers; one that means nothing is a fault."""
    if not headers:
        return DEFAULT_OPTIONS
    said: dict[str, str] = {}
    for raw_name, raw_value in headers.items():
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name not in _CHOICES:
            known = f"no header {name[:40]!r}; a request may say {', '.join(_CHOICES)}"
            raise GatewayError(400, "unknown_header", known)
        said[name] = _parse_choice(name, value)
    marks = said.get(CACHE_MARKS)
    return RequestOptions(
        said.get(POLICY),
        said.get(FITTING, "on"),  # type: ignore[arg-type]
        None if marks is None else _SWITCH[marks],
    )


def _parse_choice(name: str, value: str) -> str:
    chosen = value.strip().lower()
    if chosen not in _CHOICES[name]:
        choices = ", ".join(_CHOICES[name])
        raise GatewayError(400, "bad_header", f"{name} is one of {choices}, not {value[:40]!r}")
    return chosen
