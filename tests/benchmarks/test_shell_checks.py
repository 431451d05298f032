"""The checks of the shell's promises detect every kind of error."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks.promises.relay import Exchange
from benchmarks.promises.shell_checks import Event, TypedInput, find_problems, is_sum_correct

CONTEXT_VIEW = [
    ": :context",
    "small · ~245 of 2,000 tokens · ~14 % of the limit",
    "",
    "                  ~tokens  share  price  to free it",
    "■ system               77  3.9 %      –",
    "■ tool results        168  8.4 %      –  :compact",
    "░ reply               200   10 %      –",
    "· free              1,555   78 %      –",
    "  window            2,000",
    "›",
]


def turn(role: str, content: str, output: str = "") -> Event:
    message = {"role": role, "content": content, "_output": output}
    return Event("one", "turn", {"message": message})


def exchange(text: str, answer: str, *, status: int = 200, tokens: int = 9) -> Exchange:
    event = {"choices": [{"delta": {"content": answer}}], "usage": {"prompt_tokens": tokens}}
    body = {"messages": [{"role": "user", "content": text}]}
    return Exchange(body, status, f"data: {json.dumps(event)}\n\n".encode(), is_over=True)


def ran(name: str) -> list[Event]:
    output = Event("one", "output", {"text": f"$ echo {name}"})
    return [output, Event("one", "ran", {"command": f"echo {name}; false"})]


FIRST = [turn("user", "a"), turn("assistant", "A")]
SECOND = [*ran("made-1"), turn("user", "b", output="$ echo made-1"), *ran("made-2")]
SENT = [exchange("a", "A"), exchange("$ echo made-1\n\nb", "B!")]


def list_problems(
    events: Sequence[Event], exchanges: Sequence[Exchange], window: int = 10
) -> list[str]:
    typed = TypedInput(
        sent=["a", "b"], maybe={"c"}, interrupted={"b", "c"}, printed=["made-1", "made-2"]
    )
    return list(find_problems(events, exchanges, typed, window))


def test_a_correct_run_has_no_findings() -> None:
    assert list_problems([*FIRST, *SECOND], SENT) == []
    third = [turn("assistant", "B"), turn("user", "c", output="$ echo made-2")]
    assert list_problems([*FIRST, *SECOND, *third], SENT) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (FIRST, "lost: 'b'"),
        ([*FIRST, *SECOND, *SECOND], "there 2 times: 'b'"),
        ([*FIRST, *SECOND, *ran("made-2")], "3 commands in the file, 2 were run"),
        ([*FIRST, *ran("made-1"), turn("user", "b")], "with 'b' was sent '', not '$ echo made-1'"),
        ([*SECOND, *FIRST], "2 lines in the file are not the 2 that were sent"),
        ([FIRST[0], *SECOND], "the answer to 'a' is '', not 'A'"),
        ([FIRST[0], turn("assistant", "?"), *SECOND], "the answer to 'a' is '?', not 'A'"),
        (
            [*FIRST, *SECOND, turn("assistant", "?")],
            "the interrupted answer to 'b' is '?', not of 'B!'",
        ),
        ([*FIRST, *SECOND, Event("two", "note", {})], "there are 2 conversations"),
        ([*FIRST, *SECOND, Event("one", "back", {"length": 0})], "taken back: {'length': 0}"),
    ],
)
def test_errors_in_the_conversation_file_are_found(events: list[Event], problem: str) -> None:
    assert problem in list_problems(events, SENT)


@pytest.mark.parametrize(
    ("exchanges", "problem"),
    [
        (SENT[:1], "sent 0 times: 'b'"),
        ([*SENT, SENT[0]], "sent 2 times: 'a'"),
        ([*SENT, exchange("d", "", status=400)], "status 400"),
        ([*SENT, exchange("d", "", tokens=11)], "11 tokens in a window of 10"),
        ([SENT[0], exchange("b", "B!")], "not sent with 'b': '$ echo made-1'"),
    ],
)
def test_errors_in_the_requests_are_found(exchanges: list[Exchange], problem: str) -> None:
    assert problem in list_problems([*FIRST, *SECOND], exchanges)


def test_rows_with_wrong_totals_are_found() -> None:
    assert is_sum_correct(CONTEXT_VIEW, 2_000)
    assert not is_sum_correct(CONTEXT_VIEW, 2_048)
    assert not is_sum_correct([line.replace("168", "167") for line in CONTEXT_VIEW], 2_000)
    assert not is_sum_correct(["brim: the window is not known", "›"], 2_000)
