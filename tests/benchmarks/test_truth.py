"""The small models of `benchmarks.truth` count as their vocabularies do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.promises.reference_server import TEMPLATE, ReferenceServer
from benchmarks.truth import models, templates
from benchmarks.truth.counters import Score
from benchmarks.truth.requests import SEED, load_conversations
from benchmarks.truth.templates import try_templates
from brim.providers.local import LocalServer
from tests.support.wire.strict_templates import ALL

WORDS = (b"he", b"ll", b"hell", b"hello")
SPECIALS = ("<|im_start|>", "<|im_end|>")


def read_ranks(name: str) -> tuple[Sequence[bytes], Mapping[int, str]]:
    assert name == "small"
    single = [bytes([byte]) for byte in range(256)]
    tokens = [*single, *WORDS, *map(str.encode, SPECIALS)]
    return tokens, dict(enumerate(SPECIALS, len(tokens) - len(SPECIALS)))


def test_a_model_with_a_given_vocabulary_counts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "read_ranks", read_ranks)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "small.jinja").write_text(TEMPLATE)
    source = models.Source("small", "small", "small", "gpt-2")
    path = models.write_model(source, tmp_path, tmp_path / "small.gguf")
    with LocalServer.start(path, window=512, threads=1) as server:
        reference = ReferenceServer(server)
        status, answer = reference.post("/tokenize", {"content": "hello<|im_end|>"})
        assert (status, len(answer["tokens"])) == (200, 2)
        status, answer = reference.send({"messages": [{"role": "user", "content": "hello"}]})
        reference.close()
    assert status == 200
    # <|im_start|> user \n hello <|im_end|> \n <|im_start|> assistant \n
    assert answer["usage"]["prompt_tokens"] == 1 + 4 + 1 + 1 + 1 + 1 + 1 + 9 + 1


def test_a_count_that_is_too_low_is_beyond_its_margin() -> None:
    score = Score()
    score.add(95, 100, [False, False])
    score.add(90, 100, [True, False])
    assert (score.requests, score.equal, score.beyond, score.sent) == (2, 0, 1, 1)
    assert [round(error, 2) for error in score.errors] == [-0.05, -0.1]


@pytest.mark.parametrize("seed", [SEED, 7])
def test_conversations_offer_the_tools_that_they_call(seed: int) -> None:
    for conversation in load_conversations(None, 20, seed):
        offered = {tool["function"]["name"] for tool in conversation.tools}
        for turn in conversation.messages:
            for call in turn.get("tool_calls") or ():
                assert call["function"]["name"] in offered


def test_templates_are_tried_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "CONVERSATIONS", 6)
    for number, text in enumerate(ALL):
        (tmp_path / f"{number}.jinja").write_text(text)
    for tally in try_templates(tmp_path):
        assert (tally.renderings, tally.errors, tally.lost) == (12, 0, 0)


def test_a_template_that_rejects_everything_fails(tmp_path: Path) -> None:
    (tmp_path / "no.jinja").write_text("{{ raise_exception('no') }}")
    (tally,) = try_templates(tmp_path)
    assert tally.errors == tally.renderings > 0
