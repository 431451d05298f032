"""Typing at the prompt: classification before Enter, and key bindings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from brim.testing import ScriptedServer
from tests.support.shell.driver import PROGRAM, Home, Typist, home, texts
from tests.support.terminal import Start, Terminal, start_terminal

__all__ = ["home", "start_terminal"]


@pytest.fixture
def provider(home: Home) -> Iterator[ScriptedServer]:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        yield provider


def sees(shell: Typist, sign: str, line: str, reason: str) -> None:
    """Wait until the prompt shows this sign, line and reason."""

    def is_there() -> bool:
        typed = next((row for row in reversed(shell.terminal.screen) if f" {line}" in row), "")
        return typed.startswith(f"{sign} {line}") and reason in typed

    shell.wait(is_there, f"{sign} {line} … {reason}")


def test_the_kind_of_a_line_is_shown_before_enter(
    home: Home, provider: ScriptedServer, start_terminal: Start
) -> None:
    with home.shell(start=start_terminal) as shell:
        shell.terminal.type("who are you?")
        sees(shell, "›", "who are you?", "to the model: ")
        shell.terminal.press("ctrl-c")
        shell.at_prompt()
        shell.terminal.type("echo hello")
        sees(shell, "$", "echo hello", "command: ")
        shell.terminal.press("shift-tab")
        sees(shell, "›", "echo hello", "switched to language")
        shell.terminal.press("shift-tab")
        sees(shell, "$", "echo hello", "command: ")
        shell.terminal.press("shift-tab")
        sees(shell, "›", "echo hello", "switched to language")
        shell.terminal.press("enter")
        shell.at_prompt()
        assert texts(provider.requests[0])[1:] == ["echo hello"]
        shell.terminal.type("!who are you?")
        sees(shell, "$", "!who are you?", "forced by !")
        shell.terminal.press("ctrl-c")
        shell.at_prompt()
        shell.terminal.type("?ls -l")
        sees(shell, "›", "?ls -l", "forced by ?")
        shell.terminal.press("enter")
        shell.at_prompt()
        assert texts(provider.requests[1])[-1] == "ls -l"
        assert len(provider.requests) == 2


def test_language_switched_to_a_command_runs(home: Home, provider: ScriptedServer) -> None:
    (home.folder / ".bashrc").write_text("please() { echo ran with $#; }\n")
    with home.shell() as shell:
        shell.terminal.type("please tell me who is there")
        sees(shell, "›", "please tell me who is there", "to the model: ")
        shell.terminal.press("shift-tab")
        sees(shell, "$", "please tell me who is there", "switched to command")
        shell.terminal.press("enter")
        shell.terminal.wait_for("ran with 5")
        shell.at_prompt()
    assert provider.requests == []


def test_a_slip_in_a_command_is_asked_about(home: Home, provider: ScriptedServer) -> None:
    with home.shell() as shell:
        shell.expect_question("ecoh hi", "ask the model:")
        shell.expect_question("what?", "ask the model:")
        assert "type y or n" in shell.terminal.everything
        shell.terminal.line("y")
        shell.at_prompt()
        assert shell.since("ecoh hi").endswith("model: y\nhi\n\n")
        assert provider.requests == []
        shell.expect_question("ecoh hi", "ask the model:")
        assert "Aye." in shell.do("n")


def test_multiline_input(home: Home, provider: ScriptedServer) -> None:
    with home.shell() as shell:
        shell.terminal.type("the first line")
        shell.at_prompt("the first line")
        shell.terminal.press("alt-enter")
        shell.at("")
        shell.terminal.line("the second line")
        shell.at_prompt()
        assert texts(provider.requests[0])[-1] == "the first line\nthe second line"
        shell.terminal.paste("one pasted line\nand another one")
        shell.terminal.wait_for("and another one")
        assert len(provider.requests) == 1, "a paste is not sent by itself"
        shell.terminal.press("enter")
        shell.at_prompt()
        assert texts(provider.requests[1])[-1] == "one pasted line\nand another one"
        shell.terminal.type("echo one \\")
        shell.terminal.press("enter")
        shell.terminal.line("two")
        shell.terminal.wait_for("one two")
        shell.at_prompt()


def test_a_long_paste_is_clipped_and_saved(home: Home, provider: ScriptedServer) -> None:
    text = "\n".join(f"the line with number {number}" for number in range(3_000))
    with home.shell() as shell:
        shell.terminal.paste(f"what is wrong here?\n{text}")
        shell.terminal.wait_for("number 2999")
        shell.terminal.press("enter")
        shell.at_prompt()
        assert "Aye." in shell.terminal.everything
    message = texts(provider.requests[0])[-1]
    assert "what is wrong here?\nthe line with number 0\n" in message
    assert "the line with number 2999" in message
    (saved,) = (home.state / "outputs").glob("*/*.txt")
    assert saved.read_text().endswith(text)


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["echo 'one", "two'"], ["one", "two"]),
        (["for i in 1 2; do echo n$i", "done"], ["n1", "n2"]),
        (["echo many |", "tr m M"], ["Many"]),
        (
            ["cat <<EOF", "is this the text?", "", "it is", "EOF"],
            ["is this the text?", "", "it is"],
        ),
    ],
)
def test_an_incomplete_command_continues_on_the_next_line(
    home: Home, lines: list[str], shown: list[str]
) -> None:
    with home.shell() as shell:
        for line in lines:
            shell.terminal.line(line)
            shell.at("")
        shell.at_prompt()
        assert shell.since(lines[-1]).split("\n")[: len(shown)] == shown


def test_ctrl_z_suspends_brim(home: Home, provider: ScriptedServer) -> None:
    (home.folder / "rc").write_text("PS1='outer> '\n")
    outer = ["bash", "--noediting", "--rcfile", str(home.folder / "rc"), "-i"]
    with Terminal(
        outer, environment=home.environment, folder=home.folder, columns=150, rows=40
    ) as terminal:
        shell = Typist(terminal)
        shell.at("outer> ")
        terminal.line(shlex.join(PROGRAM))
        shell.at_prompt()
        terminal.type("who are")
        shell.at_prompt("who are")
        terminal.press("ctrl-z")
        shell.at("outer> ")
        terminal.line("echo out here")
        shell.at("outer> ")
        terminal.line("fg")
        shell.at_prompt("who are")
        terminal.line(" you?")
        shell.at_prompt()
        assert "Aye." in shell.since("who are you?")
        assert texts(provider.requests[0])[-1] == "who are you?"
        assert "^Z" not in terminal.everything


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(("columns", "is_told"), [(70, True), (50, False)])
def test_a_narrow_terminal_shows_no_reason(home: Home, columns: int, is_told: bool) -> None:
    with home.shell(columns=columns) as shell:
        shell.terminal.type("echo hi")
        shell.at("$ echo hi")
        assert ("command: " in "\n".join(shell.terminal.settle())) == is_told


def test_a_terminal_that_can_only_print(home: Home, provider: ScriptedServer) -> None:
    with home.shell(also={"TERM": "dumb"}) as shell:
        shell.terminal.type("echo onx")
        shell.at_prompt("echo onx")
        shell.terminal.press("backspace")
        shell.at_prompt("echo on")
        shell.terminal.line("e |")
        shell.at("")
        shell.terminal.line("tr o O")
        shell.terminal.wait_for(lambda screen: "One" in screen)
        shell.at_prompt()
        assert "Aye." in shell.do("who are you?")
        shell.leave()
        assert isinstance(shell.terminal, Terminal)
        assert b"\x1b" not in shell.terminal.written
    assert texts(provider.requests[0])[-1].endswith("who are you?")


def test_history_and_search(home: Home, provider: ScriptedServer) -> None:
    with home.shell() as shell:
        shell.do("export SERVICE_API_KEY=f81kQ0zx73Lw")
        shell.do("echo alpha")
        shell.do("the beta question")
        shell.leave()
    history = (home.state / "history").read_text()
    assert "alpha" in history
    assert "f81kQ0zx73Lw" not in history
    with home.shell() as shell:
        shell.terminal.press("up")
        shell.at("the beta question")
        shell.terminal.press("up")
        shell.at("echo alpha")
        shell.terminal.press("ctrl-c")
        shell.at_prompt()
        shell.terminal.press("ctrl-r")
        shell.terminal.wait_for("I-search")
        shell.terminal.type("alph")
        shell.terminal.wait_for("I-search backward: alph")
        shell.terminal.press("enter")
        shell.terminal.wait_for(lambda screen: not any("I-search" in row for row in screen))
        sees(shell, "$", "echo alpha", "command: ")
        shell.terminal.press("enter")
        shell.terminal.wait_for(lambda screen: "alpha" in screen)
        shell.at_prompt()
        shell.leave()
    assert len(provider.requests) == 1


def test_tab_completes(home: Home, provider: ScriptedServer) -> None:
    (home.folder / "a-long-name.txt").write_text("what it holds\n")
    other = f'[models.other]\nendpoint = "{provider.url}"\nwindow = 4000'
    home.configure(provider, other)
    with home.shell() as shell:
        shell.terminal.type(":conte")
        shell.at(":conte")
        shell.terminal.press("tab")
        shell.at(":context")
        shell.terminal.press("ctrl-c")
        shell.at_prompt()
        shell.terminal.type("cat a-lo")
        shell.at("cat a-lo")
        shell.terminal.press("tab")
        shell.at("cat a-long-name.txt")
        shell.terminal.press("enter")
        shell.terminal.wait_for("what it holds")
        shell.at_prompt()
        shell.terminal.type(":model ot")
        shell.at(":model ot")
        shell.terminal.press("tab")
        shell.at(":model other")
        shell.terminal.press("enter")
        shell.terminal.wait_for("other, 4,000 tokens")
        shell.at_prompt()


def test_discarding_a_line_and_leaving(home: Home, provider: ScriptedServer) -> None:
    with home.shell() as shell:
        shell.terminal.type("this is not to be sent")
        shell.at("this is not to be sent")
        shell.terminal.press("ctrl-c")
        shell.at_prompt()
        assert "Unknown command: :wrod" in shell.do(":wrod")
        assert "Did you mean :models?" in shell.do(":modles")
        shell.terminal.type("x")
        shell.at("x")
        shell.terminal.press("ctrl-d")
        shell.terminal.press("backspace")
        shell.at_prompt()
        shell.leave()
    assert provider.requests == []
