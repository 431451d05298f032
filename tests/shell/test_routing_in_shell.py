"""Routing rules and fallbacks in the real shell."""

from __future__ import annotations

from brim.shell.prompt_texts import RULE
from brim.testing import ErrorReply, ScriptedServer
from tests.support.shell.driver import Home, Typist, home, texts
from tests.support.shell.replies import events, read_screen

__all__ = ["home"]

FAULT = ErrorReply(500, "out of order", retry_after=0)
PRICE = "price = {input = 1.0, output = 2.0}"


def other(provider: ScriptedServer, *more: str, window: int = 8_000) -> str:
    """Return the configuration table of a second model, `other`."""
    at = f'endpoint = "{provider.url}"\nmodel = "second"\nwindow = {window}'
    return "\n".join(["[models.other]", at, *more])


def has_status(shell: Typist, route: str) -> None:
    """Wait until the status line shows the main model and this route."""

    def is_shown() -> bool:
        found = {way for way in ("text", "poet", "other") if way in shell.status}
        return "fast" in shell.status and found == {route} - {""}

    shell.wait(is_shown, f"the status {route!r}")


RULES = """
[[routing.rules]]
match = "translate"
class = "text"
model = "other"
[[routing.rules]]
match = "poem"
class = "poet"
[routing.system_prompts]
text = "Answer with the text only."
poet = "You are a poet."
"""


def test_messages_follow_the_routing_rules(home: Home) -> None:
    project = home.folder / "project"
    (project / ".git").mkdir(parents=True)
    for number in range(40):
        (project / f"a-file-with-a-long-name-{number}.txt").touch()
    with ScriptedServer("Main.") as main, ScriptedServer("Second.", model="second") as second:
        home.configure(main, PRICE, other(second, PRICE, window=1_200), RULES)
        with home.shell(folder=project) as shell:
            shell.do("hello there, how are you?")
            has_status(shell, "")
            assert "Second." in shell.do("please translate this for me")
            has_status(shell, "text")
            assert "Main." in shell.do("please write a poem for me")
            has_status(shell, "poet")
            assert "Main." in shell.do("and how are you now?")
            has_status(shell, "")
            bill = [line.split()[:2] for line in shell.do(":cost detail").split("\n")]
            assert [row for row in bill if row[1:] in (["main"], ["route"])] == [
                ["fast", "main"], ["other", "route"], ["fast", "route"],
            ]  # fmt: skip
    system, first = texts(second.requests[0])[:2]
    assert system.startswith("Answer with the text only.")
    assert RULE in system
    assert first == "hello there, how are you?"
    before, poem, after = (texts(request) for request in main.requests)
    assert poem[0].startswith("You are a poet.")
    assert RULE in poem[0]
    assert "a-file-with-a-long-name" in before[0]
    assert after[: len(before)] == before, "the main model sees what it saw before, and more"
    assert "Second." in after


def test_the_fallback_is_asked_once(home: Home) -> None:
    with ScriptedServer(FAULT) as main, ScriptedServer(["Second.", FAULT, FAULT, FAULT]) as second:
        home.configure(main, PRICE, 'fallback = "other"', other(second, PRICE, 'fallback = "fast"'))
        with home.shell() as shell:
            seen = shell.do("hello there, how are you?")
            assert "out of order" in seen
            assert "asking other instead" in seen
            assert "Second." in seen
            has_status(shell, "")
            bill = shell.do(":cost detail")
            assert "other" in bill
            assert "fast" not in bill
            tried = len(main.requests)
            shell.terminal.line("and how are you now?")
            shell.terminal.wait_for("back in the prompt")
            assert read_screen(shell).count("out of order") == 3
            assert len(main.requests) == 2 * tried, "not again after the second has failed"
            assert len(second.requests) == 1 + tried
    assert [event["other"] for event in events(home, "fallback")] == ["other", "other"]


def test_no_fallback_for_requests_over_the_limit_or_the_cap(home: Home) -> None:
    with ScriptedServer("Main.") as main, ScriptedServer("Second.") as second:
        home.configure(main, 'fallback = "other"', PRICE, other(second), window=500)
        with home.shell() as shell:
            words = "please read this: " + "many words " * 400
            shell.terminal.paste(words)
            shell.wait(lambda: shell.terminal.before_cursor.rstrip().endswith("words"))
            shell.terminal.press("enter")
            shell.terminal.wait_for("to get your message back")
            assert "the limit is" in read_screen(shell)
        cap = "[cost]\ncap_at_dollars = 0.000001"
        home.configure(main, 'fallback = "other"', PRICE, other(second), cap)
        with home.shell() as shell:
            shell.terminal.line("hello there, how are you?")
            shell.terminal.wait_for("back in the prompt")
            assert "0.000001" in read_screen(shell)
    assert main.requests == []
    assert second.requests == []
