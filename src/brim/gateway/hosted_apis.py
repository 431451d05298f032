"""Where the APIs of clouds differ from the formats' own: in paths, and in a field of the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from brim.config import UpstreamConfig
from brim.gateway.bodies import serialize
from brim.providers.endpoint import quote_model
from brim.wire.formats import ANTHROPIC, GEMINI, BodyFormat

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
