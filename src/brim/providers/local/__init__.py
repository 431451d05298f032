"""The embedded model: llama.cpp in a child process, with any GGUF file.

    with LocalServer.start() as server:
        ...                                 # server.url, server.key, server.model, server.window

Needs `brim[local]`. `download_default` downloads the default model; nothing else here uses the
network.
"""

from brim.providers.local.llama_server import LocalServer, require_llama
from brim.providers.local.weights import (
    SMOLLM2,
    Progress,
    Weights,
    default_model,
    download,
    download_default,
    is_intact,
    models_folder,
    remove_default,
)

__all__ = [
    "SMOLLM2",
    "LocalServer",
    "Progress",
    "Weights",
    "default_model",
    "download",
    "download_default",
    "is_intact",
    "models_folder",
    "remove_default",
    "require_llama",
]
