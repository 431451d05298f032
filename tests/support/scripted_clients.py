"""Client libraries for the scripted server."""

from __future__ import annotations

from pathlib import Path

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from brim.storage.calibration_store import CalibrationStore
from brim.testing import ScriptedServer

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello?"}]
TEXT = "One  two\nthree, and a fourth.\n"


def openai_client(provider: ScriptedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=provider.url, api_key="none", max_retries=0)


def anthropic_client(provider: ScriptedServer) -> anthropic.Anthropic:
    url = provider.url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


@pytest.fixture
def store(tmp_path: Path) -> CalibrationStore:
    return CalibrationStore(tmp_path / "calibration.json")
