"""The loop with litellm."""

from functools import partial

import litellm

from brim.integrations.adapter import AdapterSettings
from brim.integrations.litellm import BrimCompletion
from tests.support.frameworks import MODEL, REPLIES, WINDOW, Outcome, run_chat

__all__ = ["REPLIES", "WINDOW", "run_loop"]


def run_loop(fit: AdapterSettings | None = None) -> Outcome:
    complete = litellm.completion if fit is None else BrimCompletion(**fit).completion
    return run_chat(partial(complete, max_retries=0), f"openai/{MODEL}")
