"""The documentation is correct: its Python blocks run, and its links work."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from scripts import write_api_docs, write_cli_docs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"print\(.*\)\s+# (.*)")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_runs_and_prints_its_comments(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    for block in BLOCK.findall(source):
        exec(compile(block, str(page), "exec"), namespace)
    printed = capsys.readouterr().out
    for output in SAID.findall(source):
        assert output in printed


@pytest.mark.parametrize("generator", [write_api_docs, write_cli_docs], ids=["api", "cli"])
def test_generated_pages_are_up_to_date(generator: ModuleType) -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_the_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "src/brim").rglob("*")}
    named = set(re.findall(r"`([\w/]+\.(?:py|toml|sql))`", text))
    assert len(named) > 40
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in files)}
    assert [name for name in missing if not (ROOT / name).exists()] == []
