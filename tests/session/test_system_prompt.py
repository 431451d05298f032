from __future__ import annotations

import pytest

import brim
from brim.session.system_prompt import (
    BACKGROUND_HEADING,
    PROJECT_HEADING,
    SUMMARY_HEADING,
    Fact,
    build_goal_instructions,
    build_system_text,
    format_facts,
)

FACTS = (Fact("user", "likes tabs"), Fact("tool", "uv, not pip"))


def test_the_blocks_stand_in_order_with_a_blank_line_between() -> None:
    text = build_system_text("Be brief.", memory=FACTS, project="src/\n  a.py", summary="They met.")
    assert text == (
        "Be brief.\n\n"
        "[background]\n- (user) likes tabs\n- (tool) uv, not pip\n\n"
        "[project]\nsrc/\n  a.py\n\n"
        "[earlier conversation summary]\nThey met."
    )


@pytest.mark.parametrize("nothing", [None, ""])
def test_there_is_no_heading_over_nothing(nothing: str | None) -> None:
    assert build_system_text(nothing, project=nothing, summary=nothing) == ""
    assert (
        build_system_text("Be brief.", project=nothing, summary="x")
        == f"Be brief.\n\n{SUMMARY_HEADING}\nx"
    )


def test_a_goal_leaves_the_base_prompt_and_comes_last() -> None:
    goal = "make `pytest` {green}"
    text = build_system_text("Be brief.", memory=FACTS, project="src/", summary="x", goal=goal)
    assert text == f"Be brief.\n\n{build_goal_instructions(goal)}"
    assert text.endswith(goal)
    for heading in (BACKGROUND_HEADING, PROJECT_HEADING, SUMMARY_HEADING):
        assert heading not in text
    assert "`GOAL: complete`" in text
    assert "`GOAL: blocked`" in text


@pytest.mark.parametrize("goal", [None, ""])
def test_without_a_goal_the_blocks_stay(goal: str | None) -> None:
    assert PROJECT_HEADING in build_system_text("Be brief.", project="src/", goal=goal)


@pytest.mark.parametrize(("largest", "lines"), [(0, 0), (19, 1), (39, 1), (40, 2), (2_000, 2)])
def test_facts_are_cut_to_whole_lines(largest: int, lines: int) -> None:
    text = format_facts(FACTS, largest)
    assert len(text) <= largest
    assert text.splitlines() == ["- (user) likes tabs", "- (tool) uv, not pip"][:lines]


def test_a_first_fact_that_is_too_long_is_cut_and_hides_nothing_else_of_the_text() -> None:
    assert format_facts(FACTS, 18) == "- (user) likes"


def test_a_fact_is_one_line_whatever_it_holds() -> None:
    assert format_facts([Fact("note", "one\n- (evil) two\t three")]) == (
        "- (note) one - (evil) two three"
    )


def test_memory_and_project_count() -> None:
    chat = brim.Session("gpt-4o", window=8_000, system="Be brief.")
    chat.user("hi")
    bare = chat.request().plan.size
    assert chat.tokens == bare
    chat.memory.append(Fact("user", "likes tabs"))
    chat.project = "src/\n" + "  file.py\n" * 100
    request = chat.request()
    assert request.messages[0]["content"] == chat.system_text()
    assert request.plan.size == brim.count(request.messages, model="gpt-4o")
    assert request.plan.size > bare + 100
    assert chat.tokens == request.plan.size


def test_an_override_is_for_one_request() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    chat.project = "src/"
    chat.user("hi")
    other = chat.request(system="Speak like a sailor.").messages[0]["content"]
    assert other == "Speak like a sailor.\n\n[project]\nsrc/"
    assert chat.request(system="").messages[0]["content"] == "[project]\nsrc/"
    assert chat.request().messages[0]["content"] == "Be brief.\n\n[project]\nsrc/"


def test_goal_mode_in_a_session_and_its_end_by_reset() -> None:
    chat = brim.Session("gpt-4o", system="Be brief.")
    chat.project, chat.memory = "src/", [Fact("user", "likes tabs")]
    chat.goal = "all tests pass"
    chat.user("go")
    assert (
        chat.request().messages[0]["content"]
        == f"Be brief.\n\n{build_goal_instructions('all tests pass')}"
    )
    chat.reset()
    assert chat.goal is None
    assert len(chat) == 0
    chat.user("hi")
    assert chat.request().messages[0]["content"] == (
        "Be brief.\n\n[background]\n- (user) likes tabs\n\n[project]\nsrc/"
    )


def test_how_much_of_the_facts_is_told_can_be_said() -> None:
    chat = brim.Session("gpt-4o", memory_chars=19)
    chat.memory.extend(FACTS)
    assert chat.system_text() == f"{BACKGROUND_HEADING}\n- (user) likes tabs"
    with pytest.raises(brim.InputError, match="memory_chars"):
        brim.Session("gpt-4o", memory_chars=-1)
