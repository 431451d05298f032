"""Trims made by hand, so that a test states what is dropped and what is clipped."""

from __future__ import annotations

import brim
from brim.fitting.draft import Draft
from brim.fitting.passes import Pass
from brim.fitting.policies import Policy, unchanged_floor
from tests.support.strategies import Raw

MODEL = "gpt-4o"


def trim_body(body: Raw, *edits: Pass, notes: bool = False) -> brim.Request:
    """Return a body to which just these passes were applied; they must make it smaller."""
    total = int(brim.count(body, model=MODEL))

    def all_edits(draft: Draft) -> None:
        for edit in edits:
            edit(draft)

    policy = Policy("by hand", (all_edits,), unchanged_floor, notes=notes)
    request = brim.fit(body, model=MODEL, window=total, reply=1, policy=policy)
    assert brim.count(dict(request)) == request.plan.tokens < total
    return request


def drop_units(first: int, last: int | None = None) -> Pass:
    """Drop units: the first one, or all from the first to the last."""
    return lambda draft: draft.drop(first, (first if last is None else last) + 1, "by hand")


def output(index: int, text: str) -> Pass:
    """Replace the output of a turn."""

    def edit(draft: Draft) -> None:
        assert draft.replace_outputs(index, text, "masked", "by hand")

    return edit


def drop_thinking(index: int) -> Pass:
    def edit(draft: Draft) -> None:
        assert draft.change(index, draft.message(index).without_thinking(), "clipped", "by hand")

    return edit
