"""How requests to a cloud authenticate: by a token that expires, or by a signature.

The libraries of the clouds find the credentials (variables, files, the metadata of a machine) and
renew them. They wait for the network, so they run in threads.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import cache
from typing import Final, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from brim.errors import InputError, ProviderError

T = TypeVar("T")
Cloud = Literal["aws", "azure", "google"]

AZURE_SCOPE: Final = "https://cognitiveservices.azure.com/.default"
GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
RENEW_SECONDS: Final = 120.0
"""Seconds before the end of a token from which it is renewed."""
_AWS_HOST: Final = re.compile(
    r"(?P<service>[\w-]+)\.(?P<region>[\w-]+)\.(?:amazonaws\.com|api\.aws)"
)
_SIGNING_NAMES: Final[Mapping[str, str]] = {"bedrock-runtime": "bedrock"}
"""Names of services in signatures, if they differ from their host names."""


class Authorizer(Protocol):
    """Returns the headers that authenticate a request."""

    async def headers(self, method: str, url: str, data: bytes | None) -> Mapping[str, str]: ...


class Token(NamedTuple):
    """A bearer token, and when it expires, in seconds since 1970."""

    text: str
    expires: float


class TokenAuthorizer:
    """Sends a bearer token, and renews it before it expires."""

    def __init__(self, fetch: Callable[[], Token], cloud: Cloud) -> None:
        self._fetch = fetch
        self._cloud = cloud
        self._token = Token("", 0.0)
        self._renewal = asyncio.Lock()

    async def headers(self, method: str, url: str, data: bytes | None) -> Mapping[str, str]:  # noqa: ARG002
        if not self._is_fresh:
            async with self._renewal:
                if not self._is_fresh:
                    self._token = await _run(self._fetch, self._cloud)
        return {"authorization": f"Bearer {self._token.text}"}

    @property
    def _is_fresh(self) -> bool:
        return self._token.expires - RENEW_SECONDS > time.time()


class AwsAuthorizer:
    """Signs each request (Signature Version 4) for the service and the region of its host."""

    def __init__(self) -> None:
        import botocore.session

        self._session = botocore.session.get_session()

    async def headers(self, method: str, url: str, data: bytes | None) -> Mapping[str, str]:
        return await _run(lambda: self._sign(method, url, data), "aws")

    def _sign(self, method: str, url: str, data: bytes | None) -> Mapping[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        found = self._session.get_credentials()
        if found is None:
            raise LookupError("set AWS_ACCESS_KEY_ID, a profile or a role")
        host = _AWS_HOST.fullmatch(urlsplit(url).hostname or "")
        service = host["service"].removesuffix("-fips") if host else "bedrock-mantle"
        region = host["region"] if host else self._session.get_config_variable("region")
        request = AWSRequest(method, url, data=data or b"")
        name = _SIGNING_NAMES.get(service, service)
        SigV4Auth(found.get_frozen_credentials(), name, region).add_auth(request)
        return dict(request.headers.items())


async def _run(work: Callable[[], T], cloud: Cloud) -> T:
    """Run a function of a cloud's library. Raise `ProviderError` if it fails."""
    try:
        return await asyncio.to_thread(work)
    except Exception as error:  # each library has exceptions of its own
        reason = str(error).partition("\n")[0][:200]
        raise ProviderError(f"No credentials for {cloud}: {reason}.") from error


def create_authorizer(cloud: Cloud) -> Authorizer:
    """Return what authenticates requests to a cloud. Raise `InputError` without its library."""
    try:
        return _AUTHORIZERS[cloud]()
    except ImportError as error:
        raise InputError(
            f"auth = \"{cloud}\" needs a library. Install it: pip install 'brim[{cloud}]'"
        ) from error


def _create_azure() -> Authorizer:
    from azure.identity import DefaultAzureCredential

    credential = DefaultAzureCredential()

    def fetch() -> Token:
        found = credential.get_token(AZURE_SCOPE)
        return Token(found.token, found.expires_on)

    return TokenAuthorizer(fetch, "azure")


def _create_google() -> Authorizer:
    import google.auth.credentials
    from google.auth.transport.requests import Request

    @cache
    def find() -> google.auth.credentials.Credentials:
        return google.auth.default(scopes=[GOOGLE_SCOPE])[0]

    def fetch() -> Token:
        credentials = find()
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
        expiry = credentials.expiry
        return Token(
            str(credentials.token), expiry.replace(tzinfo=UTC).timestamp() if expiry else 0.0
        )

    return TokenAuthorizer(fetch, "google")


_AUTHORIZERS: Final[Mapping[Cloud, Callable[[], Authorizer]]] = {
    "aws": AwsAuthorizer,
    "azure": _create_azure,
    "google": _create_google,
}
