"""Commands that a model proposes, in the real shell."""

from __future__ import annotations

from brim.testing import ErrorReply, ScriptedServer
from tests.support.shell.driver import Home, home, sent
from tests.support.shell.replies import COMMAND, DESTRUCTIVE, answer, asks, events, shown
from tests.support.terminal import Terminal

__all__ = ["home"]


def test_run_skip_and_quit_are_reported_to_the_model(home: Home) -> None:
    said = "Look:\nCMD: echo one-$((1 + 0))\nCMD: touch skipped\nCMD: touch left\nCMD: touch rest"
    with ScriptedServer([said, "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("what is here?")
            for reply in ("y", "s", "q"):
                answer(shell, COMMAND, reply)
            shell.at_prompt()
            assert "one-1" in shown(shell)
            shell.do("and now?")
    told = sent(provider)
    assert "$ echo one-$((1 + 0))\none-1" in told
    for command in ("touch skipped", "touch left", "touch rest"):
        assert f"[brim] The user skipped `{command}`." in told
    assert not list(home.folder.glob("[slr][ke]*")), "none of the others was run"
    asked = events(home, "asked")
    assert [event["answer"] for event in asked] == ["run", "skip", "stop"]
    assert asked[0]["command"] == "echo one-$((1 + 0))"


def test_an_edited_command_is_assessed_again(home: Home) -> None:
    (home.folder / "kept").mkdir()
    with ScriptedServer(["CMD: ls kept", "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("what is in kept?")
            answer(shell, COMMAND, "e")
            asks(shell, "command: ls kept")
            shell.terminal.press("ctrl-a")
            shell.terminal.type("rm -r ")
            asks(shell, "command: rm -r")
            shell.terminal.press("ctrl-e")
            shell.terminal.press("enter")
            answer(shell, DESTRUCTIVE, "y")
            answer(shell, DESTRUCTIVE, "a")
            answer(shell, DESTRUCTIVE, "e")
            asks(shell, "command: rm -r ls kept")
            shell.terminal.press("ctrl-u")
            shell.terminal.line("echo instead")
            answer(shell, COMMAND, "y")
            shell.at_prompt()
            shell.do("and now?")
    assert (home.folder / "kept").is_dir()
    assert "$ echo instead\ninstead" in sent(provider)
    asked = [(event["command"], event["answer"]) for event in events(home, "asked")]
    assert asked == [
        ("ls kept", "edit"),
        ("rm -r ls kept", "edit"),
        ("echo instead", "run"),
    ]


def test_a_destructive_command_always_needs_the_whole_word(home: Home) -> None:
    for name in ("a", "b"):
        (home.folder / name).mkdir()
    said = "CMD: echo harmless\nCMD: rm -rf a\nCMD: echo $(rm -rf b)"
    with ScriptedServer([said, "Fine."]) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line("clean up")
            for reply in ("y", "a", "always", "yes please", "yes"):
                answer(shell, DESTRUCTIVE, reply)
            answer(shell, DESTRUCTIVE, "no")
            shell.at_prompt()
            assert 'type the whole word "yes"' in shown(shell)
            shell.do("and now?")
    assert not (home.folder / "a").exists()
    assert (home.folder / "b").exists()
    told = sent(provider)
    assert "$ echo harmless\nharmless" in told, "it ran without a question"
    assert "[brim] The user skipped `echo $(rm -rf b)`." in told
    asked = events(home, "asked")
    assert [event["answer"] for event in asked] == ["run", "skip"]
    assert all(event["destructive"] for event in asked)


def test_always_covers_a_prefix_persists_and_excludes_destructive_commands(home: Home) -> None:
    (home.folder / "kept").write_text("kept")
    (home.folder / ".git").mkdir()
    with ScriptedServer(
        ["CMD: echo one", "CMD: echo two", "CMD: echo gone > kept", "CMD: echo three"]
    ) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please say one")
            answer(shell, "[a]lways `echo`, [q]uit:", "a")
            shell.at_prompt()
            assert "$ echo two\ntwo" in shell.do("please say two")
            shell.terminal.line("please say gone")
            answer(shell, DESTRUCTIVE, "s")
            shell.leave()
        with home.shell() as shell:
            assert "$ echo three\nthree" in shell.do("please say three")
    assert (home.folder / "kept").read_text() == "kept"
    asked = [(event["command"], event["answer"]) for event in events(home, "asked")]
    assert asked == [("echo one", "always"), ("echo gone > kept", "skip")]


def test_an_explanation_is_not_part_of_the_conversation(home: Home) -> None:
    with ScriptedServer(["CMD: echo one", "It prints a word.", "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please say one")
            answer(shell, COMMAND, "x")
            shell.terminal.wait_for("It prints a word.")
            answer(shell, COMMAND, "y")
            shell.at_prompt()
            shell.do("and now?")
    explaining, last = sent(provider, 1), sent(provider, 2)
    assert "echo one" in explaining
    assert "please say one" not in explaining
    assert "It prints a word." not in last
    assert "Explain this" not in last


TRICKS = {
    "an escape sequence": ("echo a\x1b[2K; rm -rf x", "echo a␛[2K; rm -rf x"),
    "a carriage return": ("rm -rf x #\recho a", "rm -rf x #␍echo a"),
    "a direction of writing": ("rm -rf x # \u202eolleh ohce", "rm -rf x # \\u202eolleh ohce"),
    "too large": ("rm -rf x\u200b", "rm -rf x\\u200b"),
    "a backspace": ("rm -rf x" + "\b" * 8 + "echo a  ", "rm -rf x" + "␈" * 8 + "echo a"),
}


def test_a_command_cannot_hide_text_from_the_user(home: Home) -> None:
    said = "\n".join(f"CMD: {command}" for command, _ in TRICKS.values())
    with ScriptedServer(f"Look:\n{said}") as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line("please show me")
            for _, spelled in TRICKS.values():
                asks(shell, DESTRUCTIVE)
                lines = shell.terminal.screen
                place = max(n for n, line in enumerate(lines) if line.startswith("$ "))
                assert lines[place] == f"$ {spelled}"
                assert "⚠ rm -rf x" in lines[place + 1]
                shell.terminal.line("e")
                asks(shell, f"command: {spelled}")
                shell.terminal.press("enter")
                answer(shell, DESTRUCTIVE, "s")
            shell.at_prompt()
            assert isinstance(shell.terminal, Terminal)
            written = shell.terminal.written.decode()
    for hidden in ("\x1b[2K; rm", "\u202e", "\u200b", "\b" * 8, "#\recho"):
        assert hidden not in written


def test_the_end_of_a_long_line_is_shown(home: Home) -> None:
    (home.folder / "x").mkdir()
    command = "echo " + "a" * 300 + " " * 400 + "; rm -rf x"
    with ScriptedServer(f"CMD: {command}") as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line("please show me")
            asks(shell, DESTRUCTIVE)
            assert "; rm -rf x" in shown(shell).replace("CMD: ", "")
            assert shown(shell).count("rm -rf x") >= 2, "in the line, and as what is found in it"
            shell.terminal.line("s")
            shell.at_prompt()
    assert (home.folder / "x").is_dir()


def test_an_incomplete_command_is_reported_to_the_model(home: Home) -> None:
    with ScriptedServer(["CMD: echo 'open\nCMD: echo next", "Sorry."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please say one")
            answer(shell, DESTRUCTIVE, "yes")
            answer(shell, COMMAND, "y")
            shell.at_prompt()
            shell.do("and now?")
    told = sent(provider)
    assert "incomplete" in told
    assert "$ echo next\nnext" in told


def test_lone_surrogates_and_an_ended_shell_are_survived(home: Home) -> None:
    said = "Look \\ud800:\\nCMD: echo a\\ud800b\\nCMD: exit 3\\nCMD: echo next"
    message = f'{{"role": "assistant", "content": "{said}"}}'
    choice = f'{{"index": 0, "finish_reason": "stop", "message": {message}}}'
    raw = f'{{"id": "a", "object": "chat.completion", "choices": [{choice}]}}'
    with ScriptedServer([ErrorReply(200, raw=raw.encode()), "Fine."]) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            assert "a\ufffdb" in shell.do("please say something")
            assert "Fine." in shell.do("and now?")
            assert "wrote 4 turns to" in shell.do(":export talk.json")
    told = sent(provider)
    assert "$ echo a\ufffdb\na\ufffdb" in told
    assert "[The shell ended. The next command runs in a new one.]" in told
    assert "$ echo next\nnext" in told
    turns = [event["message"]["content"] for event in events(home, "turn")]
    assert turns[1].startswith("Look \ud800:"), "it is kept as it was said"


def test_ctrl_c_prevents_the_remaining_commands(home: Home) -> None:
    (home.folder / "x").mkdir()
    (home.folder / "log").write_text("begun\n")  # by one process: shells can miss an interrupt
    answers = [
        "CMD: tail -f log\nCMD: touch other",
        "CMD: rm -rf x\nCMD: touch other",
        "Fine.",
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line("please wait")
            shell.terminal.wait_for(lambda screen: "begun" in screen)
            shell.terminal.press("ctrl-c")
            answer(shell, COMMAND, "s")
            shell.at_prompt()
            shell.terminal.line("please clean up")
            asks(shell, DESTRUCTIVE)
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            shell.do("and now?")
    assert not (home.folder / "other").exists()
    told = sent(provider)
    assert "[exit code 130]" in told
    assert told.count("[brim] The user skipped `touch other`.") == 2
    assert "[brim] The user skipped `rm -rf x`." in told
    assert [event["answer"] for event in events(home, "asked")] == ["skip", "interrupt"]


def test_a_script_never_confirms(home: Home) -> None:
    (home.folder / "x").mkdir()
    with ScriptedServer(["CMD: rm -rf x\nCMD: echo harmless", "Fine."]) as provider:
        home.configure(provider)
        done = home.run("--yes", lines="please clean up\nand now?\n")
    assert done.returncode == 0, done.stderr
    assert (home.folder / "x").is_dir()
    assert "harmless" in done.stdout
    assert "[brim] The user skipped `rm -rf x`." in sent(provider)
