"""The loop with smolagents, whose system prompt takes more than half of the usual window."""

import os
from collections.abc import Sequence
from typing import Any

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from brim.integrations.adapter import AdapterSettings
from brim.integrations.smolagents import BrimModel
from brim.testing import ScriptedReply, ToolCallReply
from tests.support import frameworks
from tests.support.frameworks import DONE, MODEL, QUESTION, TOOL_CALLS, Outcome

REPLIES: Sequence[ScriptedReply] = [*TOOL_CALLS, ToolCallReply("final_answer", {"answer": DONE})]
WINDOW = 2 * frameworks.WINDOW


@tool
def read_file(number: int) -> str:
    """Return the content of a file.

    Args:
        number: The number of the file.
    """
    return frameworks.read_file(number)


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    model: Any = OpenAIServerModel(
        MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key="key",
        client_kwargs={"max_retries": 0},
    )  # fmt: skip
    if fit is not None:
        model = BrimModel(model, **fit)
    agent = ToolCallingAgent([read_file], model=model, max_steps=60, verbosity_level=0)
    answer = str(agent.run(QUESTION))
    outputs = [getattr(step, "observations", None) for step in agent.memory.steps]
    return Outcome(answer, [f"{text} " for text in outputs if text][: len(TOOL_CALLS)])
