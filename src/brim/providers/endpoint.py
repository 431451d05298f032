"""Endpoint: where a model server is, and how it is spoken to."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from brim.errors import InputError

ApiFormat = Literal["openai", "anthropic", "responses"]

_CHAT: Final[Mapping[str, str]] = {
    "openai": "/chat/completions",
    "anthropic": "/messages",
    "responses": "/responses",
}
_UNSENDABLE = re.compile("[\0\r\n\ud800-\udfff]")
_PORTS: Final = {"http": 80, "https": 443}
_OTHER_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")
"""A path that names its version, such as `/v1beta/openai`, needs no `/v1` behind it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model server's address with all that every request to it carries.

    `http://h`, `http://h/`, `http://h/v1` and `http://h/v1/` are one endpoint, and so is the full
    address of its chat. The key and the extra headers are shown nowhere.
    """

    url: str
    """Without `/v1` and without a slash at the end."""
    format: ApiFormat = "openai"
    key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, hash=False
    )
    timeout: float = 600.0
    """Seconds without a single byte, before the answer and in its middle."""
    retries: int = 2
    prefix: str = field(init=False, repr=False)
    """`/v1`, or nothing where the address names another version."""

    def __post_init__(self) -> None:
        if self.format not in get_args(ApiFormat):
            raise InputError(
                f"format is one of {', '.join(get_args(ApiFormat))}, not {self.format!r}"
            )
        if not _is_number(self.timeout) or not self.timeout > 0:
            raise InputError(f"an endpoint's timeout is seconds above 0, not {self.timeout!r}")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise InputError(
                f"an endpoint's retries are a whole number from 0, not {self.retries!r}"
            )
        url, prefix = _normalize(self.url)
        for name, value in {
            "url": url,
            "prefix": prefix,
            "key": _clean_key(self.key),
            "headers": MappingProxyType(_check_headers(self.headers)),
        }.items():
            object.__setattr__(self, name, value)

    @property
    def host(self) -> str:
        """Host and port, as messages name the server."""
        return urlsplit(self.url).netloc

    @property
    def is_loopback(self) -> bool:
        name = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost" or name.endswith(".localhost")

    @property
    def chat_path(self) -> str:
        """Where a request in the endpoint's format goes."""
        return self.under(_CHAT[self.format])

    def under(self, path: str) -> str:
        """A path of the API itself: `/models` is `/v1/models`."""
        return self.prefix + path

    def beside(self, path: str) -> str:
        """The full address of a path beside the API, not under it: `/tokenize`, `/props`."""
        return self.url + path

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[object, ...]:
        settings = (self.url + self.prefix, self.format, self.key, dict(self.headers))
        return Endpoint, (*settings, self.timeout, self.retries)


def _normalize(url: str) -> tuple[str, str]:
    """The address without its version, and the version's part of the path."""
    if not isinstance(url, str):
        raise InputError(f"an endpoint's address is text, not {type(url).__name__}")
    parts = _parts(url)
    path = re.sub(r"/{2,}", "/", parts.path).rstrip("/")
    for chat in _CHAT.values():
        path = path.removesuffix(chat)
    shorter = path.removesuffix("/v1")
    prefix = "/v1" if shorter != path or not _OTHER_VERSION.search(path) else ""
    return f"{parts.scheme}://{_authority(parts)}{shorter}", prefix


def _parts(url: str) -> SplitResult:
    advice = "an endpoint's address looks like http://127.0.0.1:8080 or https://api.openai.com/v1"
    try:
        parts = urlsplit(url.strip())
        port, host = parts.port, parts.hostname
    except ValueError:
        raise InputError(advice) from None
    if parts.scheme not in _PORTS or not host or port == 0 or re.search(r"\s", url.strip()):
        raise InputError(advice)
    if parts.query or parts.fragment or parts.username is not None:
        raise InputError(f"{advice}, without anything after its path or a name before its host")
    return parts


def _authority(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port is None or port == _PORTS[parts.scheme] else f"{host}:{port}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The extra headers, if they can be any; what stands in them is not repeated."""
    if not isinstance(headers, Mapping):
        raise InputError(f"an endpoint's headers are a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str) or _UNSENDABLE.search(value):
            raise InputError(f"the endpoint's header {name!r} is not text in one line")
    return dict(headers)


def _clean_key(key: str | None) -> str | None:
    """The key as a header can carry it: one read from a file brings its line end along."""
    if key is not None and not isinstance(key, str):
        raise InputError(f"the endpoint's key is text, not {type(key).__name__}")
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError("the endpoint's key holds characters that no header can carry")
    return key or None
