"""Recall: how much of what an agent uses next is still in its request, and for which bill.

    python -m benchmarks.recall [FOLDER] [--json]

At a request whose history exceeds the budget, an entity is *needed* if one of the next five
assistant turns of the same task uses it, if it occurred earlier in that task but not in the newest
ten messages (four in support chats), and if no new output contains it before it is used. Recall is
the share of the needed entities that the request contains. Span recall is the same for sequences of
four words instead of entities. Entities are paths, file names, code identifiers, ids, e-mail
addresses and numbers of three or more digits.

The bill is the input cost by Anthropic's cache rules, relative to `sliding`. Three controls must
not win both in entities and in spans: the older part of each request of `steady` replaced with
random messages of the same size or with those that contain the most entities per token, and
`steady` with a low-water mark of 95 %, which must cost more than it gains. There is no judge and no
model: a lost entity is a risk, not a failure.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks import cache, cost, recordings, replay, report
from benchmarks.recordings import Message
from benchmarks.replay import Pool, Replay, Setting

NEXT = 5
SPAN = 4
GAINS = {
    "several tasks, 32k": 0.0,
    "several tasks, 16k": -0.5,
    "one task, 32k": 0.0,
    "one task, 16k": 0.0,
}
"""Points of recall by which `steady` must at least exceed `sliding`."""

Mentions: TypeAlias = frozenset[str]

_ENTITY = re.compile(
    r"""
      [\w.+-]+@[\w-]+(?:\.[\w-]+)+          # an e-mail address
    | [\w.~-]*(?:/[\w.-]+)+                 # a path
    | \w[\w-]*(?:\.[A-Za-z_]\w*)+           # a file name, a dotted name
    | \b[A-Za-z]+(?:[_-]\w+)*_\w+           # snake_case
    | \b[A-Za-z]*[a-z][A-Z]\w*              # camelCase
    | \b(?=\w*[A-Za-z])(?=\w*\d)\w{3,}      # letters and digits: an id
    | \b\d{3,}\b                            # a number
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"\w+")


def entities(text: str) -> Mentions:
    return frozenset(found.strip(".-/") for found in _ENTITY.findall(text))


def spans(text: str) -> Mentions:
    """Return all sequences of four words."""
    words = _WORD.findall(text)
    return frozenset(map(" ".join, zip(*(words[start:] for start in range(SPAN)), strict=False)))


