"""Commands that a model proposes, in the real shell."""

from __future__ import annotations

from brim.testing import ErrorReply, ScriptedServer
from tests.support.shell.driver import Home, home, list_sent_texts
from tests.support.shell.replies import COMMAND, DESTRUCTIVE, answer, asks, events, read_screen
from tests.support.terminal import Terminal

__all__ = ["home"]


def test_run_skip_and_quit_are_reported_to_the_model(home: Home) -> None:
    reply_text = "Look:\nCMD: mkdir -v one-$((1 + 0))"
    reply_text += "\nCMD: touch skipped\nCMD: touch left\nCMD: touch rest"
    with ScriptedServer([reply_text, "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("what is here?")
            for reply in ("y", "s", "q"):
                answer(shell, COMMAND, reply)
            shell.at_prompt()
            assert "directory 'one-1'" in read_screen(shell)
            shell.do("and now?")
    messages = list_sent_texts(provider)
    assert "$ mkdir -v one-$((1 + 0))\nmkdir: created directory 'one-1'" in messages
    for command in ("touch skipped", "touch left", "touch rest"):
        assert f"[brim] The user skipped `{command}`." in messages
    assert not list(home.folder.glob("[slr][ke]*")), "none of the others was run"
    questions = events(home, "asked")
    assert [event["answer"] for event in questions] == ["run", "skip", "stop"]
    assert questions[0]["command"] == "mkdir -v one-$((1 + 0))"


def test_an_edited_command_is_assessed_again(home: Home) -> None:
    (home.folder / "kept").mkdir()
    with ScriptedServer(["CMD: touch kept", "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("what is in kept?")
            answer(shell, COMMAND, "e")
            asks(shell, "command: touch kept")
            shell.terminal.press("ctrl-a")
            shell.terminal.type("rm -r ")
            asks(shell, "command: rm -r")
            shell.terminal.press("ctrl-e")
            shell.terminal.press("enter")
            answer(shell, DESTRUCTIVE, "y")
            answer(shell, DESTRUCTIVE, "a")
            answer(shell, DESTRUCTIVE, "e")
            asks(shell, "command: rm -r touch kept")
            shell.terminal.press("ctrl-u")
            shell.terminal.line("mkdir -v instead")
            answer(shell, COMMAND, "y")
            shell.at_prompt()
            shell.do("and now?")
    assert (home.folder / "kept").is_dir()
    assert "$ mkdir -v instead\nmkdir: created" in list_sent_texts(provider)
    questions = [(event["command"], event["answer"]) for event in events(home, "asked")]
    assert questions == [
        ("touch kept", "edit"),
        ("rm -r touch kept", "edit"),
        ("mkdir -v instead", "run"),
    ]


def test_a_destructive_command_always_needs_the_whole_word(home: Home) -> None:
    for name in ("a", "b"):
        (home.folder / name).mkdir()
    reply_text = "CMD: echo harmless\nCMD: rm -rf a\nCMD: echo $(rm -rf b)"
    with ScriptedServer([reply_text, "Fine."]) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line("clean up")
            for reply in ("y", "a", "always", "yes please", "yes"):
                answer(shell, DESTRUCTIVE, reply)
            answer(shell, DESTRUCTIVE, "no")
            shell.at_prompt()
            assert 'type the whole word "yes"' in read_screen(shell)
            shell.do("and now?")
    assert not (home.folder / "a").exists()
    assert (home.folder / "b").exists()
    messages = list_sent_texts(provider)
    assert "$ echo harmless\nharmless" in messages, "it ran without a question"
    assert "[brim] The user skipped `echo $(rm -rf b)`." in messages
    questions = events(home, "asked")
    assert [event["answer"] for event in questions] == ["run", "skip"]
    assert all(event["destructive"] for event in questions)


def test_always_covers_a_prefix_persists_and_excludes_destructive_commands(home: Home) -> None:
    (home.folder / "kept").write_text("kept")
    (home.folder / ".git").mkdir()
    with ScriptedServer(
        ["CMD: mkdir -v one", "CMD: mkdir -v two", "CMD: mkdir -v x > kept", "CMD: mkdir -v three"]
    ) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please say one")
            answer(shell, "[a]lways `mkdir`, [q]uit:", "a")
            shell.at_prompt()
            assert "$ mkdir -v two\nmkdir: created" in shell.do("please say two")
            shell.terminal.line("please say gone")
            answer(shell, DESTRUCTIVE, "s")
            shell.leave()
        with home.shell() as shell:
            assert "$ mkdir -v three\nmkdir: created" in shell.do("please say three")
    assert (home.folder / "kept").read_text() == "kept"
    questions = [(event["command"], event["answer"]) for event in events(home, "asked")]
    assert questions == [("mkdir -v one", "always"), ("mkdir -v x > kept", "skip")]


def test_a_read_only_command_runs_without_a_question(home: Home) -> None:
    (home.folder / "notes").write_text("three words here\n")
    with ScriptedServer(["CMD: wc -w notes\nCMD: cat notes | head -1", "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("please count")
            shell.do("and now?")
    assert "$ wc -w notes\n3 notes" in list_sent_texts(provider)
    assert "$ cat notes | head -1\nthree words here" in list_sent_texts(provider)
    assert events(home, "asked") == []


def test_an_alias_or_function_of_the_user_is_looked_into(home: Home) -> None:
    with ScriptedServer(["CMD: ls\nCMD: cat notes", "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("alias ls='touch made'; cat() { touch too; }")
            shell.terminal.line("please look")
            answer(shell, COMMAND, "s")
            answer(shell, COMMAND, "s")
            shell.at_prompt()
    assert not (home.folder / "made").exists()
    assert not (home.folder / "too").exists()


def test_a_script_of_the_model_is_as_dangerous_as_its_content(home: Home) -> None:
    (home.folder / "kept").mkdir()
    reply_text = "CMD: printf 'rm -rf kept' > clean.sh\nCMD: bash clean.sh\nCMD: ./clean.sh"
    with ScriptedServer([reply_text, "Fine."]) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line("please clean up")
            answer(shell, DESTRUCTIVE, "s")
            answer(shell, DESTRUCTIVE, "s")
            shell.at_prompt()
    assert (home.folder / "kept").is_dir()
    assert (home.folder / "clean.sh").exists()


def test_an_explanation_is_not_part_of_the_conversation(home: Home) -> None:
    with ScriptedServer(["CMD: touch one", "It makes a file.", "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please say one")
            answer(shell, COMMAND, "x")
            shell.terminal.wait_for("It makes a file.")
            answer(shell, COMMAND, "y")
            shell.at_prompt()
            shell.do("and now?")
    explaining, last = list_sent_texts(provider, 1), list_sent_texts(provider, 2)
    assert "touch one" in explaining
    assert "please say one" not in explaining
    assert "It makes a file." not in last
    assert "Explain this" not in last


TRICKS = {
    "an escape sequence": ("echo a\x1b[2K; rm -rf x", "echo a␛[2K; rm -rf x"),
    "a carriage return": ("rm -rf x #\recho a", "rm -rf x #␍echo a"),
    "a direction of writing": ("rm -rf x # \u202eolleh ohce", "rm -rf x # \\u202eolleh ohce"),
    "too large": ("rm -rf x\u200b", "rm -rf x\\u200b"),
    "a backspace": ("rm -rf x" + "\b" * 8 + "echo a  ", "rm -rf x" + "␈" * 8 + "echo a"),
}


def test_a_command_cannot_hide_text_from_the_user(home: Home) -> None:
    reply_text = "\n".join(f"CMD: {command}" for command, _ in TRICKS.values())
    with ScriptedServer(f"Look:\n{reply_text}") as provider:
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
            assert "; rm -rf x" in read_screen(shell).replace("CMD: ", "")
            assert read_screen(shell).count("rm -rf x") >= 2, (
                "in the line, and as what is found in it"
            )
            shell.terminal.line("s")
            shell.at_prompt()
    assert (home.folder / "x").is_dir()


def test_an_incomplete_command_is_reported_to_the_model(home: Home) -> None:
    with ScriptedServer(["CMD: echo 'open\nCMD: echo next", "Sorry."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("please say one")
            answer(shell, DESTRUCTIVE, "yes")
            shell.at_prompt()
            shell.do("and now?")
    messages = list_sent_texts(provider)
    assert "incomplete" in messages
    assert "$ echo next\nnext" in messages


def test_lone_surrogates_and_an_ended_shell_are_survived(home: Home) -> None:
    reply_text = "Look \\ud800:\\nCMD: echo a\\ud800b\\nCMD: exit 3\\nCMD: echo next"
    message = f'{{"role": "assistant", "content": "{reply_text}"}}'
    choice = f'{{"index": 0, "finish_reason": "stop", "message": {message}}}'
    raw = f'{{"id": "a", "object": "chat.completion", "choices": [{choice}]}}'
    with ScriptedServer([ErrorReply(200, raw=raw.encode()), "Fine."]) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            assert "a\ufffdb" in shell.do("please say something")
            assert "Fine." in shell.do("and now?")
            assert "wrote 4 turns to" in shell.do(":export talk.json")
    messages = list_sent_texts(provider)
    assert "$ echo a\ufffdb\na\ufffdb" in messages
    assert "[The shell ended. The next command runs in a new one.]" in messages
    assert "$ echo next\nnext" in messages
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
    messages = list_sent_texts(provider)
    assert "[exit code 130]" in messages
    assert messages.count("[brim] The user skipped `touch other`.") == 2
    assert "[brim] The user skipped `rm -rf x`." in messages
    assert [event["answer"] for event in events(home, "asked")] == ["skip", "interrupt"]


def test_a_script_never_confirms(home: Home) -> None:
    (home.folder / "x").mkdir()
    with ScriptedServer(["CMD: rm -rf x\nCMD: echo harmless", "Fine."]) as provider:
        home.configure(provider)
        done = home.run("--yes", lines="please clean up\nand now?\n")
    assert done.returncode == 0, done.stderr
    assert (home.folder / "x").is_dir()
    assert "harmless" in done.stdout
    assert "[brim] The user skipped `rm -rf x`." in list_sent_texts(provider)
