"""Model sizes, by any name of a model."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.models.catalog import NameIndex, candidate_names, model, models


@pytest.mark.parametrize(
    ("name", "context", "largest_input", "largest_output"),
    [
        ("gpt-5", 400_000, 272_000, 128_000),
        ("gpt-5-pro", 400_000, 272_000, 272_000),
        ("gpt-5.4-mini", 400_000, 272_000, 128_000),
        ("gpt-5.5", 1_050_000, 922_000, 128_000),
        ("gpt-6.1-sol", 1_050_000, 922_000, 128_000),
        ("gpt-4.1", 1_047_576, None, 32_768),
        ("gpt-4o", 128_000, None, 16_384),
        ("o4-mini", 200_000, None, 100_000),
        ("claude-opus-4-1", 200_000, None, 32_000),
        ("claude-haiku-4-5", 200_000, None, 64_000),
        ("claude-sonnet-4-6", 1_000_000, None, 128_000),
        ("claude-opus-5-5", 1_000_000, None, 128_000),
        ("gemini-2.5-flash", 1_048_576, 1_048_576, 65_536),
        ("deepseek-v4-pro", 1_000_000, None, 384_000),
        ("deepseek-chat", None, None, None),
        ("codestral-latest", 256_000, None, 4_096),
        ("grok-4.20", 1_000_000, None, 30_000),
        ("qwen3-max", 262_144, 258_048, 65_536),
        ("llama-3.3-70b", 131_072, None, 32_768),
        ("smollm2", 8_192, None, None),
    ],
)
def test_the_catalog_has_context_input_and_output(
    name: str, context: int | None, largest_input: int | None, largest_output: int | None
) -> None:
    found = model(name)
    assert found is not None
    assert found.context == context
    assert found.largest_input == largest_input
    assert found.largest_output == largest_output


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("GPT-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openai:gpt-4o", "gpt-4o"),
        ("google:gemini-2.5-pro", "gemini-2.5-pro"),
        ("openrouter/openai/gpt-4o:free", "gpt-4o"),
        ("azure/eu/gpt-4o-mini", "gpt-4o-mini"),
        ("ft:gpt-4o-mini-2024-07-18:acme::AbC", "gpt-4o-mini"),
        ("gpt-4-0613", "gpt-4"),
        ("gpt-4-1106-preview", "gpt-4-turbo"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("anthropic/claude-opus-4.6", "claude-opus-4-6"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("bedrock/us.anthropic.claude-opus-4-1-20250805-v1:0", "claude-opus-4-1"),
        ("vertex_ai/claude-opus-4-1@20250805", "claude-opus-4-1"),
        ("models/gemini-2.5-pro-preview-05-06", "gemini-2.5-pro"),
        ("gemini-2.0-flash-001", "gemini-2.0-flash"),
        ("grok-4-0709", "grok-4"),
        ("llama3.2:3b", "llama-3.2"),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3.1"),
        ("C:\\models\\Meta-Llama-3-8B.Q8_0.gguf", "llama-3"),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "llama-3.2"),
        ("/srv/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama-3.1"),
        ("qwen2.5:7b-instruct", "qwen2.5"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("google/gemma-3-27b-it", "gemma-3"),
    ],
)
def test_a_model_is_found_by_all_its_names(spelled: str, name: str) -> None:
    found = model(spelled)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "gptfoo", "gpt", "gpt-6", "gpt-5.7", "claude-opus-4-9", "my-own", "mistral-ocr-9"],
)
def test_another_version_or_word_is_another_model(name: str) -> None:
    assert model(name) is None


def test_every_model_is_found_by_its_name_and_no_number_is_zero() -> None:
    listed = models()
    assert len(listed) >= 120
    assert len({entry.name for entry in listed}) == len(listed)
    for entry in listed:
        assert model(entry.name) == entry
        assert model(f"some/{entry.name}:tag") == entry
        numbers = (entry.context, entry.largest_input, entry.largest_output)
        assert all(number is None or number > 0 for number in numbers)
        if entry.context is not None:
            assert (entry.largest_input or 0) <= entry.context
            assert (entry.largest_output or 0) <= entry.context


def test_a_name_can_be_added_and_replaced() -> None:
    index: NameIndex[int] = NameIndex(versions=False)
    index.add("in-house", 1)
    assert index.find("hoster/In-House-7b:latest") == 1
    index.add("in-house", 2)
    assert index.find("in-house") == 2
    assert list(index.values()) == [2]


def test_an_empty_model_name_is_rejected() -> None:
    with pytest.raises(InputError, match="empty"):
        NameIndex[int](versions=False).add(" ", 1)


def test_the_longest_name_wins_in_any_order() -> None:
    index: NameIndex[str] = NameIndex(versions=True)
    for name in ("gpt", "gpt-4o", "gpt-4"):
        index.add(name, name)
    assert index.find("gpt-4o-mini") == "gpt-4o"
    assert index.find("openai/gpt-4-turbo") == "gpt-4"
    assert index.find("gpt-5") == "gpt"
    assert index.find("gptfoo") is None


@given(st.text(max_size=60))
def test_any_name_can_be_looked_up(name: str) -> None:
    assert all(spelling == spelling.lower() for spelling in candidate_names(name))
    assert model(name) is None or model(name) in models()


def test_a_name_may_begin_with_its_provider_and_a_colon() -> None:
    from pydantic_ai.models import KnownModelName

    names = [name for name in get_args(KnownModelName.__value__) if ":" in name]
    assert len(names) > 100
    for name in names:
        assert model(name) == model(name.partition(":")[2]), name


def test_a_tag_after_a_colon_does_not_hide_the_model() -> None:
    for name, tagged in (("llama3", "llama3:8b"), ("mistral", "mistral:latest")):
        assert model(name) is not None
        assert model(tagged) == model(name)
