"""Questions to a model beside the conversation: they are on its bill, but no part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from brim.session.session import Session, get_driver
from brim.session.summaries import build_summary_messages

if TYPE_CHECKING:
    from brim.providers.client import Client
    from brim.session.summaries import Summarizer, Turn
    from brim.shell.state import Shell


def ask_separately(shell: Shell, prompt: str) -> str:
    """A question that is no part of the conversation; its cost is."""
    with shell.screen.waiting(f"{shell.name} …"):
        client, scratch = _open_scratch(shell, shell.name)
        scratch.user(prompt)
        return client.send(scratch).text


def build_summarizer(shell: Shell, name: str, focus: str | None = None) -> Summarizer:
    """What writes summaries: a model, by its name."""
    max_chars = shell.config.summary.max_chars

    def summarize(previous: str | None, evicted: Sequence[Turn] | None) -> str:
        client, scratch = _open_scratch(shell, name)
        room, count = scratch.budget.limit, get_driver(scratch).count_text
        instructions, words = build_summary_messages(
            previous, evicted, room=room, count=count, max_chars=max_chars, focus=focus
        )
        scratch.system = instructions["content"]
        scratch.user(words["content"])
        return client.send(scratch, category="summary").text

    return summarize


def _open_scratch(shell: Shell, name: str) -> tuple[Client, Session]:
    """A session for one question, on the same bill."""
    scratch = Session()
    driver = get_driver(scratch)
    driver.profile = shell.models.target(name)
    driver.ledger = shell.session.ledger
    client = shell.models.client(name)
    shell.models.prepare(scratch, name)
    return client, scratch
