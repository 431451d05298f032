"""DSPy with the real framework."""

from typing import Any

import pytest
from dspy import ChatAdapter, JSONAdapter, ReAct, XMLAdapter, context
from dspy.utils.exceptions import ContextWindowExceededError

import brim
from brim.integrations.dspy import BrimLM
from tests.support.frameworks import CALLS, DONE, FILES, WINDOW, dspy, read_file, serve
from tests.support.pages import run_page


def test_the_loop_is_completed_and_the_trajectory_is_whole() -> None:
    with serve(replies=dspy.REPLIES) as server:
        outcome = dspy.run_loop({"window": WINDOW, "reply": 500})
    assert outcome == (DONE, [*FILES[:-1], "Completed."])
    assert not server.rejected
    assert len(server.requests) == CALLS + 1


def test_without_brim_the_server_rejects_requests() -> None:
    with serve(replies=dspy.REPLIES) as server:
        dspy.run_loop()  # DSPy shortens its trajectory after each error
    assert server.rejected


def write_prompt(adapter: Any, steps: int) -> list[dict[str, Any]]:
    """Return the messages that DSPy sends after some steps."""
    trajectory: dict[str, Any] = {}
    for number in range(steps):
        trajectory |= {
            f"thought_{number}": "Next.\n\nReally.",
            f"tool_name_{number}": "read_file",
            f"tool_args_{number}": {"number": number},
            f"observation_{number}": read_file(number),
        }
    agent = ReAct("question -> answer", tools=[read_file])
    with context(adapter=adapter):
        inputs = {"question": "Why?", "trajectory": agent._format_trajectory(trajectory)}
        messages: list[dict[str, Any]] = adapter.format(agent.react.signature, [], inputs)
    return messages


ADAPTERS = pytest.mark.parametrize("kind", [ChatAdapter, JSONAdapter, XMLAdapter])


@ADAPTERS
def test_old_observations_are_clipped_and_the_rest_of_the_prompt_stays(kind: Any) -> None:
    plans: list[brim.Plan] = []
    messages = write_prompt(kind(), 20)
    with serve(replies=["Done."]) as server:
        settings: Any = {"window": WINDOW, "reply": 500, "on_plan": plans.append}
        lm = BrimLM("openai/gpt-4o", fit=settings, api_base=server.url, api_key="key", cache=False)
        lm(messages=messages)
    (request,) = server.requests
    before, after = messages[-1]["content"], request.body["messages"][-1]["content"]
    assert len(request.body["messages"]) == len(messages)
    assert plans[0].clipped
    assert not plans[0].dropped
    assert plans[0].tokens - 8 * 20 < request.tokens <= plans[0].tokens
    assert read_file(19).strip() in after
    assert read_file(0).strip() not in after
    assert after.count("observation_") == before.count("observation_")
    assert after.partition("thought_0")[0] == before.partition("thought_0")[0]
    assert after.rpartition("\n\n")[2] == before.rpartition("\n\n")[2]
    assert [line for line in before.splitlines() if "_19" in line] == [
        line for line in after.splitlines() if "_19" in line
    ]


@ADAPTERS
def test_a_prompt_that_fits_is_sent_as_it_is(kind: Any) -> None:
    messages = write_prompt(kind(), 3)
    with serve(replies=["Done."]) as server:
        settings: Any = {"window": WINDOW, "reply": 500}
        lm = BrimLM("openai/gpt-4o", fit=settings, api_base=server.url, api_key="key", cache=False)
        lm(messages=messages)
    assert server.requests[0].body["messages"] == messages


def test_a_prompt_that_cannot_fit_raises_the_error_of_dspy() -> None:
    messages = [{"role": "user", "content": "Why? " * 5_000}]
    with serve(replies=["Done."]) as server:
        settings: Any = {"window": WINDOW, "reply": 500}
        lm = BrimLM("openai/gpt-4o", fit=settings, api_base=server.url, api_key="key", cache=False)
        with pytest.raises(ContextWindowExceededError):
            lm(messages=messages)
    assert not server.requests


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(replies=dspy.REPLIES) as server:
        run_page("dspy", server, monkeypatch)
    assert len(server.requests) == CALLS + 1
    assert not server.rejected
