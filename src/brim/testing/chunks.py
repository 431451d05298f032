"""What the streams of all formats are cut into."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

CREATED: Final = 1_767_225_600
"""When every answer was made: the same for all, so that answers can be compared."""


def split_words(text: str) -> list[str]:
    """A text as a model says it, a word at a time."""
    return re.findall(r"\s*\S+|\s+", text)


def format_named_event(event: Mapping[str, Any]) -> str:
    """An event that says its type twice, as Anthropic and OpenAI's responses do."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def format_data_event(event: Mapping[str, Any]) -> str:
    """An event that is only data, as in a stream of chat completions."""
    return f"data: {json.dumps(event)}\n\n"
