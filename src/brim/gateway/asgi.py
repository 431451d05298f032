"""The gateway for other ASGI servers, with the same configuration as `brim serve`.

    uvicorn --factory brim.gateway.asgi:app
    granian --interface asgi --factory brim.gateway.asgi:app

Such a server listens on any address; without keys, the gateway serves every client that can
connect. If the account store cannot be used, it fails to start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from starlette.types import ASGIApp

from brim import config
from brim.gateway import logs
from brim.gateway.app import create_app
from brim.gateway.preflight import require_upstreams
from brim.gateway.server import tune_garbage_collector


def app() -> ASGIApp:
    """Return a gateway with the configured upstreams."""
    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    require_upstreams(loaded.config, os.environ)
    logs.configure_logging("text" if sys.stderr.isatty() else "json", sys.stderr)
    application = create_app(loaded.config, os.environ)
    tune_garbage_collector()
    return application
