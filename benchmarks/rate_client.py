"""One of many clients that send as much as their keys' rate limits allow.

    python -m benchmarks.rate_client PORT SECONDS KEY [KEY ...]

Each key is used over a connection of its own.
"""

from __future__ import annotations

import json
import sys
import time
from http.client import HTTPConnection
from threading import Thread

PAUSE = 0.2
"""Seconds before the next attempt after a 429."""


def send_requests(port: int, end: float, name: str, secret: str) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps(
        {
            "model": "gpt-4o",
            "max_tokens": 60,
            "user": name,
            "messages": [{"role": "user", "content": "Say something. " * 20}],
        }
    )
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    while time.monotonic() < end:
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == 429:
            time.sleep(PAUSE)
        elif answer.status != 200:
            sys.exit(f"{answer.status}: {text[:300]!r}")


def main(port: str, seconds: str, *keys: str) -> None:
    end = time.monotonic() + float(seconds)
    threads = [Thread(target=send_requests, args=(int(port), end, *key.split("="))) for key in keys]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
