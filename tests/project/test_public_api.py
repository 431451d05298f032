"""The public API: its names, the time to import it, and errors for invalid arguments."""

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
CYCLE: list[object] = [*MESSAGES]
CYCLE.append(CYCLE)


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


def test_a_request_unpacks_into_the_arguments_of_a_client() -> None:
    def create(**arguments: object) -> dict[str, object]:
        return arguments

    tools = [{"type": "function", "function": {"name": "run"}}]
    request = brim.fit(MESSAGES, model="gpt-4o", reply=10, tools=tools, policy="sliding")
    assert create(**request) == {"messages": MESSAGES, "model": "gpt-4o", "tools": tools}
    assert create(**brim.fit(MESSAGES, window=100)) == {"messages": MESSAGES}


def test_a_body_keeps_its_fields_and_max_tokens_is_lowered_to_the_room_left() -> None:
    body = {"model": "gpt-4o", "messages": MESSAGES, "temperature": 0, "max_tokens": 9_000}
    request = brim.fit(body, window=1_000, reply=100)
    assert dict(request) == {**body, "max_tokens": 1_000 - request.plan.tokens}
    assert body["max_tokens"] == 9_000
    small = brim.fit({**body, "max_tokens": 50}, window=1_000, reply=100)
    assert small["max_tokens"] == 50


@pytest.mark.parametrize(
    ("messages", "error"),
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
def test_invalid_messages_raise_an_error_that_names_them(messages: object, error: str) -> None:
    with pytest.raises(brim.InputError, match=error):
        brim.fit(messages, window=100)  # type: ignore[arg-type]


def test_invalid_arguments_raise_an_error_that_names_them() -> None:
    with pytest.raises(brim.InputError, match=r"Unknown policy 'unknown'.*steady"):
        brim.fit(MESSAGES, window=100, policy="unknown")  # type: ignore[arg-type]
    with pytest.raises(brim.InputError, match="Pin 7"):
        brim.fit(MESSAGES, window=100, pins=[7])
    with pytest.raises(brim.InputError, match="keep_recent"):
        brim.fit(MESSAGES, window=100, keep_recent=-1)
    with pytest.raises(brim.InputError, match="max_turns"):
        brim.fit(MESSAGES, window=100, policy="sliding", max_turns=0)
    with pytest.raises(brim.BudgetError, match="window"):
        brim.fit(MESSAGES, window=-5)


def test_a_count_reports_its_parts_and_whether_it_is_exact() -> None:
    count = brim.count([{"role": "system", "content": "Be brief."}, *MESSAGES], model="gpt-4o")
    assert count.exact
    assert sum(count.parts.values()) == count
    assert count.parts["user"] == 4 + 1
    assert not brim.count(MESSAGES).exact
    assert not brim.count(MESSAGES, model="gpt-4o", tools=[{"name": "run"}]).exact
    assert brim.count("hello world", model="gpt-4o") == 2
    assert brim.count("") == 0


def test_counting_an_unsupported_type_raises() -> None:
    with pytest.raises(brim.InputError):
        brim.count(5)  # type: ignore[arg-type]


def test_the_overflow_error_names_the_largest_part() -> None:
    long = [{"role": "system", "content": "You must. " * 300}, *MESSAGES]
    with pytest.raises(brim.ContextOverflowError) as caught:
        brim.fit(long, model="gpt-4o", window=500, reply=100)
    error = caught.value
    assert isinstance(error, brim.BrimError)
    assert error.limit == 400 < error.tokens
    assert max(error.parts, key=error.parts.__getitem__) == "system"
    assert "system prompt" in str(error)
    assert not error.plan.fits
    assert sum(error.parts.values()) == error.tokens


def test_an_empty_conversation_fits() -> None:
    assert brim.fit([], window=100).messages == []
    with pytest.raises(brim.ContextOverflowError):
        brim.fit([], window=0)


@pytest.mark.parametrize(
    "message",
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
def test_unusual_messages_pass_through_unchanged(message: dict[object, object]) -> None:
    request = brim.fit([message], window=1_000)
    assert request.messages == [message]
    assert request.messages[0] is message


def test_a_history_stored_by_the_server_is_forwarded_with_a_warning() -> None:
    body = {"model": "gpt-4o", "input": "many words " * 400, "previous_response_id": "resp_1"}
    request = brim.fit(body, window=300, reply=100)
    assert dict(request) == body
    assert "server stores the history" in request.plan.warnings[0]
    assert not request.plan.exact
    assert brim.fit({"previous_response_id": "resp_1"}, window=300).messages == []


def test_an_object_of_a_client_library_raises_an_error_with_advice() -> None:
    class Reply:
        role = "assistant"

    with pytest.raises(brim.MessageError, match="Use a dict, a dataclass or a pydantic model"):
        brim.fit([*MESSAGES, Reply()], window=100)


@pytest.mark.parametrize(
    "call",
    [
        lambda: brim.fit(MESSAGES, model=5, window=100),  # type: ignore[arg-type]
        lambda: brim.count("x", model=5),  # type: ignore[arg-type]
        lambda: brim.fit(MESSAGES, window=100, pins=None),  # type: ignore[arg-type]
        lambda: brim.fit(MESSAGES, window=100, pins=["0"]),  # type: ignore[list-item]
        lambda: brim.fit(MESSAGES, window=100, tools=b"x"),
        lambda: brim.fit(MESSAGES, window=100, tools=[len]),
        lambda: brim.fit({"messages": MESSAGES, "max_tokens": "many"}, window=100),
        lambda: brim.fit(CYCLE, window=100),
        lambda: brim.fit({"conversation": MESSAGES}, window=100),
        lambda: brim.Client("http://127.0.0.1").send(MESSAGES),  # type: ignore[arg-type]
        lambda: brim.Session("gpt-4o").user([{"type": "text", "text": ""}]),
        lambda: brim.Session("gpt-4o").append({"role": "user"}),
        lambda: brim.count("x", tools=5),  # type: ignore[arg-type]
        lambda: brim.count(MESSAGES, tools=[NESTED]),
        lambda: brim.count(MESSAGES, tools=[{(1, 2): 3}]),
        lambda: brim.Session(5),  # type: ignore[arg-type]
        lambda: brim.Session("gpt-4o", format="xml"),  # type: ignore[arg-type]
        lambda: brim.Session("gpt-4o", tools="x"),
        lambda: brim.Session("gpt-4o", system=5),  # type: ignore[arg-type]
        lambda: brim.Client("http://127.0.0.1", count="often"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_a_wrong_type_raises_an_input_error(call: Callable[[], object]) -> None:
    with pytest.raises(brim.InputError):
        call()


def test_an_output_limit_that_is_no_number_is_named() -> None:
    with pytest.raises(brim.InputError, match="`max_tokens` is not a number: True"):
        brim.fit({"messages": MESSAGES, "max_tokens": True}, window=100)


def test_an_unknown_role_is_a_warning_in_the_plan() -> None:
    plan = brim.fit([*MESSAGES, {"role": "usr", "content": "x"}], window=100).plan
    assert plan.warnings == ["message 1: an unknown role"]
    assert not brim.fit(MESSAGES, window=100).plan.warnings


def test_fit_accepts_any_sequence_of_messages() -> None:
    assert brim.fit(deque(MESSAGES), window=100).messages == MESSAGES
