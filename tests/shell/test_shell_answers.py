"""Replies in the shell: they are streamed, can be stopped, and no message is lost."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from brim.testing import ErrorReply, ScriptedServer, TextReply
from tests.support.shell.driver import Home, home, last_words, list_sent_texts, texts
from tests.support.terminal import Start, start_terminal

__all__ = ["home", "start_terminal"]

PRICED = "price = {input = 1000.0, output = 1000.0}"


def long(body: Any) -> str:
    """Return a long reply, unless the message asks for a short one."""
    if "briefly" in last_words(body):
        return "Short."
    return f"About {last_words(body)[-30:]}: " + "and so on. " * 40


def test_a_reply_is_shown_while_it_arrives(home: Home, start_terminal: Start) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("First words and then the last ones.", hold=hold)]) as provider:
        home.configure(provider)
        with home.shell(start=start_terminal) as shell:
            shell.terminal.line("please speak slowly")
            shell.terminal.wait_for("First")
            assert "the last ones" not in shell.terminal.everything
            hold.set()
            shell.terminal.wait_for("First words and then the last ones.")
            shell.at_prompt()


def test_ctrl_c_keeps_the_partial_reply(home: Home) -> None:
    hold = threading.Event()
    with ScriptedServer([TextReply("One two three.", hold=hold), "Go on."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please count to three")
            shell.terminal.wait_for("One")
            shell.terminal.press("ctrl-c")
            shell.terminal.wait_for("the partial reply is kept")
            shell.at_prompt()
            assert "Go on." in shell.do("and after that?")
            assert texts(provider.requests[1])[1:] == [
                "please count to three", "One", "and after that?"
            ]  # fmt: skip
    assert len(provider.abandoned) == 1, "the server saw the client disconnect"


def test_ctrl_c_before_the_reply_restores_the_message(home: Home) -> None:
    is_asked, hold = threading.Event(), threading.Event()

    def wait(_body: Any) -> str:
        is_asked.set()
        hold.wait(60)
        return "Too late."

    with ScriptedServer(wait) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please hurry up")
            is_asked.wait(60)
            shell.terminal.press("ctrl-c")
            shell.terminal.wait_for("your message is back in the prompt")
            shell.at_prompt("please hurry up")
            hold.set()
            shell.terminal.press("ctrl-c")
            assert "no messages yet" in shell.do(":history")


def test_a_rejected_message_is_back_in_the_prompt(home: Home) -> None:
    is_well = threading.Event()

    def moody(_body: Any) -> str | ErrorReply:
        return "Better now." if is_well.is_set() else ErrorReply(500, "out of order", retry_after=0)

    with ScriptedServer(moody) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("echo printed before")
            shell.terminal.line("?are you well today")
            shell.terminal.wait_for("out of order")
            shell.terminal.wait_for("your message is back in the prompt")
            shell.at("are you well today")
            is_well.set()
            failed = len(provider.requests)
            shell.terminal.press("enter")
            shell.terminal.wait_for("Better now.")
            shell.at_prompt()
    assert texts(provider.requests[failed]) == texts(provider.requests[0])
    assert "printed before" in last_words(provider.requests[failed].body)


def test_a_message_that_cannot_fit_is_an_error_and_not_lost(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider, window=600, reply=100)
        with home.shell(columns=100) as shell:
            huge = "?what is this: " + "over and over again " * 150 + "the end"
            shell.terminal.paste(huge)
            shell.terminal.wait_for("the end")
            shell.terminal.press("enter")
            shell.terminal.wait_for("press the up key to get your message back")
            shell.at_prompt()
            shell.terminal.press("up")
            shell.at("again the end")
            output = shell.terminal.everything
            assert re.search(r"brim: .*tokens", output)
            assert "Traceback" not in output
            shell.terminal.press("ctrl-c")
            assert "Aye." in shell.do("a short one instead?")
    assert len(provider.requests) == 1


def test_a_trim_is_reported_once(home: Home) -> None:
    with ScriptedServer(long, window=1_600) as provider:
        home.configure(provider, window=1_600, reply=300)
        with home.shell(rows=50) as shell:
            shell.do("?question 0")
            number = 0
            while "dropped" not in (shown := shell.do(f"?question {number + 1}")):
                number += 1
            line = re.search(r"^· .*dropped (\d+)(.*)$", shown, re.MULTILINE)
            assert line is not None
            assert re.search(r"([\d,]+) → ([\d,]+) tokens", line[2])
            assert ":recall N brings one back" in line[2]
            # The next requests use the same trim, so there is nothing new to report.
            assert "dropped" not in shell.do("?more of it, briefly")
            assert "dropped" not in shell.do("?and briefly once more")
    assert provider.rejected == []
    cut = texts(provider.requests[-3])
    assert texts(provider.requests[-1])[: len(cut)] == cut, "the prefix stays as it was"


@pytest.mark.parametrize("key", ["cap_at_dollars", "cap_per_day_dollars"])
def test_a_cap_rejects_before_anything_is_sent(home: Home, key: str) -> None:
    with ScriptedServer("Dear.") as provider:
        home.configure(provider, PRICED, f"[cost]\n{key} = 1.05", window=1_000, reply=500)
        with home.shell() as shell:
            assert "Dear." in shell.do("?how are you")
            shell.terminal.line("?how are you now")
            shell.terminal.wait_for("your message is back in the prompt")
            assert "cap" in shell.terminal.everything
            assert len(provider.requests) == 1
        with home.shell() as shell:
            shell.terminal.line("?and how are you another day")
            if key == "cap_per_day_dollars":
                shell.terminal.wait_for("your message is back in the prompt")
            else:
                shell.terminal.wait_for("Dear.")
    assert len(provider.requests) == (1 if key == "cap_per_day_dollars" else 2)


def test_the_fallback_model_replies(home: Home) -> None:
    with (
        ScriptedServer(lambda _body: ErrorReply(500, retry_after=0)) as ill,
        ScriptedServer("Here.") as well,
    ):
        home.configure(ill, 'fallback = "other"', f'[models.other]\nendpoint = "{well.url}"')
        with home.shell() as shell:
            shown = shell.do("?is anybody there")
            assert "asking other instead" in shown
            assert "Here." in shown
    assert "is anybody there" in list_sent_texts(well)


def test_colors_depend_on_the_environment(home: Home) -> None:
    with ScriptedServer("Some **bold** words.") as provider:
        home.configure(provider)
        for setting, is_plain in ({}, False), ({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, True):
            with home.shell(also=setting) as shell:
                shell.terminal.line("?say something")
                shell.terminal.wait_for(" words.")
                shell.at_prompt()
                drawn = shell.terminal.ansi()
            assert bool(re.search(r"\x1b\[[\d;]*[39][0-7]m", drawn)) is not is_plain, setting


def test_a_note_that_a_model_copies_is_not_shown(home: Home) -> None:
    with ScriptedServer(
        ["[brim: 12 messages (about 340 tokens) omitted]\nAye.", "[br"]
    ) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shown = shell.do("?say aye")
            assert "Aye." in shown
            assert "omitted" not in shown
            assert "[br" in shell.do("?say more")
