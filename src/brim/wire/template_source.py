"""A chat template as users give it: the name of its rules, its text, or a file that contains it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, Final

from brim.errors import InputError
from brim.wire.template_rules import TemplateRules, find_named_rules

if TYPE_CHECKING:
    from pathlib import Path

FILE_SUFFIXES: Final = (".jinja", ".jinja2", ".j2", ".json", ".gguf", ".txt")
_GGUF_KEY: Final = "tokenizer.chat_template"
_MAX_KEYS: Final = 10_000
_MAX_TEXT: Final = 10_000_000
_NUMBERS: Final = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""The types of numbers in a GGUF file, as codes of `struct`."""
_TEXT, _ARRAY = 8, 9


@lru_cache(maxsize=64)
def find_rules(given: str) -> TemplateRules:
    """Return rules by their name, or by the text or the file of a template, which is tried.

    Raise `InputError` if there are none.
    """
    if not is_template(given):
        return find_named_rules(given)
    from brim.wire.template_trial import try_text

    verdict = try_text(read_template(given))
    if verdict is None:
        raise InputError("The chat template renders no conversation. Check its text.")
    return verdict.rules


def is_template(given: str) -> bool:
    """Whether a value is the text of a template or the path of a file, not the name of rules."""
    return "{%" in given or "{{" in given or given.lower().endswith(FILE_SUFFIXES)


def read_template(given: str) -> str:
    """Return the text of a template; raise `InputError` if the file has none.

    A file is a Jinja template, a `tokenizer_config.json`, or a model in GGUF format.
    """
    if "{%" in given or "{{" in given:
        return given
    from pathlib import Path

    path = Path(given).expanduser()
    try:
        text = _read_gguf(path) if path.suffix.lower() == ".gguf" else _read_text(path)
    except (OSError, ValueError, struct.error) as error:
        raise InputError(f"Cannot read the chat template: {path}. {error}") from None
    if text is None:
        raise InputError(f"The file has no chat template: {path}.")
    return text


def read_specials(given: str) -> tuple[str, ...]:
    """Return the special tokens that a `tokenizer_config.json` lists; none of other templates."""
    if not given.lower().endswith(".json"):
        return ()
    from pathlib import Path

    config = json.loads(Path(given).expanduser().read_text(encoding="utf-8"))
    added = config.get("added_tokens_decoder", {}).values()
    return tuple(token["content"] for token in added if token.get("special"))


def _read_text(path: Path) -> str | None:
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() != ".json":
        return text
    found = json.loads(text)
    template = found.get("chat_template") if isinstance(found, Mapping) else None
    if isinstance(template, list):  # several templates by name
        named = {each.get("name"): each.get("template") for each in template}
        template = named.get("tool_use", named.get("default"))
    return template if isinstance(template, str) else None


def _read_gguf(path: Path) -> str | None:
    """Return the chat template in the metadata of a GGUF file."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("It is not a GGUF file.")
        _, _, keys = _unpack(file, "IQQ")
        for _ in range(min(keys, _MAX_KEYS)):
            name, kind = _read_string(file), _unpack(file, "I")[0]
            value = _read_value(file, kind)
            if name == _GGUF_KEY:
                return str(value)
    return None


def _read_value(file: IO[bytes], kind: int) -> Any:
    """Return a value; None for an array, which is skipped."""
    if kind == _TEXT:
        return _read_string(file)
    if kind != _ARRAY:
        return _unpack(file, _NUMBERS.get(kind, "?"))[0]
    item, length = _unpack(file, "IQ")
    if item in _NUMBERS:
        file.seek(length * struct.calcsize(_NUMBERS[item]), 1)
        return None
    for _ in range(length):
        _read_value(file, item)
    return None


def _read_string(file: IO[bytes]) -> str:
    length = _unpack(file, "Q")[0]
    if length > _MAX_TEXT:
        raise ValueError("It is damaged.")
    return file.read(length).decode("utf-8", "replace")


def _unpack(file: IO[bytes], codes: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{codes}", file.read(struct.calcsize(f"<{codes}")))
