"""The child process: a llama.cpp server that runs as long as its standard input is open.

It runs as a file, so that it starts without importing brim. It reads its settings as one line of
JSON (as an argument, the key would be visible to all users), prints one line, and waits. It exits
with `os._exit`: a regular exit in the middle of a response crashes or hangs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, NoReturn

POLL_SECONDS = 0.5
"""Seconds between checks that the parent process still exists."""


def main() -> None:
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the reply
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        server = _start_server(settings)
        message = {"address": server.listening_address}
    except Exception as error:  # any failure is reported to the parent
        message = {"error": str(error) or type(error).__name__}
    with reply:
        print(json.dumps(message), file=reply)
    if "error" in message:
        return  # a regular exit, so that llama.cpp flushes its log
    sys.stdin.buffer.read()
    os._exit(0)


def _exit_with_parent(parent: int) -> NoReturn:
    """Exit with the parent, even if a process that it forked keeps the input open."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(0)


def _start_server(settings: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["name"]}
    params.n_ctx = settings["window"] * settings["slots"]
    params.n_parallel = settings["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_ram_mib = settings["cache"]
    params.chat_template = settings["template"] or ""
    params.api_keys = [settings["key"]] if settings["key"] else []
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]
    params.verbosity = settings["verbosity"]
    params.offline = True
    params.ui = False
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
