"""The dialogues of the evidence benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import evidence


@pytest.mark.parametrize("wording", list(evidence.PARTS.values()))
def test_every_evidence_is_stated_exactly_once(wording: evidence.Wording) -> None:
    dialogue = evidence.generate(wording, 0)
    assert dialogue == evidence.generate(wording, 0) != evidence.generate(wording, 1)
    text = "\n".join(message["content"] for message in dialogue.messages)
    for question in dialogue.questions:
        for piece in question.evidence:
            assert piece.text in dialogue.messages[piece.turn]["content"]
            assert text.count(piece.text) == 1


def test_a_search_finds_what_a_small_window_does_not_hold() -> None:
    row = evidence.measure([evidence.generate(evidence.HELD, 0)], 8_192, "sliding")
    assert row["in the prompt %"] < 20 < 80 < row["with search %"]  # type: ignore[operator]


def test_the_policy_recall_keeps_the_evidence_for_a_question() -> None:
    row = evidence.measure([evidence.generate(evidence.HELD, 0)], 4_096, "recall")
    assert row["in the prompt %"] > 60  # type: ignore[operator]


def test_dialogues_in_locomo_format_are_read_in_order(tmp_path: Path) -> None:
    def say(name: str, speaker: str, text: str) -> dict[str, str]:
        return {"dia_id": name, "speaker": speaker, "text": text}

    sample = {
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_10": [say("D10:1", "Ann", "Later.")],
            "session_2": [say("D2:1", "Bob", "My key is blue."), say("D2:2", "Ann", "Mine too.")],
            "session_2_date_time": "1 May",
        },
        "qa": [
            {"question": "Which colour?", "evidence": ["D2:1; D2:2"]},
            {"question": "Unknown turn?", "evidence": ["D9:9"]},
            {"question": "No evidence?"},
        ],
    }
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([sample]), encoding="utf-8")
    (dialogue,) = evidence.read(path)
    assert [message["content"] for message in dialogue.messages] == [
        "My key is blue.",
        "Mine too.",
        "Later.",
    ]
    (question,) = dialogue.questions
    assert [piece.turn for piece in question.evidence] == [0, 1]
