"""Which tools are offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.shell.mcp.tools import Tool, ToolOffer, choose_tools

FIRST = 10
"""Extra tokens of the first definition, as with real models."""


def tool(server: str, name: str, tokens: int) -> Tool:
    return Tool(server, name, f"{server}__{name}", {"tokens": tokens})


def size(definitions: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(one["tokens"]) for one in definitions) + (FIRST if definitions else 0)


TOOLS = (
    tool("files", "read", 100),
    tool("files", "write", 100),
    tool("web", "search", 500),
    tool("web", "fetch", 80),
    tool("clock", "now", 20),
    tool("mail", "send", 600),
    tool("mail", "list", 700),
    tool("chat", "say", 2_000),
)


@pytest.mark.parametrize(
    ("room", "names", "sizes", "left_out"),
    [
        (
            10_000,
            "read write search fetch now send list say",
            {"files": 210, "web": 580, "clock": 20, "mail": 1_300, "chat": 2_000},
            (),
        ),
        (
            310,
            "read write fetch now",
            {"files": 210, "web": 80, "clock": 20},
            (
                "web__search (500 tokens)",
                "mail (2 tools, 1,300 tokens)",
                "chat (1 tool, 2,000 tokens)",
            ),
        ),
        (
            209,
            "read now",
            {"files": 110, "clock": 20},
            (
                "files__write (100 tokens)",
                "web (2 tools, 580 tokens)",
                "mail (2 tools, 1,300 tokens)",
                "chat (1 tool, 2,000 tokens)",
            ),
        ),
        (
            9,
            "",
            {},
            (
                "files__read (110 tokens)",
                "files__write (110 tokens)",
                "web (2 tools, 590 tokens)",
                "clock (1 tool, 30 tokens)",
                "mail (2 tools, 1,310 tokens)",
                "chat (1 tool, 2,010 tokens)",
            ),
        ),
    ],
)
def test_whole_servers_are_offered_before_single_tools(
    room: int, names: str, sizes: dict[str, int], left_out: tuple[str, ...]
) -> None:
    made = choose_tools(TOOLS, room=room, size=size)
    assert " ".join(tool.name for tool in made.offered) == names
    assert (made.sizes, made.left_out) == (sizes, left_out)


def test_without_tools_the_offer_is_empty() -> None:
    assert choose_tools((), room=0, size=size) == ToolOffer((), {}, ())


numbers = st.integers(min_value=1, max_value=300)


@given(st.lists(st.lists(numbers, min_size=1, max_size=4), max_size=5), st.integers(-5, 1_000))
def test_an_offer_fits_adds_up_and_covers_every_tool(servers: list[list[int]], room: int) -> None:
    tools = [
        tool(f"s{server}", f"t{place}", tokens)
        for server, sizes in enumerate(servers)
        for place, tokens in enumerate(sizes)
    ]
    made = choose_tools(tools, room=room, size=size)
    assert size(made.definitions) <= max(room, 0)
    assert sum(made.sizes.values()) == size(made.definitions)
    assert set(made.sizes) == {one.server for one in made.offered}
    assert list(made.offered) == [one for one in tools if one in made.offered]
    named = {words.split(" ")[0] for words in made.left_out}
    for one in tools:
        assert (one in made.offered) != bool({one.server, one.offered} & named)
