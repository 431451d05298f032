"""The servers that requests are forwarded to, their APIs, and the models that each one serves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from brim.config import UpstreamConfig
from brim.gateway.bodies import serialize
from brim.gateway.headers import UpstreamHeaders
from brim.providers.cloud_auth import Authorizer, create_authorizer
from brim.providers.endpoint import Endpoint, quote_model
from brim.providers.server_counter import ServerCounter
from brim.providers.server_info import ProfileSource, ServerInfo
from brim.providers.template_finder import TemplateFinder
from brim.providers.transport import Transport, credential_headers
from brim.storage.calibration_store import CalibrationStore
from brim.wire.formats import (
    ANTHROPIC,
    COMPACTION,
    EMBEDDINGS,
    FORMATS,
    GEMINI,
    BodyFormat,
    FormatName,
)

FLAG_UPSTREAM: Final = "default"
"""Name of the upstream that command-line flags describe."""
LOCAL_UPSTREAM: Final = "local"
"""Name of the upstream that is the embedded model."""
UNCONFIGURED_UPSTREAMS: Final = (FLAG_UPSTREAM, LOCAL_UPSTREAM)
"""Upstreams without settings in a configuration file."""
_OPENAI_HOSTS: Final = ("api.openai.com", ".openai.azure.com")


class UpstreamApi(NamedTuple):
    """What requests in one format need to reach an upstream."""

    connection: Transport
    headers: UpstreamHeaders
    counter: ServerCounter
    reply_key: str
    """The field that limits the length of a reply."""

    @classmethod
    def of(
        cls,
        config: UpstreamConfig,
        format: FormatName,
        key: str | None,
        authorizer: Authorizer | None,
    ) -> UpstreamApi:
        endpoint = create_endpoint(config, format, key)
        connection = Transport(endpoint, authorizer=authorizer)
        json = {"content-type": "application/json"}
        own = UpstreamHeaders.of({**credential_headers(endpoint), **endpoint.headers, **json})
        # Newer models of OpenAI reject the old name, and most other servers know only that one.
        is_openai = endpoint.host.endswith(_OPENAI_HOSTS)
        reply_key = FORMATS[format].reply_keys[0 if is_openai else -1]
        return cls(connection, own, ServerCounter(connection), reply_key)


def create_endpoint(config: UpstreamConfig, format: FormatName, key: str | None) -> Endpoint:
    """Return the endpoint of an upstream for one format."""
    key_header = "api-key" if config.auth == "azure" else ""
    return Endpoint(
        config.endpoint, format, key, config.headers, config.timeout, 0, key_header=key_header
    )


def find_authorizer(config: UpstreamConfig, key: str | None) -> Authorizer | None:
    """Return what authenticates requests; None if a key does.

    Raise `InputError` if the library of the cloud is missing.
    """
    return None if config.auth is None or key is not None else create_authorizer(config.auth)


class Upstream:
    """A server that requests are forwarded to."""

    def __init__(
        self, name: str, config: UpstreamConfig, key: str | None, store: CalibrationStore
    ) -> None:
        self.name = name
        self.config = config
        self.has_credentials = key is not None or config.auth is not None
        """Whether requests do not need the client's own key."""
        authorizer = find_authorizer(config, key)
        self.formats = [FORMATS[format] for format in config.formats]
        self._apis: dict[str, UpstreamApi] = {
            format: UpstreamApi.of(config, format, key, authorizer) for format in config.formats
        }
        self.hosted = {
            format.name: find_hosted_api(config, format)
            for format in (*self.formats, EMBEDDINGS, COMPACTION)
        }
        self.server = ServerInfo(self.first_api.connection)
        self.profiles = ProfileSource(self.server, store)
        self.templates = TemplateFinder(self.profiles)

    def api(self, format: BodyFormat) -> UpstreamApi:
        return self._apis[format.server_format]

    @property
    def first_api(self) -> UpstreamApi:
        """The API for requests that are not in a body format."""
        return self.api(self.formats[0])

    def match_rank(self, model: str) -> int:
        """Return how well its list matches a model: 3 by name, 2 by pattern, 1 any, 0 not."""
        return match_rank(self.config.models, model)

    async def close(self) -> None:
        for api in self._apis.values():
            await api.connection.close()


# Model names and patterns

WILDCARD: Final = "*"


def is_pattern(name: str) -> bool:
    """Return whether a name may match several models."""
    return WILDCARD in name


def match_rank(names: Sequence[str], model: str) -> int:
    """Return how well a list matches a model: 3 by name, 2 by pattern, 1 if empty, 0 not."""
    if not names:
        return 1
    if model in names:
        return 3
    patterns = filter(is_pattern, names)
    return 2 if any(_compile_pattern(name).fullmatch(model) for name in patterns) else 0


@lru_cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split(WILDCARD))), re.DOTALL)


# The APIs of clouds

VERTEX_VERSION: Final = "vertex-2023-10-16"


class HostedApi(NamedTuple):
    """How one format is sent to a cloud."""

    path: str
    """Relative to the endpoint; `{model}` stands for the model."""
    stream_path: str
    version: str = ""
    """The `anthropic_version` in a body that does not name the model."""

    def request_path(self, model: str, *, stream: bool) -> str:
        path = self.stream_path if stream else self.path
        return path.replace("{model}", quote_model(model))

    def convert(self, body: Mapping[str, Any], raw: bytes) -> bytes:
        """Return the bytes to send."""
        if not self.version:
            return raw
        rest = {name: value for name, value in body.items() if name != "model"}
        return serialize({"anthropic_version": self.version, **rest})


def find_hosted_api(config: UpstreamConfig, format: BodyFormat) -> HostedApi | None:
    """Return how a format is sent to an upstream; None if in the usual way."""
    if config.auth == "azure" and config.api_version:
        deployment = "" if format.server_format == "responses" else "/deployments/{model}"
        path = f"/openai{deployment}{format.path}?api-version={quote(config.api_version)}"
        return HostedApi(path, path)
    if config.auth == "google" and format is GEMINI:
        path = "/publishers/google/models/{model}"
        return HostedApi(f"{path}:generateContent", f"{path}:streamGenerateContent")
    if config.auth == "google" and format is ANTHROPIC:
        path = "/publishers/anthropic/models/{model}"
        return HostedApi(f"{path}:rawPredict", f"{path}:streamRawPredict", VERTEX_VERSION)
    return None
