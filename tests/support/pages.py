"""Programs of the documentation, run against a scripted server."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from brim.testing import ScriptedServer

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_page(
    name: str, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    """Run the Python blocks of a page of docs/integrations; return their names."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "key")
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.setenv(variable, server.url)
    page = DOCS / "integrations" / f"{name}.md"
    namespace: dict[str, object] = {"__name__": "page"}
    with TemporaryDirectory() as folder:  # some frameworks read the source of functions
        for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            path = Path(folder, f"{name}_{number}.py")
            path.write_text(block, encoding="utf-8")
            exec(compile(block, str(path), "exec"), namespace)
    return namespace
