"""What was trimmed can be read again: by the model with a tool, by the user with `:recall`."""

from __future__ import annotations

from typing import Any

from brim.testing import ScriptedServer, TextReply, ToolCallReply
from tests.support.shell.driver import Home, home, list_sent_texts

__all__ = ["home"]

FACT = "My locker at the station in Lisbon has the number 4711."
COMMAND = "the user can send message N again with `:recall N`"
TALK = "\n".join(
    FACT if number == 5 else f"?Remark {number}: " + "nothing but words, really. " * 25
    for number in range(20)
)
ASKED = f"{TALK}\n?which locker was it\n"


def converse(home: Home, lines: str, *replies: Any, more: str = "") -> tuple[str, ScriptedServer]:
    """Send remarks, each with a short reply, then the replies to the last lines."""
    with ScriptedServer(["All right."] * 20 + list(replies), window=2_000) as provider:
        home.configure(provider, more, window=2_000, reply=100)
        done = home.run("--yes", lines=lines)
    assert done.returncode == 0, done.stderr
    return done.stdout, provider


def test_the_model_recalls_a_fact_that_left_the_window(home: Home) -> None:
    call = TextReply("Let me see.", [ToolCallReply("recall", {"query": "locker number"})])
    shown, provider = converse(home, ASKED, call, "4711!", more="[context]\nrecall = true")
    *_, asking, answered = provider.requests
    assert "recall" in str(provider.requests[0].body["tools"])
    assert FACT not in str(asking.body)
    assert f"omitted; call recall to read them; {COMMAND}]" in str(asking.body)
    result = answered.body["messages"][-1]
    assert result["role"] == "tool"
    assert FACT in result["content"]
    assert "4711!" in shown


def test_by_default_the_note_names_only_the_command_of_the_user(home: Home) -> None:
    lines = f"{ASKED}:recall 10\n?and now\n"
    _, provider = converse(home, lines, "I do not know.", "4711!")
    assert "tools" not in provider.requests[-1].body
    note = list_sent_texts(provider, -2)
    assert f"omitted; {COMMAND}]" in note
    assert FACT not in note
    assert FACT in list_sent_texts(provider)
