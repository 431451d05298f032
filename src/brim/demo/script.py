"""What the user says in the demonstration: somebody's web shop is slow at night.

The logs are made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Line:
    """What the user says, after what a command has printed."""

    words: str
    command: str = ""
    output: str = ""
    pinned: bool = False
    """Whether it is never to be left out."""


SYSTEM: Final = "You help the owner of a small web shop. Answer in one or two short sentences."


def _requests(first: int, waits: tuple[int, ...]) -> str:
    """A log of requests that waited for so many milliseconds."""
    paths = ("/cart", "/tea/green", "/cart/add", "/checkout", "/cups")
    return "\n".join(
        f"02:{first + at // 3:02} shop[812]: GET {paths[at % len(paths)]} 200, "
        f"waited {wait} ms for a connection, pool 20 of 20 in use"
        for at, wait in enumerate(waits)
    )


_NIGHT: Final = _requests(14, (310, 450, 120, 980, 1700, 2400, 2650, 3100, 4020, 5000, 4800, 900))
_AFTER: Final = _requests(16, (20, 35, 10, 15, 60, 45, 30, 25, 80, 40, 10, 20, 15))
_BACKUP: Final = "\n".join(
    f"03:{minute:02} backup: table {table}: {rows} rows copied to disk blue"
    for minute, (table, rows) in enumerate(
        (("tea", 212), ("cups", 98), ("customers", 4120), ("orders", 18_240), ("carts", 730),
         ("prices", 310), ("pictures", 655), ("letters", 1204), ("visits", 90_412))
    )
)  # fmt: skip

LINES: Final = (
    Line("Hello! I have a small web shop that sells tea and cups."),
    Line("Customers say that the cart is slow at night. Where do I look first?"),
    Line("Note this: the backup of the shop is on the disk named blue.", pinned=True),
    Line("What is a connection pool?"),
    Line("What do you see in this log?", "journalctl -u shop", _NIGHT),
    Line("So the pool is full. Could a larger one help?"),
    Line("What does a larger pool cost me?"),
    Line("How do I try it without harm?"),
    Line("Whom should I tell before I try it?"),
    Line("Write one sentence for them."),
    Line("I have changed it. Is this better?", "journalctl -u shop", _AFTER),
    Line("Why was it slow only at night?"),
    Line("A backup runs at night. Could that be it?"),
    Line("This is what it printed. What do you see?", "journalctl -u backup", _BACKUP),
    Line("When would be a better time for it?"),
    Line("How long should I keep old backups?"),
    Line("How do I know that a backup is good?"),
    Line("What else should I watch in my shop?"),
    Line("Which number should wake me up at night?"),
    Line("And which ones can wait until the morning?"),
    Line("Now tell me: on which disk is the backup of the shop?"),
    Line("What would you do next?"),
    Line("How long will that take?"),
    Line("What could go wrong with it?"),
    Line("Sum up our plan in one sentence."),
    Line("Thank you! Good night."),
)
