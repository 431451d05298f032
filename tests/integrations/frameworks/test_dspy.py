"""DSPy with the real framework."""

import json
from typing import Any

import dspy
import pytest

from brim.integrations.dspy import BrimLM, BrimReAct
from brim.testing import ScriptedServer
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, read_file
from tests.support.pages import run_page


def script() -> list[Any]:
    """Return the replies of ReAct's prompts: forty calls, the end, and the answer."""

    def fields(**values: str) -> str:
        return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in values.items())

    calls = [
        fields(
            next_thought="Read it.",
            next_tool_name="read_file",
            next_tool_args=json.dumps({"number": number}),
        )
        for number in range(1, CALLS)
    ]
    end = fields(next_thought="Done.", next_tool_name="finish", next_tool_args="{}")
    return [*calls, end, fields(reasoning="All read.", answer=DONE)]


def run_loop(server: Any, **given: Any) -> Any:
    fit: Any = given
    options = {"api_base": server.url, "api_key": "key", "cache": False, "num_retries": 0}
    name = f"openai/{MODEL}"
    lm = BrimLM(name, fit=fit, **options) if fit else dspy.LM(name, **options)
    kind = BrimReAct if fit else dspy.ReAct
    with dspy.context(lm=lm):
        return kind("question -> answer", tools=[read_file], max_iters=60)(question=QUESTION)


def test_the_loop_is_completed_and_the_trajectory_is_whole() -> None:
    plans: list[Any] = []
    with ScriptedServer(script(), window=WINDOW, model=MODEL) as server:
        result = run_loop(server, window=WINDOW, reply=500, on_plan=plans.append)
    assert result.answer == DONE
    assert not server.rejected
    assert len(server.requests) == CALLS + 1 == len(plans)
    assert all(request.tokens <= WINDOW - 500 for request in server.requests)
    outputs = [value for key, value in result.trajectory.items() if key.startswith("observation")]
    assert outputs[:-1] == [read_file(number) for number in range(1, CALLS)]


def test_without_brim_the_server_rejects_requests() -> None:
    with ScriptedServer(script(), window=WINDOW, model=MODEL) as server:
        run_loop(server)  # DSPy shortens its trajectory after each error
    assert server.rejected


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(script(), window=WINDOW, model=MODEL) as server:
        run_page("dspy", server, monkeypatch)
    assert len(server.requests) == CALLS + 1
    assert not server.rejected
