"""The loop with the OpenAI client and `brim.wrap`, without a framework."""

import openai

import brim
from brim.fitting.api import FitSettings
from tests.support.frameworks import REPLIES, WINDOW, Outcome, run_chat

__all__ = ["REPLIES", "WINDOW", "run_loop"]


def run_loop(fit: FitSettings | None = None) -> Outcome:
    with openai.OpenAI(max_retries=0) as client:
        used = client if fit is None else brim.wrap(client, **fit)
        return run_chat(used.chat.completions.create)
