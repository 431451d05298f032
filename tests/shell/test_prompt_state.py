"""Counting ahead avoids counting while the user waits."""

from __future__ import annotations

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
