from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from brim.errors import BrimError, BudgetError, InputError
from brim.fitting.text_tables import apportion
from brim.models.pricing import Price
from brim.session.session import Session, get_driver
from brim.session.system_prompt import Fact, format_facts
from brim.shell.goal_mode import build_goal_instructions
from brim.shell.render.context import ContextReport, build_report, to_json
from brim.shell.render.context_view import ContextView
from tests.support.strategies import histories, policies, text

KEPT = ("margin", "not for input", "reply", "free")


def tool(name: str, words: int = 20) -> dict[str, Any]:
    about = {"name": name, "description": text(words), "parameters": {"type": "object"}}
    return {"type": "function", "function": about}


def talk(session: Session, exchanges: int, words: int = 60) -> Session:
    call = {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    for number in range(exchanges):
        session.add_output(text(words, number))
        session.user(text(10, number))
        session.assistant(None, [call])
        session.tool("a", text(words, number + 50))
        session.assistant(text(20, number + 99))
    return session


def rows(found: ContextReport) -> dict[str, int]:
    return {part.name: part.tokens for part in found.parts}


Step = Callable[[Session], object]
Recipe = tuple[dict[str, Any], list[Step]]


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Conversations of any kind, with or without blocks of the system prompt."""
    given = {
        "model": draw(st.sampled_from((None, "gpt-4o", "gpt-5-mini", "some-model", "mistral-7b"))),
        "system": draw(st.sampled_from(("", "Be brief.", text(80)))),
        "window": draw(st.integers(0, 60) | st.integers(300, 4_000)),
        "reply": draw(st.none() | st.integers(0, 400)),
        "policy": draw(policies),
        "tools": [tool(f"t{number}") for number in range(draw(st.integers(0, 3)))],
        "summarize": draw(st.sampled_from((None, lambda *_: "They spoke of the parser."))),
    }
    facts = [Fact("fact", text(9, number)) for number in range(draw(st.integers(0, 2)))]
    project = draw(st.sampled_from((None, text(30, 7))))
    goal = draw(st.sampled_from((None, None, None, "Reach it.")))
    done: list[Step] = [partial(prepare, facts=facts, project=project, goal=goal)]
    for message in draw(histories(faults=False, marks=False)):
        done.append(partial(append_turn, message=message))
        if draw(st.integers(0, 5)) == 0:
            done.append(partial(answer_request, tokens=draw(st.integers(1, 5_000))))
    if draw(st.booleans()):
        done.append(lambda session: session.add_output(text(30)))
    return given, done


def make_session(recipe: Recipe, look: bool = False) -> Session:
    given, done = recipe
    session = Session(**given)
    for step in done:
        step(session)
        if look:
            build_report(session)
    return session


def sessions() -> st.SearchStrategy[Session]:
    return recipes().map(make_session)


def prepare(session: Session, *, facts: list[Fact], project: str | None, goal: str | None) -> None:
    prompt = get_driver(session).prompt
    prompt.blocks = {"background": format_facts(facts), "project": project or ""}
    prompt.instructions = build_goal_instructions(goal) if goal else None


def append_turn(session: Session, *, message: dict[str, Any]) -> None:
    with suppress(InputError):
        session.append(message)


def answer_request(session: Session, *, tokens: int) -> None:
    """Send a request whose reply reports its usage."""
    usage = {"prompt_tokens": tokens, "completion_tokens": 3}
    choice = {"message": {"role": "assistant", "content": "So it is."}}
    with suppress(BrimError):
        session.request()
        session.receive({"choices": [choice], "usage": usage})


@given(sessions())
def test_the_rows_add_up_to_the_window(session: Session) -> None:
    found = build_report(session, tool_servers={"files": [tool("t1")]})
    assert all(part.tokens >= 0 for part in found.parts)
    assert sum(part.tokens for part in found.parts) == found.window + found.over
    used = sum(part.tokens for part in found.parts if part.name not in KEPT)
    assert used == found.used
    assert (rows(found)["free"] == 0) if found.over else (found.used <= found.limit)
    json.dumps(to_json(found))


@given(recipes())
def test_building_a_report_changes_nothing(recipe: Recipe) -> None:
    assert send_request(make_session(recipe, look=True)) == send_request(make_session(recipe))


def send_request(session: Session) -> object:
    try:
        return dict(session.request())
    except BrimError as error:
        return str(error)


@given(sessions())
def test_the_used_tokens_are_those_of_the_session(session: Session) -> None:
    found = build_report(session)
    if not found.trimmed.turns and not found.trimmed.shortened and not found.over:
        assert found.used == session.tokens
        assert rows(found)["free"] == session.room


@given(sessions())
def test_the_system_text_is_its_blocks(session: Session) -> None:
    whole = get_driver(session).system_text
    assert "\n\n".join(get_driver(session).render_system_parts().values()) == whole


def full() -> Session:
    session = Session(
        "gpt-4o",
        system="You are a shell.",
        window=4_000,
        reply=500,
        tools=[tool("own"), tool("read", 40), tool("write", 40)],
        price=Price(input=Decimal(10), output=Decimal(20)),
    )
    blocks = get_driver(session).prompt.blocks
    blocks["background"] = format_facts([Fact("user", "likes it short")])
    blocks["project"] = "src/\n  a.py"
    talk(session, 3)
    session.add_output("still waiting")
    return session


def test_every_part_has_a_row_and_the_command_that_frees_it() -> None:
    found = build_report(full(), tool_servers={"files": [tool("read"), tool("write")]})
    assert {part.name: part.frees for part in found.parts} == {
        "system": "",
        "background": ":memory forget",
        "project": ":tree off",
        "tools": "",
        "tools: files": ":mcp disconnect files",
        "user": ":compact",
        "assistant": ":compact",
        "tool results": ":compact",
        "exec output": ":compact",
        "waiting output": ":output drop",
        "structure": "",
        "reply": "",
        "free": "",
    }
    assert rows(found)["tools: files"] > rows(found)["tools"]
    assert rows(found)["structure"] == 3


def test_a_price_is_tokens_times_the_models_price() -> None:
    found = {part.name: part for part in build_report(full()).parts}
    user = found["user"]
    assert user.price == Decimal(10) * user.tokens / 1_000_000
    assert found["reply"].price == Decimal("0.01")
    assert found["free"].price is None
    unpriced = build_report(Session("some-model", window=500))
    assert all(part.price is None for part in unpriced.parts)


def test_trimmed_turns_are_not_in_the_rows() -> None:
    session = talk(Session("gpt-4o", system="Hi.", window=2_000, reply=200), 12)
    found = build_report(session)
    assert found.used <= found.limit
    assert found.trimmed.turns
    assert set(found.trimmed.turns).isdisjoint(found.trimmed.shortened)
    request = session.request()
    assert found.used == request.plan.tokens
    assert found.trimmed.tokens == request.plan.before - request.plan.tokens
    assert build_report(session) == found
    assert "trimmed: " in draw_report(found)
    assert ":recall N brings one back" in draw_report(found)


def test_after_a_compaction_the_report_shows_the_rest() -> None:
    session = talk(Session("gpt-4o", system="Hi.", window=9_000, reply=200), 12)
    whole = build_report(session)
    plan = session.compact()
    found = build_report(session)
    assert found.used == plan.tokens < whole.used
    assert found.trimmed.tokens == whole.used - found.used
    assert sum(rows(found).values()) == 9_000


def test_without_trimming_the_report_shows_the_excess() -> None:
    session = talk(Session("gpt-4o", window=1_000, reply=200), 12)
    session.trim = False
    found = build_report(session)
    assert found.over == found.used - 800 > 0
    assert rows(found)["free"] == 0
    assert f"over by {found.over:,} tokens: it cannot be sent" in draw_report(found)


def test_waiting_output_can_cause_a_trim() -> None:
    session = talk(Session("gpt-4o", window=1_700, reply=200), 5)
    for number in range(6):
        session.add_output(text(40, number))
    found = build_report(session)
    assert found.can_be_sent
    assert f"over by {found.over:,} tokens: the next request will be trimmed" in draw_report(found)


def test_turns_have_the_numbers_that_recall_takes() -> None:
    session = Session("gpt-4o", window=1_500, reply=100)
    session.user("first")
    session.request()
    session.receive({"choices": [{"message": {"role": "assistant", "content": ""}}]})
    talk(session, 12)
    cut = build_report(session).trimmed
    assert 1 not in (*cut.turns, *cut.shortened)
    assert all(session.recall(index) for index in cut.turns if session.history[index]["content"])


def test_the_servers_count_takes_precedence() -> None:
    session = talk(Session("some-model", window=8_000, reply=500, system="Hello."), 3)
    estimated = build_report(session)
    assert estimated.margin > 0
    assert estimated.counted_by.startswith("estimated with ")
    session.user("and now?")
    session.request()
    usage = {"prompt_tokens": 1_234, "completion_tokens": 5}
    session.receive(
        {"choices": [{"message": {"content": "Yes.", "role": "assistant"}}], "usage": usage}
    )
    found = build_report(session)
    assert found.counted_by == "reported by the server for the last request, estimated since"
    assert found.margin == 0
    assert 1_234 < found.used < 1_300
    assert sum(rows(found).values()) == 8_000


def test_an_input_limit_below_the_window_has_its_own_row() -> None:
    found = build_report(Session("gpt-5-mini"))
    assert rows(found)["not for input"] == found.window - found.reply - found.limit
    assert found.window_from == "the catalog"


def test_the_source_of_the_window_is_shown() -> None:
    assert build_report(Session("x", window=100)).window_from == "the configuration"
    assert "window: the configuration" in draw_report(build_report(Session("x", window=4_096)))
    with pytest.raises(BudgetError, match="context window of x is unknown"):
        build_report(Session("x"))


def draw_report(found: ContextReport, width: int = 80, **settings: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=width, height=50, **settings).print(ContextView(found))
    return file.getvalue()


def test_the_report_is_rendered_as_text() -> None:
    lines = draw_report(
        build_report(full(), tool_servers={"files": [tool("read"), tool("write")]})
    ).splitlines()
    assert lines[0].startswith("gpt-4o · ~")
    assert " of 4,000 tokens · ~" in lines[0]
    assert lines[0].endswith(" % of the limit")
    assert lines[5].strip() == "▲ limit 3,500" or lines[5].strip() == "limit 3,500 ▲"
    assert len(lines[4]) == 79
    assert lines[5].index("▲") == lines[4].index("░")
    assert lines[-1].split() == ["window", "4,000"]
    assert "░ reply               500     12 %  ≤ $0.010000" in lines


@given(sessions(), st.integers(20, 130), st.sampled_from(("colors", "none", "dumb")))
def test_it_is_never_wider_than_the_screen(session: Session, width: int, kind: str) -> None:
    given: dict[str, dict[str, Any]] = {
        "colors": {"force_terminal": True, "color_system": "standard"},
        "none": {"force_terminal": True, "no_color": True, "color_system": "standard"},
        "dumb": {"force_terminal": True, "_environ": {"TERM": "dumb"}},
    }
    written = draw_report(build_report(session), width, **given[kind])
    for line in re.sub(r"\x1b\[[0-9;]*m", "", written).splitlines():
        assert cell_len(line) <= width
    assert written.isascii() or kind != "dumb"


def test_without_colors_each_part_has_its_own_fill() -> None:
    lines = draw_report(build_report(full())).splitlines()
    fills = [line[0] for line in lines[8:-1]]
    assert len(set(fills)) == len(fills)
    assert set(lines[4]) == set(fills)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12), st.integers(12, 120))
def test_a_bar_has_exactly_the_given_width(sizes: list[int], width: int) -> None:
    found = apportion(width, sizes, least=1)
    assert sum(found) == (width if any(sizes) else 0)
    assert all((cells > 0) == (size > 0) for cells, size in zip(found, sizes, strict=True))
