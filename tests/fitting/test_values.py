"""Results are values: they pickle, copy, compare and serialize, and hold no lock or tokenizer."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from threading import Lock, RLock
from types import FunctionType, ModuleType
from typing import Any

import pytest

import brim
from brim import errors
from brim.fitting.plan import TextCount
from brim.tokens.counter import RequestCounter
from brim.tokens.vocabularies import VocabularyTokenizer
from tests.support.strategies import history

TURNS = history("s5 u30 " + "c20 r300 " * 30)


def fit(**options: Any) -> brim.Request:
    return brim.fit(TURNS, model="gpt-4o", window=3_000, reply=1, **options)


def raise_overflow() -> brim.ContextOverflowError:
    with pytest.raises(brim.ContextOverflowError) as caught:
        brim.fit(TURNS, model="gpt-4o", window=20, reply=1)
    return caught.value


RESULTS: dict[str, Callable[[], Any]] = {
    "request": fit,
    "rolling": lambda: fit(policy="rolling"),
    "whole": lambda: brim.fit(TURNS, model="gpt-4o"),
    "anthropic": lambda: brim.fit({"system": "s", "messages": TURNS[1:2]}, window=3_000),
    "session": lambda: brim.Session("gpt-4o", system="Be brief.").request(),
    "plan": lambda: fit().plan,
    "decision": lambda: fit().plan.decisions[3],
    "count": lambda: brim.count(TURNS, model="gpt-4o"),
    "text count": lambda: TextCount(12, 3),
    "budget": lambda: fit().plan.budget,
    "overflow": raise_overflow,
}
copies = pytest.mark.parametrize(
    "duplicate", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy]
)


@copies
@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS.keys())
def test_a_copy_of_a_result_is_equal(
    make: Callable[[], Any], duplicate: Callable[[Any], Any]
) -> None:
    result = make()
    other = duplicate(result)
    assert type(other) is type(result)
    assert other == result
    assert str(other) == str(result)
    assert make() == result


def test_a_copy_of_a_request_has_its_plan_and_its_origins() -> None:
    request = fit()
    other = pickle.loads(pickle.dumps(request))
    assert other.plan == request.plan
    assert list(other.outgoing) == list(request.outgoing)
    assert other.plan.to_json() == request.plan.to_json()


def test_a_plan_stays_as_it_was_while_the_conversation_grows() -> None:
    plan = fit().plan
    before = pickle.dumps(plan)
    grown = brim.fit([*TURNS, *history("u5 c20 r300")], model="gpt-4o", window=3_000, reply=1)
    assert pickle.dumps(plan) == before
    assert plan == fit().plan
    assert plan != grown.plan


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_holds_no_lock_and_no_tokenizer(make: Callable[[], Any]) -> None:
    seen: set[int] = set()
    waiting: list[Any] = [make()]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
            continue
        seen.add(id(value))
        assert not isinstance(
            value, type(Lock()) | type(RLock()) | RequestCounter | VocabularyTokenizer
        )
        if not inspect.isframe(value) and not inspect.istraceback(value):
            waiting += gc.get_referents(value)


def test_a_request_of_plain_dicts_is_json() -> None:
    request = fit()
    assert json.loads(json.dumps(request)) == request
    assert json.loads(request.plan.to_json()) == request.plan.to_dict()


def test_a_request_can_be_merged_with_more_fields() -> None:
    request = fit()
    assert request | {"temperature": 0} == {**request, "temperature": 0}
    assert {"model": "other"} | request == dict(request)


OVERFLOW = errors.Overflow(8_192, 9_000, text="too long")
EXAMPLES: dict[str, Callable[[], errors.BrimError]] = {
    "MessageError": lambda: errors.MessageError(3, "has no role"),
    "ConfigError": lambda: errors.ConfigError(["one", "two"]),
    "ContextLengthError": lambda: errors.ContextLengthError("too long", OVERFLOW, status=400),
    "InvalidResponseError": lambda: errors.InvalidResponseError("empty", {"code": 1}),
    "SpendingCapError": lambda: errors.SpendingCapError("cap", Decimal(1), Decimal(2), None),
    "ContextOverflowError": raise_overflow,
}
PROVIDER = {"status": 500, "body": {"error": "x"}, "retry_after": 2.5}
ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.BrimError)
]


def make_error(kind: type[errors.BrimError]) -> errors.BrimError:
    if example := EXAMPLES.get(kind.__name__):
        return example()
    if issubclass(kind, errors.ProviderError):
        return kind("the server failed", **PROVIDER)  # type: ignore[arg-type]
    return kind("what failed")


@copies
@pytest.mark.parametrize("kind", ERRORS)
def test_a_copy_of_an_error_is_equal(
    kind: type[errors.BrimError], duplicate: Callable[[Any], Any]
) -> None:
    error = make_error(kind)
    other = duplicate(error)
    assert type(other) is kind
    assert other == error
    assert hash(other) == hash(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)
    assert error != make_error(errors.StoreError if kind is errors.BrimError else errors.BrimError)


def test_all_errors_are_exported() -> None:
    assert {error.__name__ for error in ERRORS} <= {*brim.__all__}
