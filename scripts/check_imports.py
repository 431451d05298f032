"""Fail if modules of brim import each other in a cycle, at run time or for types.

import-linter checks the layers between packages; this checks the modules inside them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"


def find_modules(root: Path) -> dict[str, Path]:
    """Return the modules under a folder by their dotted names."""
    modules = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def find_imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            names = [name if name in modules else node.module for name in full]
        else:
            continue
        yield from (name for name in names if name in modules)


def main() -> None:
    modules = find_modules(SOURCE)
    graph = {name: {*find_imports(path, modules)} - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        sys.exit("Import cycle: " + " -> ".join(reversed(error.args[1])))


if __name__ == "__main__":
    main()
