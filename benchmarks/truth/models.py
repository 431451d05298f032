"""Small models with real vocabularies: a llama.cpp server counts with them as with the real ones.

The weights are random and there is one layer, so a prompt takes milliseconds. The vocabularies are
those that llama.cpp converted itself (`ggml-vocab-*.gguf`), or the ranks that a package contains.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import gguf
import numpy as np
import splintr

from brim.tokens.vocabularies import PACKAGED

WIDTH: Final = 32
WINDOW: Final = 32_768
ARCHITECTURE: Final = "llama"
CODES: Final = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""The types of numbers in a file, as codes of `struct`."""
NORMAL, CONTROL = 1, 3
SOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"


@dataclass(frozen=True)
class Source:
    """A model, and where its vocabulary and its template come from."""

    model: str
    """A public name of the model."""
    template: str
    """The file of its template, without the ending."""
    vocabulary: str
    """`ggml-vocab-NAME.gguf`, or the name of a vocabulary that a package contains."""
    splitter: str = ""
    """llama.cpp's name of the pattern that splits words; empty: the vocabulary is a file."""
    bos: str = ""
    """The token before every prompt, unless a file says so."""
    eos: str = ""


SOURCES: Final = (
    Source("llama-3.1-8b-instruct", "meta-llama-Llama-3.1-8B-Instruct", "llama-bpe"),
    Source("qwen2.5-7b-instruct", "Qwen-Qwen2.5-7B-Instruct", "qwen3", "qwen2"),
    Source("qwen3-0.6b", "Qwen-Qwen3-0.6B", "qwen3", "qwen2"),
    Source("qwen3-coder-30b", "Qwen3-Coder", "qwen3", "qwen2"),
    Source("gemma-4-31b-it", "google-gemma-4-31B-it", "gemma-4"),
    Source("phi-3.5-mini-instruct", "microsoft-Phi-3.5-mini-instruct", "phi-3"),
    Source("qwen3.5-4b", "Qwen3.5-4B", "qwen3.5", "qwen35"),
    Source("deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1", "deepseek_v3", "deepseek-v3", SOS, EOS),
    Source("deepseek-v3.2", "deepseek-ai-DeepSeek-V3.2", "deepseek_v3", "deepseek-v3", SOS, EOS),
    Source(
        "mistral-nemo-instruct-2407",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "mistral_v3",
        "tekken",
        "<s>",
        "</s>",
    ),
    Source(
        "devstral-small-2507",
        "unsloth-mistral-Devstral-Small-2507",
        "mistral_v3",
        "tekken",
        "<s>",
        "</s>",
    ),
    Source("gpt-oss-120b", "openai-gpt-oss-120b", "gpt-oss", "gpt-4o"),
    Source("kimi-k2-instruct", "moonshotai-Kimi-K2", "kimi_k2", "kimi-k2"),
    Source("glm-4.6", "GLM-4.6", "glm4", "glm4"),
)


def write_model(source: Source, folder: Path, target: Path) -> Path:
    """Write the model of a source; `folder` has llama.cpp's vocabularies and templates."""
    if target.exists():
        return target
    writer = gguf.GGUFWriter(target, ARCHITECTURE)
    if source.splitter:
        number = _add_ranks(writer, source)
    else:
        number = _copy_vocabulary(writer, folder / f"ggml-vocab-{source.vocabulary}.gguf")
    writer.add_chat_template(read_template(source, folder))
    _add_network(writer, number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def read_template(source: Source, folder: Path) -> str:
    return (folder / "templates" / f"{source.template}.jinja").read_text(encoding="utf-8")


def _add_network(writer: gguf.GGUFWriter, number: int) -> None:
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(number)
    chance = np.random.default_rng(7)
    shapes = {"token_embd": (number, WIDTH), "output_norm": (WIDTH,)}
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}"] = (WIDTH,)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (WIDTH, WIDTH)
    for name, shape in shapes.items():
        kind = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(f"{name}.weight", chance.normal(0, 0.1, shape).astype(kind))


