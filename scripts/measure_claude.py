"""Measure how many tokens Claude's models take per o200k token, for `data/families.toml`.

The truth is `ctok`, which reconstructs the counts of Anthropic's counting endpoint:

    pip install ctok==1.3.0
    PYTHONPATH=. python scripts/measure_claude.py
"""

from __future__ import annotations

from statistics import median, quantiles

from ctok import token_count

from benchmarks.recordings import load
from brim.tokens import tokenizer

MIN_CHARS, MAX_CHARS = 400, 20_000
MAX_TEXTS = 400


def read_texts() -> list[str]:
    """Return long texts of the recordings, evenly spaced."""
    contents = (turn.get("content") for recording in load() for turn in recording.messages)
    texts = [each[:MAX_CHARS] for each in contents if isinstance(each, str)]
    texts = [each for each in texts if len(each) > MIN_CHARS]
    return texts[:: -(-len(texts) // MAX_TEXTS)]


def main() -> None:
    texts, o200k = read_texts(), tokenizer("o200k_base")
    for version in ("3.0", "4.7"):
        frame = token_count("", version)
        ratios = [(token_count(text, version) - frame) / o200k.count(text) for text in texts]
        print(
            f"from {version}: median {median(ratios):.2f}, "
            f"95 % {quantiles(ratios, n=20)[-1]:.2f} ({len(ratios)} texts)"
        )


if __name__ == "__main__":
    main()
