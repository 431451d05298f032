"""The gateway as an ASGI application: which path leads to which handler.

`brim serve` runs it with brim's own server. Other servers use `app`, with the same configuration:

    uvicorn --factory brim.gateway.asgi:app
    granian --interface asgi --factory brim.gateway.asgi:app

Such a server listens on any address; without keys, the gateway serves every client that can
connect. If the account store cannot be used, it fails to start.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from brim import config
from brim.config import Config
from brim.gateway import logs
from brim.gateway.admin import AdminRoutes
from brim.gateway.bodies import MODEL_PATH, PATHS, find_format
from brim.gateway.completion import CompletionHandler
from brim.gateway.gateway import Gateway
from brim.gateway.headers import is_recall_on
from brim.gateway.passthrough import PassthroughHandler, PassthroughPaths
from brim.gateway.preflight import require_upstreams
from brim.gateway.recall import RecallRequest
from brim.gateway.server import tune_garbage_collector
from brim.wire.formats import CHAT


class App:
    """The ASGI application. Completions are dispatched first, because they are most requests."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._admin = AdminRoutes(gateway).app()
        patterns = [each.path_regex for each in self._admin.routes if isinstance(each, Route)]
        own_paths = [
            *map(re.escape, PATHS),
            MODEL_PATH.pattern,
            *(regex.pattern for regex in patterns),
        ]
        self._own_paths = own_paths
        self._set_passthrough_paths()
        gateway.configured = self._set_passthrough_paths

    def _set_passthrough_paths(self) -> None:
        listed = self.gateway.config.gateway.passthrough_paths
        self._passthrough = PassthroughPaths(listed, self._own_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, gateway = scope["path"], self.gateway
            format = find_format(path) if scope["method"] == "POST" else None
            if format is not None:
                handler = CompletionHandler(gateway.services, format, scope, receive, send)
                if is_recall_on(handler.client_headers.options):
                    await RecallRequest(gateway, format, scope, receive, send).run()
                else:
                    await gateway.run(handler)
                return
            if path in self._passthrough:
                passthrough = PassthroughHandler(gateway.services, CHAT, scope, receive, send)
                await gateway.run(passthrough)
                return
        await self._admin(scope, receive, send)


def create_app(config: Config, environment: Mapping[str, str]) -> App:
    """Return a gateway with these settings; upstream keys are read from this environment."""
    return App(Gateway(config, environment))


def app() -> App:
    """Return a gateway with the configured upstreams."""
    found = _load_config()
    logs.configure_logging("text" if sys.stderr.isatty() else "json", sys.stderr)
    application = create_app(found, os.environ)
    application.gateway.load_config = _load_config
    tune_garbage_collector()
    return application


def _load_config() -> Config:
    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    require_upstreams(loaded.config, os.environ)
    return loaded.config
