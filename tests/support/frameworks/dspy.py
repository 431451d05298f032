"""The loop with DSPy, which calls tools in prompts of its own."""

import json
import os
from collections.abc import Sequence

import dspy

from brim.integrations.adapter import AdapterSettings
from brim.integrations.dspy import BrimLM
from brim.testing import ScriptedReply
from tests.support.frameworks import CALLS, DONE, MODEL, QUESTION, WINDOW, Outcome, read_file

__all__ = ["REPLIES", "WINDOW", "run_loop"]


def _write_fields(**values: str) -> str:
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in values.items())


def _write_step(name: str, **arguments: int) -> str:
    given = {"next_tool_name": name, "next_tool_args": json.dumps(arguments)}
    return _write_fields(next_thought="Next.", **given)


REPLIES: Sequence[ScriptedReply] = [
    *(_write_step("read_file", number=number) for number in range(1, CALLS)),
    _write_step("finish"),
    _write_fields(reasoning="All read.", answer=DONE),
]


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    name, url = f"openai/{MODEL}", os.environ["OPENAI_BASE_URL"]
    options = {"api_base": url, "api_key": "key", "cache": False, "num_retries": 0}
    lm = dspy.LM(name, **options) if fit is None else BrimLM(name, fit=fit, **options)
    with dspy.context(lm=lm):
        result = dspy.ReAct("question -> answer", tools=[read_file], max_iters=60)(
            question=QUESTION
        )
    steps = result.trajectory.items()
    return Outcome(result.answer, [text for key, text in steps if key.startswith("observation")])
