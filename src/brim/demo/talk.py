"""The conversation of the demonstration: a session, a client and a model on this machine."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from brim.demo.bars import Part
from brim.demo.naive import Naive, Outcome
from brim.demo.script import SYSTEM, Line
from brim.session.session import Session

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.models.pricing import Usage
    from brim.providers.client import Client
    from brim.providers.local import LocalServer

WINDOW: Final = 512
REPLY: Final = 40
OPTIONS: Final = {"max_tokens": REPLY, "temperature": 0.3, "seed": 7, "repeat_penalty": 1.05}
"""The same answers every time, and few that go in circles, as small models like to do."""
MARK: Final = "[exec output]\n"
"""What stands before the output of a command in a user's turn."""
FRAMING: Final = 4
"""Tokens around a message, more or less."""

Message = Mapping[str, Any]


@dataclass(slots=True)
class Turn:
    """One turn, while it happens."""

    number: int
    line: Line
    clipped: tuple[int, int] | None
    """Tokens of the command's output, and what was kept of them; None without one."""
    plan: Plan
    parts: list[Part]
    """What is sent, in order."""
    changed: bool
    """Whether anything that was sent before is not sent again as it was."""
    pinned: bool | None
    """Whether the pinned turn is in the request; None while nothing is pinned."""
    whole: list[Part]
    """What the naive client sends."""
    naive: Outcome
    answer: str = ""
    usage: Usage | None = None
    """What the server reports, at the end of the answer."""

    @property
    def ended(self) -> bool:
        return self.usage is not None


@dataclass(slots=True)
class Totals:
    """The conversation so far."""

    turns: int = 0
    refused: int = 0
    """Requests of brim's; the client makes them smaller and tries again."""
    naive_refused: int = 0
    first_refused: int | None = None
    """The turn at which the naive client was refused first."""
    sent: int = 0
    """Prompt tokens, as the server reports them."""
    naive: int = 0
    cached: int = 0
    changes: int = 0

    def add(self, turn: Turn) -> None:
        assert turn.usage is not None
        self.turns += 1
        if turn.naive.refused:
            self.naive_refused += 1
            self.first_refused = self.first_refused or turn.number
        self.sent += turn.usage.input
        self.naive += turn.naive.tokens
        self.cached += turn.usage.cached
        self.changes += turn.changed

    @property
    def share(self) -> float:
        """The part of the prompt tokens that the server had from before."""
        return self.cached / self.sent if self.sent else 0.0


class Talk:
    """The conversation with one server."""

    def __init__(self, server: LocalServer, client: Client, lines: Sequence[Line]) -> None:
        self.server = server
        self.lines = lines
        self.totals = Totals()
        self.session = Session(server.model, system=SYSTEM, reply=REPLY)
        self._client = client
        self._naive = Naive(server, SYSTEM, **OPTIONS)
        self._pinned: int | None = None
        self._sent: Sequence[Message] = ()
        client.prepare(self.session)

    def turns(self) -> Iterator[Turn]:
        """Every turn again and again, whenever there is more of it; at last with its usage."""
        for number, line in enumerate(self.lines, 1):
            turn = self._asked(number, line)
            yield turn
            # The request is planned once more and comes out the same; what it holds is seen above.
            stream = self._client.stream(self.session, **OPTIONS)
            for piece in stream.texts():
                turn.answer += piece
                yield turn
            turn.usage = stream.reply.usage
            self._naive.add("assistant", stream.reply.text)
            self.totals.add(turn)
            self.totals.refused = self.session.log.statistics().requests - 2 * number
            yield turn

    def _asked(self, number: int, line: Line) -> Turn:
        """Say a line to both clients, and see what they would send."""
        clipped = self._say(line)
        request = self._client.request(self.session, **OPTIONS)
        same = _common(self._sent, request.messages)
        changed, self._sent = same < len(self._sent), request.messages
        naive = self._naive.outcome()
        plan, count = request.plan, self.session.count
        return Turn(
            number,
            line,
            clipped,
            plan,
            parts_of(request.messages, plan.size, count, [note.text for note in plan.notes]),
            changed,
            None if self._pinned is None else self._pinned in plan.sent_indices,
            parts_of(self._naive.messages, naive.tokens, count),
            naive,
        )

    def _say(self, line: Line) -> tuple[int, int] | None:
        session, clipped, whole = self.session, None, line.words
        if line.output:
            kept = session.add_output(line.output)
            clipped = session.count(line.output), session.count(kept)
            whole = f"{MARK}{line.output}\n\n{line.words}"
        session.user(line.words)
        self._naive.add("user", whole)
        if line.pinned:
            self._pinned = len(session) - 1
            session.pin(self._pinned)
        return clipped


@contextmanager
def talk(model: Path, lines: Sequence[Line]) -> Iterator[Talk]:
    """A conversation with a server of its own, which ends with it."""
    from brim.providers.client import Client
    from brim.providers.local import LocalServer
    from brim.storage.calibration_store import CalibrationStore

    with (
        TemporaryDirectory(prefix="brim-demo-") as folder,
        LocalServer.start(model, window=WINDOW, threads=1) as server,
        Client(
            server.url, key=server.key, learned=CalibrationStore(Path(folder, "learned"))
        ) as client,
    ):
        yield Talk(server, client, lines)


def parts_of(
    messages: Sequence[Message],
    total: int,
    count: Callable[[str], int],
    notes: Sequence[str] = (),
) -> list[Part]:
    """What a request is made of; `total` is what is known of the whole."""
    pieces = [piece for message in messages for piece in _pieces(message, notes)]
    ends = list(accumulate((count(text) + FRAMING for _, text in pieces), initial=0))
    places = [round(total * end / max(1, ends[-1])) for end in ends]
    sizes = (stop - start for start, stop in pairwise(places))
    return [(role, size) for (role, _), size in zip(pieces, sizes, strict=True)]


def _pieces(message: Message, notes: Sequence[str]) -> list[tuple[str, str]]:
    """A message by whose words it holds: the role's, a command's, or brim's own."""
    role, content = str(message["role"]), str(message["content"])
    if content in notes:
        return [("note", content)]
    for note in notes:
        if content.endswith(note):  # a note may close what somebody said as a paragraph
            said = content.removesuffix(note)
            return [*_pieces({"role": role, "content": said}, ()), ("note", note)]
    if role == "user" and content.startswith(MARK):
        output, _, words = content.rpartition("\n\n")
        return [("output", output), ("user", words)]
    return [(role, content)]


def _common(before: Sequence[Message], now: Sequence[Message]) -> int:
    pairs = zip(before, now, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def left_out(plan: Plan) -> str:
    """What is not sent, and why: `dropped 4 messages (123 tokens): middle of the history`."""
    numbers: Tally[tuple[str, str]] = Tally()
    tokens: Tally[tuple[str, str]] = Tally()
    for decision in plan.decisions:
        if decision.outcome != "kept":
            outcome = decision.outcome, decision.reason
            numbers[outcome] += 1
            tokens[outcome] += decision.before - decision.after
    return "; ".join(
        f"{outcome} {number} {'message' if number == 1 else 'messages'} "
        f"({tokens[outcome, reason]:,} tokens): {reason}"
        for (outcome, reason), number in numbers.items()
    )
