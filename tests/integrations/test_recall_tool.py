"""`RecallTool`: the tool that an agent of any framework gets to read what was trimmed."""

from __future__ import annotations

from typing import Any

from brim.integrations.adapter import MessageFitter, RecallTool

FACT = "My locker at the station in Lisbon has the number 4711."
TALK: list[Any] = [
    {"role": role, "content": FACT if number == 24 else f"{number} " + "nothing but words. " * 15}
    for number, role in enumerate(("user", "assistant") * 30)
]


def test_it_answers_from_the_last_request_and_notes_name_it() -> None:
    tool = RecallTool()
    fitter = MessageFitter(window=2_000, reply=100, recall=tool)
    assert tool.recall("locker").startswith("No omitted text")
    request = fitter.fit(TALK, "gpt-4o")
    assert FACT not in str(request.messages)
    (note,) = request.plan.notes
    assert note.text.endswith("omitted; call recall to read them]")
    found = f"[message 24, user]\n{FACT}"
    assert tool.recall("number of the locker") == tool.recall(message=24) == found
    assert tool.recall() == "Give a query (a text) or message (a number)."


def test_without_it_notes_promise_nothing() -> None:
    request = MessageFitter(window=2_000, reply=100).fit(TALK, "gpt-4o")
    assert "recall" not in str(request.messages)
