"""What is typed in the pictures, and what the model says to it."""

from __future__ import annotations

from typing import Final

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
    "sed -n '41,86p' app.log",
    "does the number of readers matter?",
    "cat server.py",
    "what does a user see of it?",
    "tail -n 47 app.log",
)
"""Lines that nearly fill the window."""
MORE: Final = ("and at the end?", "sed -n '75,118p' app.log", "and in between?")
"""Lines that cause a trim."""
LAST: Final = (
    "cat store.py",
    "sed -n '1,40p' app.log",
    "where would you begin?",
    "cat payments.py",
)
"""Lines after a summary; the last output is pending until the next question."""
