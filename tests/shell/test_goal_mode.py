"""Goal mode in the real shell."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from brim.shell.sandbox import find_kind
from brim.testing import ErrorReply, ScriptedReply, ScriptedServer, TextReply
from tests.support.shell.driver import Home, home, list_sent_texts, texts
from tests.support.shell.replies import COMMAND, DESTRUCTIVE, answer, asks, events, read_screen

__all__ = ["home"]

GOAL = "make a file"
needs_sandbox = pytest.mark.skipif(
    find_kind()[0] is None, reason=f"no sandbox works on this machine: {find_kind()[1]}"
)
PRICE = "price = {input = 1000.0, output = 1000.0}"


def list_endings(home: Home) -> list[tuple[str, str]]:
    return [(event["why"], event["words"]) for event in events(home, "goal_ended")]


def test_a_goal_is_reached(home: Home) -> None:
    project = home.folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / "a-file").touch()
    answers = [
        "Hello.",
        "First:\nCMD: touch made",
        "GOAL: complete\nIt is made.",
        "You are welcome.",
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider, "short_view = true", PRICE, "[short_view]", "keep_turns = 1")
        with home.shell("--yes", folder=project) as shell:
            shell.do(":memory add likes tea")
            shell.do("hello there, how are you?")
            seen = shell.do(f":goal {GOAL}")
            assert "step 1 of 25" in seen
            assert "step 2 of 25" in seen
            assert "It is made." in seen
            assert "goal complete · 2 steps" in seen
            shell.do("thank you for it")
            bill = shell.do(":cost detail")
            assert any("goal" in line and " 2 " in line for line in bill.split("\n")), bill
    assert (project / "made").exists()
    before, first, second, after = (texts(request) for request in provider.requests)
    assert "[background]" in before[0]
    assert "[project]" in before[0]
    assert first[1:] == ["hello there, how are you?", "Hello.", GOAL], "no short view, and a turn"
    for system in (first[0], second[0]):
        assert system.endswith(f"The goal: {GOAL}")
        assert "CMD: " in system
        assert "[background]" not in system
        assert "[project]" not in system
    assert "$ touch made\n(no output)" in second[-1]
    assert after[0] == before[0], "memory and project are back, and the goal is gone"
    assert list_endings(home) == [("complete", "It is made.")]


def test_a_blocked_goal_confirms_destructive_commands(home: Home) -> None:
    for name in ("kept", "lost"):
        (home.folder / name).mkdir()
    answers = [
        "CMD: echo harmless\nCMD: rm -rf kept",
        "CMD: rm -rf lost",
        "I cannot.\nGOAL: blocked: not allowed",
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.terminal.line(f":norris {GOAL}")
            answer(shell, DESTRUCTIVE, "n")
            answer(shell, DESTRUCTIVE, "y")
            answer(shell, DESTRUCTIVE, "yes")
            shell.at_prompt()
            assert "goal blocked: not allowed · 3 steps" in read_screen(shell)
    assert (home.folder / "kept").is_dir()
    assert not (home.folder / "lost").exists()
    texts_sent = texts(provider.requests[1])[-1]
    assert "$ echo harmless\nharmless" in texts_sent
    assert "[brim] The user skipped `rm -rf kept`." in texts_sent
    assert [event["answer"] for event in events(home, "asked")] == ["skip", "run"]
    assert list_endings(home) == [("blocked", "not allowed")]


def test_limits_end_a_goal(home: Home) -> None:
    with ScriptedServer("CMD: true") as provider, ScriptedServer("CMD: true") as free:
        other = f'[models.free]\nendpoint = "{free.url}"\nmodel = "own"\nwindow = 9000\n'
        home.configure(provider, PRICE, other + "[goal]", "max_steps = 2")
        with home.shell() as shell:
            assert "stopped at its step limit (goal.max_steps) · 2 steps" in shell.do(
                f":goal {GOAL}"
            )
        home.configure(provider, PRICE, other + "[goal]", "max_tokens = 500")
        with home.shell() as shell:
            assert "stopped at its token limit (goal.max_tokens)" in shell.do(f":goal {GOAL}")
        home.configure(provider, PRICE, other + "[goal]", "max_dollars = 0.2")
        with home.shell("-m", "free") as shell:
            # Earlier requests to a model without a price do not hide the cost of the goal.
            shell.do("hello there, how are you?")
            shell.do(":model fast")
            assert "stopped at its cost limit (goal.max_dollars)" in shell.do(f":goal {GOAL}")


def test_three_replies_without_an_action_end_a_goal(home: Home) -> None:
    with ScriptedServer("I could do that.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            seen = shell.do(f":goal {GOAL}")
            assert "goal blocked: 3 replies in a row without an action" in seen
            shell.do(":reset")
            shell.do("hello there, how are you?")
    assert len(provider.requests) == 4
    assert "contains no action" in texts(provider.requests[1])[-1]
    system, words = texts(provider.requests[3])
    assert "The goal" not in system
    assert words == "hello there, how are you?"


def test_ctrl_c_ends_a_goal_at_any_point(home: Home) -> None:
    (home.folder / "kept").mkdir()
    (home.folder / "log").write_text("begun\n")  # by one process: shells can miss an interrupt
    hold = threading.Event()
    answers: list[ScriptedReply] = [
        "CMD: tail -f log\nCMD: touch second",
        "CMD: rm -rf kept",
        TextReply("Well, CMD: or not\nCMD: touch third", hold=hold),
        "Fine.",
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line(f":goal {GOAL}")
            shell.terminal.wait_for(lambda screen: "begun" in screen)
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            assert re.search(r"goal interrupted · 1 step · [1-9]\d* tokens", read_screen(shell))
            shell.terminal.line(":goal another one")
            asks(shell, DESTRUCTIVE)
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            shell.terminal.line(":goal a third one")
            shell.terminal.wait_for("Well,")
            shell.terminal.press("ctrl-c")
            shell.at_prompt()
            assert read_screen(shell).count("goal interrupted") == 3
            shell.do("and now, what is left to do?")
    hold.set()
    assert sorted(path.name for path in home.folder.glob("[kst]*")) == ["kept", "state"]
    texts_sent = list_sent_texts(provider)
    assert "[exit code 130]" in texts_sent
    assert "[brim] The user skipped `touch second`." in texts_sent
    assert "[brim] The user skipped `rm -rf kept`." in texts_sent
    assert "Well," in texts_sent, "the partial reply is kept"
    assert "The goal:" not in texts_sent
    assert [why for why, _ in list_endings(home)] == ["interrupted"] * 3


def test_a_failing_model_ends_a_goal_and_restores_the_line(home: Home) -> None:
    fault = ErrorReply(401, "no such key")
    with ScriptedServer([fault, "CMD: echo one", fault, "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line(f":goal {GOAL}")
            shell.wait(lambda: "back in the prompt" in read_screen(shell))
            shell.at(f" :goal {GOAL}")
            shell.terminal.press("enter")
            shell.at_prompt()
            assert read_screen(shell).count("no such key") == 2, "each is told once"
            assert read_screen(shell).count("goal failed") == 2
            shell.do("and now, what is left to do?")
    texts_sent = texts(provider.requests[-1])
    assert texts_sent.count(GOAL) == 1
    assert "The goal" not in texts_sent[0]
    assert any("$ echo one\none" in text for text in texts_sent)


def test_goal_mode_does_not_survive_a_killed_shell(home: Home) -> None:
    hold = threading.Event()
    with ScriptedServer(["CMD: echo one", TextReply("Well, well", hold=hold), "Fine."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line(f":goal {GOAL}")
            shell.terminal.wait_for("Well,")
            shell.terminal.kill()
        hold.set()
        with home.shell("resume") as shell:
            shell.do("and now, what is left to do?")
    texts_sent = texts(provider.requests[-1])
    assert "The goal" not in texts_sent[0]
    assert any("$ echo one\none" in text for text in texts_sent)


def test_a_script_destroys_nothing(home: Home) -> None:
    (home.folder / "kept").mkdir()
    answers = ["CMD: rm -rf kept\nCMD: touch made", "GOAL: complete", "GOAL: blocked, by that"]
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        done = home.run("--yes", lines=f":goal {GOAL}\n:goal another\ntouch never\n")
    assert done.returncode == 1
    assert not (home.folder / "never").exists(), "what fails ends a script"
    assert (home.folder / "kept").is_dir()
    assert (home.folder / "made").exists()
    assert "goal complete" in done.stderr
    assert "[brim] The user skipped `rm -rf kept`." in list_sent_texts(provider, 1)


@pytest.fixture
def project(home: Home) -> Path:
    folder = home.folder / "project"
    (folder / ".git").mkdir(parents=True)
    return folder


@needs_sandbox
def test_commands_run_in_a_sandbox_without_a_question(home: Home, project: Path) -> None:
    outside = home.folder / "outside"
    outside.write_text("kept")
    answers = [
        f"CMD: echo a > made; echo b >> {outside}\nCMD: cd sub\nCMD: touch here",
        'CMD: echo "key: ${MY_API_KEY-none}" | tee -a made',
        "GOAL: complete",
    ]
    (project / "sub").mkdir()
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        with home.shell(folder=project, also={"MY_API_KEY": "abcdefgh12345678"}) as shell:
            seen = shell.do(f":goal {GOAL}")
            assert "commands run in a sandbox" in seen
            assert shell.do("pwd").rstrip().endswith("/sub"), "cd changes the user's shell"
    assert (project / "made").read_text() == "a\n"
    assert (project / "sub" / "here").exists()
    assert (project / "sub" / "made").read_text() == "key: none\n"
    assert outside.read_text() == "kept"
    assert events(home, "asked") == []
    ran = [(event["command"], "sandbox" in event) for event in events(home, "ran")]
    assert [is_inside for command, is_inside in ran if command != "pwd"] == [
        True, False, True, True,
    ]  # fmt: skip
    assert "run in a sandbox" in texts(provider.requests[0])[0]


@needs_sandbox
def test_changes_inside_the_project_are_applied_without_a_question(
    home: Home, project: Path
) -> None:
    block = "{file}\n<<<<<<< SEARCH\n=======\nrm -rf {folder}\n>>>>>>> REPLACE"
    outside = home.folder / "outside"
    outside.mkdir()
    answers = [
        block.format(file="clean.sh", folder=outside),
        "CMD: bash clean.sh",
        block.format(file="../clean.sh", folder=outside),
        "GOAL: complete",
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        with home.shell(folder=project) as shell:
            shell.expect_question(f":goal {GOAL}", "[q]uit:")
            assert (project / "clean.sh").read_text() == f"rm -rf {outside}\n"
            shell.expect_question("s", "or [s]kip:")
            shell.do("s")
    assert outside.is_dir()
    assert not (home.folder / "clean.sh").exists()
    assert "[brim] Changed clean.sh." in list_sent_texts(provider, 1)


@needs_sandbox
def test_what_the_model_wrote_runs_in_the_sandbox_or_needs_a_yes(home: Home, project: Path) -> None:
    outside = home.folder / "outside"
    outside.mkdir()
    answers = [
        f"CMD: printf 'rm -rf {outside}' > clean.sh\nCMD: printf 'ls' > list.sh",
        "CMD: bash clean.sh\nCMD: source clean.sh\nCMD: bash list.sh",
        f'CMD: printf \'open("{outside}/x", "w")\' > c.py',
        "CMD: python3 c.py",
        "CMD: printf 'clean:\\n\\trm -rf sub' > Makefile",
        "CMD: make clean",
        "GOAL: complete",
    ]
    with ScriptedServer(answers) as provider:
        home.configure(provider)
        with home.shell("--yes", folder=project) as shell:
            shell.terminal.line(f":goal {GOAL}")
            for _ in range(3):
                answer(shell, DESTRUCTIVE, "s")
            shell.at_prompt()
            assert "goal complete" in read_screen(shell)
    assert list(outside.iterdir()) == []
    commands = [event["command"] for event in events(home, "asked")]
    assert commands == ["bash clean.sh", "source clean.sh", "make clean"]
    ran = {event["command"]: "sandbox" in event for event in events(home, "ran")}
    assert ran["bash list.sh"]
    assert ran["python3 c.py"]


def test_without_a_sandbox_goal_mode_asks(home: Home, project: Path) -> None:
    answers = ["CMD: ls\nCMD: touch made\nCMD: touch skipped", "GOAL: complete"]
    with ScriptedServer(answers) as provider:
        home.configure(provider, "[goal]", 'sandbox = "off"')
        with home.shell(folder=project) as shell:
            shell.terminal.line(f":goal {GOAL}")
            answer(shell, COMMAND, "y")
            answer(shell, COMMAND, "s")
            shell.at_prompt()
    assert (project / "made").exists()
    assert not (project / "skipped").exists()


def test_a_required_sandbox_that_is_missing_prevents_goal_mode(home: Home) -> None:
    with ScriptedServer("CMD: touch made") as provider:
        home.configure(provider, "[goal]", 'sandbox = "required"')
        with home.shell() as shell:
            seen = shell.do(f":goal {GOAL}")
            assert "Goal mode needs a sandbox" in seen
            assert "home folder" in seen
    assert provider.requests == []
