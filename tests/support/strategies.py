"""Histories for tests: from a short sketch, or generated."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

Raw = dict[str, Any]

WORDS = (
    *("error", "parser", "window", "token", "budget", "the", "of", "and", "reads", "writes"),
    *("file", "line", "value", "result", "index", "name", "fn()", "{}", "//", "src/brim/plan.py"),
    *("4711", "naïve", "日本語", "🙂", "failed", "ok", "done"),
)


def text(words: int, seed: int = 0) -> str:
    """Return text of about this many words, in lines, different for every seed."""
    out = []
    for place in range(words):
        word = WORDS[(place * 7 + seed * 13 + place // 5) % len(WORDS)]
        out.append(f"{word}{seed}" if place % 9 == 0 else word)
    return "".join(word + ("\n" if place % 11 == 10 else " ") for place, word in enumerate(out))


def history(sketch: str) -> list[Raw]:
    """Build a history from a sketch: `s10 u5 a20 c30 r900 r5 u1`.

    A letter and a number of words: system, developer, user, assistant, a call (an assistant turn
    without text; `cc30` calls twice), a result for the next unanswered call, an orphaned result
    `o`. A `!` pins the message, `+2` sets its priority.
    """
    messages: list[Raw] = []
    waiting: list[str] = []
    for place, item in enumerate(sketch.split()):
        match = re.fullmatch(r"(s|d|u|a|c+|r|o)(\d+)(!?)(?:\+(-?\d+))?", item)
        assert match, item
        kind, words, pin, priority = match.groups()
        body = text(int(words), place)
        if kind[0] == "c":
            waiting = [f"call-{place}-{number}" for number in range(len(kind))]
            message: Raw = {
                "role": "assistant",
                "content": None,
                "tool_calls": [call(name, body) for name in waiting],
            }
        elif kind in "ro":
            name = waiting.pop(0) if kind == "r" else "orphan"
            message = {"role": "tool", "tool_call_id": name, "content": body}
        else:
            roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
            message = {"role": roles[kind], "content": body}
        if pin:
            message["_pin"] = True
        if priority:
            message["_priority"] = int(priority)
        messages.append(message)
    return messages


def call(name: str, arguments: str) -> Raw:
    return {
        "id": name,
        "type": "function",
        "function": {"name": "run", "arguments": '{"command": "' + arguments[:40].strip() + '"}'},
    }


_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)

sizes = st.one_of(st.integers(0, 12), st.integers(0, 80), st.sampled_from((200, 600)))


@st.composite
def contents(draw: st.DrawFn, empty: bool = False) -> Any:
    words = draw(sizes) if empty else max(1, draw(sizes))
    body = text(words, draw(st.integers(0, 40)))
    if draw(st.integers(0, 9)) < 8:
        return body
    parts: list[Raw] = [{"type": "text", "text": body}]
    if draw(st.booleans()):
        parts.append({"type": "image_url", "image_url": {"url": _PIXEL, "detail": "low"}})
    if draw(st.booleans()):
        parts.append({"type": "text", "text": text(draw(sizes), 41)})
    if draw(st.integers(0, 5)) == 0:
        parts.append({"type": "odd", "value": [1, 2]})
    return parts


@st.composite
def steps(draw: st.DrawFn, faults: bool) -> list[Raw]:
    """An assistant turn with its results, in any order, possibly incomplete."""
    number = draw(st.sampled_from((1, 1, 1, 2, 3)))
    first = draw(st.integers(0, 5))  # ids are reused in later turns, as in real histories
    ids = [f"call{first + place}" for place in range(number)]
    content = draw(st.one_of(st.none(), st.just(""), contents()))
    calling: Raw = {
        "role": "assistant",
        "content": content,
        "tool_calls": [call(name, text(draw(sizes), 3)) for name in ids],
    }
    if draw(st.integers(0, 7)) == 0:
        calling["reasoning_content"] = text(draw(sizes), 5)
    results = [
        {"role": "tool", "tool_call_id": name, "content": draw(contents(empty=True))}
        for name in draw(st.permutations(ids))
    ]
    if faults and draw(st.integers(0, 7)) == 0:
        results = results[: draw(st.integers(0, number - 1))]
    return [calling, *results]


tasks = st.lists(
    st.sampled_from(("uttttta", "utttt", "utttttttt", "uttasttttta", "ua")), min_size=2, max_size=4
).map("".join)
"""The kinds of messages of a session in which most exchanges are tasks with several steps."""


@st.composite
def histories(draw: st.DrawFn, faults: bool = True, marks: bool = True) -> list[Raw]:
    """A realistic conversation: with tools, parts, pins and, if requested, defects."""
    messages: list[Raw] = []
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2)))):
        role = draw(st.sampled_from(("system", "developer")))
        messages.append({"role": role, "content": draw(contents())})
    mixed = st.text("uuaatttttts" + ("o" if faults else "t"), max_size=24)
    for kind in draw(st.one_of(mixed, tasks)):
        if kind == "t":
            messages += draw(steps(faults))
        elif kind == "o":
            messages.append({"role": "tool", "tool_call_id": "stray", "content": "lost"})
        elif kind == "s":
            if draw(st.integers(0, 3)) == 0:
                messages.append({"role": "system", "content": draw(contents())})
        else:
            role = "user" if kind == "u" else "assistant"
            messages.append({"role": role, "content": draw(contents())})
    if marks:
        for message in messages:
            if draw(st.integers(0, 25)) == 0:
                message["_pin"] = True
            if draw(st.integers(0, 25)) == 0:
                message["_priority"] = draw(st.integers(-2, 2))
    return messages


limits = st.one_of(st.integers(0, 60), st.integers(0, 600), st.integers(200, 4_000))
policies = st.sampled_from(("steady", "thrift", "rolling", "sliding", "recall"))
