"""The project in the pictures: a small shop, its log, and its issue tracker.

Run as a program it is an MCP server over standard input and output, with two tools.
"""

from __future__ import annotations

import json
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
SERVER: Final = '''\
"""Pages and orders over HTTP."""

import logging
import secrets
import time
from http import HTTPStatus

import store

log = logging.getLogger("shop")


def application(environ, start_response):
    """One request: found, answered, and written down with the time that it took."""
    begin, name = time.monotonic(), f"r-{secrets.randbelow(100_000)}"
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    try:
        status, body = answer(method, path, environ["wsgi.input"])
    except store.SoldOut as sold_out:
        status, body = HTTPStatus.CONFLICT, f"{sold_out} is sold out"
    except Exception as error:
        status, body = HTTPStatus.INTERNAL_SERVER_ERROR, "please try again"
        log.error("  %s.%s: %s", type(error).__module__, type(error).__name__, error)
    took = (time.monotonic() - begin) * 1000
    log.info("%s %s %s %d %.0f ms", name, method, path, status, took)
    start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
    return [body.encode()]


def answer(method, path, body):
    match method, path.strip("/").split("/"):
        case "GET", ["articles", number]:
            return HTTPStatus.OK, store.article(int(number))
        case "POST", ["orders"]:
            return HTTPStatus.CREATED, store.checkout(store.order(body))
        case _:
            return HTTPStatus.NOT_FOUND, "there is nothing here"
'''
TESTS: Final = """\
import pytest

import store


@pytest.fixture
def db(tmp_path):
    with store.connected(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE articles (id PRIMARY KEY, stock)")
        db.execute("CREATE TABLE orders (id PRIMARY KEY, total, receipt)")
        db.execute("INSERT INTO articles VALUES (7, 3)")
        yield db


def stock(db, article):
    return db.execute("SELECT stock FROM articles WHERE id = ?", (article,)).fetchone()[0]


def test_what_is_taken_is_gone(db):
    store.take(db, 7, 2)
    assert stock(db, 7) == 1


def test_no_more_is_taken_than_there_is(db):
    with pytest.raises(store.SoldOut):
        store.take(db, 7, 4)
    assert stock(db, 7) == 3
"""
FILES: Final = {
    ".gitignore": "build/\ndist/\n*.db\n*.log\n",
    "README.md": "# shop\n\nOrders, stock and payments of a small shop.\n",
    "store.py": STORE,
    "payments.py": PAYMENTS,
    "server.py": SERVER,
    "templates/cart.html": "<h1>Cart</h1>\n",
    "templates/order.html": "<h1>Order</h1>\n",
    "tests/test_payments.py": "import payments\n",
    "tests/test_store.py": TESTS,
    "build/shop.css": "",
    "build/shop.js": "",
    "dist/shop-1.3.tar.gz": "",
}
LOCKED: Final = "  sqlite3.OperationalError: database is locked"


def config(url: str, *, tools: bool) -> str:
    """Return the shell's configuration: two models, one of them for commit messages."""
    servers = TOOLS.format(python=sys.executable, server=__file__) if tools else ""
    return CONFIG.format(url=url) + servers


def log() -> Iterator[str]:
    """Return a log whose last two orders find the database locked."""
    for number in range(1, 121):
        minute, second = divmod(number * 23, 60)
        begin = f"2026-03-02 09:{minute:02}:{second:02} r-{48000 + number}"
        if number % 5 == 0 or number == 119:
            yield f"{begin} POST /orders 500 {5000 + number % 9} ms"
            yield LOCKED
        elif number % 3:
            yield f"{begin} GET /articles/{number * 7 % 90 + 10} 200 {number % 11 + 3} ms"
        else:
            yield f"{begin} POST /orders 201 {number * 29 % 700 + 1100} ms"


def make(folder: Path) -> None:
    """Write the project, with a `.git` folder at its root."""
    for name, text in {**FILES, "app.log": "\n".join(log()) + "\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / ".git").mkdir()


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


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            server = {"name": "issues", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": list(OFFERED)}
        case _:
            return {}


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": _answer(request)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
