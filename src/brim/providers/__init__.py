"""Clients for model servers.

endpoint         the address, format and credentials of a server
transport        requests as JSON or events, with retries and errors
connection_pool  the open connections to a server
http_connection  one HTTP/1.1 connection, and a response over it
server_counter   token counts from the server
server_info      the kind of a server, its models and their context windows
client           sends sessions: `Client` and `AsyncClient`
from_config      a client and a session as the configuration describes them
sync             coroutines called from synchronous code
local            the embedded model
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from brim.providers.endpoint import Endpoint
    from brim.providers.server_counter import CountSupport, ServerCounter
    from brim.providers.server_info import ServerInfo, ServerKind, Window, detect_truncation
    from brim.providers.sync import Portal
    from brim.providers.transport import Transport
    from brim.storage.calibration_store import CalibrationStore

__all__ = [
    "CalibrationStore",
    "CountSupport",
    "Endpoint",
    "Portal",
    "ServerCounter",
    "ServerInfo",
    "ServerKind",
    "Transport",
    "Window",
    "detect_truncation",
]

_MODULES: Final = {
    "brim.providers.endpoint": ("Endpoint",),
    "brim.providers.server_counter": ("CountSupport", "ServerCounter"),
    "brim.providers.server_info": ("ServerInfo", "ServerKind", "Window", "detect_truncation"),
    "brim.providers.sync": ("Portal",),
    "brim.providers.transport": ("Transport",),
    "brim.storage.calibration_store": ("CalibrationStore",),
}
"""Imported at the first use: `local` needs none of the packages of the client."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
