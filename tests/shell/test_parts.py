"""A line falls into the parts that a shell sees."""

from __future__ import annotations

import pytest

from brim.shell.input.parts import Part, Typed, parts, typed


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
    assert [part.words for part in parts(text)] == expected


def test_what_else_a_part_tells() -> None:
    assert parts("A=1 ls > x | wc") == [
        Part(("ls",), assigns=True, redirects=True, is_piped=True),
        Part(("wc",)),
    ]
    assert parts("git (the tool)")[0].has_stray_parenthesis
    assert parts("ls)")[0].has_stray_parenthesis
    assert not any(part.has_stray_parenthesis for part in parts("(ls; (pwd)) | wc"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Typed("", (), False)),
        ("gi", Typed("gi", (), False)),
        ("git ", Typed("", ("git",), False)),
        ("git st", Typed("st", ("git",), False)),
        ("ls | A=1 sudo gr", Typed("gr", ("sudo",), False)),
        ("cat 'my fi", Typed("'my fi", ("cat",), False)),
        ("cat my\\ fi", Typed("my\\ fi", ("cat",), False)),
        ("ls > o", Typed("o", ("ls",), True)),
        ("ls > out x", Typed("x", ("ls",), False)),
        ("(cd s", Typed("s", ("cd",), False)),
    ],
)
def test_the_word_at_the_end(text: str, expected: Typed) -> None:
    assert typed(text) == expected
