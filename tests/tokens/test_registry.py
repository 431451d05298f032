"""The tokenizer of each model, and its uncertainty."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.messages import Message
from brim.tokens import counter_for, register, tokenizer, tokenizer_for
from brim.tokens.families import families
from brim.tokens.vocabularies import BUNDLED_NAMES


@dataclass
class Words:
    """A tokenizer as a user would write it (as a dataclass, it is not even hashable)."""

    name: str = "words"
    each: int = 1

    def count(self, text: str) -> int:
        return len(text.split()) * self.each


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("GPT-4o", "o200k_base"),
        ("openai/gpt-4o", "o200k_base"),
        ("openrouter/openai/gpt-4o", "o200k_base"),
        ("azure/gpt-4.1-mini", "o200k_base"),
        ("gpt-4o:extended", "o200k_base"),
        ("ft:gpt-4o-mini-2024-07-18:exampleco::AbC", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("gpt-5.9-pro", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("openai/gpt-oss-120b:free", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("gpt-4-1106-preview", "cl100k_base"),
        ("azure/gpt-35-turbo", "cl100k_base"),
    ],
)
def test_openai_models_have_their_own_vocabulary(model: str, name: str) -> None:
    found, own = tokenizer_for(model)
    assert (found.name, own) == (name, True)
    assert counter_for(model).uncertainty == 0


@pytest.mark.parametrize(
    ("model", "uncertainty"),
    [
        (None, 0.25),
        ("", 0.25),
        ("gptfoo", 0.25),
        ("my-finetune", 0.25),
        ("gpt-6-sol", 0.1),
        ("grok-4", 0.25),
        ("claude-3-5-haiku-latest", 0.15),
        ("claude-opus-4-20250514", 0.15),
        ("anthropic/claude-opus-4.6", 0.15),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 0.15),
        ("claude-opus-4-7", 0.15),
        ("claude-opus-4-8", 0.15),
        ("claude-sonnet-5-5", 0.15),
        ("claude-opus-11", 0.15),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", 0.55),
    ],
)
def test_o200k_is_the_fallback_for_unknown_vocabularies(
    model: str | None, uncertainty: float
) -> None:
    found, own = tokenizer_for(model)
    assert (found.name.partition("*")[0], own) == ("o200k_base", False)
    assert counter_for(model).uncertainty == uncertainty


def test_a_denser_model_stays_within_the_uncertainty() -> None:
    text = "def area(width: float, height: float) -> float:\n    return width * height\n" * 20
    estimate, truth = counter_for("unknown"), counter_for("gpt-4")
    assert truth.text(text) <= estimate.text(text) * (1 + estimate.uncertainty)


def test_each_model_is_counted_with_its_own_tokenizer() -> None:
    text = "お誕生日おめでとう"
    assert counter_for("gpt-4").text(text) == 9
    assert counter_for("gpt-4o").text(text) == 8
    assert counter_for("gpt-4").text(text) == 9


def test_counters_are_cached() -> None:
    assert counter_for("gpt-4o") is counter_for("gpt-4o")
    assert counter_for("gpt-4o").name == counter_for("openai/gpt-4o").name
    assert counter_for("gpt-4o").name != counter_for("gpt-4").name


def test_the_longest_registered_name_wins_in_any_order() -> None:
    register("exampleco", Words("short"))
    register("exampleco-large", Words("long"))
    register("exampleco-small", Words("small"))
    register("exampleco-small-2", Words("small-2"))
    assert tokenizer_for("exampleco-large-2026-01-01")[0].name == "long"
    assert tokenizer_for("hoster/EXAMPLECO-Large:free")[0].name == "long"
    assert tokenizer_for("exampleco-tiny")[0].name == "short"
    assert tokenizer_for("exampleco-small-2-7b-Q4_K_M.gguf")[0].name == "small-2"
    assert tokenizer_for("examplecofoo")[0].name == "o200k_base"


def test_a_registered_tokenizer_is_the_models_own() -> None:
    before = counter_for("exampleown-7b")
    register("exampleown", Words("own-words"))
    after = counter_for("exampleown-7b")
    assert before.uncertainty == 0.25
    assert after.uncertainty == 0
    assert after.text("one two three") == 3
    assert tokenizer("exampleown").count("one two") == 2


def test_registering_a_name_again_replaces_the_tokenizer() -> None:
    register("twice", Words("twice", 1))
    first = counter_for("twice")
    register("twice", Words("twice", 2))
    second = counter_for("twice")
    assert (first.text("one two"), second.text("one two")) == (2, 4)
    assert first.name != second.name


def test_a_registered_tokenizer_keeps_the_template_of_the_family() -> None:
    register("qwen3-my-tune", Words("my-tune"))
    assert counter_for("qwen3-my-tune").overhead == counter_for("qwen3").overhead


def test_a_tokenizer_that_raises_does_not_end_the_conversation() -> None:
    class Broken(Words):
        def count(self, text: str) -> int:
            raise RuntimeError(text)

    register("broken", Broken("broken"))
    assert counter_for("broken").text("größe") == 7


@pytest.mark.parametrize("thing", ["o200k_base", 7, object(), Path()])
def test_an_invalid_tokenizer_is_rejected(thing: object) -> None:
    with pytest.raises(InputError, match=f"Invalid tokenizer: {type(thing).__name__}"):
        register("broken", thing)  # type: ignore[arg-type]
    if not isinstance(thing, str):
        with pytest.raises(InputError, match=f"Invalid tokenizer: {type(thing).__name__}"):
            counter_for("gpt-4o", tokenizer=thing)  # type: ignore[arg-type]


def test_a_tokenizer_can_be_passed_as_an_argument() -> None:
    words = Words("passed")
    counter = counter_for("gpt-4o", tokenizer=words)
    assert counter is counter_for("gpt-4o", tokenizer=words)
    assert counter.uncertainty == 0
    assert counter.message(Message("user", ("one two three",))) == 4 + 3


def test_two_tokenizers_of_one_name_do_not_share_counts() -> None:
    single, double = Words("same", 1), Words("same", 2)
    one, two = counter_for(None, tokenizer=single), counter_for(None, tokenizer=double)
    assert one.name != two.name
    assert (one.text("a b c"), two.text("a b c")) == (3, 6)


@pytest.mark.parametrize(
    ("model", "named", "uncertainty"),
    [
        ("gpt-4o", "o200k_base", 0.0),
        ("gpt-4o", "cl100k_base", 0.25),
        ("claude-opus-4-1", "o200k_base", 0.3),
        (None, "o200k_base", 0.0),
        ("gpt-4o", "chars/4", 0.5),
        (None, "chars/3.5", 0.5),
        ("claude-opus-5", "chars/4", 1.22),
    ],
)
def test_the_uncertainty_of_a_tokenizer_given_by_name(
    model: str | None, named: str, uncertainty: float
) -> None:
    assert counter_for(model, tokenizer=named).uncertainty == uncertainty


def test_every_family_is_found_by_each_of_its_names() -> None:
    for family in families().values():
        for name in family.names:
            found = families().find(name)
            assert found is not None
            assert found.name == family.name
            assert (
                found.vocabulary is None
                or found.vocabulary in BUNDLED_NAMES
                or found.uncertainty >= 0.25
            )


def test_the_number_of_cached_counters_is_bounded() -> None:
    first = counter_for("made-up")
    for number in range(1_100):
        counter_for(f"made-up-{number}")
    assert counter_for("made-up").name == first.name


def test_importing_loads_the_standard_library_only() -> None:
    program = (
        "import sys, brim.tokens, brim.models.catalog, brim.models.pricing\n"
        "names = {'tiktoken', 'splintr', 'tokenizers', 'genai_prices', 'tomllib', 'pydantic'}\n"
        "print(sorted(names & set(sys.modules)))"
    )
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(source)},
    )
    assert done.stdout == "[]\n"
