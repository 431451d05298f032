"""Counting ahead avoids counting while the user waits."""

from __future__ import annotations

import subprocess
import sys

from brim.session.session import Session, get_driver
from brim.shell.prompt_state import count_conversation


class Slow:
    """A tokenizer that records what it counts."""

    name = "slow"

    def __init__(self) -> None:
        self.counted: list[str] = []

    def count(self, text: str) -> int:
        self.counted.append(text)
        return len(text.split())


def test_a_long_conversation_is_counted_ahead() -> None:
    tokenizer = Slow()
    session = Session("mine", system="Be brief.", window=10_000, tokenizer=tokenizer)
    for number in range(50):
        session.add_output(f"output {number}")
        session.user(f"question {number}")
        session.assistant(f"answer {number}")
    driver = get_driver(session)
    count_conversation(driver.profile.counter(), driver.system_text, driver.copy_turns())
    before = set(tokenizer.counted)
    tokenizer.counted.clear()
    assert session.current_plan.size > 200
    contents = {
        f"{what} {number}" for what in ("question", "answer", "output") for number in range(50)
    }
    assert contents | {"Be brief."} <= before
    assert contents.isdisjoint(tokenizer.counted)


def test_the_prompt_waits_for_no_module_that_only_lines_need() -> None:
    code = "import brim.cli.main, brim.config, brim.shell.main, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = {
        *("commands", "chat", "goal_mode", "proposals", "risk", "input.classify", "edits"),
        *("approval.secret_masker", "mcp.mcp_server", "render.reply_view", "run_command"),
    }
    loaded = {*done.stdout.split()}
    assert not loaded & {f"brim.shell.{name}" for name in lines}
    assert not loaded & {"brim.fitting.api", "brim.providers.client", "tree_sitter", "httptools"}
