"""The tool loop that every framework has to survive: forty requests in a window of 4,096 tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import brim
from brim.testing import ScriptedReply, ScriptedServer, ToolCallReply

WINDOW = 4_096
CALLS = 40
MODEL = "gpt-4o"
QUESTION = "Read all the files."
DONE = "All files are read."


def read_file(number: int) -> str:
    """Return the content of a file."""
    return f"file {number}: " + "the words of the file are many " * 40


@contextmanager
def serve(window: int | None = WINDOW, done: ScriptedReply = DONE) -> Iterator[ScriptedServer]:
    """Run the server of the loop: forty calls of `read_file`, then `done`.

    The environment names it to clients.
    """
    calls = [ToolCallReply("read_file", {"number": number}) for number in range(1, CALLS + 1)]
    with ScriptedServer([*calls, done], window=window, model=MODEL) as server:
        given = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": server.url}
        given |= {"OPENAI_API_BASE": server.url}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield server
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def check(server: ScriptedServer, plans: list[brim.Plan]) -> None:
    """Check that the loop was completed without a context-length error, with tools counted."""
    assert not server.rejected
    assert len(server.requests) == CALLS + 1 == len(plans)
    assert plans[-1].is_trimmed
    assert all(request.tokens <= WINDOW for request in server.requests)
    for request, plan in zip(server.requests, plans, strict=True):
        assert plan.size >= request.tokens - 40, "tools or system text were not counted"
