"""Clients for model servers, and what a server can do.

endpoint   where a server is, and how it is spoken to
transport  requests to it: JSON and streams, retried where that helps
counting   requests counted by the server itself
windows    what it says about its models
learned    what was found out, kept across runs
portal     all of it from code without `async`
"""

from __future__ import annotations

try:
    import httptools as _httptools  # noqa: F401
except ImportError as missing:
    raise ImportError(
        'Connecting to servers needs httptools. Run: pip install "brim[client]"'
    ) from missing

from brim.providers.endpoint import ApiFormat, Endpoint
from brim.providers.server_counter import CountSupport, ServerCounter
from brim.providers.server_info import ServerInfo, ServerKind, Window, detect_truncation
from brim.providers.sync import Portal
from brim.providers.transport import Transport
from brim.storage.calibration_store import CalibrationStore

__all__ = [
    "ApiFormat",
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
