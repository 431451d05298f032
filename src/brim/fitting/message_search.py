"""MessageSearch: which units of a growing history match a query best.

A message scores the sum of the weights of the query's terms that it contains, by BM25; how often
it contains them does not count. Words are in an inverted index, so that a query costs work for
the messages that contain its words. The first query of a history is a search in its text instead,
which is faster than an index that is used only once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, chain
from math import log
from typing import Final

from brim.fitting.search import FEW, LENGTH_WEIGHT, SATURATION, read_texts
from brim.fitting.terms import (
    RELATED_SHARE,
    Term,
    find_name_terms,
    find_places,
    find_related_terms,
    find_terms,
    fold_all,
)
from brim.messages import Message, Role

_FREQUENT: Final = 0.75
"""A term in more than this share of the messages is ignored. Half of them may begin with the name
of their speaker."""
_MOST: Final = 1_000
"""The rarest terms count, as far as they are found together in at most this number of messages:
otherwise a query would cost the more, the longer the history is."""
_MOST_RANKED: Final = 300
"""Units around which others rank too; more would not fit."""
_FEWEST_CALLS, _MOST_CALLS, _CALLER_SHARE = 3, 0.25, 0.8
"""A name is that of the other speaker if it is in at least so many messages, in at most so large a
share of all, and if so large a share of these has one role: people say each other's names, not
their own. One that is found more often is a label at the beginning of its speaker's messages."""
NEIGHBOUR_SHARES: Final = ((-1, 0.3), (1, 0.5), (2, 0.3))
"""The shares of a unit's score that the units around it get: those after it often answer it."""


