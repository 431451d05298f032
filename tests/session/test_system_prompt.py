"""SystemPrompt: the blocks of the system text."""

from __future__ import annotations

import pytest

import brim
from brim.fitting.summarizer import SUMMARY_HEADING
from brim.session.session import get_driver
from brim.session.system_prompt import Fact, SystemPrompt, format_facts

FACTS = (Fact("user", "likes tabs"), Fact("tool", "uv, not pip"))


def test_the_blocks_are_in_order_with_a_blank_line_between() -> None:
    prompt = SystemPrompt("Be brief.")
    prompt.blocks["background"] = format_facts(FACTS)
    prompt.blocks["project"] = "src/\n  a.py"
    assert prompt.render("They met.") == (
        "Be brief.\n\n"
        "[background]\n- (user) likes tabs\n- (tool) uv, not pip\n\n"
        "[project]\nsrc/\n  a.py\n\n"
        "[earlier conversation summary]\nThey met."
    )


@pytest.mark.parametrize("summary", [None, ""])
def test_an_empty_block_has_no_heading(summary: str | None) -> None:
    prompt = SystemPrompt(blocks={"project": ""})
    assert prompt.render(summary) == ""
    prompt.base = "Be brief."
    assert prompt.render("x") == f"Be brief.\n\n{SUMMARY_HEADING}\nx"


def test_instructions_replace_all_blocks_and_the_summary() -> None:
    prompt = SystemPrompt("Be brief.", blocks={"project": "src/"}, instructions="Make it {green}.")
    assert prompt.render("They met.") == "Be brief.\n\nMake it {green}."
    assert list(prompt.render_parts("They met.")) == ["system", "instructions"]


@pytest.mark.parametrize("instructions", [None, ""])
def test_without_instructions_the_blocks_stay(instructions: str | None) -> None:
    prompt = SystemPrompt("Be brief.", blocks={"project": "src/"}, instructions=instructions)
    assert "[project]" in prompt.render()


@pytest.mark.parametrize(("max_chars", "lines"), [(0, 0), (19, 1), (39, 1), (40, 2), (2_000, 2)])
def test_facts_are_truncated_to_whole_lines(max_chars: int, lines: int) -> None:
    text = format_facts(FACTS, max_chars)
    assert len(text) <= max_chars
    assert text.splitlines() == ["- (user) likes tabs", "- (tool) uv, not pip"][:lines]


def test_a_first_fact_that_is_too_long_is_truncated() -> None:
    assert format_facts(FACTS, 18) == "- (user) likes"


def test_a_fact_is_always_one_line() -> None:
    assert format_facts([Fact("note", "one\n- (evil) two\t three")]) == (
        "- (note) one - (evil) two three"
    )


def test_blocks_count_as_tokens_of_the_session() -> None:
    chat = brim.Session("gpt-4o", window=8_000, system="Be brief.")
    chat.user("hi")
    without_blocks = chat.request().plan.size
    assert chat.tokens == without_blocks
    driver = get_driver(chat)
    driver.prompt.blocks["background"] = format_facts(FACTS)
    driver.prompt.blocks["project"] = "src/\n" + "  file.py\n" * 100
    request = chat.request()
    assert request.messages[0]["content"] == driver.system_text
    assert request.plan.size == brim.count(request.messages, model="gpt-4o")
    assert request.plan.size > without_blocks + 100
    assert chat.tokens == request.plan.size


def test_a_system_override_applies_to_one_request() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    get_driver(chat).prompt.blocks["project"] = "src/"
    chat.user("hi")
    other = chat.request(system="Use formal language.").messages[0]["content"]
    assert other == "Use formal language.\n\n[project]\nsrc/"
    assert chat.request(system="").messages[0]["content"] == "[project]\nsrc/"
    assert chat.request().messages[0]["content"] == "Be brief.\n\n[project]\nsrc/"


def test_a_reset_removes_the_instructions_and_keeps_the_blocks() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    prompt = get_driver(chat).prompt
    prompt.blocks["project"], prompt.instructions = "src/", "Work alone."
    chat.user("go")
    assert chat.request().messages[0]["content"] == "Be brief.\n\nWork alone."
    chat.reset()
    assert prompt.instructions is None
    assert len(chat) == 0
    chat.user("hi")
    assert chat.request().messages[0]["content"] == "Be brief.\n\n[project]\nsrc/"
