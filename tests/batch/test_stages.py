"""Fitter and Counter on the batches of engines."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pandas
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.batch import Counter, Fitter
from brim.batch.chunks import Job
from brim.batch.workers import process_chunks
from tests.support.chats import CHAT, TOO_MUCH, make_chat

WINDOW: Any = {"model": "gpt-4o", "window": 400}
ROWS: list[Any] = [
    {"id": 0, "messages": CHAT},
    {"id": 1, "messages": make_chat(1)},
    {"id": 2, "messages": TOO_MUCH},
    {"id": 3, "messages": [{"role": "", "content": "text"}]},
]
EXPECTED = Fitter(**WINDOW)(ROWS)


def test_rows_keep_their_order_and_get_numbers_and_errors() -> None:
    plain, trimmed, over, invalid = EXPECTED
    request = brim.fit(make_chat(1), **WINDOW)
    assert plain["messages"] == CHAT
    assert trimmed["messages"] == request.messages
    assert trimmed["brim_tokens_before"] == request.plan.before
    assert trimmed["brim_tokens"] == request.plan.tokens <= 300
    assert trimmed["brim_dropped"] == len(request.plan.dropped)
    assert over["messages"] == TOO_MUCH
    assert over["brim_tokens"] == over["brim_tokens_before"] > 300
    assert "is the least that can be sent" in over["brim_error"]
    assert invalid["brim_error"] == "message 0: has no role"
    assert [row["brim_error"] for row in (plain, trimmed)] == ["", ""]


def to_columns(rows: list[Any]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_columns_give_the_same_rows() -> None:
    assert Fitter(**WINDOW)(to_columns(ROWS)) == to_columns(EXPECTED)


def test_arrow_tables_and_batches_give_the_same_rows() -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    fitted = Fitter(**WINDOW)(table)
    assert isinstance(fitted, pyarrow.Table)
    assert fitted.to_pylist() == EXPECTED
    assert fitted.schema.field("messages") == table.schema.field("messages")
    kinds = {field.name: str(field.type) for field in fitted.schema}
    assert (kinds["brim_tokens"], kinds["brim_error"]) == ("int64", "string")
    (batch,) = table.to_batches()
    again = Fitter(**WINDOW)(batch)
    assert isinstance(again, pyarrow.RecordBatch)
    assert again.to_pylist() == EXPECTED


def test_data_frames_give_the_same_rows() -> None:
    frame = pandas.DataFrame(ROWS, index=[5, 6, 7, 8])
    fitted = Fitter(**WINDOW)(frame)
    assert fitted.to_dict("records") == EXPECTED
    assert list(fitted.index) == [5, 6, 7, 8]


def test_arrays_of_messages_are_read() -> None:
    batch = pandas.DataFrame(ROWS).to_dict("series")
    arrays = {name: series.to_numpy() for name, series in batch.items()}
    fitted = Fitter(**WINDOW)(arrays)
    assert list(fitted["brim_tokens"]) == [row["brim_tokens"] for row in EXPECTED]


def test_a_note_becomes_a_part_where_contents_are_lists_of_parts() -> None:
    chat = [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in make_chat(1)
    ]
    table = Fitter(**WINDOW)(pyarrow.Table.from_pylist([{"messages": chat}]))
    (row,) = table.to_pylist()
    assert row["brim_dropped"] > 0
    assert all(turn["content"][0]["type"] == "text" for turn in row["messages"])


@pytest.mark.parametrize("batch", [[], {"messages": []}, pyarrow.table({"messages": []})])
def test_an_empty_batch_stays_empty(batch: Any) -> None:
    fitted = Fitter(**WINDOW)(batch)
    assert type(fitted) is type(batch)
    assert len(fitted["brim_error"] if fitted else []) == 0


def test_a_row_that_is_no_conversation_gets_all_columns() -> None:
    rows: list[Any] = ["text"]
    (row,) = Fitter(shape="messages", **WINDOW)(rows)
    assert row.keys() == EXPECTED[0].keys() - {"id"}
    assert (row["messages"], row["brim_tokens"]) == ("text", 0)
    assert "not a list of messages" in row["brim_error"]


def test_stages_can_be_sent_to_workers() -> None:
    for stage in (Fitter(shape="messages", **WINDOW), Counter(model="gpt-4o")):
        assert pickle.loads(pickle.dumps(stage))(ROWS) == stage(ROWS)


def test_errors_can_be_raised() -> None:
    with pytest.raises(brim.ContextOverflowError):
        Fitter(on_error="raise", **WINDOW)(ROWS)


@pytest.mark.parametrize(
    "options",
    [{"policy": "x"}, {"tokenizer": "no-such.json"}, {"template": "no-such"}],
)
def test_invalid_options_are_found_before_any_row(options: Any) -> None:
    with pytest.raises(brim.BrimError):
        Fitter(**WINDOW, **options)


def test_a_missing_window_is_an_error_of_the_options_unless_the_row_names_a_model() -> None:
    with pytest.raises(brim.BudgetError):
        Fitter()([{"messages": CHAT}])
    unknown, known = Fitter()(
        [{"model": "unknown-model", "messages": CHAT}, {"model": "gpt-4o", "messages": CHAT}]
    )
    assert "window of unknown-model is unknown" in unknown["brim_error"]
    assert known["brim_error"] == ""


def test_an_unsupported_batch_is_an_error() -> None:
    batch: Any = 5
    with pytest.raises(brim.InputError, match="The batch is not supported: int"):
        Fitter(**WINDOW)(batch)


def test_counting_adds_the_tokens_of_each_row() -> None:
    counted = Counter(model="gpt-4o")(ROWS)
    assert [row["brim_tokens"] for row in counted] == [
        *(int(brim.count(row["messages"], model="gpt-4o")) for row in ROWS[:3]),
        0,
    ]
    assert counted[3]["brim_error"] == "message 0: has no role"
    assert counted[1]["messages"] is ROWS[1]["messages"]


@pytest.mark.property
@given(st.lists(st.sampled_from(range(len(ROWS))), max_size=6), st.integers(0, 6))
def test_a_result_does_not_depend_on_the_batch(numbers: list[int], split: int) -> None:
    rows = [ROWS[number] for number in numbers]
    fitter = Fitter(shape="messages", **WINDOW)
    assert fitter(rows[:split]) + fitter(rows[split:]) == [EXPECTED[number] for number in numbers]


def test_the_garbage_collector_stays_as_the_caller_left_it() -> None:
    frozen: list[object] = []
    gc.freeze()
    assert list(process_chunks([], Job(Fitter(model="gpt-4o", window=400)), 1)) == []
    assert gc.isenabled()
    assert not any(each is frozen for each in gc.get_objects())
