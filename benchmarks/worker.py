"""One measurement in its own process; `benchmarks.speed` starts it and reads its output.

    python -m benchmarks.worker cold SUBJECT TOKENS LIMIT ROUNDS
    python -m benchmarks.worker growth SUBJECT TURNS LIMIT

It prints the CPU seconds of the subject and of tokenizing the same text once, as JSON. Loading
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

BASELINE_ROUNDS = 3
"""Tokenizing has no cache, so the same text can be timed again; the first run loads."""
SESSION = "brim session"
"""Grows inside a `brim.Session`; all other subjects get the history at each request."""


def measure_time(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def cold(subject: Subject, tokens: int, limit: int, rounds: int) -> dict[str, float]:
    """Time some calls, each with new text, and return the best."""
    own, once = [], []
    subject.fit(subject.convert(material.of_tokens(tokens // 10, seed=0)), limit)
    for seed in range(1, rounds + 1):
        messages = material.of_tokens(tokens, seed)
        native = subject.convert(material.of_tokens(tokens, seed))
        once.append(measure_time(partial(subjects.tokenize, messages)))
        own.append(measure_time(partial(subject.fit, native, limit)))
    return {"seconds": min(own), "tokenizing": min(once)}


def growth(name: str, turns: int, limit: int) -> dict[str, float]:
    """Time a history that grows turn by turn and is fitted at every request point."""
    grow(name, 40, limit, seed=0)
    once = partial(subjects.tokenize, material.of_turns(turns, seed=1))
    return {
        "tokenizing": min(measure_time(once) for _ in range(BASELINE_ROUNDS)),
        "seconds": grow(name, turns, limit, seed=1),
    }


def grow(name: str, turns: int, limit: int, seed: int) -> float:
    messages = material.of_turns(turns, seed)
    if name == SESSION:
        return measure_time(partial(in_session, messages, limit))
    subject = find(name)
    native = subject.convert(messages)
    return measure_time(partial(stateless, subject, native, messages, limit))


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
