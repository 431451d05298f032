"""The cost of a sequence of requests with prompt caching, by three rules.

Only the requests from `first` on are paid for; those before them fill the cache.

The price of an input token that is not cached is 1. A message that changed anywhere is new from
its beginning: no part of a message is cached. Every entry is taken to live until the session
ends, and every prefix that could be read is read.

*Anthropic*: a request may mark positions. It reads the longest entry at a mark or up to 20
messages before one, at 0.1; what follows, up to its last mark, is written at 1.25; entries are
made at its marks. *OpenAI*: the longest prefix that was ever sent is read at 0.1, in grains of
128; writing is free. Both keep nothing below 1,024 tokens. *Local*: a server with one slot
evaluates what follows the prefix shared with the request before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from benchmarks.ruler import REQUEST

READ = 0.1
WRITE = 1.25
FLOOR = 1_024
GRAIN = 128
LOOK_BACK = 20
MARKS = ("head", "shared", "tail")


@dataclass(frozen=True)
class Prompt:
    """One request as a prompt cache sees it."""

    prefixes: tuple[int, ...]
    """A number for each prefix, starting with the empty one; equal prefixes have equal numbers."""
    ends: tuple[int, ...]
    """Tokens up to the end of each prefix."""
    shared: int
    """Messages in common with the previous request."""
    known: int
    """Messages in common with any earlier request."""
    head: int
    """System messages at the start."""

    @property
    def total(self) -> int:
        return self.ends[-1] + REQUEST


def prompts(
    requests: Iterable[Sequence[int]], tokens: Sequence[int], heads: Iterable[int]
) -> list[Prompt]:
    """Return the requests of one session as a cache sees them."""
    tree: dict[tuple[int, int], int] = {}
    seen: list[Prompt] = []
    for request, head in zip(requests, heads, strict=True):
        prefixes = [0]
        known = 0
        for position, number in enumerate(request, 1):
            step = (prefixes[-1], number)
            if step in tree:
                known = position
            prefixes.append(tree.setdefault(step, len(tree) + 1))
        ends = (0, *accumulate(tokens[number] for number in request))
        shared = _count_shared(seen[-1].prefixes, prefixes) if seen else 0
        seen.append(Prompt(tuple(prefixes), ends, shared, known, head))
    return seen


def _count_shared(before: Sequence[int], after: Sequence[int]) -> int:
    pairs = zip(before, after, strict=False)
    return next(
        (position - 1 for position, (a, b) in enumerate(pairs) if a != b),
        min(len(before), len(after)) - 1,
    )


def anthropic(session: Sequence[Prompt], first: int) -> float:
    """Return the cost with the cheapest fixed placement of up to three cache marks."""
    ways = (way for size in range(len(MARKS) + 1) for way in combinations(MARKS, size))
    return min(_price_marked(session, first, way) for way in ways)


def _price_marked(session: Sequence[Prompt], first: int, way: Sequence[str]) -> float:
    entries: set[int] = set()
    cost = 0.0
    for index, prompt in enumerate(session):
        places = {"head": prompt.head, "shared": prompt.shared, "tail": len(prompt.ends) - 1}
        marks = [places[mark] for mark in way if prompt.ends[places[mark]] >= FLOOR]
        read = max((_find_longest(prompt, mark, entries) for mark in marks), default=0)
        written = prompt.ends[max(marks, default=0)] - read
        entries.update(prompt.prefixes[mark] for mark in marks)
        if index >= first:
            cost += READ * read + WRITE * written + prompt.total - read - written
    return cost


def _find_longest(prompt: Prompt, mark: int, entries: set[int]) -> int:
    """Return the tokens of the longest entry that a mark can read."""
    for position in range(mark, max(mark - LOOK_BACK, 0), -1):
        if prompt.prefixes[position] in entries:
            return prompt.ends[position]
    return 0


def openai(session: Sequence[Prompt], first: int) -> float:
    cost = 0.0
    for prompt in session[first:]:
        known = prompt.ends[prompt.known]
        read = known - known % GRAIN if known >= FLOOR else 0
        cost += READ * read + prompt.total - read
    return cost


def local(session: Sequence[Prompt], first: int) -> float:
    """Return the tokens that were not read from the cache."""
    return sum(prompt.total - prompt.ends[prompt.shared] for prompt in session[first:])


def price_uncached(session: Sequence[Prompt], first: int) -> float:
    return sum(prompt.total for prompt in session[first:])


RULES = {"Anthropic": anthropic, "OpenAI": openai, "local": local, "no cache": price_uncached}


def trims(session: Sequence[Prompt], first: int) -> int:
    """Return how many requests do not start with the whole previous request."""
    start = max(first, 1)
    pairs = zip(session[start - 1 :], session[start:], strict=False)
    return sum(after.shared < len(before.ends) - 1 for before, after in pairs)
