"""Every meta command, typed into the real shell."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from brim.providers.local.weights import SMOLLM2
from brim.shell.commands import COMMANDS, names
from brim.testing import ScriptedServer
from tests.support.shell.driver import Home, home, last_words, list_sent_texts, texts

__all__ = ["home"]

SPECIFIED = (
    *("help", "model", "models", "context", "request", "cost", "usage", "history", "reset"),
    *("compact", "undo", "retry", "edit", "pin", "recall", "rolling", "rolling-context"),
    *("tokens", "tokenize", "memory", "tree", "mcp", "goal", "norris", "route", "save", "resume"),
    *("sessions", "export", "config", "doctor", "quit"),
)
RULES = """
[routing]
rules = [{match = "\\\\btranslate\\\\b", class = "text", model = "fast"}]
[routing.system_prompts]
text = "Answer with the text only."
"""
PRINTED = "[exec output]\n$ echo printed\nprinted\n\n"
SLIDING = '[context]\npolicy = "sliding"'


def repeat_question(body: Any) -> str:
    """Return a long reply that repeats the question."""
    return f"You said {last_words(body)[-40:]!r}. " + "More about it. " * 40


@pytest.mark.parametrize("name", SPECIFIED)
def test_every_command_exists_and_explains_itself(name: str) -> None:
    command = names()[name]
    assert command.summary.endswith(".")
    assert len(command.summary) > 10


def test_help(home: Home) -> None:
    with ScriptedServer("Hello.") as provider:
        home.configure(provider)
        with home.shell(rows=80) as shell:
            shown = shell.do(":help")
            assert all(f":{name}" in shown for name in COMMANDS)
            assert shell.do("help") == shown
            assert "Press the up key for the last line" in shell.do("!!")
            about_one = shell.do("/help rolling")
            assert ":rolling [on|off]" in about_one
            assert "Also: :rolling-context" in about_one
            assert "Did you mean :context?" in shell.do(":contxet")
            assert "See :help for a list." in shell.do(":zzzzzzzzz")
    assert provider.requests == []


def test_models_and_model(home: Home) -> None:
    with ScriptedServer("I am fast.") as fast, ScriptedServer("I am slow.") as slow:
        other = f'[models.slow]\nendpoint = "{slow.url}"\nmodel = "sloth"\nwindow = 5000'
        other += '\ntemplate = "llama-3"'
        home.configure(fast, other, "price = {input = 1.0, output = 2.0}")
        with home.shell() as shell:
            assert re.search(r"→ +fast +8,000 tokens +no price", listed := shell.do(":models"))
            assert re.search(r"slow +5,000 tokens +\$1.0/\$2.0 per million tokens", listed)
            assert "I am fast." in shell.do("who are you?")
            assert "slow, 5,000 tokens" in shell.do(":model slow")
            assert "I am slow." in shell.do("and who are you?")
            shell.wait(lambda: "slow" in shell.status, "the model in the status line")
            assert "Did you mean fast?" in shell.do(":model fsat")
            shown = shell.do(":model")
            assert "slow, 5,000" in shown
            assert "template (given): one call per turn, no text next to calls" in shown
        assert slow.requests[0].body["model"] == "sloth"
        assert texts(slow.requests[0])[1:] == ["who are you?", "I am fast.", "and who are you?"]


def test_models_with_unknown_window_or_price(home: Home) -> None:
    with ScriptedServer("I am fast.") as fast, ScriptedServer("I am own.", like="llama.cpp") as own:
        far = '[models.far]\nendpoint = "http://127.0.0.1:1/v1"\nmodel = "far-away"'
        at = f'[models.own]\nendpoint = "{own.url}"\nmodel = "scripted"'
        home.configure(fast, far, at)
        with home.shell() as shell:
            listed = shell.do(":models")
            assert re.search(r"far +window unknown until it is used +no price +http", listed)
            assert re.search(r"local +not downloaded +\$0 +get it with `brim local`", listed)
            weights = Path(home.environment["BRIM_DATA"]) / "models" / SMOLLM2.file
            weights.parent.mkdir(parents=True)
            with weights.open("wb") as file:
                file.truncate(SMOLLM2.size)
            listed = shell.do(":models")
            assert re.search(r"local +window unknown until it is loaded +\$0 +on this", listed)
            shell.do(":model own")
            assert "I am own." in shell.do("who are you?")
            assert re.search(r"→ +own +[\d,]+ tokens +\$0 +http", shell.do(":models"))
            assert ":models takes no argument" in shell.do(":models all")


def test_context_and_tokens(home: Home) -> None:
    with ScriptedServer("Hello.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("greetings to you")
            shell.do("echo hi")
            shown = shell.do(":context")
            for part in ("system", "user", "assistant", "waiting output", "reply", "free"):
                assert re.search(rf"^\S {part} +[\d,]+ ", shown, re.MULTILINE), part
            assert "window: the configuration" in shown
            picture = json.loads(shell.do(":context json"))
            assert sum(part["tokens"] for part in picture["parts"]) == picture["window"] == 8_000
            counted = shell.do("/tokens one two three")
            assert counted == shell.do(":tokenize one two three")
            assert "about 3 tokens (estimated with o200k_base)" in counted


def test_request_is_what_is_sent_next(home: Home) -> None:
    with ScriptedServer(repeat_question) as provider:
        home.configure(provider, SLIDING, window=1_000, reply=200)
        with home.shell(columns=1_500) as shell:
            shell.do(":memory add I am called Ada.")
            for number in range(5):
                shell.do(f"?question {number}")
            shell.do("echo printed")
            shown = json.loads(shell.do(":request and now?"))
            before = len(provider.requests)
            shell.do("and now?")
    body = provider.requests[before].body
    assert body == shown
    assert "question 0" not in list_sent_texts(provider, before), "something had to be dropped"
    assert "printed" in list_sent_texts(provider, before)
    assert "Ada" in list_sent_texts(provider, before)


def test_request_follows_the_routing_rules(home: Home) -> None:
    project = home.folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / "notes.txt").write_text("x")
    with ScriptedServer(repeat_question) as provider, ScriptedServer("Aye.") as small:
        at = f'[models.small]\nendpoint = "{small.url}"\nwindow = 2000\nshort_view = true'
        home.configure(provider, at, RULES.replace('"fast"', '"small"'))
        with home.shell(folder=project, columns=1_500) as shell:
            first = json.loads(shell.do(":request who are you?"))
            shell.do("who are you?")
            for number in range(3):
                shell.do(f"?question {number}")
            second = json.loads(shell.do(":request please translate this"))
            shell.do("please translate this")
            third = json.loads(shell.do(":request and now?"))
            shell.do("and now?")
    assert "notes.txt" in texts(provider.requests[0])[0]
    assert provider.requests[0].body["messages"] == first["messages"]
    assert texts(small.requests[0])[0].startswith("Answer with the text only.")
    assert "question 0" not in list_sent_texts(small), "a small model is shown the last turns only"
    assert small.requests[0].body["messages"] == second["messages"]
    assert provider.requests[-1].body["messages"] == third["messages"]
    assert (second["model"], third["model"]) == ("small", "scripted")


def test_cost_and_usage(home: Home) -> None:
    with ScriptedServer("Hello.") as provider:
        home.configure(provider, "price = {input = 1000.0, output = 2000.0}")
        with home.shell() as shell:
            assert "$0" in shell.do(":cost")
            shell.do("greetings to you")
            request = provider.requests[0]
            price = (request.tokens * 1_000 + provider.tokens("Hello.") * 2_000) / 1_000_000
            assert f"{price:.4f}" in (shown := shell.do(":cost"))
            assert f"today, all runs: ${price:.4f}" in shown
            detail = shell.do(":cost detail")
            assert "fast" in detail
            assert "main" in detail
            used = shell.do(":usage")
            assert f"{request.tokens:,}" in used
            assert "Use detail or reset." in shell.do(":cost rest")
            assert "totals reset" in shell.do(":cost reset")
            assert f"{price:.2f}" not in (shown := shell.do(":cost")).split("today")[0]
            assert f"today, all runs: ${price:.4f}" in shown, "the recorded costs stay"


def test_history_reset_retry_edit_and_undo(home: Home) -> None:
    with ScriptedServer(["One.", "Two.", "Three.", "Four.", "Five."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("the first words")
            shell.do("echo printed")
            shell.do("the second words")
            history = shell.do(":history")
            assert re.findall(r"^(\d) +(\w+) +(.*?) *$", history, re.MULTILINE) == [
                ("0", "user", "the first words"),
                ("1", "assistant", "One."),
                ("2", "user", "the second words"),
                ("3", "assistant", "Two."),
            ]
            assert "the first words" not in shell.do(":history 2")
            assert "The number of turns must be at least 1: 0." in shell.do(":history 0")
            assert ":reset takes no argument" in shell.do(":reset all")
            assert "Three." in shell.do(":retry")
            assert texts(provider.requests[2]) == texts(provider.requests[1])
            shell.terminal.line(":edit")
            shell.at_prompt("the second words")
            shell.terminal.line(", but better")
            shell.at_prompt()
            assert texts(provider.requests[3])[1:] == [
                "the first words", "One.", f"{PRINTED}the second words, but better"
            ]  # fmt: skip
            assert "the second words, but better" in shell.do(":undo")
            shell.do(":undo")
            assert "no messages yet" in shell.do(":undo")
            shell.do("the third words")
            assert texts(provider.requests[4])[1:] == [f"{PRINTED}the third words"]
            assert "with :resume" in shell.do(":reset")
            assert "no messages yet" in shell.do(":history")
            assert "new conversation" in shell.do("/clear")
            assert "new conversation" in shell.do("/new")


def test_history_shows_authors_and_empty_turns(home: Home) -> None:
    with ScriptedServer(["", "CMD: echo hi", "GOAL: complete"]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.do("are you there?")
            shell.do(":goal say hi")
            history = shell.do(":history")
    assert re.findall(r"^(\d) +(\w+) +(.{1,12})", history, re.MULTILINE) == [
        ("0", "user", "are you ther"),
        ("1", "assistant", "(empty)"),
        ("2", "user", "say hi"),
        ("3", "assistant", "CMD: echo hi"),
        ("4", "brim", "[brim] The o"),
        ("5", "assistant", "GOAL: comple"),
    ]


def test_compact_asks_and_undo_restores_everything(home: Home) -> None:
    def answer(body: Any) -> str:
        return repeat_question(body) if body.get("stream") else "They spoke of numbers."

    with ScriptedServer(answer) as provider:
        home.configure(provider, window=3_000)
        with home.shell() as shell:
            for number in range(9):
                shell.do(f"?question {number}")
            whole = list_sent_texts(provider)
            shell.expect_question(":compact primes", "compact? [y]es, [n]o: ")
            assert re.search(r"[\d,]+ → .*[\d,]+ tokens", shell.terminal.everything)
            assert "nothing was changed" in shell.do("n")
            assert len(provider.requests) == 9, "no summary was requested"
            shell.expect_question(":compact primes", "compact? [y]es, [n]o: ")
            assert "They spoke of numbers." in shell.do("y")
            assert "primes" in list_sent_texts(provider)
            shell.do("?question 9")
            assert "question 4" not in list_sent_texts(provider)
            assert "They spoke of numbers." in list_sent_texts(provider)
            shell.do(":undo")
            assert "compaction undone" in shell.do(":undo")
            shell.do("?question 10")
            assert whole in list_sent_texts(provider)
            assert "They spoke of numbers." not in list_sent_texts(provider)


def test_a_stopped_compaction_changes_nothing(home: Home) -> None:
    is_asked, hold = threading.Event(), threading.Event()

    def answer(body: Any) -> str:
        if not body.get("stream"):
            is_asked.set()
            hold.wait(60)
        return repeat_question(body)

    with ScriptedServer(answer) as provider:
        home.configure(provider, window=3_000)
        with home.shell() as shell:
            for number in range(8):
                shell.do(f"?question {number}")
            whole = list_sent_texts(provider)
            shell.expect_question(":compact", "compact? [y]es, [n]o: ")
            shell.terminal.line("y")
            is_asked.wait(60)
            shell.terminal.press("ctrl-c")
            shell.terminal.wait_for("stopped")
            shell.at_prompt()
            hold.set()
            shell.do("?question 8")
    assert whole in list_sent_texts(provider)


def test_pin_recall_and_rolling(home: Home) -> None:
    with ScriptedServer(repeat_question) as provider:
        home.configure(provider, SLIDING, window=1_400, reply=200)
        with home.shell() as shell:
            shell.do("?my number is 417")
            shell.do("?my colour is teal")
            assert "pinned: 0" in shell.do(":pin 0")
            for number in range(8):
                shell.do(f"?question {number}")
            assert "417" in list_sent_texts(provider)
            assert "teal" not in list_sent_texts(provider)
            assert re.search(r"^0 +user +pinned +my number", shell.do(":history 30"), re.MULTILINE)
            assert re.search(r"^2 +user +dropped +my colour", shell.do(":history 30"), re.MULTILINE)
            assert "Turn 0 is still sent" in shell.do(":recall 0")
            assert "tokens will be sent with your next message" in shell.do(":recall 2")
            shell.do("?which colour was it?")
            assert "my colour is teal" in last_words(provider.requests[-1].body)
            assert "no turn is pinned" in shell.do(":pin off 0")
            for number in range(8, 14):
                shell.do(f"?question {number}")
            assert "417" not in list_sent_texts(provider)
            assert "Turn 99 does not exist" in shell.do(":pin 99")
            assert "The turn to pin must be a number: 'x'" in shell.do(":pin x")
            assert "The turn is missing. Example: :recall 3" in shell.do(":recall")
            assert "Fitting is off" in shell.do(":rolling-context off")
            before = len(provider.requests)
            shell.terminal.line("?one more question")
            shell.terminal.wait_for("your message is back in the prompt")
            shell.at("one more question")
            assert len(provider.requests) == before, "it does not fit, so it is not sent"
            shell.terminal.press("ctrl-c")
            shell.leave()
        with home.shell() as shell:
            assert "Fitting is on (policy sliding)" in shell.do("/rolling-context")
            assert "Fitting is off" in shell.do("/rolling-context")
            assert "Fitting is on" in shell.do(":rolling on")
            assert "Use on or off." in shell.do(":rolling perhaps")
        assert provider.rejected == []


def test_memory(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            assert "no facts" in shell.do(":memory list")
            shell.do(":memory add preference: answers in German")
            shell.do(":memory add my dog is called Rex")
            shell.do("do you know my dog?")
            system = texts(provider.requests[0])[0]
            assert "answers in German" in system
            assert "my dog is called Rex" in system
            shell.leave()
        with home.shell() as shell:
            assert re.search(r"2 +\(fact\) +my dog is called Rex", shell.do(":memory list"))
            assert "Rex" not in shell.do(":memory forget 2")
            shell.do("do you still know it?")
            system = texts(provider.requests[1])[0]
            assert "answers in German" in system
            assert "Rex" not in system
            assert "Use add TEXT, list" in shell.do(":memory clear 2")
            assert "German" in shell.do(":memory"), "one fact was meant, so all of them stay"
            assert "no facts" in shell.do(":memory clear")
            assert "The fact to forget must be a number" in shell.do(":memory forget it")
            assert "The fact to forget is missing" in shell.do(":memory forget")
            assert "The fact is missing" in shell.do(":memory add")
            assert "Unknown argument: 'lose'. Use add TEXT" in shell.do(":memory lose")
            shell.do("and now?")
            assert "German" not in texts(provider.requests[2])[0]


def test_tree(home: Home) -> None:
    project = home.folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / "outer" / "inner").mkdir(parents=True)
    (project / "outer" / "inner" / "deep.txt").write_text("x")
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell(folder=project) as shell:
            shell.do("what is here?")
            assert "deep.txt" in texts(provider.requests[0])[0]
            assert "deep.txt" not in shell.do(":tree 1")
            (project / "new.txt").write_text("x")
            assert "new.txt" in shell.do(":tree refresh")
            shell.do("and now?")
            assert "new.txt" in texts(provider.requests[1])[0]
            assert "does not see" in shell.do(":tree off")
            shell.do("and now?")
            assert "outer" not in texts(provider.requests[2])[0]
            assert "The depth must be a number" in shell.do(":tree deep")
            assert "The depth must be at least 1: 0." in shell.do(":tree 0")
        with home.shell() as shell:
            assert "The home folder is not a project" in shell.do(":tree")


def test_route_config_doctor_and_mcp(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider, RULES)
        with home.shell() as shell:
            assert re.search(r"→ .*translate.* text +fast", shell.do(":route translate this"))
            assert "no rule matches: it goes to fast" in shell.do(":route sing this")
            shell.do("please translate this")
            assert texts(provider.requests[0])[0].startswith("Answer with the text only.")
            assert "CMD: " in texts(provider.requests[0])[0]
            assert re.search(r"→ .*translate", shell.do(":route"))
            shown = shell.do(":config")
            assert "brim.toml: " in shown
            assert "models.fast.window = 8000" in shown
            assert "context.policy" not in shown
            assert "context.policy" in shell.do(":config all")
            assert "brim.toml" in (checked := shell.do(":doctor"))
            assert re.search(r"^✓ ", checked, re.MULTILINE)
            assert "no MCP server is connected" in shell.do(":mcp list")
            assert "MCP server not configured: files" in shell.do(":mcp connect files")
            assert "name is missing. Example: :mcp connect files" in shell.do(":mcp connect")
            assert "Unknown argument: 'list x'." in shell.do(":mcp list x")


def test_save_sessions_resume_export_and_quit(home: Home) -> None:
    with ScriptedServer("Aye.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            assert "There is no other conversation" in shell.do(":resume")
            shell.do("the first talk")
            named = re.search(r"saved as (\S+);", shell.do(":save about boats"))
            assert named is not None
            assert "wrote 2 turns to" in shell.do(":export talk.md")
            assert "the first talk" in (home.folder / "talk.md").read_text()
            assert "already exists" in shell.do(":export talk.md")
            shell.do(":export talk.json")
            turns = json.loads((home.folder / "talk.json").read_text())
            assert [turn["content"] for turn in turns] == ["the first talk", "Aye."]
            assert "The file name is missing" in shell.do(":export")
            shell.terminal.line(":quit")
            assert shell.terminal.wait_for_end() == 0
        with home.shell() as shell:
            shell.do("the second talk")
            listed = shell.do(":sessions")
            assert re.search(rf"{named[1]} .* 2 turns +about boats", listed)
            assert re.search(r"→ .* 2 turns +the second talk", listed)
            assert "2 turns" in shell.do(":resume")
            shell.do("the third question")
            assert texts(provider.requests[-1])[1:] == [
                "the first talk", "Aye.", "the third question"
            ]  # fmt: skip
            assert "Unknown conversation" in shell.do(":resume nothing-like-it")
            shell.terminal.line(":q")
            assert shell.terminal.wait_for_end() == 0
