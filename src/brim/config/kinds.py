"""What may stand behind a key.

A reader gives the value as it is kept, or raises with the end of a sentence: what it must be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Final, Literal, get_args
from urllib.parse import urlsplit

from brim.config.spelling import shortly
from brim.errors import InputError
from brim.fitting.policies import POLICIES


def _whole(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise InputError(f"a whole number from {least} on, not {shortly(value)}")

    return read


def _number(value: object) -> Decimal:
    """A number that can be counted with; what is none is below all that is allowed."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        number = Decimal(str(value))
        if number.is_finite() and math.isfinite(float(number)):
            return number
    return Decimal(-1)


def _dollars(value: object) -> Decimal:
    if (number := _number(value)) < 0:
        raise InputError(f"dollars from 0 on, not {shortly(value)}")
    return number


def _seconds(value: object) -> float:
    if (number := float(_number(value))) <= 0:
        raise InputError(f"seconds above 0, not {shortly(value)}")
    return number


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"true or false, not {shortly(value)}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"a text, not {shortly(value)}")
    return value


def _hidden(value: object) -> str:
    if not isinstance(value, str):
        raise InputError("a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InputError(f"a list of texts, not {shortly(value)}")
    return tuple(value)


def _formats(value: object) -> tuple[str, ...]:
    """One format, or a list of them."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        raise InputError(f"one or more of {', '.join(FORMATS)}, not {shortly(value)}")
    return tuple(dict.fromkeys(map(one_of(*FORMATS), given)))


def _paths(value: object) -> tuple[str, ...]:
    """Paths as they stand behind a host, without anything after them; `/*` is all below one."""
    for path in (paths := _texts(value)):
        is_path = re.fullmatch(r"/[!-)+-~]*|/([!-)+-~]*/)?\*", path)
        if not is_path or re.search(r"[?#]|//|/\.\.?(/|$)", path):
            raise InputError(f"a list of paths such as /v1/embeddings, not {shortly(value)}")
    return paths


def _port(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65_535:
        return value
    raise InputError(f"a port from 0 to 65535, not {shortly(value)}")


def one_of(*choices: str) -> Callable[[object], str]:
    """A reader that knows a few words, and the nearest of them."""

    def read(value: object) -> str:
        if value in choices:
            return str(value)
        near = get_close_matches(str(value).lower(), choices, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"one of {', '.join(choices)}, not {shortly(value)}{hint}")

    return read


def _variable(value: object) -> str:
    """A name; what is no name may be the key itself, and is not repeated."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise InputError("the name of an environment variable that holds the key, not the key")
    return value


def _address(value: object) -> str:
    """Not repeated where it is wrong: a password may stand in it."""
    with suppress(ValueError):
        parts = urlsplit(str(value))
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if good and parts.username is None and not re.search(r"\s", str(value)):
            return str(value)
    raise InputError(
        "an address such as http://127.0.0.1:8080 or https://api.openai.com/v1, without a password"
    )


def _endpoint(value: object) -> str:
    """An address to which paths can be added."""
    if re.search(r"[?#]", address := _address(value)):
        raise InputError("an address without anything after its path")
    return address


def _template(value: object) -> str:
    from brim.wire.templates import list_rule_names

    return one_of(*list_rule_names())(_text(value).strip().lower())


def _pattern(value: object) -> str:
    try:
        re.compile(_text(value))
    except re.error as error:
        raise InputError(f"a regular expression, not {shortly(value)}: {error}") from None
    return str(value)


FromZero = Annotated[int, _whole(0)]
FromOne = Annotated[int, _whole(1)]
Seconds = Annotated[float, _seconds]
Texts = Annotated[tuple[str, ...], _texts]
Hidden = Annotated[str, _hidden]
Variable = Annotated[str, _variable]
Address = Annotated[str, _address]
Server = Annotated[str, _endpoint]
Template = Annotated[str, _template]
Pattern = Annotated[str, _pattern]
PolicyName = Annotated[str, one_of(*POLICIES)]
PolicyOrOff = Annotated[str, one_of(*POLICIES, "off")]
Format = Literal["openai", "anthropic", "responses"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
Formats = Annotated[tuple[Format, ...], _formats]
Paths = Annotated[tuple[str, ...], _paths]
Port = Annotated[int, _port]
ServerCount = Literal["near", "always", "off"]
WhenAway = Literal["refuse", "allow"]

PLAIN: Final[Mapping[type, Callable[[object], object]]] = {
    str: _text,
    bool: _flag,
    Decimal: _dollars,
}
