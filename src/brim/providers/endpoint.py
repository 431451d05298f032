"""Endpoint: the address, format and credentials of a model server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from brim.errors import InputError
from brim.wire.formats import FORMATS, BodyFormat, FormatName

_INVALID_HEADER_CHARS = re.compile("[\0\r\n\ud800-\udfff]")
PRIVATE_DOMAINS: Final = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
_PORTS: Final = {"http": 80, "https": 443}
_API_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")
"""A path with a version, such as `/v1beta/openai`, does not get `/v1` appended."""


class RootPath(str):
    """A path from the root of the host; other paths are relative to the endpoint's `url`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model server, and what every request to it carries.

    `http://h`, `http://h/`, `http://h/v1`, `http://h/v1/` and the full address of the chat path
    are equal. The key and the extra headers do not appear in its `repr`.
    """

    url: str
    """Without `/v1` and without a trailing slash."""
    format: FormatName = "openai"
    key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, hash=False
    )
    timeout: float = 600.0
    """Seconds without a single byte, before the response and within it."""
    retries: int = 2
    key_header: str = ""
    """The header that carries the key, if it is not that of the format."""
    prefix: str = field(init=False, repr=False)
    """The version of the API, or empty if the address names another one."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InputError(f"Unknown format: {self.format!r}. Use one of {', '.join(FORMATS)}.")
        is_number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not is_number or not self.timeout > 0:
            raise InputError(f"Invalid endpoint timeout: {self.timeout!r}. Use seconds above 0.")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise InputError(f"Invalid endpoint retries: {self.retries!r}. Use an integer from 0.")
        url, prefix = _normalize(self.url, FORMATS[self.format].version)
        for name, value in {
            "url": url,
            "prefix": prefix,
            "key": _clean_key(self.key),
            "headers": MappingProxyType(_check_headers(self.headers)),
        }.items():
            object.__setattr__(self, name, value)

    @property
    def host(self) -> str:
        """Host and port, as error messages name the server."""
        return urlsplit(self.url).netloc

    @property
    def is_loopback(self) -> bool:
        name = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost" or name.endswith(".localhost")

    @property
    def is_private(self) -> bool:
        """Whether the host is on this machine or in a private network, by its address or name."""
        name = urlsplit(self.url).hostname or ""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return "." not in name or name.endswith(PRIVATE_DOMAINS)
        return address.is_private

    @property
    def chat_path(self) -> str:
        """The path for requests in the endpoint's format."""
        return self.under(FORMATS[self.format].path)

    def request_path(self, format: BodyFormat, model: str, *, stream: bool) -> str:
        """Return the path for a request to a model, which some formats name in the path."""
        path = self.under(format.path)
        if "{model}" not in path:
            return path
        path = path.replace("{model}", quote_model(model))
        return path.replace(":generate", ":streamGenerate") if stream else path

    def under(self, path: str) -> str:
        """Return a path of the API: `/models` is `/v1/models`."""
        return self.prefix + path

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[object, ...]:
        settings = (self.url + self.prefix, self.format, self.key, dict(self.headers))
        return Endpoint, (*settings, self.timeout, self.retries, self.key_header)


def quote_model(model: str, safe: str = "") -> str:
    """Return a model's name for an address. A client may send one with half of an emoji."""
    return quote(model, safe=safe, errors="replace")


def _normalize(url: str, version: str) -> tuple[str, str]:
    """Return the address without its version, and the version's part of the path."""
    if not isinstance(url, str):
        raise InputError(f"Invalid endpoint address: expected a string, got {type(url).__name__}.")
    parts = _parts(url)
    path = re.sub(r"/{2,}", "/", parts.path).rstrip("/")
    for body_format in FORMATS.values():
        path = path.removesuffix(body_format.path)
    shorter = path.removesuffix(version)
    prefix = version if shorter != path or not _API_VERSION.search(path) else ""
    return f"{parts.scheme}://{_authority(parts)}{shorter}", prefix


def _parts(url: str) -> SplitResult:
    advice = (
        "Invalid endpoint address. Use one such as http://127.0.0.1:8080 or "
        "https://api.openai.com/v1"
    )
    try:
        parts = urlsplit(url.strip())
        port, host = parts.port, parts.hostname
    except ValueError:
        raise InputError(f"{advice}.") from None
    if parts.scheme not in _PORTS or not host or port == 0 or re.search(r"\s", url.strip()):
        raise InputError(f"{advice}.")
    if parts.query or parts.fragment or parts.username is not None:
        raise InputError(f"{advice}, without a query, a fragment or a user name.")
    return parts


def _authority(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port is None or port == _PORTS[parts.scheme] else f"{host}:{port}"


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the extra headers; errors do not repeat their values, which may be secret."""
    if not isinstance(headers, Mapping):
        raise InputError(
            f"Invalid endpoint headers: expected a mapping, got {type(headers).__name__}."
        )
    for name, value in headers.items():
        if (
            not isinstance(name, str)
            or not isinstance(value, str)
            or _INVALID_HEADER_CHARS.search(value)
        ):
            raise InputError(
                f"Invalid endpoint header {name!r}: its value must be text without line breaks."
            )
    return dict(headers)


def _clean_key(key: str | None) -> str | None:
    """Return the key without surrounding whitespace, such as the line end of a file."""
    if key is not None and not isinstance(key, str):
        raise InputError(f"Invalid endpoint key: expected a string, got {type(key).__name__}.")
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError("Invalid endpoint key: it contains characters that a header cannot carry.")
    return key or None
