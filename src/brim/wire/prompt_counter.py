"""Count a request exactly: render it with the model's template, and tokenize the prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from brim.tokens import Tokenizer
from brim.tokens.tokenizer_registry import PromptVocabulary, find_prompt_vocabulary
from brim.tokens.vocabularies import SPLITS_MARKS, VocabularyTokenizer, find_marks
from brim.wire.template_renderer import TemplateRejectionError, TemplateRenderer
from brim.wire.template_rules import Raw
from brim.wire.template_source import is_template, read_specials, read_template

_BOS: Final = "<|brim:bos|>"
_EOS: Final = "<|brim:eos|>"
"""Stand for the first and last token, whose texts differ between models."""
_CLOSED_TURN: Final = "<turn|>\n"
"""The end of a prompt of Gemma 4 in which llama.cpp opens the model's turn, unlike the template."""


class PromptCounter:
    """Counts requests in the chat format with the model's own template and vocabulary."""

    def __init__(self, template: str, vocabulary: PromptVocabulary) -> None:
        self._renderer = TemplateRenderer(read_template(template))
        self._count = vocabulary.tokenizer.count_prompt
        self._bos = int(vocabulary.bos)
        self._splits_marks = vocabulary.tokenizer.name in SPLITS_MARKS
        specials = {_BOS, _EOS, *vocabulary.specials, *read_specials(template)}
        longest_first = sorted(specials, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, longest_first)))

    def count(self, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a request; None if that is not certain.

        The template rejects it, it has media, or servers end or split its prompt in different ways.
        """
        messages = body.get("messages")
        if not isinstance(messages, list | tuple):
            return None
        flat = [_flatten_content(message) for message in messages]
        if not all(isinstance(message.get("content"), str | None) for message in flat):
            return None
        options = {**(body.get("chat_template_kwargs") or {}), "bos_token": _BOS, "eos_token": _EOS}
        prompt = self._render(flat, body.get("tools") or (), options)
        if prompt is None or prompt.endswith(_CLOSED_TURN):
            return None
        if self._splits_marks and find_marks(prompt):
            return None
        parts = self._specials.split(prompt)
        return self._bos + len(parts) - 1 + sum(map(self._count, filter(None, parts)))

    def _render(
        self, messages: Sequence[Raw], tools: Sequence[Raw], options: Mapping[str, Any]
    ) -> str | None:
        """Return the prompt; servers replace null content that the template rejects or prints."""
        filled = [_fill_content(message) for message in messages]
        prompts = []
        for given in (messages, filled) if filled != messages else (messages,):
            with suppress(TemplateRejectionError):
                prompts.append(self._renderer.render(given, tools, **options))
        return min(prompts, key=lambda prompt: prompt.count("None"), default=None)


def _fill_content(message: Raw) -> Raw:
    return {**message, "content": ""} if message.get("content") is None else message


def _flatten_content(message: Raw) -> Raw:
    """Return a message whose only part is a text with that text as its content."""
    match message.get("content"):
        case [{"type": "text", "text": str(text)}]:
            return {**message, "content": text}
    return message


def find_prompt_counter(
    template: str | None, model: str | None, tokenizer: Tokenizer | str | None
) -> PromptCounter | None:
    """Return the exact counter of a model; None without its template or its own vocabulary."""
    if template is None or not is_template(template):
        return None
    if not isinstance(tokenizer, str | VocabularyTokenizer | None):
        return None
    return _make_counter(template, model, tokenizer)


@lru_cache(maxsize=64)
def _make_counter(
    template: str, model: str | None, tokenizer: VocabularyTokenizer | str | None
) -> PromptCounter | None:
    vocabulary = find_prompt_vocabulary(model, tokenizer)
    return None if vocabulary is None else PromptCounter(template, vocabulary)