def _copy_vocabulary(writer: gguf.GGUFWriter, path: Path) -> int:
    """Copy the vocabulary of a file; return the number of tokens."""
    number = 0
    with path.open("rb") as file:
        *_, keys = struct.unpack("<4sIQQ", file.read(24))
        for _ in range(keys):
            key, kind = _read_string(file), _read(file, "I")
            value, inner = _read_value(file, kind)
            if key.startswith("tokenizer.ggml."):
                writer.add_key_value(key, value, gguf.GGUFValueType(kind), inner)
            if key == "tokenizer.ggml.tokens":
                number = len(value)
    return number


def _read_value(file: BinaryIO, kind: int) -> tuple[Any, gguf.GGUFValueType | None]:
    """Return a value, and the type of its items if it is an array."""
    if kind == gguf.GGUFValueType.STRING:
        return _read_string(file), None
    if kind != gguf.GGUFValueType.ARRAY:
        return _read(file, CODES[kind]), None
    inner, length = _read(file, "I"), _read(file, "Q")
    return [_read_value(file, inner)[0] for _ in range(length)], gguf.GGUFValueType(inner)


def _read_string(file: BinaryIO) -> str:
    return file.read(_read(file, "Q")).decode()


def _read(file: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0]


# Vocabularies by ranks


def _add_ranks(writer: gguf.GGUFWriter, source: Source) -> int:
    tokens, specials = read_ranks(source.vocabulary)
    spell = _spell_bytes()
    texts = ["".join(spell[byte] for byte in token) for token in tokens]
    for place, text in specials.items():
        texts[place] = text
    kinds = [CONTROL if place in specials else NORMAL for place in range(len(texts))]
    ranks = {token: place for place, token in enumerate(tokens) if place not in specials}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(source.splitter)
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [" ".join("".join(spell[byte] for byte in half) for half in pair) for pair in _merge(ranks)]
    )
    writer.add_add_bos_token(bool(source.bos))
    places = {text: place for place, text in specials.items()}
    writer.add_bos_token_id(places.get(source.bos, min(specials)))
    writer.add_eos_token_id(places.get(source.eos, min(specials)))
    return len(texts)


def _merge(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the merges of a vocabulary: every pair of tokens that is a token."""
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(left, right) for left, right in halves if left in ranks and right in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def read_ranks(name: str) -> tuple[Sequence[bytes], Mapping[int, str]]:
    """Return the tokens of a vocabulary in order, and the special ones by their place."""
    if name in PACKAGED:
        path = PACKAGED[name].find_file()
        assert path is not None, f"pip install {PACKAGED[name].install}"
        tokens = [b64decode(line.split()[0]) for line in path.read_bytes().splitlines() if line]
        added = PACKAGED[name].specials.split()
        return [*tokens, *map(str.encode, added)], dict(enumerate(added, len(tokens)))
    vocabulary: Any = splintr.Tokenizer.from_pretrained(name)
    tokens, specials = [], {}
    for place in range(splintr.base_vocab_size(name)):
        token = _read_token(vocabulary, place)
        text = token.decode("utf-8", "replace")
        if _is_special(vocabulary, place, text):
            specials[place] = text
        tokens.append(token)
    return tokens, specials


def _read_token(vocabulary: Any, place: int) -> bytes:
    """Return the bytes of a token; an unused place gets a name of its own."""
    try:
        token: bytes = vocabulary.decode_token_bytes(place)
        return token or vocabulary.decode_with_special([place]).encode()
    except ValueError:
        return f"<|unused_{place}|>".encode()


def _is_special(vocabulary: Any, place: int, text: str) -> bool:
    if len(text) < 3 or not text.isprintable():
        return False
    if text.startswith("<|unused_"):
        return True
    ordinary, parsed = vocabulary.encode_ordinary(text), vocabulary.encode(text)
    return list(parsed) == [place] != list(ordinary)


def _spell_bytes() -> dict[int, str]:
    """Return the printable character for each byte, as in GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in printable}
    for place, byte in enumerate(byte for byte in range(256) if byte not in spelled):
        spelled[byte] = chr(256 + place)
    return spelled