class MessageSearch:
    """The messages of a history, to compare with queries. It only grows."""

    def __init__(self) -> None:
        self._folded: list[str] = []
        self._roles: list[Role] = []
        self._lengths = [0]
        """Running totals of the characters."""
        self._owners: defaultdict[str, list[int]] = defaultdict(list)
        """The messages with each word."""
        self._indexed = 0
        self._joined: tuple[int, str, Sequence[int]] | None = None
        self._asked: tuple[str, int] | None = None
        self._ranked: Sequence[int] = ()

    def extend(self, messages: Sequence[Message]) -> None:
        """Add the messages that were not added before."""
        self._roles += [message.role for message in messages[len(self._folded) :]]
        new = [*fold_all(map(_read, messages[len(self._folded) :]))]
        self._folded += new
        self._lengths[-1:] = accumulate(map(len, new), initial=self._lengths[-1])

    def rank_units(self, query: str, stop: int, unit_of: Sequence[int]) -> Sequence[int]:
        """Return the units before message `stop` that match or are near a match, best first.

        Of equal ones, the newest comes first. The steps that follow a user message ask for the
        same; it is compared once.
        """
        if self._asked != (query, stop):
            if self._asked:
                self._index(stop)
            self._asked = query, stop
            self._ranked = _rank(self._score(query, stop), unit_of)
            self._joined = None
        return self._ranked

    def _score(self, query: str, stop: int) -> Mapping[int, float]:
        """Return the scores of the messages before `stop` that contain a term."""
        terms, names = find_terms(query), find_name_terms(query)
        shares = dict.fromkeys(terms, 1.0)
        shares |= dict.fromkeys(find_related_terms(terms), RELATED_SHARE)
        most = min(_MOST, max(FEW, int(stop * _FREQUENT)))
        found = {term: self._find(term, stop, most) for term in shares}
        called = {term: self._find_speaker(found[term], stop) for term in names & found.keys()}
        speakers = {*called.values()} - {None}
        weights: dict[int, float] = defaultdict(float)
        room = _MOST
        for term in sorted(found, key=lambda term: len(found[term])):
            if called.get(term):
                continue
            room -= len(found[term])
            if len(found[term]) > most or room < 0:
                break
            weight = shares[term] * _compute_weight(len(found[term]), stop)
            for index in found[term]:
                weights[index] += weight
        return self._normalize(weights, speakers, stop)

    def _normalize(
        self, weights: Mapping[int, float], speakers: Collection[Role | None], stop: int
    ) -> Mapping[int, float]:
        """Return the scores of messages: less for long ones, more for those of the speakers."""
        average = max(1, self._lengths[stop]) / max(1, stop)
        shortest = 1 + SATURATION * (1 - LENGTH_WEIGHT)
        slope = SATURATION * LENGTH_WEIGHT / average
        folded, roles = self._folded, self._roles
        if speakers:
            weights = {
                index: weight + _HALF_WEIGHT * (roles[index] in speakers)
                for index, weight in weights.items()
            }
        return {
            index: weight / (shortest + slope * len(folded[index]))
            for index, weight in weights.items()
        }

    def _find_speaker(self, found: Collection[int], stop: int) -> Role | None:
        """Return the role of the speaker whose name these messages contain, if it is clear."""
        if not _FEWEST_CALLS <= len(found) <= _MOST_CALLS * stop:
            return None
        users = sum(self._roles[index] == "user" for index in found)
        if users >= _CALLER_SHARE * len(found):
            return "assistant"
        return "user" if users <= (1 - _CALLER_SHARE) * len(found) else None

    def _find(self, term: Term, stop: int, most: int) -> Collection[int]:
        """Return the messages before `stop` that contain a term, or more than `most`."""
        if self._indexed < stop:
            return self._scan(term, stop)
        *others, word = term.text.split()
        owners = self._owners
        if others:
            found = min((owners.get(part, []) for part in (*others, word)), key=len)
            found = [index for index in found if f"{term.text} " in self._folded[index]]
        elif term.is_stem:
            lists = [owners[form] for end in term.endings if (form := word + end) in owners]
            found = max(lists, key=len, default=[])
            if len(lists) > 1 and len(found) <= most:
                found = [*{*chain(*lists)}]
        else:
            found = owners.get(word, [])
        return found if self._indexed == stop else [index for index in found if index < stop]

    def _scan(self, term: Term, stop: int) -> Collection[int]:
        """Return the messages before `stop` that contain a term, without the index."""
        joined, starts = self._join(stop)
        return {bisect_right(starts, place) - 1 for place in find_places(term, joined)}

    def _join(self, stop: int) -> tuple[str, Sequence[int]]:
        """Return the text of all messages before `stop`, and where they begin."""
        if self._joined is None or self._joined[0] != stop:
            sizes = map(len, self._folded[:stop])
            starts = [*accumulate(sizes, lambda start, size: start + size + 1, initial=0)]
            self._joined = stop, "\n".join(self._folded[:stop]), starts
        return self._joined[1:]

    def _index(self, stop: int) -> None:
        owners = self._owners
        for index in range(self._indexed, stop):
            for word in {*self._folded[index].split()}:
                owners[word].append(index)
        self._indexed = max(self._indexed, stop)


def _compute_weight(found: int, total: int) -> float:
    """Return the weight of a term that is found in this many of all messages."""
    return log(1 + (total - found + 0.5) / (found + 0.5))


_HALF_WEIGHT: Final = _compute_weight(1, 2)


def _read(message: Message) -> str:
    if message.role == "system" or message.skipped:
        return ""
    return "\n".join((*message.extras, *read_texts(message)))


def _rank(scores: Mapping[int, float], unit_of: Sequence[int]) -> Sequence[int]:
    """Return units by the best score of their messages and the scores of the units around them."""
    best: dict[int, float] = {}
    for index, score in scores.items():
        unit = unit_of[index]
        if score > best.get(unit, 0):
            best[unit] = score
    ranks: dict[int, float] = defaultdict(float)
    for score, unit in sorted(zip(best.values(), best, strict=True), reverse=True)[:_MOST_RANKED]:
        ranks[unit] += score
        for distance, share in NEIGHBOUR_SHARES:
            ranks[unit + distance] += share * score
    return [unit for _, unit in sorted(zip(ranks.values(), ranks, strict=True), reverse=True)]
