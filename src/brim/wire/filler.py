"""What brim says in a turn of its own, or over one, where a format or a template asks for it."""

from __future__ import annotations

from typing import Final

OPENING: Final = "[the conversation goes on]"
"""A user's turn where one has to stand and there is none."""
BETWEEN: Final = "[interrupted]"
"""An assistant's turn between a result and a user's words."""
CLOSING: Final = "[results above; go on]"
"""A user's last turn where results have become the assistant's own text.

Without it the model would continue that text instead of answering.
"""
RESULT: Final = "[result]"
NO_RESULT: Final = "[no result]"
SYSTEM: Final = "[system]"
