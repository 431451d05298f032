"""Render a chat template in a sandbox (the extra `templates` installs jinja2).

The environment is the one that model servers use: that of transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

from brim.errors import InputError
from brim.wire.template_rules import Raw

_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""The tag around text that a model has generated; it prints its content."""


_SOME_DAY: Final = {"Y": "2026", "B": "January", "b": "Jan", "A": "Thursday", "a": "Thu"}


class TemplateRejectionError(Exception):
    """The template cannot render these messages."""


def _format_some_day(form: str) -> str:
    """Return a fixed date; the core reads no clock."""
    return re.sub("%-?(.)", lambda field: _SOME_DAY.get(field[1], "01"), form)


class TemplateRenderer:
    """Renders conversations with the text of a chat template."""

    def __init__(self, text: str, *, strftime: Callable[[str], str] = _format_some_day) -> None:
        """Compile a template; raise `InputError` if it is invalid, or jinja2 is not installed.

        Some templates print the date; `strftime` returns it in the given form.
        """
        self._strftime = strftime
        self._template = _compile(text)

    def render(self, messages: Sequence[Raw], tools: Sequence[Raw] = (), **options: object) -> str:
        """Return the prompt; raise `TemplateRejectionError` if the template rejects the messages.

        Arguments of calls are objects in most templates, and JSON text in the others.
        """
        try:
            return self._render([_parse_arguments(turn) for turn in messages], tools, options)
        except TemplateRejectionError:
            return self._render(messages, tools, options)

    def _render(
        self, messages: Sequence[Raw], tools: Sequence[Raw], options: Mapping[str, object]
    ) -> str:
        values = {
            "messages": messages,
            "tools": list(tools) or None,
            "functions": _to_json(tools),
            "datetime": self._strftime("%a %b %d %Y"),
            "bos_token": "",
            "eos_token": "",
            "add_generation_prompt": True,
            "raise_exception": _reject,
            "strftime_now": self._strftime,
            **options,
        }
        try:
            prompt: str = self._template.render(values)
        except Exception as error:  # a template may raise anything
            raise TemplateRejectionError(str(error)) from error
        return prompt


def _reject(message: str) -> NoReturn:
    raise TemplateRejectionError(message)


def _parse_arguments(turn: Raw) -> Raw:
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    return {**turn, "tool_calls": [_parse_call(call) for call in calls]}


def _parse_call(call: Raw) -> Raw:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


@lru_cache(maxsize=16)
def _compile(text: str) -> Any:
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise InputError(
            "A chat template cannot be rendered: jinja2 is not installed. "
            "Install it with: pip install 'brim[templates]'."
        ) from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(_GENERATION.sub(_replace_generation, text))
    except TemplateError as error:
        raise InputError(f"Invalid chat template: {error}.") from None


def _replace_generation(tag: re.Match[str]) -> str:
    return f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}"


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Return JSON without the escapes for HTML of jinja2's own filter."""
    known = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    ensure_ascii = bool(options.get("ensure_ascii", False))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=list, **known)
