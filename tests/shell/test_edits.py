"""Changes that a model proposes: search/replace blocks and unified diffs."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.errors import InputError
from brim.shell.edits import (
    Replacement,
    apply_replacements,
    find_replacements,
    write_files,
)
from brim.testing import ScriptedServer
from tests.support.shell.driver import Home, home, last_words

__all__ = ["home"]

BLOCK = """Sure, like this:

**src/a.py**
```python
<<<<<<< SEARCH
one
=======
uno
>>>>>>> REPLACE
```
and below it

<<<<<<< SEARCH
two
=======
due
tre
>>>>>>> REPLACE
"""
DIFF = """```diff
--- a/src/a.py\t2026-01-01
+++ b/src/a.py
@@ -1,3 +1,3 @@
-one
+uno

 mid
@@ -8 +8,2 @@
-two
+due
+tre
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+hello
```
"""
TEXT = "one\n\nmid\ntwo\n"


def test_blocks_and_diffs_mean_the_same() -> None:
    blocks, diffs = find_replacements(BLOCK), find_replacements(DIFF)
    assert [change.file for change in blocks] == ["src/a.py", "src/a.py"]
    assert [change.file for change in diffs] == ["src/a.py", "src/a.py", "new.txt"]
    for changes in (blocks, diffs[:2]):
        assert apply_replacements(TEXT, changes) == "uno\n\nmid\ndue\ntre\n"
    assert apply_replacements("", diffs[2:]) == "hello\n"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "no change",
        "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE",
        "--- a\ntext\n+++ b",
        "```\na\n```",
    ],
)
def test_other_replies_have_no_changes(reply: str) -> None:
    assert find_replacements(reply) == []


def test_a_change_must_match_exactly_one_place() -> None:
    def change(old: str, new: str = "x\n") -> list[Replacement]:
        return [Replacement("a", old, new)]

    for text, old, why in [
        ("a\nb\n", "c\n", "do not occur"),
        ("a\na\n", "a\n", "occur 2 times"),
        ("a\n", "", "exists already"),
    ]:
        with pytest.raises(InputError, match=why):
            apply_replacements(text, change(old))
    assert apply_replacements("a  \nb\n", change("a\n")) == "x\nb\n", "spaces at the end of a line"
    assert apply_replacements("a\r\nb\r\n", change("b\n")) == "a\r\nx\r\n"
    assert apply_replacements("a\nb", change("b\n")) == "a\nx"
    assert apply_replacements("a\nb\n", change("b\n", "")) == "a\n"


def test_either_all_files_are_written_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "folder"
    first.write_bytes(b"before")
    first.chmod(0o755)
    second.mkdir()
    with pytest.raises(OSError, match="folder"):
        write_files({first: b"after", second: b"after"})
    assert first.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "folder"]
    write_files({first: b"after", tmp_path / "deep" / "new": b"x"})
    assert (first.read_bytes(), first.stat().st_mode & 0o777) == (b"after", 0o755)


def test_a_change_is_shown_confirmed_applied_and_undone(home: Home) -> None:
    file = home.folder / "src" / "a.py"
    file.parent.mkdir()
    file.write_text(TEXT)
    with ScriptedServer([BLOCK, BLOCK, "Right."]) as provider:
        home.configure(provider)
        with home.shell() as shell:
            shell.expect_question("?say uno in @src/a.py", "[s]kip:")
            assert "-one" in shell.terminal.everything
            assert "+uno" in shell.terminal.everything
            shell.do("s")
            assert file.read_text() == TEXT
            shell.expect_question("?no, do it", "[s]kip:")
            shell.do("y")
            assert file.read_text() == "uno\n\nmid\ndue\ntre\n"
            assert "change undone" in shell.do(":undo")
            assert file.read_text() == TEXT
            shell.do("?and now")
            assert "removed" in shell.do(":undo")
    first, second, third = map(last_words, (request.body for request in provider.requests))
    assert "[file] src/a.py\none" in first
    assert "SEARCH" in first
    assert "The user skipped the change of src/a.py" in second
    assert "Changed src/a.py" in third
    assert "The user undid the change" in third


def test_a_file_outside_of_the_project_needs_a_typed_yes(home: Home) -> None:
    project, outside = home.folder / "project", home.folder / "outside.txt"
    (project / ".git").mkdir(parents=True)
    outside.write_text("two\n")
    reply = BLOCK.replace("src/a.py", "../outside.txt").replace("one\n", "two\n", 1)
    hook = BLOCK.replace("src/a.py", "deep/.git/hooks/pre-commit").replace("one\n", "", 1)
    inside = BLOCK.replace("src/a.py", "new.txt").replace("one\n", "", 1)
    replies = [each.split("and below")[0] for each in (reply, hook, inside)]
    with ScriptedServer(replies) as provider:
        home.configure(provider)
        with home.shell("--yes", folder=project) as shell:
            shell.expect_question("?change it", "[s]kip:")
            shell.expect_question("y", "[s]kip:")
            assert outside.read_text() == "two\n"
            shell.do("yes")
            shell.expect_question("?and the hook", "[s]kip:")
            shell.do("s")
            assert "changed new.txt" in shell.do("?and a new one")
    assert outside.read_text() == "uno\n"
    assert not (project / "deep").exists()
    assert (project / "new.txt").read_text() == "uno\n"


def test_the_home_folder_is_no_project(home: Home) -> None:
    reply = BLOCK.replace("src/a.py", ".bashrc").replace("one\n", "", 1).split("and below")[0]
    with ScriptedServer(reply) as provider:
        home.configure(provider)
        with home.shell("--yes") as shell:
            shell.expect_question("?change it", "[s]kip:")
            shell.do("s")
    assert not (home.folder / ".bashrc").exists()
