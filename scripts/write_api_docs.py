"""Write docs/api.md, the reference of the public names, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import brim

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
INTRODUCTION = """# API reference

Every public name of `brim`, generated from the docstrings (`make docs`). The guides:
[fitting](fitting.md), [counting](counting.md), [sessions](sessions.md), [servers](servers.md).
"""
WIDTH = 100


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _is_class(value: object) -> bool:
    return inspect.isclass(value) and not _is_error(value)


GROUPS: dict[str, Callable[[object], bool]] = {
    "Functions": inspect.isfunction,
    "Classes": _is_class,
    "Errors": _is_error,
}


def page() -> str:
    """Return the whole page."""
    public = {name: getattr(brim, name) for name in sorted(brim.__all__, key=str.lower)}
    parts = [INTRODUCTION]
    for title, belongs in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [section(name, value) for name, value in public.items() if belongs(value)]
    others = [name for name, value in public.items() if not any(b(value) for b in GROUPS.values())]
    if others:
        parts += ["## Types\n", *(f"- `{name}`: `{_type(public[name])}`" for name in others)]
    return "\n".join(parts).rstrip() + "\n"


def section(name: str, value: object) -> str:
    """Return the section of one public name: signature, docstring, members."""
    if inspect.isfunction(value):
        lines = [f"### `{name}`\n", _code(f"{name}{_signature(value)}"), _read_docstring(value)]
    elif inspect.isclass(value) and issubclass(value, BaseException):
        base = value.__bases__[0].__name__
        lines = [f"### `{name}`\n", f"A subclass of `{base}`. {_read_docstring(value)}"]
    else:
        lines = [
            f"### `{name}`\n",
            *_constructor(name, value),
            _read_docstring(value),
            *_members(value),
        ]
    return "\n".join(line for line in lines if line) + "\n"


def _constructor(name: str, value: object) -> Iterator[str]:
    if not getattr(value, "_is_protocol", False):
        yield _code(f"{name}{_signature(value)}")


def _members(owner: object) -> Iterator[str]:
    """Yield a line for each public method and property that the class itself defines."""
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"- **`{name}`**: {_first(member.fget)}"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            function = member if inspect.isfunction(member) else member.__func__
            yield f"- **`{name}{_signature(function, bound=True)}`**: {_first(function)}"


def _signature(value: object, *, bound: bool = False) -> str:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(…)"
    if bound:
        parameters = list(signature.parameters.values())[1:]
        signature = signature.replace(parameters=parameters)
    text = re.sub(r"ForwardRef\(('[^']*')\)", r"\1", str(signature))
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    return re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "…", text)


def _read_docstring(value: object) -> str:
    return inspect.cleandoc(getattr(value, "__doc__", None) or "") + "\n"


def _first(value: object) -> str:
    return " ".join(_read_docstring(value).split("\n\n")[0].split())


def _type(value: object) -> str:
    return re.sub(r"typing\.|brim(\.[a-z_]+)+\.", "", str(value))


def _code(text: str) -> str:
    if len(text) > WIDTH and "(" in text:
        name, _, rest = text.partition("(")
        parameters, _, result = rest.rpartition(")")
        lines = re.sub(r", (?=[*\w]+(?::|=|,|$))", ",\n    ", parameters)
        text = f"{name}(\n    {lines},\n){result}"
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
