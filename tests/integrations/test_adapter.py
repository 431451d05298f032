"""What the adapters of frameworks share."""

import copy
import pickle
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

import brim
from brim.integrations.adapter import ConvertingFitter


@dataclass
class Turn:
    """The message of a framework."""

    role: str
    parts: list[str] = field(default_factory=list)


def read(turn: Turn) -> dict[str, Any]:
    reads.append(turn)
    return {"role": turn.role, "content": "\n".join(turn.parts)}


def create(body: dict[str, Any]) -> Turn:
    return Turn(body["role"], [body["content"]])


def change(turn: Turn, body: dict[str, Any]) -> Turn:
    return replace(turn, parts=[body["content"]])


reads: list[Turn] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    reads.clear()


def make_fitter(**settings: Any) -> ConvertingFitter[Turn]:
    given: Any = {"window": 300, "reply": 50, **settings}
    return ConvertingFitter(given, read, create, change)


def test_a_message_is_converted_once() -> None:
    fitter, turns = make_fitter(), [Turn("user", ["One."]), Turn("assistant", ["Two."])]
    fitter.fit(turns)
    turns.append(Turn("user", ["Three."]))
    assert fitter.fit(turns) == turns
    assert reads == turns


def test_a_message_that_was_changed_is_converted_again() -> None:
    plans: list[brim.Plan] = []
    fitter, turns = make_fitter(on_plan=plans.append), [Turn("user", ["One."])]
    fitter.fit(turns)
    turns[0].parts.append("Two. " * 50)
    fitter.fit(turns)
    turns[0].role = "system"
    fitter.fit([*turns, Turn("user", ["Three."])])
    assert plans[1].tokens > plans[0].tokens + 90
    assert plans[2].history.messages[0].role == "system"


def test_a_tool_that_was_changed_is_converted_again() -> None:
    plans: list[brim.Plan] = []
    fitter, tool = make_fitter(on_plan=plans.append), {"type": "function", "function": {}}
    for description in ("Read.", "Read a file. " * 20):
        tool["function"] = {"name": "read", "description": description}
        fitter.fit([Turn("user", ["One."])], tools=[tool])
    assert plans[1].tokens > plans[0].tokens + 50


def test_a_part_that_was_changed_in_place_is_converted_again() -> None:
    plans: list[brim.Plan] = []
    fitter: ConvertingFitter[dict[str, Any]] = ConvertingFitter(
        {"window": 300, "reply": 50, "on_plan": plans.append},
        lambda message: {"role": message["role"], "content": message["parts"][0]["text"]},
        dict,
        lambda message, body: {**message, "parts": [{"text": body["content"]}]},
    )
    part = {"text": "One."}
    message = {"role": "user", "parts": [part]}
    fitter.fit([message])
    part["text"] = "Two. " * 50
    fitter.fit([message])
    assert plans[1].tokens > plans[0].tokens + 90


def test_a_part_in_a_tuple_that_was_changed_in_place_is_converted_again() -> None:
    plans: list[brim.Plan] = []
    fitter: ConvertingFitter[dict[str, Any]] = ConvertingFitter(
        {"window": 300, "reply": 50, "on_plan": plans.append},
        lambda message: {"role": message["role"], "content": message["parts"][0]["text"]},
        dict,
        lambda message, body: {**message, "parts": ({"text": body["content"]},)},
    )
    part = {"text": "One."}
    message = {"role": "user", "parts": (part,)}
    for text in ("One.", "One.", "Two. " * 50):
        part["text"] = text
        fitter.fit([message])
    assert plans[1] == plans[0]
    assert plans[2].tokens > plans[0].tokens + 90


def test_a_body_that_is_not_plain_json_is_fitted() -> None:
    turns = [Turn("user", ["One. " * 40]) for _ in range(8)]
    given: Any = {"window": 300, "reply": 50}
    fitter = ConvertingFitter(given, lambda turn: MappingProxyType(read(turn)), create, change)  # type: ignore[arg-type, return-value]
    assert fitter.fit(turns) == make_fitter().fit(turns)


def test_an_unknown_option_is_rejected() -> None:
    with pytest.raises(brim.InputError, match=r"Unknown option: windw. Use one of window, reply"):
        make_fitter(windw=8_192)


def test_a_message_that_no_longer_exists_is_not_confused_with_a_new_one() -> None:
    fitter = make_fitter()
    for number in range(100):
        (sent,) = fitter.fit([Turn("user", [f"Message {number}."])])
        assert sent.parts == [f"Message {number}."]


@pytest.mark.parametrize("repeat", [copy.deepcopy, lambda own: pickle.loads(pickle.dumps(own))])
def test_a_copy_fits_like_the_original(repeat: Any) -> None:
    fitter, turns = make_fitter(), [Turn("user", ["One. " * 40]) for _ in range(8)]
    fitted = fitter.fit(turns)
    assert len(fitted) < len(turns)
    assert repeat(fitter).fit(turns) == fitted
