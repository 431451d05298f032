"""The public face: what is there, and what it weighs."""

from __future__ import annotations

import subprocess
import sys
import types
from collections import deque
from collections.abc import Callable

import pytest

import brim

MESSAGES = [{"role": "user", "content": "hello"}]

NESTED: dict[str, object] = {}
NESTED["type"] = NESTED


def test_all_public_names_are_exported() -> None:
    public = {
        name
        for name in dir(brim)
        if not name.startswith("_") and not isinstance(getattr(brim, name), types.ModuleType)
    }
    assert public == set(brim.__all__)


def test_importing_brim_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import brim;"
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    out = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(out.stdout.split())
    assert loaded - sys.stdlib_module_names == {"brim"}
    assert not loaded & {"tomllib", "lzma", "asyncio", "sqlite3", "urllib", "email"}


def test_a_request_unpacks_into_the_clients_arguments() -> None:
    def create(**arguments: object) -> dict[str, object]:
        return arguments

    tools = [{"type": "function", "function": {"name": "run"}}]
    request = brim.fit(MESSAGES, model="gpt-4o", reply=10, tools=tools, policy="sliding")
    assert create(**request) == {"messages": MESSAGES, "model": "gpt-4o", "tools": tools}
    assert create(**brim.fit(MESSAGES, window=100)) == {"messages": MESSAGES}


def test_a_body_keeps_its_keys_and_its_answer_is_made_to_fit() -> None:
    body = {"model": "gpt-4o", "messages": MESSAGES, "temperature": 0, "max_tokens": 9_000}
    request = brim.fit(body, window=1_000, reply=100)
    assert dict(request) == {**body, "max_tokens": 1_000 - request.plan.tokens}
    assert body["max_tokens"] == 9_000
    small = brim.fit({**body, "max_tokens": 50}, window=1_000, reply=100)
    assert small["max_tokens"] == 50


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([{"role": "user", "content": "x"}, "hello"], "message 1: .*mapping"),
        ([{"content": "x"}], "message 0: .*no role"),
        ([{"role": "user", "content": 5}], "message 0: content"),
        ([{"role": "assistant", "tool_calls": 5}], "message 0: tool_calls"),
        ([None], "message 0"),
        ([{"role": "user", "content": b"x"}], "message 0: content"),
        ([{"role": "assistant", "tool_calls": [5]}], "message 0: a tool call"),
        ([{"role": "assistant", "tool_calls": [{"function": "run"}]}], "message 0: the function"),
        ([{"role": "user", "content": "x", "_priority": "high"}], "message 0: _priority"),
        ([{"role": "user", "content": [NESTED]}], "nested"),
        ([{"role": "user", "content": "x", "more": NESTED}], "nested"),
        ("hello", "list of messages"),
        ({"prompt": "hello"}, "messages"),
        (7, "list of messages"),
    ],
)
def test_what_cannot_be_read_is_named(wrong: object, says: str) -> None:
    with pytest.raises(brim.InputError, match=says):
        brim.fit(wrong, window=100)  # type: ignore[arg-type]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(brim.InputError, match=r"Unknown policy 'steadfast'.*steady"):
        brim.fit(MESSAGES, window=100, policy="steadfast")  # type: ignore[arg-type]
    with pytest.raises(brim.InputError, match="Pin 7"):
        brim.fit(MESSAGES, window=100, pins=[7])
    with pytest.raises(brim.InputError, match="keep_recent"):
        brim.fit(MESSAGES, window=100, keep_recent=-1)
    with pytest.raises(brim.InputError, match="max_turns"):
        brim.fit(MESSAGES, window=100, policy="sliding", max_turns=0)
    with pytest.raises(brim.BudgetError, match="window"):
        brim.fit(MESSAGES, window=-5)


