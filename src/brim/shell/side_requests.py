"""Requests outside the conversation: they are billed to it, but are not part of it."""

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
    """Return the current model's reply to a prompt that is not part of the conversation."""
    name = shell.models.current
    with shell.screen.waiting(f"{name} …"):
        client, scratch = _open_scratch(shell, name)
        scratch.user(prompt)
        return client.send(scratch).text


def build_summarizer(shell: Shell, name: str, focus: str | None = None) -> Summarizer:
    """Return a function that writes summaries with this model."""
    max_chars = shell.config.summary.max_chars

    def summarize(previous: str | None, evicted: Sequence[Turn] | None) -> str:
        client, scratch = _open_scratch(shell, name)
        room, count = scratch.budget.limit, get_driver(scratch).count_text
        instructions, request = build_summary_messages(
            previous, evicted, room=room, count=count, max_chars=max_chars, focus=focus
        )
        scratch.system = instructions["content"]
        scratch.user(request["content"])
        return client.send(scratch, category="summary").text

    return summarize


def _open_scratch(shell: Shell, name: str) -> tuple[Client, Session]:
    """Return a client and a temporary session that shares the conversation's ledger."""
    scratch = Session()
    driver = get_driver(scratch)
    driver.profile = shell.models.profile(name)
    driver.ledger = shell.session.ledger
    client = shell.models.client(name)
    shell.models.prepare(scratch, name)
    return client, scratch
