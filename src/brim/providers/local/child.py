"""The child process: a llama.cpp server that lives as long as its standard input is open.

It is run as a file, so that it starts without importing brim. It reads its settings as one line of
JSON (the key would be seen by everybody in its arguments), answers with one line, and then waits.
It leaves by `os._exit`: unwinding a server that is in the middle of an answer crashes or hangs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, NoReturn

POLL_SECONDS = 0.5
"""Seconds between two looks at whether the parent is still there."""


def main() -> None:
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library that prints must not speak in our place
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    try:
        server = _server(settings)
        said = {"address": server.listening_address}
    except Exception as error:  # whatever it is, the parent has to hear of it
        said = {"error": str(error) or type(error).__name__}
    with answer:
        print(json.dumps(said), file=answer)
    if "error" in said:
        return  # an ordinary end, on which llama.cpp writes out what it has to say
    sys.stdin.buffer.read()
    os._exit(0)


def _leave_with(parent: int) -> NoReturn:
    """A process that the parent forked may keep our input open longer than the parent lives."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(0)


def _server(settings: dict[str, Any]) -> Any:
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