def test_a_count_says_whether_it_is_exact_and_what_it_is_made_of() -> None:
    count = brim.count([{"role": "system", "content": "Be brief."}, *MESSAGES], model="gpt-4o")
    assert count.exact
    assert sum(count.parts.values()) == count
    assert count.parts["user"] == 4 + 1
    assert not brim.count(MESSAGES).exact
    assert not brim.count(MESSAGES, model="gpt-4o", tools=[{"name": "run"}]).exact
    assert brim.count("hello world", model="gpt-4o") == 2
    assert brim.count("") == 0


def test_a_count_of_something_else_is_refused() -> None:
    with pytest.raises(brim.InputError):
        brim.count(5)  # type: ignore[arg-type]


def test_the_overflow_error_says_what_is_too_large_and_what_to_do() -> None:
    long = [{"role": "system", "content": "You must. " * 300}, *MESSAGES]
    with pytest.raises(brim.ContextOverflowError) as caught:
        brim.fit(long, model="gpt-4o", window=500, reply=100)
    error = caught.value
    assert isinstance(error, brim.BrimError)
    assert error.limit == 400 < error.tokens
    assert max(error.parts, key=error.parts.__getitem__) == "system"
    assert "system prompt" in str(error)
    assert not error.plan.fits
    assert sum(error.parts.values()) + 3 == error.tokens


def test_an_empty_conversation_fits() -> None:
    assert brim.fit([], window=100).messages == []
    with pytest.raises(brim.ContextOverflowError):
        brim.fit([], window=0)


@pytest.mark.parametrize(
    "odd",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "user", "content": [None, 5, {"type": "text"}, {"text": "x"}, ["y"]]},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": [{"id": 5, "function": None}]},
        {"role": "tool", "tool_call_id": 5, "content": "x"},
        {"role": "user", "content": "x", 5: float("nan"), "name": 7},
        {"role": "banana", "content": "x"},
    ],
)
def test_what_is_odd_passes_through(odd: dict[object, object]) -> None:
    request = brim.fit([odd], window=1_000)  # type: ignore[list-item]
    assert request.messages == [odd]
    assert request.messages[0] is odd


def test_a_history_that_the_server_keeps_is_relayed_with_a_warning() -> None:
    body = {"model": "gpt-4o", "input": "many words " * 400, "previous_response_id": "resp_1"}
    request = brim.fit(body, window=300, reply=100)
    assert dict(request) == body
    assert "server stores the history" in request.plan.warnings[0]
    assert not request.plan.exact
    assert brim.fit({"previous_response_id": "resp_1"}, window=300).messages == []


def test_an_object_of_a_client_library_is_refused_with_advice() -> None:
    class Reply:
        role = "assistant"

    with pytest.raises(brim.MessageError, match="model_dump"):
        brim.fit([*MESSAGES, Reply()], window=100)  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: brim.fit(MESSAGES, model=5, window=100),  # type: ignore[arg-type]
        lambda: brim.count("x", model=5),  # type: ignore[arg-type]
        lambda: brim.fit(MESSAGES, window=100, pins=None),  # type: ignore[arg-type]
        lambda: brim.fit(MESSAGES, window=100, pins=["0"]),  # type: ignore[list-item]
        lambda: brim.fit(MESSAGES, window=100, tools=b"x"),  # type: ignore[arg-type]
        lambda: brim.count("x", tools=5),  # type: ignore[arg-type]
        lambda: brim.count(MESSAGES, tools=[NESTED]),
        lambda: brim.count(MESSAGES, tools=[{(1, 2): 3}]),  # type: ignore[dict-item]
        lambda: brim.Session(5),  # type: ignore[arg-type]
        lambda: brim.Session("gpt-4o", format="xml"),  # type: ignore[arg-type]
        lambda: brim.Session("gpt-4o", tools="x"),  # type: ignore[arg-type]
        lambda: brim.Session("gpt-4o", system=5),  # type: ignore[arg-type]
        lambda: brim.Client("http://127.0.0.1", count="often"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_an_error_in_words(wrong: Callable[[], object]) -> None:
    with pytest.raises(brim.InputError):
        wrong()


def test_any_sequence_of_messages_will_do() -> None:
    assert brim.fit(deque(MESSAGES), window=100).messages == MESSAGES
