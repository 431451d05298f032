"""Files in the conversation: `@path` in a message."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from brim.shell.attachments import find_attachments
from brim.testing import ScriptedServer
from tests.support.shell.driver import Home, home

__all__ = ["home"]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see @a.py", ["a.py"]),
        ("(@a.py), please", ["a.py"]),
        ("see @a.py.", ["a.py"]),
        ("@a.py:2-3 and @a.py:7", ["a.py:2-3", "a.py:7-7"]),
        ("all of @src/*.py", ["src/b.py", "src/c.py"]),
        ("@**/c.py", ["src/c.py"]),
        ("@a.py @a.py", ["a.py"]),
        ("mail me@a.py or @missing or @src", []),
        ("@ alone, @/ and @*", ["a.py"]),
    ],
)
def test_references_to_files_are_found(text: str, found: list[str], tmp_path: Path) -> None:
    for name in ("a.py", "src/b.py", "src/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    files = find_attachments(text, tmp_path)
    assert [file.reference.removeprefix(f"{tmp_path}/") for file in files] == found


def test_a_changed_file_is_sent_again_and_its_old_copy_is_trimmed_first(home: Home) -> None:
    lines = [f"value_{number} = {number}" for number in range(80)]
    file = home.folder / "a.py"
    file.write_text("\n".join(lines))
    with ScriptedServer(["Read.", "Seen.", "Yes.", "words " * 900, "End."]) as provider:
        home.configure(provider, window=4_000, reply=100)
        with home.shell() as shell:
            shell.do("?look at @a.py:1-2")
            shell.do("?look at @a.py")
            file.write_text("\n".join(lines).replace("value_7 = 7", "value_7 = 8"))
            assert "a.py has changed" in shell.do("?and now, in short")
            assert "has changed" not in shell.do("?more words")
            shell.do("?and the last one")
    first, _, third, _, last = (request.body["messages"] for request in provider.requests)
    start = "[exec output]\n[file] a.py:1-2\nvalue_0 = 0\nvalue_1 = 1\n"
    assert first[-1]["content"].startswith(start)
    assert "value_7 = 8" in third[-1]["content"]
    old, new = (
        next(m["content"] for m in last if text in m["content"])
        for text in ("look at @a.py", "in short")
    )
    assert "value_30" in new
    assert "value_30" not in old


def test_an_image_is_sent_to_a_model_that_reads_images(home: Home) -> None:
    (home.folder / "dot.png").write_bytes(PIXEL)
    with ScriptedServer("A dot.") as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.terminal.line("?what is in @dot.png")
            shell.terminal.wait_for("set models.fast.vision = true")
            assert provider.requests == []
        home.configure(provider, "vision = true")
        with home.shell() as shell:
            shell.do("?what is in @dot.png")
            shell.do(":retry")
    for request in provider.requests:
        text, image = request.body["messages"][-1]["content"]
        assert text == {"type": "text", "text": "what is in @dot.png"}
        assert base64.b64decode(image["image_url"]["url"].partition(",")[2]) == PIXEL
