"""Check names and wording that a linter does not know; `make check` runs it.

It rejects old words for ideas that have an industry term, module names that are bare `-ing` forms,
functions that are bare participles, class names that mean two things, private names and internal
modules of dependencies, test files that import each other, and a source folder with too many
entries.

    python scripts/check_style.py [--counts] [path ...]
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src/brim"
MAX_ENTRIES: Final = 18
TEXTS: Final = (".py", ".md", ".toml", ".html", ".js", ".css", ".yml", ".yaml", ".cfg")
SKIPPED: Final = ("CHANGELOG.md", "scripts/check_style.py", "src/brim/data/", "benchmarks/data/")
"""Files whose words are data, or history."""

WORDS: Final[Mapping[str, str]] = {
    r"whoever|whatever|wherever": "a named subject, or `if`, `any`",
    r"nobody|somebody": "a named subject (the client, the server, the caller)",
    r"anew": "again, from scratch",
    r"wish(es)?": "option",
    r"stand-in|stood in|stands in": "fallback",
    r"takes? down|took down|booked|books": "record; account store, ledger",
    r"mend(s|ed|ing)?": "repair",
    r"low mark": "low-water mark",
    r"go(es)? on with|going on with|went on with": "continue, resume",
    r"believes": "recovers from, trusts",
    r"worst (case|cost|bill)": "maximum cost",
    r"lanes?": "route",
    r"denials?": "error",
    r"fates?": "outcome",
    r"opens again": "resets",
    r"what was said|what is said": "the messages, the text",
}
"""Old words as regular expressions, and what to write instead."""
_FICTION: Final = ("benchmarks/promises/material.py", "scripts/shop_talk.py")
"""Made-up conversations."""
ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "nobody": ("tests/shell/data/", "tests/support/accounts/", *_FICTION),  # the Unix user
    "somebody": _FICTION,
    "whoever": _FICTION,
    "books": ("benchmarks/promises/material.py",),
    "lane": ("tests/shell/data/",),  # perl -lane
    "wish": ("src/brim/shell/risk/",),  # a program
}
"""Words that may stay in paths that begin like this."""

ING_MODULES: Final = frozenset({"fitting", "testing", "pricing", "billing", "routing"})
PARTICIPLE: Final = re.compile(r"_?[a-z]+(ed|ing)")
VERBS: Final = frozenset(
    {"bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "speed", "string"}
)
"""Verbs that only look like participles."""
IRREGULAR: Final = re.compile(
    "built|done|drawn|found|given|gone|held|kept|known|left|lost|made|meant|met|put|said|seen|sent|"
    "shown|spent|spoken|told|took|taken|thought|understood|written"
)
SHARED_CLASSES: Final = frozenset({"Counter", "Reader"})
"""Class names with one role in several modules."""
DOCUMENTED: Final = frozenset({"os._exit"})
"""Public functions whose names begin with an underscore."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", help="check only paths that begin like this")
    parser.add_argument("--counts", action="store_true", help="print a count for each folder")
    options = parser.parse_args()
    problems = [
        problem
        for check in CHECKS
        for problem in check()
        if not options.paths or problem.startswith(tuple(options.paths))
    ]
    if options.counts:
        folders = Counter(_folder(problem) for problem in problems)
        print("\n".join(f"{count:5} {folder}" for folder, count in folders.most_common()))
    elif problems:
        print("\n".join(problems))
    if problems:
        print(f"check_style: {len(problems)} problems", file=sys.stderr)
    return 1 if problems else 0


def _folder(problem: str) -> str:
    parts = problem.split(":")[0].split("/")
    return "/".join(parts[:3] if parts[0] == "src" else parts[:2])


def check_words() -> Iterator[str]:
    """Find old words in code, documentation and tests."""
    pattern = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)
    for path in _files(*TEXTS):
        for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1):
            for found in pattern.finditer(line):
                word = found[0].lower()
                if not path.startswith(ALLOWED.get(word, ()) or ("\0",)):
                    yield f"{path}:{number}: {found[0]!r}; write: {_advice(word)}"


def _advice(word: str) -> str:
    return next(advice for words, advice in WORDS.items() if re.fullmatch(words, word))


def check_names() -> Iterator[str]:
    """Find modules, functions and classes whose names break the rules."""
    classes: defaultdict[str, list[str]] = defaultdict(list)
    for path in _files(".py"):
        stem, is_source = Path(path).stem, path.startswith("src/")
        if stem.endswith("ing") and stem not in ING_MODULES and "_" not in stem:
            yield f"{path}:1: module {stem} is a bare -ing form; use a noun"
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and is_source:
                classes[node.name].append(f"{path}:{node.lineno}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_participle(node):
                yield f"{path}:{node.lineno}: function {node.name} is a bare participle; use a verb"
    for name, places in classes.items():
        if len(places) > 1 and not name.startswith("_") and name not in SHARED_CLASSES:
            yield f"{places[1]}: class {name} is also defined in {places[0]}"


def _is_participle(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    name = node.name.removeprefix("_")
    decorators = {word for each in node.decorator_list for word in ast.unparse(each).split("(")}
    if decorators & {"overload", "pytest.fixture"}:  # a fixture is named for its value
        return False
    return bool(IRREGULAR.fullmatch(name)) or (
        bool(PARTICIPLE.fullmatch(name)) and name not in VERBS
    )


def check_dependencies() -> Iterator[str]:
    """Find private names and internal modules of other packages in the source."""
    for path in _files(".py"):
        if not path.startswith("src/"):
            continue
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        foreign: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not _is_own(node.module):
                names = [node.module, *(alias.name for alias in node.names)]
                foreign |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if not _is_own(alias.name)]
                foreign |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            else:
                continue
            for name in names:
                if _is_private(name):
                    yield f"{path}:{node.lineno}: {name} is private or internal"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                is_private = re.fullmatch(r"_[a-z]\w*", node.attr) and name not in DOCUMENTED
                if node.value.id in foreign and is_private:
                    yield f"{path}:{node.lineno}: {name} is private"


def _is_own(module: str) -> bool:
    return module.split(".")[0] in ("brim", "__future__")


def _is_private(name: str) -> bool:
    return bool(re.search(r"(^|\.)_[a-z]|_impl($|\.)|(^|\.)internals?($|\.)", name))


def check_test_imports() -> Iterator[str]:
    """Find test files that import another test file."""
    pattern = re.compile(r"^\s*(from|import) tests\.(\w+\.)*test_\w+", re.MULTILINE)
    for path in _files(".py"):
        if path.startswith("tests/") and (
            found := pattern.search((ROOT / path).read_text("utf-8"))
        ):
            yield f"{path}:1: {found[0].strip()}; move shared helpers to tests/support"


def check_entries() -> Iterator[str]:
    """Check that the layout is visible from `ls src/brim`."""
    entries = [
        path.name
        for path in SOURCE.iterdir()
        if path.name not in ("__init__.py", "py.typed", "__pycache__")
    ]
    if len(entries) > MAX_ENTRIES:
        yield f"src/brim:1: {len(entries)} entries; at most {MAX_ENTRIES} are allowed"


def _files(*suffixes: str) -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for path in sorted(listed.stdout.splitlines()):
        if path.endswith(suffixes) and not path.startswith(SKIPPED) and (ROOT / path).is_file():
            yield path


CHECKS: Final = (
    check_words,
    check_names,
    check_dependencies,
    check_test_imports,
    check_entries,
)

if __name__ == "__main__":
    sys.exit(main())