def text_of(message: Message) -> str:
    """Return the text of a message, with the arguments of its calls as they would be printed."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    for call in message.get("tool_calls") or []:
        parts += [call["function"]["name"], _argument_text(call["function"]["arguments"])]
    return "\n".join(parts)


def _argument_text(arguments: str) -> str:
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    values = parsed.values() if isinstance(parsed, dict) else [parsed]
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values)


READERS: dict[str, Callable[[str], Mentions]] = {"entities": entities, "spans": spans}


@dataclass
class Score:
    """How many mentions were needed, and how many of them were in the request."""

    needed: int = 0
    found: int = 0

    @property
    def recall(self) -> float | None:
        return 100 * self.found / self.needed if self.needed else None


@dataclass
class Total:
    """The figures of one policy over some sessions."""

    entities: Score = field(default_factory=Score)
    spans: Score = field(default_factory=Score)
    bill: float = 0
    """In tokens at the full price."""
    tokens: int = 0
    """The sizes of all requests."""


def totals(
    replays: Iterable[Replay], near: int, pool: Pool, *, controls: bool = True
) -> dict[str, Total]:
    """Return the figures of every policy, and of the controls, over some sessions."""
    found: dict[str, Total] = defaultdict(Total)
    for session in replays:
        views = {**session.sent, **(_controls(session, near, pool) if controls else {})}
        for policy, sent in views.items():
            prompts = cost.to_prompts(sent, pool)
            found[policy].bill += cache.anthropic(prompts, session.first)
            found[policy].tokens += sum(prompt.total for prompt in prompts[session.first :])
        for kind, reader in READERS.items():
            needs = find_needs(session, near, pool, reader)
            read = _cache_reader(reader, needs, pool)
            for policy, sent in views.items():
                count_found(getattr(found[policy], kind), needs, sent[session.first :], read)
    return dict(found)


def _cache_reader(
    reader: Callable[[str], Mentions], needs: Sequence[Mentions], pool: Pool
) -> Callable[[int], Mentions]:
    """Return a function that reads what is ever needed from a message, each message once."""
    ever: Mentions = frozenset().union(*needs)

    @functools.cache
    def read(number: int) -> Mentions:
        return reader(text_of(pool.messages[number])) & ever

    return read


def count_found(
    score: Score,
    needs: Sequence[Mentions],
    sent: Sequence[Sequence[int]],
    read: Callable[[int], Mentions],
) -> None:
    """Add to a score how many of the needed mentions each request contains."""
    for needed, request in zip(needs, sent, strict=True):
        if needed:
            score.needed += len(needed)
            score.found += len(needed.intersection(frozenset().union(*map(read, request))))


def find_needs(
    session: Replay, near: int, pool: Pool, reader: Callable[[str], Mentions]
) -> list[Mentions]:
    """Return what each request needs, from the first that exceeds the budget on."""
    history = [pool.messages[number] for number in session.history]
    own = [reader(text_of(message)) for message in history]
    needs: list[Mentions] = []
    last: dict[str, int] = {}
    read = 0
    for point in session.points:
        start = max(start for start in session.starts if start < point)
        if read < start:
            last, read = {}, start
        for place in range(read, point):
            last.update(dict.fromkeys(own[place], place))
        read = point
        far = {mention for mention in last if last[mention] < point - near}
        stop = min((start for start in session.starts if start >= point), default=len(history))
        needs.append(_used_next(history[point:stop], own[point:stop]) & far)
    return needs[session.first :]


def _used_next(messages: Sequence[Message], mentions: Sequence[Mentions]) -> Mentions:
    """Return what the next turns use before a new output contains it."""
    used: set[str] = set()
    delivered: set[str] = set()
    turns = 0
    for message, own in zip(messages, mentions, strict=True):
        if message["role"] != "assistant":
            delivered |= own
            continue
        used |= own - delivered
        turns += 1
        if turns == NEXT:
            break
    return frozenset(used)


# Controls


def _controls(session: Replay, near: int, pool: Pool) -> dict[str, list[tuple[int, ...]]]:
    order = list(range(len(session.history)))
    random.Random(len(order)).shuffle(order)
    text = [text_of(pool.messages[number]) for number in session.history]
    density = [
        len(entities(own)) / pool.tokens[number]
        for own, number in zip(text, session.history, strict=True)
    ]
    densest = sorted(order, key=lambda place: -density[place])
    return {
        "control: random text": replace_older(session, near, pool, order),
        "control: most entities": replace_older(session, near, pool, densest),
    }


def replace_older(
    session: Replay, near: int, pool: Pool, order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the requests of `steady` with other messages of the same size before the newest.

    The system prompt and the user message of the task stay. Other messages are chosen in `order`
    whenever `steady` trims, so that the cache works as well.
    """
    changed: list[tuple[int, ...]] = []
    previous: tuple[int, ...] = ()
    older: list[int] = []
    since = 0
    for point, request in zip(session.points, session.sent["steady"], strict=True):
        if not previous or request[: len(previous)] != previous:
            since = max(0, point - near)
            older = _choose_older(session, pool, order, since, point, pool.size(request))
        previous = request
        changed.append(tuple(session.history[place] for place in (*older, *range(since, point))))
    return changed


def _choose_older(
    session: Replay, pool: Pool, order: Sequence[int], since: int, point: int, size: int
) -> list[int]:
    task = max(start for start in session.starts if start < point)
    head = range(pool.head(session.history))
    user = pool.first_user(session.history[task:]) + task
    chosen = {place for place in (*head, user) if place < since}
    room = size - pool.size(session.history[since:point])
    room -= sum(pool.tokens[session.history[place]] for place in chosen)
    for place in order:
        tokens = pool.tokens[session.history[place]]
        if place < since and place not in chosen and tokens <= room:
            chosen.add(place)
            room -= tokens
    return sorted(chosen)


# Tables


def table(setting: Setting, replays: Sequence[Replay], pool: Pool) -> report.Table:
    found = totals(replays, setting.near, pool)
    requests = sum(len(session.points) - session.first for session in replays)
    base = found.get("sliding", Total())
    rows: list[dict[str, report.Cell]] = []
    for policy, total in found.items():
        row: dict[str, report.Cell] = {"policy": policy, "needed %": total.entities.recall}
        row |= {"spans %": total.spans.recall, "bill": total.bill / base.bill}
        row["window used %"] = 100 * total.tokens / requests / setting.budget
        gain, bill = GAINS.get(setting.name), cost.TARGETS.get(setting.name)
        is_judged = policy == "steady" and gain is not None
        row["target"] = f"needed ≥ {gain:+.1f}, bill ≤ {bill}" if is_judged else None
        rows.append(row)
    title = f"Recall: {setting.name} ({len(replays)} conversations, {requests:,} requests)"
    formats = {"needed %": ".1f", "spans %": ".1f", "bill": ".3f", "window used %": ".0f"}
    notes = [f"{base.entities.needed:,} entities and {base.spans.needed:,} spans needed"]
    return report.Table(title, rows if requests else [], formats, notes)


def tables(recorded: Sequence[recordings.Recording]) -> Iterator[report.Table]:
    pool = Pool()
    for setting in replay.settings(recorded):
        yield table(setting, list(replay.replays(setting, pool)), pool)


if __name__ == "__main__":
    report.run(__doc__, lambda given: tables(recordings.load(given.folder, given.part)))
