"""One measurement in a process of its own; `benchmarks.speed` starts it and reads its line.

    python -m benchmarks.worker cold SUBJECT TOKENS LIMIT ROUNDS
    python -m benchmarks.worker growth SUBJECT TURNS LIMIT

It prints the CPU seconds of the subject and of tokenising the same text once, as JSON. Loading
(vocabulary, imports, conversion to a peer's types) is not timed.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import limited, material, subjects
from benchmarks.recordings import Message
from benchmarks.subjects import Subject

YARDSTICKS = 3
"""Tokenising remembers nothing, so it can be timed again on the same text; the first one loads."""
SESSION = "brim session"
"""Grows inside a `brim.Session`; every other subject is given the history at each request."""


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def cold(subject: Subject, tokens: int, limit: int, rounds: int) -> dict[str, float]:
    """The best of some calls, each with text that was never seen before."""
    own, once = [], []
    subject.fit(subject.convert(material.of_tokens(tokens // 10, seed=0)), limit)
    for seed in range(1, rounds + 1):
        messages = material.of_tokens(tokens, seed)
        native = subject.convert(material.of_tokens(tokens, seed))
        once.append(timed(partial(subjects.tokenise, messages)))
        own.append(timed(partial(subject.fit, native, limit)))
    return {"seconds": min(own), "tokenising": min(once)}


def growth(name: str, turns: int, limit: int) -> dict[str, float]:
    """A history that grows turn by turn and is fitted at every request point."""
    grow(name, 40, limit, seed=0)
    once = partial(subjects.tokenise, material.of_turns(turns, seed=1))
    return {
        "tokenising": min(timed(once) for _ in range(YARDSTICKS)),
        "seconds": grow(name, turns, limit, seed=1),
    }


def grow(name: str, turns: int, limit: int, seed: int) -> float:
    messages = material.of_turns(turns, seed)
    if name == SESSION:
        return timed(partial(in_session, messages, limit))
    subject = find(name)
    native = subject.convert(messages)
    return timed(partial(stateless, subject, native, messages, limit))


def in_session(messages: list[Message], limit: int) -> None:
    session = limited.session(limit, "steady")
    for message in messages:
        session.append(message)
        if message["role"] in {"user", "tool"}:
            session.request()


def stateless(subject: Subject, native: list[Any], messages: list[Message], limit: int) -> None:
    history: list[Any] = []
    for own, message in zip(native, messages, strict=True):
        history.append(own)
        if message["role"] in {"user", "tool"}:
            fitted = subject.fit(history, limit)
            if subject.rewrites and fitted is not None:
                history = list(fitted)


def find(name: str) -> Subject:
    return {**subjects.BRIM, **subjects.PEERS}[name]()


def main(kind: str, name: str, *numbers: str) -> None:
    sizes = list(map(int, numbers))
    found = cold(find(name), *sizes) if kind == "cold" else growth(name, *sizes)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
