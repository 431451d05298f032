"""Type checkers in strict mode accept a program with every public call.

`make check` runs mypy in strict mode over it, as over all tests.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_overloads

import pytest

import brim
from brim.messages import Call
from brim.models.pricing import SpendingTotal
from brim.session.request_log import LoggedRequest, RequestLog

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/project/typed_program.py"


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_pyright_accepts_the_public_api(tmp_path: Path) -> None:
    # basedpyright brings its own Node.js from PyPI; pyright downloads it.
    settings = {"typeCheckingMode": "strict", "include": [str(PROGRAM)]}
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    run(sys.executable, "-m", "basedpyright", "-p", str(config), "--pythonpath", sys.executable)


def test_the_program_uses_every_public_member_of_a_session() -> None:
    source = PROGRAM.read_text()
    members = [name for name, _ in inspect.getmembers(brim.Session) if not name.startswith("_")]
    assert [name for name in members if f".{name}" not in source] == []
    assert len(members) <= 40


PUBLIC = {
    **{name: getattr(brim, name) for name in brim.__all__},
    # Types of public attributes, which users do not import.
    **{item.__name__: item for item in (Call, LoggedRequest, RequestLog, SpendingTotal)},
}
# Requests are passed to the clients of other libraries, whose parameters have many types.
ALLOWED_ANY = {"Request.__getitem__"}


def test_no_public_signature_contains_any() -> None:
    offenders = {
        f"{where}: {annotation}"
        for name, value in PUBLIC.items()
        for where, annotation, module in find_annotations(name, value)
        if where not in ALLOWED_ANY and has_any(annotation, module)
    }
    assert offenders == set()


def find_annotations(name: str, value: object) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the text and the module of each annotation of a public name."""
    if inspect.isclass(value) and value.__module__.startswith("brim"):
        for attribute, annotation in inspect.get_annotations(value).items():
            if not attribute.startswith("_"):
                yield f"{name}.{attribute}", str(annotation), value.__module__
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") or attribute in ("__init__", "__getitem__"):
                for function in find_functions(member):
                    yield from find_annotations(f"{name}.{attribute}", function)
    elif inspect.isfunction(value):
        signatures: list[Callable[..., object]] = [value, *get_overloads(value)]
        for signature in signatures:
            for annotation in inspect.get_annotations(signature).values():
                yield name, str(annotation), value.__module__
    else:
        yield name, str(value), "brim"


def find_functions(member: object) -> list[object]:
    """Return the functions of a member of a class: getter and setter, or the method."""
    if isinstance(member, property):
        return [function for function in (member.fget, member.fset) if function]
    function = getattr(member, "__func__", member)
    return [function] if inspect.isfunction(function) else []


def has_any(annotation: str, module: str) -> bool:
    """Return whether an annotation contains Any, directly or in an alias of its module."""
    names = set(re.findall(r"\w+", annotation))
    scope = vars(sys.modules[module])
    aliases = [
        str(scope[name]) for name in names & scope.keys() if not inspect.isclass(scope[name])
    ]
    return any(re.search(r"\bAny\b", text) for text in (annotation, *aliases))
