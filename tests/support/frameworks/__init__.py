"""The tool loop that every framework has to survive: forty calls in a window of 4,096 tokens.

There is a module for each framework, named like its integration. Tests and `python -m
benchmarks.integrations` run its function `run_loop`, which takes the settings of the adapter, or
None to run the framework without brim.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import process_time
from typing import Any, NamedTuple, Protocol

import pytest

import brim
from brim.integrations.adapter import AdapterSettings, RecallTool
from brim.testing import ScriptedReply, ScriptedServer, ToolCallReply

WINDOW = 4_096
CALLS = 40
MODEL = "gpt-4o"
QUESTION = "Read all the files."
DONE = "All files are read."
SYSTEM = "You are a careful reader of files. " * 10


class Outcome(NamedTuple):
    """What a loop returned, and the outputs of its tool in the framework's own history."""

    answer: str
    outputs: Sequence[str]


class LoopModule(Protocol):
    """A module of this package."""

    REPLIES: Sequence[ScriptedReply]
    """What the server sends in a loop."""
    WINDOW: int

    def run_loop(self, fit: AdapterSettings | None = None) -> Outcome: ...


CALL_TIMES: list[float] = []
"""The CPU time of the process at each call of the tool: the benchmark reads and clears it."""


def read_file(number: int) -> str:
    """Return the content of a file."""
    CALL_TIMES.append(process_time())
    return f"file {number}: " + "the words of the file are many " * 52


FILES = [read_file(number) for number in range(1, CALLS + 1)]
TOOL_CALLS = [ToolCallReply("read_file", {"number": number}) for number in range(1, CALLS + 1)]
REPLIES: Sequence[ScriptedReply] = [*TOOL_CALLS, DONE]


TOOL = {"name": "read_file", "parameters": {"type": "object"}}


def run_chat(complete: Callable[..., Any], model: str = MODEL) -> Outcome:
    """Run the loop as every example has it: with the message objects of an SDK in a list."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    tools = [{"type": "function", "function": TOOL}]
    for number in range(1, CALLS + 2):
        message = complete(model=model, messages=messages, tools=tools).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            result = {"role": "tool", "tool_call_id": call.id, "content": read_file(number)}
            messages.append(result)
    results = [each for each in messages if isinstance(each, dict) and each["role"] == "tool"]
    return Outcome(messages[-1].content, [each["content"] for each in results])


@contextmanager
def name_server(url: str) -> Iterator[None]:
    """Let the environment name a server to clients."""
    given = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def serve(
    window: int | None = WINDOW, replies: Sequence[ScriptedReply] = REPLIES
) -> Iterator[ScriptedServer]:
    """Run the server of a loop, for clients without an address."""
    server = ScriptedServer(replies, window=window, model=MODEL)
    with server, name_server(server.url):
        yield server


def check_failure(loop: LoopModule) -> None:
    """Check that a loop without brim ends with a context-length error."""
    with serve(loop.WINDOW, loop.REPLIES) as server:
        with pytest.raises(BaseException, match=r"(?i)context"):
            loop.run_loop()
        assert server.rejected


def check_loop(loop: LoopModule) -> None:
    """Check that a loop with brim is completed, and that the framework's history is whole.

    No request may be too long, and tools and system text must be counted.
    """
    plans: list[brim.Plan] = []
    with serve(loop.WINDOW, loop.REPLIES) as server:
        outcome = loop.run_loop({"window": loop.WINDOW, "reply": 500, "on_plan": plans.append})
    assert outcome == (DONE, FILES)
    assert not server.rejected
    assert len(server.requests) == CALLS + 1 == len(plans)
    assert plans[-1].is_trimmed
    for request, plan in zip(server.requests, plans, strict=True):
        assert plan.size >= request.tokens - 40, "tools or system text were not counted"


def check_recall(loop: LoopModule) -> None:
    """Check that an output that had been clipped comes back as the result of `recall`."""
    replies: list[ScriptedReply] = [
        *TOOL_CALLS,
        ToolCallReply("recall", {"query": "file 20"}),
        DONE,
    ]
    with serve(loop.WINDOW, replies) as server:
        loop.run_loop({"window": loop.WINDOW, "reply": 500, "recall": RecallTool()})
    before, last = (str(request.body) for request in server.requests[-2:])
    assert "'name': 'recall'" in before
    assert read_file(20) not in before
    answer = r"\[message \d+, tool\]\\nfile 20:"
    assert re.search(answer, before) is None
    assert re.search(answer, last) is not None


def list_tools(fit: AdapterSettings | None) -> list[Callable[..., str]]:
    """Return the tools of a loop: `read_file`, and `recall` if the adapter has it."""
    recall = None if fit is None else fit.get("recall")
    return [read_file] if recall is None else [read_file, recall.recall]
