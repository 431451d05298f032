from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.shell.render.blocks import Splitter, split

LINES = (
    *("", "  ", "words", "more words", "# head", "## ", "---", "===", "***", "- item", "* other"),
    *("1. first", "   goes on", "    indented", "\tindented", "> said", ">", "```", "```python"),
    *("~~~~", "   ```sh", "code()", "| a | b |", "|---|:-:|", "| 1 | 2 |", "a | b", "CMD: ls -l"),
    *("CMD:ls", " CMD: ls", "`````", "日本語", "🙂 \x1b[2J", "\r"),
)

texts = st.one_of(
    st.lists(st.sampled_from(LINES), max_size=14).map("\n".join),
    st.text(max_size=60),
)


@given(texts)
def test_joined_blocks_are_the_text(text: str) -> None:
    assert "".join(block.text for block in split(text)) == text


@given(texts, st.lists(st.integers(0, 200), max_size=8))
def test_pieces_give_what_the_whole_gives(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    splitter, found = Splitter(), []
    for start, stop in pairwise(places):
        found += splitter.feed(text[start:stop])
        shown = "".join(block.text for block in found) + splitter.rest
        assert shown == text[:stop]
        assert "".join(block.text for block in splitter.preview()) == splitter.rest
        assert splitter.sure <= len(splitter.rest)
    assert found + splitter.close() == split(text)


def kinds(text: str) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in split(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n\nc", ["paragraph", "blank", "paragraph"]),
        ("# a\nb", ["heading", "paragraph"]),
        ("a\n---\nb", ["heading", "paragraph"]),
        ("a\nb\n---\n", ["paragraph", "rule"]),
        ("a\n\n---\n", ["paragraph", "blank", "rule"]),
        ("- a\n- b\n  more\nc", ["item", "item", "paragraph"]),
        ("- a\n\n    more\n", ["item", "blank", "paragraph"]),
        ("a\n\n    code\n", ["paragraph", "blank", "code"]),
        ("> a\n> b\nc", ["quote"]),
        ("x\n| a |\n|---|\n| 1 |\nend", ["paragraph", "table", "paragraph"]),
        ("```py\n# a\n\n```\nb", ["fence", "code", "code", "fence end", "paragraph"]),
        ("````\n```\n````", ["fence", "code", "fence end"]),
        ("do this:\nCMD: ls\nthen", ["paragraph", "command", "paragraph"]),
        ("- a\nCMD: ls\nCMD: rm x\n", ["item", "command", "command"]),
        ("see CMD: ls", ["paragraph"]),
        ("-5 degrees\n**bold** start", ["paragraph"]),
    ],
)
def test_blocks_are_what_a_reader_sees(text: str, expected: list[str]) -> None:
    assert [kind for kind, _ in kinds(text)] == expected


def test_a_code_line_is_finished_at_its_end() -> None:
    splitter = Splitter()
    splitter.feed("```python\n")
    assert splitter.feed("x = 1") == []
    (block,) = splitter.feed("\ny")
    assert (block.kind, block.text, block.language) == ("code", "x = 1\n", "python")
    assert splitter.rest == "y"
