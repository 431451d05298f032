"""A line is split into simple commands."""

from __future__ import annotations

import pytest

from brim.shell.input.simple_commands import (
    SimpleCommand,
    WordAtCursor,
    split_commands,
    word_at_end,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# only a comment", []),
        ("ls -l  src", [("ls", "-l", "src")]),
        ("ls|wc;pwd&&id", [("ls",), ("wc",), ("pwd",), ("id",)]),
        ("echo 'a | b' \"c; d\" e\\ f", [("echo", "'a | b'", '"c; d"', "e\\ f")]),
        ("echo $(ls | wc) `a;b` ${x:-a b}", [("echo", "$(ls | wc)", "`a;b`", "${x:-a b}")]),
        ("echo 'open | end", [("echo", "'open | end")]),
        ("sort < in > out 2>&1", [("sort",)]),
        ("diff <(ls a) b", [("diff", "<(ls a)", "b")]),
        ("A=1 B='x y' make", [("make",)]),
        ("A=(1 2)", [()]),
        ("(cd a; ls)", [("cd", "a"), ("ls",)]),
        ("{ ls; }", [("ls",)]),
        ("ls a \\\n  b\npwd", [("ls", "a", "b"), ("pwd",)]),
        ("# first\n# second\nls # third\npwd", [("ls",), ("pwd",)]),
        ("cat <<EOF\nthe; text\nEOF\nls", [("cat",), ("ls",)]),
        ("cat <<'A' <b\nopen", [("cat",)]),
    ],
)
def test_words(text: str, expected: list[tuple[str, ...]]) -> None:
    assert [part.words for part in split_commands(text)] == expected


def test_properties_of_simple_commands() -> None:
    assert split_commands("A=1 ls > x | wc") == [
        SimpleCommand(("ls",), assigns=True, redirects=True, is_piped=True),
        SimpleCommand(("wc",)),
    ]
    assert split_commands("git (the tool)")[0].has_stray_parenthesis
    assert split_commands("ls)")[0].has_stray_parenthesis
    assert not any(part.has_stray_parenthesis for part in split_commands("(ls; (pwd)) | wc"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", WordAtCursor("", (), False)),
        ("gi", WordAtCursor("gi", (), False)),
        ("git ", WordAtCursor("", ("git",), False)),
        ("git st", WordAtCursor("st", ("git",), False)),
        ("ls | A=1 sudo gr", WordAtCursor("gr", ("sudo",), False)),
        ("cat 'my fi", WordAtCursor("'my fi", ("cat",), False)),
        ("cat my\\ fi", WordAtCursor("my\\ fi", ("cat",), False)),
        ("ls > o", WordAtCursor("o", ("ls",), True)),
        ("ls > out x", WordAtCursor("x", ("ls",), False)),
        ("(cd s", WordAtCursor("s", ("cd",), False)),
    ],
)
def test_the_word_at_the_end(text: str, expected: WordAtCursor) -> None:
    assert word_at_end(text) == expected
