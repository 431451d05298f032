"""Text, counted with the bundled vocabularies."""

from __future__ import annotations

import base64
import hashlib
import lzma
import sys
import threading
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiktoken import Encoding

import brim.tokens
from brim.errors import InputError, UnknownTokenizerError
from brim.tokens import counter_for, tokenizer
from brim.tokens.vocabularies import VocabularyTokenizer, load_encoding
from scripts.pack_vocabularies import pack, tokens_by_rank

OPENAI = ["o200k_base", "cl100k_base"]
EVERY = [*OPENAI, "chars/3.5", "chars/4"]
ENGINES = ["splintr", "tiktoken"]

# Any code point, including unpaired surrogates, and long runs of one character.
ANYTHING = st.one_of(
    st.text(st.characters(codec=None), max_size=300),
    st.builds(lambda character, times: character * times, st.characters(), st.integers(0, 3_000)),
)


@cache
def load_vocabulary(name: str, engine: str) -> VocabularyTokenizer:
    """A vocabulary, encoded with splintr or with tiktoken."""
    vocabulary = VocabularyTokenizer(name)
    with patch.dict(sys.modules, {"splintr": None} if engine == "tiktoken" else {}):
        vocabulary._load()
    return vocabulary


def size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        # The first three of each are printed in OpenAI's cookbook.
        ("cl100k_base", "tiktoken is great!", [83, 1609, 5963, 374, 2294, 0]),
        ("cl100k_base", "2 + 2 = 4", [17, 489, 220, 17, 284, 220, 19]),
        ("cl100k_base", "hello world", [15339, 1917]),
        ("o200k_base", "2 + 2 = 4", [17, 659, 220, 17, 314, 220, 19]),
        ("o200k_base", "hello world", [24912, 2375]),
    ],
)
def test_tokens_match_openais_published_ones(
    name: str, text: str, tokens: list[int], engine: str
) -> None:
    vocabulary = load_vocabulary(name, engine)
    assert vocabulary.encode(text) == tokens
    assert vocabulary.count(text) == len(tokens)


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
        ("cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    ],
)
def test_bundled_vocabularies_match_the_published_files(name: str, sha256: str) -> None:
    ranks = load_encoding(name)._mergeable_ranks
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
    assert hashlib.sha256(b"".join(lines)).hexdigest() == sha256


def test_the_packing_script_reproduces_a_bundled_file() -> None:
    ranks = load_encoding("cl100k_base")._mergeable_ranks
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
    packed = pack(tokens_by_rank(b"".join(lines)))
    shipped = Path(brim.tokens.__file__).parents[1] / "data" / "cl100k_base.xz"
    assert lzma.decompress(packed) == lzma.decompress(shipped.read_bytes())


@pytest.mark.parametrize("name", EVERY)
def test_empty_text_has_no_tokens(name: str) -> None:
    assert tokenizer(name).count("") == 0
    assert counter_for(None, tokenizer=name).text("") == 0


@pytest.mark.parametrize("name", OPENAI)
@pytest.mark.parametrize("text", ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>"])
def test_what_looks_like_a_special_token_is_ordinary_text(name: str, text: str) -> None:
    assert tokenizer(name).count(text) > 3


@pytest.mark.parametrize("name", OPENAI)
@given(text=ANYTHING)
def test_a_count_is_never_negative_and_never_more_than_the_bytes(name: str, text: str) -> None:
    assert (1 if text else 0) <= tokenizer(name).count(text) <= size(text)


@given(text=ANYTHING)
def test_the_heuristics_divide_bytes(text: str) -> None:
    up, down = tokenizer("chars/3.5").count(text), tokenizer("chars/4").count(text)
    assert 0 <= up - size(text) / 3.5 < 1
    assert 0 <= size(text) / 4 - down < 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("text", "truth"),
    [
        # Eight letters, or 128 spaces, are the longest tokens of their kind in o200k.
        ("a" * 1_000_000, 125_000),
        (" " * 1_000_000, 7_813),  # tiktoken itself panics on this
        ("7" * 1_000_000, 333_334),
        ("\n" * 1_000_000, 62_500),
        ("." * 1_000_000, 15_625),
        ("😀" * 250_000, 250_000),
        ("\t" * 1_000_000, 62_500),
        ("\0" * 100_000, 50_000),
    ],
    ids=lambda value: repr(value[:1]) if isinstance(value, str) else None,
)
def test_long_runs_get_a_close_upper_estimate(
    text: str, truth: int, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tokens = load_vocabulary("o200k_base", engine).count(text)
    assert truth <= tokens <= truth * 1.02
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unpaired_surrogate_counts_as_its_replacement(engine: str) -> None:
    vocabulary = load_vocabulary("o200k_base", engine)
    assert vocabulary.count("a\ud800b") == vocabulary.count("a\ufffdb")


@pytest.mark.parametrize("name", OPENAI)
@given(text=ANYTHING)
def test_splintr_produces_the_same_tokens(name: str, text: str) -> None:
    tokens = load_vocabulary(name, "tiktoken").encode(text)
    assert load_vocabulary(name, "splintr").encode(text) == tokens
    assert load_vocabulary(name, "splintr").count(text) == len(tokens)


def test_an_unverified_splintr_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splintr.__version__", "0.23.0")
    encode = VocabularyTokenizer("o200k_base")._load().encode
    assert isinstance(getattr(encode, "__self__", None), Encoding)


@given(st.lists(st.sampled_from(["word", "Wort", "слово", "字", "12", ", ", " ", "\n", ")\n\n  "])))
def test_chunks_have_the_tokens_of_the_whole_text(parts: list[str]) -> None:
    text = ("Some ordinary words, and a line.\n" + "".join(parts)) * 3_000
    vocabulary = tokenizer("o200k_base")
    assert isinstance(vocabulary, VocabularyTokenizer)
    assert vocabulary.count(text) == len(vocabulary._load().encode(text))


@pytest.mark.parametrize("thing", [None, 7, b"bytes", ["a list"], {"a": "dict"}])
def test_only_text_can_be_counted(thing: object) -> None:
    with pytest.raises(InputError, match=f"not {type(thing).__name__}"):
        counter_for("gpt-4o").text(thing)  # type: ignore[arg-type]


def test_the_error_names_an_unknown_tokenizer() -> None:
    with pytest.raises(UnknownTokenizerError, match="Unknown tokenizer: 'o300k'"):
        tokenizer("o300k")


def test_concurrent_threads_load_a_vocabulary_once() -> None:
    vocabulary = VocabularyTokenizer("o200k_base")
    loaded: list[int] = []
    start = threading.Barrier(8)

    def load() -> None:
        start.wait()
        loaded.append(id(vocabulary._load()))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8
    assert len(set(loaded)) == 1
