"""Proxies and certificates from the environment."""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from brim.errors import InputError
from brim.providers.endpoint import Endpoint

_CA_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def create_ssl_context() -> ssl.SSLContext:
    """Trust the bundle that the environment names, else the system's, else certifi's."""
    for name in _CA_BUNDLE_VARIABLES:
        if path := os.environ.get(name):
            return _load_bundle(name, Path(path))
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and not os.environ.get("SSL_CERT_DIR"):
        try:
            import certifi
        except ImportError:
            return context
        context.load_verify_locations(certifi.where())
    return context


def _load_bundle(name: str, path: Path) -> ssl.SSLContext:
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise InputError(
            f"{name} names no usable certificates: {path} ({error}). Correct or unset it."
        ) from error


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy server and the headers that it requires."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https:")


def find_proxy(endpoint: Endpoint) -> Proxy | None:
    """Return the proxy that the environment names for a server; None for loopback addresses."""
    parts = urlsplit(endpoint.url)
    if endpoint.is_loopback or proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found:
        return None
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    if proxy.scheme not in ("http", "https"):
        raise InputError(
            f"Unsupported proxy for {endpoint.host}: {proxy.scheme}. Use an http or https proxy."
        )
    address = f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"
    if proxy.username is None:
        return Proxy(address)
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return Proxy(address, {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"})
