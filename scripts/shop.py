"""The project in the pictures: a small shop, its log, and what a model says about them.

Run as a program it is an MCP server over standard input and output, with two tools.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

CONFIG: Final = """\
[models.gpt-5-mini]
endpoint = "{url}"
window = 8_192
reply = 1_500
price = {{ input = 0.25, cached = 0.025, output = 2.0 }}

[models.gpt-5-nano]
endpoint = "{url}"
window = 8_192
reply = 1_500
price = {{ input = 0.05, cached = 0.005, output = 0.4 }}

[summary]
model = "gpt-5-nano"

[[routing.rules]]
match = '\\bcommit message\\b'
model = "gpt-5-nano"
"""
TOOLS: Final = """
[mcp.issues]
command = "{python}"
args = ["{server}"]
"""
STORE: Final = '''\
"""Orders and stock, in one SQLite file."""

import sqlite3
from contextlib import contextmanager

import payments


@contextmanager
def connected(path="shop.db"):
    db = sqlite3.connect(path, timeout=5, isolation_level=None)
    try:
        yield db
    finally:
        db.close()


def checkout(order):
    """Take the goods out of the stock, and the money from the card."""
    with connected() as db:
        db.execute("BEGIN IMMEDIATE")
        for item in order.items:
            take(db, item.article, item.number)
        receipt = payments.charge(order.card, order.total)
        db.execute("INSERT INTO orders VALUES (?, ?, ?)", (order.id, order.total, receipt))
        db.execute("COMMIT")
    return receipt


def take(db, article, number):
    """Raises `SoldOut` where there are not so many left."""
    row = db.execute("SELECT stock FROM articles WHERE id = ?", (article,)).fetchone()
    if row is None or row[0] < number:
        raise SoldOut(article)
    db.execute("UPDATE articles SET stock = stock - ? WHERE id = ?", (number, article))


class SoldOut(Exception):
    pass
'''
PAYMENTS: Final = '''\
"""The bank's side of an order."""

import json
from urllib.request import Request, urlopen

BANK = "https://bank.example/v2/charges"


def charge(card, cents, *, tries=3, timeout=10):
    """Ask the bank for the money; gives the number of the receipt."""
    body = json.dumps({"card": card.token, "amount": cents, "currency": "EUR"}).encode()
    for attempt in range(tries):
        try:
            with urlopen(Request(BANK, body, method="POST"), timeout=timeout) as answer:
                return json.load(answer)["receipt"]
        except TimeoutError:
            if attempt == tries - 1:
                raise
'''
FILES: Final = {
    ".gitignore": "build/\ndist/\n*.db\n*.log\n",
    "README.md": "# shop\n\nOrders, stock and payments of a small shop.\n",
    "store.py": STORE,
    "payments.py": PAYMENTS,
    "server.py": "from store import checkout\n",
    "templates/cart.html": "<h1>Cart</h1>\n",
    "templates/order.html": "<h1>Order</h1>\n",
    "tests/test_payments.py": "import payments\n",
    "tests/test_store.py": "import store\n",
    "build/shop.css": "",
    "build/shop.js": "",
    "build/stale.css": "",
    "build/stale.js": "",
    "dist/shop-1.3.tar.gz": "",
}
LOCKED: Final = "  sqlite3.OperationalError: database is locked"


def log() -> Iterator[str]:
    """A morning of the server."""
    for number in range(1, 121):
        minute, second = divmod(number * 37, 60)
        is_locked = number % 5 == 0 or number == 119
        time = f"09:{minute % 60:02}:{second:02}"
        if is_locked:
            yield f"{time} POST /orders 500  {5000 + number % 9} ms"
            yield LOCKED
        elif number % 3:
            yield f"{time} GET  /articles/{number * 7 % 90 + 10} 200    {number % 11 + 3} ms"
        else:
            yield f"{time} POST /orders 201  {number * 29 % 700 + 1100} ms"


def make(folder: Path) -> None:
    """Write the project, with one commit."""
    for name, text in {**FILES, "app.log": "\n".join(log()) + "\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / ".git").mkdir()


ANSWERS: Final = {
    "why is it locked, and what can I do?": """\
`checkout` holds SQLite's **only write lock** while it waits for the bank. A second order waits \
five seconds for that lock, then gives up.

1. Ask the bank *before* the transaction begins.
2. Let readers go on meanwhile: `PRAGMA journal_mode = WAL`.

```python
def checkout(order):
    receipt = payments.charge(order.card, order.total)   # seconds, and no lock
    with connected() as db:                              # milliseconds
        record(db, order, receipt)
```
""",
    "clean up what the last build left behind": """\
I look at what is there, then remove what can be built again:

CMD: ls build dist
CMD: rm -rf build dist && git clean -fdX
""",
}
SUMMARY: Final = "They look for the reason of failing orders."
WORK: Final = ("cat store.py", "what does it do?")


# The MCP server


def _tool(name: str, about: str, **fields: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    return {"name": name, "description": about, "inputSchema": schema}


OFFERED: Final = (
    _tool(
        "find_issues",
        "Find issues by words in their title or text; gives their numbers, titles and states.",
        words="what to look for",
        state="open, closed or all",
    ),
    _tool(
        "write_issue",
        "Open an issue, and give its number.",
        title="one line",
        text="what is wrong, and how it shows, in Markdown",
    ),
)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            server = {"name": "issues", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": list(OFFERED)}
        case _:
            return {}


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": _answer(asked)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
