"""The types of values.

A reader returns the checked value, or raises InputError with the end of the sentence "KEY must be
...".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from brim.config.toml_text import abbreviate
from brim.errors import InputError
from brim.fitting.policies import POLICIES
from brim.wire.formats import FORMATS, FormatName

T = TypeVar("T")
Reader: TypeAlias = Callable[[object], T]


def _reader(expected: str, is_valid: Callable[[Any], bool], made: Callable[[Any], T]) -> Reader[T]:
    """Return a reader that makes a setting from a valid value."""

    def read(value: object) -> T:
        if not is_valid(value):
            raise InputError(f"{expected}, not {abbreviate(value)}")
        return made(value)

    return read


def _is_whole(value: object, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _to_decimal(value: object) -> Decimal:
    """Return a finite number, or -1 for anything else, which no setting allows."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        number = Decimal(str(value))
        if number.is_finite() and math.isfinite(float(number)):
            return number
    return Decimal(-1)


def _to_float(value: object) -> float:
    return float(_to_decimal(value))


_read_text = _reader("a string", lambda value: isinstance(value, str) and bool(value.strip()), str)


def _read_secret(value: object) -> str:
    if not isinstance(value, str):
        raise InputError("a string")
    return value


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


_read_texts: Reader[tuple[str, ...]] = _reader("a list of strings", _is_list_of_texts, tuple)


def _read_names(value: object) -> tuple[str, ...]:
    """Return one or more names as a tuple."""
    names = _read_texts([value] if isinstance(value, str) else value)
    if not all(map(str.strip, names)):
        raise InputError(f"one or more names, not {abbreviate(value)}")
    return names


def _read_claims(value: object) -> tuple[str, ...]:
    """Return conditions such as `groups=admins`."""
    for claim in (claims := _read_names(value)):
        name, _, wanted = claim.partition("=")
        if not name or not wanted:
            raise InputError(f"a list of claims such as groups=admins, not {abbreviate(value)}")
    return claims


def _read_formats(value: object) -> tuple[str, ...]:
    """Return one or more formats as a tuple."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        raise InputError(f"one or more of {', '.join(FORMATS)}, not {abbreviate(value)}")
    return tuple(dict.fromkeys(map(one_of(*FORMATS), given)))


def _read_paths(value: object) -> tuple[str, ...]:
    """Return URL paths without query; `/*` at the end means all paths below."""
    for path in (paths := _read_texts(value)):
        is_path = re.fullmatch(r"/[!-)+-~]*|/([!-)+-~]*/)?\*", path)
        if not is_path or re.search(r"[?#]|//|/\.\.?(/|$)", path):
            raise InputError(f"a list of paths such as /v1/moderations, not {abbreviate(value)}")
    return paths


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a reader that accepts these words and suggests the closest one."""

    def read(value: object) -> str:
        if value in choices:
            return str(value)
        near = get_close_matches(str(value).lower(), choices, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"one of {', '.join(choices)}, not {abbreviate(value)}{hint}")

    return read


def _read_variable_name(value: object) -> str:
    """Return a name; an invalid value is not repeated, because it may be the key itself."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise InputError("the name of an environment variable with the key, not the key itself")
    return value


def _read_url(value: object) -> str:
    """Return a URL; an invalid one is not repeated, because it may contain a password."""
    with suppress(ValueError):
        parts = urlsplit(str(value))
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if good and parts.username is None and not re.search(r"\s", str(value)):
            return str(value)
    raise InputError(
        "a URL such as http://127.0.0.1:8080 or https://api.openai.com/v1, without a password"
    )


def _read_endpoint(value: object) -> str:
    """Return a URL to which paths can be added."""
    if re.search(r"[?#]", address := _read_url(value)):
        raise InputError("a URL without a query or fragment")
    return address


def _read_template(value: object) -> str:
    from brim.wire.template_rules import list_rule_names
    from brim.wire.template_source import is_template

    if isinstance(value, str) and is_template(value):
        return value
    return one_of(*list_rule_names())(_read_text(value).strip().lower())


def _read_pattern(value: object) -> str:
    try:
        re.compile(_read_text(value))
    except re.error as error:
        raise InputError(f"a regular expression, not {abbreviate(value)}: {error}") from None
    return str(value)


_AT_LEAST: Final = "a whole number of at least"
NonNegativeInt = Annotated[int, _reader(f"{_AT_LEAST} 0", partial(_is_whole, least=0), int)]
PositiveInt = Annotated[int, _reader(f"{_AT_LEAST} 1", partial(_is_whole, least=1), int)]
Seconds = Annotated[
    float, _reader("a number of seconds above 0", lambda value: _to_float(value) > 0, _to_float)
]
Share = Annotated[
    float, _reader("a share between 0 and 1", lambda value: 0 < _to_float(value) < 1, _to_float)
]
TextList = Annotated[tuple[str, ...], _read_texts]
Names = Annotated[tuple[str, ...], _read_names]
Claims = Annotated[tuple[str, ...], _read_claims]
Weight = Annotated[
    float, _reader("a number of at least 0", lambda value: _to_float(value) >= 0, _to_float)
]
Secret = Annotated[str, _read_secret]
VariableName = Annotated[str, _read_variable_name]
Url = Annotated[str, _read_url]
EndpointUrl = Annotated[str, _read_endpoint]
Template = Annotated[str, _read_template]
Pattern = Annotated[str, _read_pattern]
PolicyName = Annotated[str, one_of(*POLICIES)]
PolicyOrOff = Annotated[str, one_of(*POLICIES, "off")]
Formats = Annotated[tuple[FormatName, ...], _read_formats]
PathList = Annotated[tuple[str, ...], _read_paths]
Port = Annotated[
    int, _reader("a port from 0 to 65535", partial(_is_whole, least=0, most=65_535), int)
]
ServerCount = Literal["near", "always", "off"]
StoreUnavailable = Literal["reject", "allow"]
SandboxUse = Literal["auto", "required", "off"]

PLAIN: Final[Mapping[type, Callable[[object], object]]] = {
    str: _read_text,
    int: _reader(f"{_AT_LEAST} 0", partial(_is_whole, least=0), int),
    bool: _reader("true or false", lambda value: isinstance(value, bool), bool),
    Decimal: _reader(
        "an amount of dollars of at least 0", lambda value: _to_decimal(value) >= 0, _to_decimal
    ),
}
