"""Tokenizers of other packages: open vocabularies and tokenizer files."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import UnknownTokenizerError
from brim.messages import Message
from brim.tokens import counter_for, tokenizer, tokenizer_for, vocabularies
from brim.tokens.vocabularies import VocabularyTokenizer, load_splintr

splintr = cache(load_splintr)
tiktoken = cache(vocabularies.load_encoding)

OPEN = [
    "llama3",
    "qwen3",
    "mistral_v3",
    "deepseek_v3",
    "gemma3",
    "llama2",
    "kimi_k2",
    "glm4",
    "phi4",
]
VARIED = [
    "The quick brown fox jumps over the lazy dog.",
    "def f(x: int) -> str:\n\treturn f'{x:>10}'  # 3.14159\r\n\r\n",
    '{"id": 12345678901, "tags": ["a", "b"], "ok": null}',
    "don't we'll I'VE O'Brien's",
    "Привет, мир! 今天天气很好。 こんにちは 안녕하세요 مرحبا नमस्ते ไทย",
    "e\u0301 café naïve Straße 😀👩‍👩‍👧‍👦 ✈️",
    "<|endoftext|><|im_start|>user<|eot_id|></s>[INST]",
    "   \n\n \t  x  \n   ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaAAAAAAAAAAAAAAAAAAA" * 20,
    "\0\x01\ufeff\u2028\u3000",
]


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@given(text=st.sampled_from(VARIED) | st.text(max_size=200))
def test_splintr_and_tiktoken_agree(name: str, text: str) -> None:
    assert splintr(name).encode(text) == tiktoken(name).encode_ordinary(text)


def test_the_installed_splintr_is_the_verified_version() -> None:
    assert importlib.metadata.version("splintr-rs") == vocabularies.VERIFIED_SPLINTR


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama3"),
        ("meta-llama/llama-3.3-70b-instruct:free", "llama3"),
        ("llama3.2:3b", "llama3"),
        ("/models/Qwen2.5-7B-Instruct-Q4_K_M.gguf", "qwen3"),
        ("qwen3:8b", "qwen3"),
        ("mistral", "mistral_v2"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral_v3"),
        ("gemma3:27b", "gemma3"),
        ("deepseek-ai/DeepSeek-V3", "deepseek_v3"),
        ("deepseek-r1-distill-qwen-7b", "qwen3"),
        ("phi-4", "phi4"),
    ],
)
def test_open_families_have_their_own_vocabulary(model: str, name: str) -> None:
    found, own = tokenizer_for(model)
    assert (found.name, own) == (name, True)
    assert counter_for(model).uncertainty == 0
    assert not counter_for(model).exact([Message("user", ("hello",))], ())


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        # Llama 3 and tiktoken's cl100k share their first hundred thousand tokens.
        ("llama3", "hello world", [15339, 1917]),
        ("qwen3", "hello world", [14990, 1879]),
        ("mistral_v3", "Hello world", [22177, 4304]),
    ],
)
def test_open_vocabularies_give_the_published_tokens(
    name: str, text: str, tokens: list[int]
) -> None:
    assert load_splintr(name).encode(text) == tokens


@pytest.mark.parametrize(
    ("model", "tokens"), [("gpt-oss-120b", 18), ("mistral-nemo", 19), ("kimi-k2", 23)]
)
def test_marks_count_as_at_the_server_that_splits_words_at_them(model: str, tokens: int) -> None:
    text = "สะพานที่ซ่อมแล้วต้องรับน้ำหนัก"  # the numbers are llama.cpp's
    assert counter_for(model).text(text) == tokens > tokenizer_for(model)[0].count(text)


def test_a_decomposed_accent_is_not_counted_as_a_composed_one() -> None:
    # Qwen's own tokenizer composes it first, llama.cpp does not: the higher count is safe.
    assert tokenizer("qwen3").count("é") == 1
    assert tokenizer("qwen3").count("e\u0301") > 1


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("text", VARIED)
def test_no_open_vocabulary_has_more_tokens_than_bytes(name: str, text: str) -> None:
    # Older vocabularies put a space before the text.
    assert 1 <= tokenizer(name).count(text) <= len(text.encode()) + 1


@pytest.mark.parametrize("name", OPEN)
def test_what_looks_like_a_special_token_is_ordinary_text(name: str) -> None:
    for text in ("<|endoftext|>", "<|eot_id|>", "<|im_end|>", "</s>", "<end_of_turn>"):
        assert tokenizer(name).count(text) > 1


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("text", ["a\ud800b", " " * 200_000, "ab" * 100_000, "\n" * 100_000])
def test_unusual_texts_are_counted(name: str, text: str) -> None:
    assert 1 <= tokenizer(name).count(text) <= len(text.encode("utf-8", "surrogatepass"))


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def remove(package: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)

    return remove


def test_without_the_package_the_error_says_how_to_install_it(
    without: Callable[[str], None], file: Path
) -> None:
    without("splintr")
    without("tokenizers")
    for name in ("gemma4", str(file)):
        with pytest.raises(UnknownTokenizerError, match=r"pip install 'brim\[models\]'"):
            tokenizer(name)


def test_without_the_package_o200k_is_the_fallback(without: Callable[[str], None]) -> None:
    without("splintr")
    found, own = tokenizer_for("codellama:13b")
    assert (found.name, own) == ("o200k_base", False)
    assert counter_for("codellama:13b").uncertainty >= 0.25


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tokenizer of three words, with the settings that training leaves in such a file."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    vocabulary = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary.add_special_tokens([AddedToken("<|end|>")])
    vocabulary.enable_truncation(4)
    vocabulary.enable_padding(length=4)
    path = tmp_path / "tokenizer.json"
    vocabulary.save(str(path))
    return path


def test_a_tokenizer_file_can_be_used(file: Path) -> None:
    counter = counter_for("my-model", tokenizer=str(file))
    assert counter.uncertainty == 0
    assert counter.text("one two") == 2  # no padding
    assert counter.text("one two " * 10) == 20  # no truncation
    assert counter.text("<|end|>") == 3  # no special tokens
    found = tokenizer(str(file))
    assert isinstance(found, VocabularyTokenizer)
    assert found.encode("two one") == [2, 1]


def test_two_versions_of_a_file_have_different_names(file: Path) -> None:
    first = tokenizer(str(file)).name
    content = json.loads(file.read_text())
    content["model"]["vocab"]["three"] = 9
    other = file.with_name("other.json")
    other.write_text(json.dumps(content))
    assert first.split("@")[1] != tokenizer(str(other)).name.split("@")[1]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b'{"model": 7}'])
def test_the_error_names_a_file_that_is_not_a_tokenizer(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnknownTokenizerError, match=r"broken\.json"):
        tokenizer(str(path))
