"""The project in the pictures: a small shop, its log, and what a model says about them.

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
TESTS: Final = '''\
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
'''
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
    """What the shell is told: two models, and which of them writes the commit messages."""
    servers = TOOLS.format(python=sys.executable, server=__file__) if tools else ""
    return CONFIG.format(url=url) + servers


def log() -> Iterator[str]:
    """A morning of the server; at its end two orders in a row find the database locked."""
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
    """Write the project, with one commit."""
    for name, text in {**FILES, "app.log": "\n".join(log()) + "\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / ".git").mkdir()


ANSWERS: Final = {
    "why is it locked, and what can I do?": """\
Another request holds SQLite's **only write lock**. The others wait for it and give up after the \
five seconds of `timeout`, as the log shows. Most often a transaction is open while something slow \
happens, like a call to the bank:

1. Do the slow part *before* the transaction begins.
2. Let readers go on meanwhile: `PRAGMA journal_mode = WAL`.

```python
def checkout(order):
    receipt = bank.charge(order)      # takes seconds, but holds no lock
    with connected() as db:           # milliseconds
        record(db, order, receipt)
```
""",
    "clean up what the last build left behind": """\
First a look at what is there; all of it can be built again:

CMD: ls -1 build dist
CMD: rm -rf build dist && find . -name '*.log' -mtime +7 -delete
""",
    "what does checkout do while it waits for the bank?": """\
It holds the **write lock** of the database: `BEGIN IMMEDIATE` takes it before the stock is \
changed, and only the `COMMIT` after `payments.charge` gives it back. With three tries of ten \
seconds each, one slow answer of the bank can stop every other order for half a minute.
""",
    "when does it fail, and how often?": """\
25 of the 57 orders since nine failed, every one of them after **five seconds**, which is the \
`timeout` that `connected` asks SQLite for. They come in the seconds after another order that took \
1.1 seconds or more, so they waited for its lock. Reading articles is never slow: readers do \
not need the lock.
""",
    "then how should the two of them work together?": """\
Split the order in three steps, and keep the bank outside of both transactions:

1. **Reserve**: take the goods and write the order as `open`, in one short transaction.
2. **Charge**: ask the bank, without a connection. Give it the order's number as a key, so that a \
second try is not a second charge.
3. **Settle**: write the receipt, or put the goods back if the bank said no.

```python
def checkout(order):
    with connected() as db, writing(db):
        for item in order.items:
            take(db, item.article, item.number)
        db.execute("INSERT INTO orders VALUES (?, ?, NULL)", (order.id, order.total))
    try:
        receipt = payments.charge(order.card, order.total, key=order.id)
    except payments.Refused:
        give_back(order)
        raise
    with connected() as db, writing(db):
        db.execute("UPDATE orders SET receipt = ? WHERE id = ?", (receipt, order.id))
    return receipt
```

An order that stays `open` after a crash is asked about at the bank when the server starts again.
""",
    "write the commit message": """\
Ask the bank outside of the transaction

checkout held the write lock while the bank answered, so that other orders failed after five \
seconds. Goods are now reserved first, the charge has the order's number as its key, and the \
receipt is written in a second transaction.
""",
    "which tests are missing for that?": """\
Three, and each can fail for one reason only:

```python
def test_a_slow_bank_does_not_hold_the_lock(db, bank):
    bank.answers_after(event := threading.Event())
    with running(store.checkout, order(7, 1)):
        db.execute("BEGIN IMMEDIATE")  # would raise: database is locked
        db.execute("ROLLBACK")
        event.set()


def test_a_refusal_puts_the_goods_back(db, bank):
    bank.refuses()
    with pytest.raises(payments.Refused):
        store.checkout(order(7, 2))
    assert stock(db, 7) == 3


def test_a_second_try_is_no_second_charge(bank):
    bank.is_silent_once()
    store.checkout(order(7, 1))
    assert bank.charges == 1
```
""",
    "is it the same from the first minute on?": """\
Yes. From 09:00 on each fifth request is an order that fails, and those that succeed take 1.1 to \
1.8 seconds: that is the bank, and for all of that time nobody else can write.
""",
    "does the number of readers matter?": """\
No. Articles are read in 3 to 13 ms all the time, before, during and after the failures. Only \
writers wait for each other.
""",
    "what does a user see of it?": """\
Five seconds of nothing, then *please try again*: `application` turns every error but a sold out \
article into a 500 with these words. Whoever tries again at once waits for the same lock.
""",
    "where would you begin?": """\
With the test for the slow bank: it fails today, and for the right reason.
""",
    "and in between?": """\
Nothing else: it is the one lock, from the first order to the last.
""",
    "and at the end?": """\
The same picture: failures at 5.0 seconds, orders at 1.1 to 1.8 seconds, and readers untouched. \
So the load is not the reason, and a longer `timeout` would only hide it.
""",
}
SUMMARY: Final = """\
Orders of the shop failed with "database is locked": checkout held SQLite's write lock while it \
waited for the bank (three tries of ten seconds). Decided: reserve, charge with the order's number \
as key, settle, in two short transactions. The commit message is written; three tests are missing: \
a slow bank holds no lock, a refusal puts the goods back, a second try is no second charge.
"""
WORK: Final = (
    "cat store.py",
    "what does checkout do while it waits for the bank?",
    "grep -A1 ' 500 ' app.log",
    "when does it fail, and how often?",
    "cat payments.py",
    "then how should the two of them work together?",
    "write the commit message",
    "cat tests/test_store.py",
    "which tests are missing for that?",
    "sed -n '1,40p' app.log",
    "is it the same from the first minute on?",
    "sed -n '41,80p' app.log",
    "does the number of readers matter?",
    "cat server.py",
    "what does a user see of it?",
    "tail -n 38 app.log",
)
"""Lines that nearly fill the window."""
MORE: Final = ("and at the end?", "sed -n '81,118p' app.log", "and in between?")
"""And those for which something has to leave."""
LAST: Final = ("cat store.py", "where would you begin?", "cat payments.py")
"""What is said after a summary; the last output waits for a question."""


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
