"""What each policy does, shown with small histories."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import brim
from brim.fitting.draft import Draft
from brim.fitting.history import History, HistoryView
from brim.fitting.passes import clip_large, drop_oldest
from brim.fitting.policies import THRIFT, constant_share, steady_share
from brim.fitting.trim import compute_low_water_mark
from brim.tokens import counter_for
from brim.wire.formats import CHAT, read_messages
from tests.support.strategies import Raw, history, text

MODEL = "gpt-4o"


def fit(messages: list[Raw], limit: int, policy: Any = "steady", **more: Any) -> brim.Request:
    return brim.fit(messages, model=MODEL, window=limit + 1, reply=1, policy=policy, **more)


def size(messages: list[Raw]) -> int:
    return int(brim.count(messages, model=MODEL))


def outcomes(request: brim.Request) -> str:
    """Return the first letter of each message's outcome, e.g. `kkddc`."""
    return "".join(decision.outcome[0] for decision in request.plan.decisions)


def output(tokens: int, seed: int = 0) -> str:
    """Return an output of exactly `tokens` tokens."""
    words = text(2 * tokens + 20, seed).replace("error", "thing").replace("failed", "thing").split()
    count = partial(brim.count, model=MODEL)
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if count(" ".join(words[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    body = " ".join(words[:low])
    while count(body) < tokens:
        body += " a"
    assert count(body) == tokens
    return body


def steps(*outputs: str) -> list[Raw]:
    """Return a task and one step for each output."""
    messages = history("s5 u10 " + "c3 r0 " * len(outputs))
    for place, body in enumerate(outputs):
        messages[3 + 2 * place]["content"] = body
    return messages


# Low-water marks


@pytest.mark.parametrize(
    ("limit", "share"),
    [(1_000, 0.90), (8_000, 0.89), (16_000, 0.83), (32_000, 0.77), (200_000, 0.70)],
)
def test_the_low_water_mark_is_a_larger_share_of_small_limits(limit: int, share: float) -> None:
    assert steady_share(limit) == pytest.approx(share)
    assert steady_share(limit, has_finished_tasks=True) == 0.90
    assert THRIFT.share is constant_share(0.60)


def test_a_trim_drops_at_most_half_of_the_droppable_tokens() -> None:
    messages = history("s600 u100")
    grown = History(counter_for(MODEL))
    grown.extend(read_messages({"messages": messages}, CHAT))
    grown.group()
    view = HistoryView(grown, grown.end, 3, 1_400, 0)
    room = 1_400 - size(messages)
    assert compute_low_water_mark(view, constant_share(0.60)) == 1_400 - room // 2


# steady


def test_steady_keeps_the_task_and_drops_one_gap_in_the_middle() -> None:
    messages = history("s5 u30 " + "c20 r60 " * 40)
    request = fit(messages, 1_500)
    runs = request.plan.dropped_runs
    assert len(runs) == 1
    assert runs[0].reason == "middle of the current task"
    assert outcomes(request)[:3] == "kkk"
    assert outcomes(request)[-6:] == "kkkkkk"
    before, after = runs[0].start, len(messages) - runs[0].stop
    assert 0.4 < before / after < 1, "from the middle outward, with more room for newer units"


TASK = "u40 " + "c10 r60 " * 6 + "a20 "


def test_finished_tasks_are_dropped_whole_and_the_current_task_stays_as_it_is() -> None:
    messages = history("s5 " + TASK * 5 + "u30 " + "c10 r60 " * 4)
    request = fit(messages, 2_600)
    assert {run.reason for run in request.plan.dropped_runs} == {"finished task"}
    assert outcomes(request) == "k" + "d" * 42 + "k" * 37


def test_of_the_newest_finished_task_the_question_and_the_answer_stay() -> None:
    messages = history("s5 " + TASK * 3 + "u30 " + "c10 r60 " * 9)
    request = fit(messages, 1_800)
    assert outcomes(request) == "k" + "d" * 28 + "k" + "d" * 12 + "k" * 20


def test_inside_the_current_task_units_are_dropped_from_the_middle() -> None:
    messages = history("s5 " + TASK * 3 + "u30 " + "c10 r60 " * 60)
    request = fit(messages, 1_200)
    reasons = [run.reason for run in request.plan.dropped_runs]
    assert reasons == ["finished task", "middle of the current task"]
    assert messages[43] in request.messages, "the user message of the task stays"


def test_the_note_at_the_gap_names_the_newest_of_the_finished_tasks_that_it_covers() -> None:
    messages = history("s5 " + TASK * 5 + "u30 " + "c10 r60 " * 4)
    for number, user in enumerate([1, 15, 29, 43, 57], 1):
        messages[user]["content"] = f"Fix bug {number} in the parser"
    (note,) = fit(messages, 1_800).plan.notes
    names = "; ".join(f"Fix bug {number} in the parser" for number in (2, 3, 4))
    assert note.text.startswith(f"[brim: 54 messages of 4 finished tasks: {names} (about ")
    assert messages[note.at]["content"] == "Fix bug 4 in the parser"


def with_tasks(messages: list[Raw], names: list[str]) -> list[Raw]:
    """Return messages whose user messages are `names`."""
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    for place, name in zip(users, names, strict=False):
        messages[place]["content"] = name
    return messages


def test_a_note_in_the_current_task_names_the_tasks_dropped_before_it() -> None:
    messages = history("s5 " + TASK * 2 + "u30 " + "c10 r60 " * 60)
    (note,) = fit(with_tasks(messages, ["Fix one", "Fix two"]), 1_200).plan.notes
    assert ", with 2 finished tasks: Fix one; Fix two (about " in note.text


def test_a_pinned_user_message_of_a_task_stays_apart_from_the_note() -> None:
    messages = history("s5 " + TASK * 5 + "u30 " + "c10 r60 " * 4)
    messages[29]["_pin"] = True
    names = [f"Fix bug {number} in the parser" for number in range(1, 6)]
    request = fit(with_tasks(messages, names), 1_800)
    (note,) = request.plan.notes
    assert f" of 4 finished tasks: {'; '.join(names[1:4])} (about " in note.text
    assert {"role": "user", "content": names[2]} in request.messages


def test_long_names_of_tasks_are_shortened() -> None:
    messages = history("s5 " + TASK * 5 + "u30 " + "c10 r60 " * 4)
    names = [f"{number}番目の解析器の不具合を修正してください。" * 4 for number in range(1, 6)]
    (note,) = fit(with_tasks(messages, names), 1_800).plan.notes
    assert f" of 4 finished tasks: {names[1][:10]}" in note.text


def test_in_a_chat_early_exchanges_are_not_finished_tasks() -> None:
    messages = history("s5 " + "u40 c10 r60 a20 " * 30 + "u30")
    request = fit(messages, 1_500)
    assert {run.reason for run in request.plan.dropped_runs} == {"middle of the history"}
    assert outcomes(request)[1] == "k"


def test_text_that_follows_results_does_not_begin_a_task() -> None:
    reply = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}
    reply["content"][0]["input"] = {"text": output(40, 1)}  # type: ignore[index]
    result = {"type": "tool_result", "tool_use_id": "a", "content": output(60, 2)}
    reminder = {"type": "text", "text": "Remember the plan."}
    step = [reply, {"role": "user", "content": [result]}] * 5
    reminded = [reply, {"role": "user", "content": [result, reminder]}]
    body = {"messages": [{"role": "user", "content": "Go."}, *(step + reminded) * 6]}
    plan = brim.fit({**body, "system": "s", "max_tokens": 1}, window=1_800, reply=1).plan
    assert "finished task" not in {run.reason for run in plan.dropped_runs}


def test_a_low_water_mark_can_be_given() -> None:
    messages = history("s5 u30 " + "c20 r400 " * 40)
    plan = brim.fit(messages, model=MODEL, window=4_001, reply=1, low_water_mark=0.7).plan
    assert 0.95 * 2_800 <= plan.tokens <= 2_800
    chat = brim.Session(MODEL, low_water_mark=0.7)
    assert brim.Session.from_dict(chat.to_dict()).to_dict() == chat.to_dict()


@pytest.mark.parametrize("mark", [0, 1, -0.5, 85, "high"])
def test_a_low_water_mark_is_a_share(mark: float) -> None:
    with pytest.raises(brim.InputError, match="share between 0 and 1"):
        brim.fit(history("u5"), window=4_001, low_water_mark=mark)


def test_a_policy_without_a_low_water_mark_rejects_one() -> None:
    with pytest.raises(brim.InputError, match="Use the policy steady or thrift"):
        brim.fit(history("u5"), window=4_001, policy="sliding", low_water_mark=0.8)


def test_a_trim_ends_close_to_its_low_water_mark() -> None:
    messages = history("s5 u30 " + "c20 r400 " * 40)
    plan = fit(messages, 4_000).plan
    assert 0.97 * 3_600 <= plan.tokens <= 3_600


def test_steady_drops_units_only_if_clipping_old_outputs_is_not_enough() -> None:
    messages = history("s5 u10 " + "c5 r900 " * 6)
    assert size(messages) > 4_000
    request = fit(messages, 4_000)
    assert set(outcomes(request)) == {"k", "c"}


def test_the_three_newest_outputs_are_changed_last() -> None:
    messages = steps(*(output(600, n) for n in range(20)))
    ends = {outcomes(fit(messages, limit))[-8:] for limit in range(8_000, 10_000, 200)}
    assert ends == {"kkkkkkkk"}


def test_of_the_oldest_outputs_of_a_task_only_marks_stay() -> None:
    messages = steps(*(output(600, n) for n in range(20)))
    request = fit(messages, 8_000)
    assert outcomes(request) == "kk" + "kc" * 9 + "kk" * 11
    contents = [str(request.messages[place]["content"]) for place in range(3, 20, 2)]
    assert set(contents[:-1]) == {"[brim: about 600 tokens omitted]"}
    assert len(contents[-1]) > 100, "the last one is clipped only as far as needed"


def test_in_a_task_the_clips_that_save_the_most_come_first() -> None:
    sizes = (300, 900, 200, 700, 100, 800)
    messages = steps(*(output(tokens, n) for n, tokens in enumerate(sizes)), *("ok",) * 4)
    messages[4]["content"] = output(1_200, 9)  # clipping it saves 800 tokens
    request = fit(messages, size(messages) - 10, low_water_mark=0.4)
    assert outcomes(request)[2:14] == "kkcckkkkkkkc", "the others stay whole"
    assert request.messages[5]["content"] == "[brim: about 900 tokens omitted]"


def test_of_a_long_text_of_an_old_step_head_and_tail_stay_and_its_call_stays_whole() -> None:
    messages = steps(*(output(50, n) for n in range(8)))
    thoughts = "\n".join(f"thought {n} about the cause" for n in range(300))
    messages[4]["content"] = messages[-2]["content"] = thoughts
    messages[8]["content"] = output(900)
    request = fit(messages, size(messages) - 10, low_water_mark=0.7)
    assert outcomes(request) == "kkkkckkkc" + "k" * 9, "the newest steps stay whole"
    assert request.plan.decisions[4].reason == "long text of an old step"
    sent = request.messages[4]
    head, tail = str(sent["content"]).split("[brim: about ")
    assert head.startswith("thought 0 ")
    assert tail.endswith("thought 299 about the cause")
    assert 340 < brim.count(str(sent["content"]), model=MODEL) <= 400
    assert sent["tool_calls"] == messages[4]["tool_calls"]
    found = brim.search(request.plan, "thought 150", tokens=300)
    assert "thought 150 " in "".join(passage.text for passage in found), "the rest is found"


@pytest.mark.parametrize("kind", ["short", "pinned", "marked", "without a call"])
def test_a_text_of_a_step_stays_whole_if_it_is(kind: str) -> None:
    messages = steps(*(output(300, n) for n in range(8)))
    message = messages[4]
    message["content"] = output(390 if kind == "short" else 900)
    if kind == "pinned":
        message["_pin"] = True
    if kind == "marked":
        message["content"] += " [brim: about 70 tokens omitted]"
    if kind == "without a call":
        messages[4:6] = [{"role": "assistant", "content": message["content"]}]
    request = fit(messages, size(messages) - 200)
    assert request.plan.is_trimmed
    assert request.plan.decisions[4].outcome == "kept"


def test_in_a_chat_the_text_of_a_step_is_not_clipped() -> None:
    messages = history("s5 " + "u10 c5 r300 a20 " * 8 + "u10")
    for message in messages:
        if message.get("tool_calls"):
            message["content"] = output(600)
    decisions = fit(messages, size(messages) - 100).plan.decisions
    assert {d.role for d in decisions if d.outcome == "clipped"} == {"tool"}


def test_the_text_of_a_step_is_clipped_in_bodies_of_other_providers() -> None:
    thoughts = output(1_000)
    ask = {"role": "user", "content": "Find the bug."}
    use = {"type": "tool_use", "id": "a", "name": "run", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
    step = [
        {"role": "assistant", "content": [{"type": "text", "text": thoughts}, use]},
        {"role": "user", "content": [result]},
    ]
    body: Raw = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [ask, *step * 9]}
    sent: Any = brim.fit(body, window=9_000).messages
    assert sent[1]["content"][1] == use
    assert sent[2] == step[1]
    assert 300 < brim.count(sent[1]["content"][0]["text"], model=MODEL) <= 400
    call = {"type": "function_call", "call_id": "a", "name": "run", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    part = {"type": "output_text", "text": thoughts}
    said = {"type": "message", "role": "assistant", "content": [part]}
    body = {"model": MODEL, "input": [ask, *[said, call, done] * 9]}
    sent = brim.fit(body, window=9_000, reply=100)["input"]
    assert sent[2:4] == [call, done]
    assert 300 < brim.count(sent[1]["content"][0]["text"], model=MODEL) <= 400


def test_in_a_chat_old_outputs_are_clipped_in_rounds() -> None:
    messages = history("s5 " + "u10 c5 r900 a20 " * 8 + "u10")
    request = fit(messages, 4_000)
    clipped = [d.index for d in request.plan.decisions if d.outcome == "clipped"]
    assert clipped
    sent = dict(zip(request.plan.sent_indices, request.messages, strict=True))
    assert all(len(str(sent[place]["content"])) > 60 for place in clipped), "some text stays"


def test_large_newest_outputs_are_not_protected() -> None:
    messages = history("s5 u10 " + "c5 r60 " * 20 + "c5 r2000 c5 r60 a5 u5")
    request = fit(messages, 3_000)
    assert request.plan.decisions[-5].outcome == "clipped"


def test_a_user_message_is_dropped_only_after_its_answers() -> None:
    messages = history("s5 u10 " + ("c10 r50 " * 9 + "a10 u20 ") * 6 + "c10 r50")
    for limit in range(700, 3_000, 150):
        request = fit(messages, limit)
        kept = set(request.plan.sent_indices)
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        for user, following in zip(users, [*users[1:], len(messages)], strict=True):
            if user not in kept:
                assert not kept & set(range(user, following))


def test_a_note_separates_two_user_messages_at_a_gap() -> None:
    messages = history("s5 " + "u60 a60 " * 30 + "u10")
    request = fit(messages, 900)
    notes = [note for note in request.plan.notes if note.role == "assistant"]
    assert len(notes) == 1
    place = next(i for i, m in enumerate(request.messages) if m["content"] == notes[0].text)
    around = [request.messages[i]["role"] for i in (place - 1, place, place + 1)]
    assert around == ["user", "assistant", "user"]
    dropped = outcomes(request).count("d")
    assert f"{dropped} messages" in notes[0].text


def test_another_note_ends_the_message_before_the_gap_and_keeps_its_text() -> None:
    messages = history("s5 u30 " + "c40 r5 " * 40)
    request = fit(messages, 1_500)
    (note,) = request.plan.notes
    assert note.role == "paragraph"
    place = request.plan.sent_indices.index(note.at)
    assert request.messages[place]["content"] == messages[note.at]["content"] + "\n\n" + note.text


def test_the_last_user_message_gets_no_note() -> None:
    messages = history("s5 u200 " + "c20 r60 " * 30)
    for limit in range(400, 1_500, 50):
        assert messages[1] in fit(messages, limit).messages


def test_repeated_lines_are_removed_from_the_earlier_output() -> None:
    listing = "\n".join(f"line {n} of a long listing of files" for n in range(60))
    messages = steps(listing, *(output(150, n) for n in range(8)), listing, *("ok", "ok", "ok"))
    request = fit(messages, size(messages) - 100)
    first = request["messages"][3]["content"]
    assert "60 lines omitted, repeated later" in first
    assert request.messages[21] is messages[21], "the later output keeps them"
    assert request.plan.decisions[3].reason == "lines repeated later"


def test_a_clip_keeps_the_head_and_the_tail() -> None:
    body = "\n".join(f"row {n} of the output" for n in range(400))
    messages = steps(body, *(output(150, n) for n in range(6)))
    clipped = fit(messages, size(messages) - 1_000)["messages"][3]["content"]
    assert clipped.startswith("row 0 ")
    assert clipped.endswith("row 399 of the output")
    head, tail = clipped.split("[brim: about ")
    assert 1.2 < len(head) / len(tail) < 2.0, "60 % from the beginning"


def test_the_open_step_is_clipped_last_and_only_to_the_room() -> None:
    messages = [*history("s5 u10 c5 r100"), *history("cc5 r3000 r20")]
    request = fit(messages, 1_000)
    assert outcomes(request) == "kkddkck"
    assert 980 <= request.plan.tokens <= 1_000


def test_the_first_user_message_is_dropped_only_to_reach_the_limit() -> None:
    messages = history("s5 u300 " + "c5 r60 " * 10 + "a5 u300 c5 r200")
    roomy, tight = fit(messages, 1_600), fit(messages, 1_100)
    assert roomy.plan.decisions[1].outcome == "kept"
    assert tight.plan.decisions[1].outcome == "dropped"
    assert tight.messages[1] is messages[-3]


# rolling


def test_rolling_clips_large_outputs_before_masking() -> None:
    messages = steps(output(3_000), *(output(50, n) for n in range(8)))
    request = fit(messages, size(messages) - 500, "rolling")
    assert [d.outcome for d in request.plan.decisions].count("clipped") == 1
    assert "m" not in outcomes(request)


def test_rolling_removes_superseded_lines_first() -> None:
    shared = "\n".join(text(20, number) for number in range(20))
    messages = steps(f"{shared}\nold", *(output(150, number) for number in range(8)), shared)
    request = fit(messages, size(messages) - 50, "rolling")
    assert [decision.reason for decision in request.plan.clipped] == ["lines repeated later"]
    assert size(request.messages) <= size(messages) - 50


def test_the_numbers_of_rolling_can_be_set() -> None:
    settings = brim.RollingSettings(
        max_age=0, small_output=200, keep_errors=False, placeholder="[gone {age}]"
    )
    outputs = [f"fatal error: {output(300, 1)}", *(output(300, seed) for seed in range(2, 6))]
    messages = steps(output(150), *outputs)
    request = fit(messages, size(messages) - 302, "rolling", rolling=settings, keep_recent=0)
    assert outcomes(request).startswith("kkkkkm")
    assert request.messages[5]["content"] == "[gone 4]"
    session = brim.Session(MODEL, window=9_000, policy="rolling", rolling=settings)
    assert brim.Session.from_dict(session.to_dict()).to_dict() == session.to_dict()
    with pytest.raises(brim.InputError, match="do not work with steady"):
        fit(messages, 900, "steady", rolling=settings)
    with pytest.raises(brim.InputError, match="max_age must be an integer"):
        brim.RollingSettings(max_age=-1)


def test_rolling_masks_old_outputs_with_age_and_size() -> None:
    messages = steps(*(output(200, n) for n in range(10)))
    request = fit(messages, size(messages) - 400, "rolling")
    assert request.messages[3]["content"] == "[content truncated - 9 steps ago, 200 tokens]"
    assert request.messages[5]["content"] == "[content truncated - 8 steps ago, 200 tokens]"
    assert outcomes(request).startswith("kkkmkmkc")
    assert set(outcomes(request)[8:]) == {"k"}


def test_an_output_of_99_tokens_is_kept_and_one_of_100_may_be_masked() -> None:
    messages = steps(output(99), output(100, 1), *(output(30, n) for n in range(8)))
    request = fit(messages, size(messages) - 1, "rolling")
    assert outcomes(request)[2:6] == "kkkc"
    messages = steps(output(99), *(output(100, n) for n in range(1, 10)))
    more = fit(messages, size(messages) - 200, "rolling")
    assert outcomes(more)[2:10] == "kkkmkmkc"


@pytest.mark.parametrize(
    ("body", "spared"),
    [
        ("Traceback: ValueError", True),
        ("the build FAILED", True),
        ("unable to open", True),
        ("terrors", True),
        ("120 passed, 0 errors", False),
        ("errors: 0, failed=0", False),
        ("10 errors", True),
        ("all is well", False),
    ],
)
def test_outputs_that_report_an_error_are_masked_last(body: str, spared: bool) -> None:
    calm = output(200)
    messages = steps(f"{body} {calm}", calm, *(["fine"] * 8))
    request = fit(messages, size(messages) - 150, "rolling")
    assert (outcomes(request)[3] == "k") is spared


def test_an_error_in_the_middle_of_a_long_output_is_ignored() -> None:
    lines = ["all quiet here"] * 60
    lines[30] = "error: hidden"
    calm = "\n".join(["all quiet there"] * 61)
    messages = steps("\n".join(lines), calm, *(["fine"] * 8))
    assert outcomes(fit(messages, size(messages) - 200, "rolling"))[3] != "k"


def test_the_last_output_is_clipped_instead_of_masked_if_that_is_enough() -> None:
    messages = steps(*(output(400, n) for n in range(10)))
    plan = fit(messages, size(messages) - 100, "rolling").plan
    assert plan.decisions[3].outcome == "clipped"
    assert plan.limit - plan.tokens <= 10


def test_rolling_drops_the_oldest_when_masks_are_not_enough() -> None:
    messages = history("s5 u10 " + "c40 r300 " * 30)
    request = fit(messages, 600, "rolling")
    assert "kdd" in outcomes(request)
    assert outcomes(request)[1] == "k", "the user message is dropped with the last of its answers"
    assert outcomes(request).endswith("kk")


def test_the_mask_expands_only_age_and_tokens() -> None:
    messages = steps(*(output(200, n) for n in range(10)))
    mask = "{age}/{tokens} {x} {{}} $& {0}"
    request = fit(messages, size(messages) - 400, "rolling", mask=mask)
    assert request.messages[3]["content"] == "9/200 {x} {{}} $& {0}"


def test_a_mask_is_not_masked_again() -> None:
    messages = steps("[content truncated - 40 steps ago, 900 tokens]", *(["x " * 150] * 9))
    request = fit(messages, size(messages) - 500, "rolling")
    assert request.messages[3] is messages[3]


def test_a_short_output_is_never_replaced_by_a_longer_text() -> None:
    messages = steps(*(["ok"] * 30))
    request = fit(messages, size(messages) - 30, "rolling")
    assert not request.plan.changes
    assert request.plan.dropped_runs


def test_a_fatal_error_in_the_newest_output_is_not_masked() -> None:
    messages = steps(*(output(300, n) for n in range(9)), "fatal: " + output(200))
    assert fit(messages, 800, "rolling").messages[-1] is messages[-1]


# sliding


def test_sliding_drops_the_oldest_exchange_step_by_step() -> None:
    messages = history("s5 u20 c5 r100 c5 r100 a5 u20 c5 r100 a5 u5")
    for less, expected in [
        (0, "kkkkkkkkkkkk"),
        (1, "kkddkkkkkkkk"),
        (250, "kkddddkkkkkk"),
        (430, "kddddddkkkkk"),
        (490, "kddddddkddkk"),
        (660, "kddddddddddk"),
    ]:
        request = fit(messages, size(messages) - less, "sliding")
        assert outcomes(request) == expected, less
        assert not request.plan.notes


@pytest.mark.parametrize(
    ("sketch", "most", "expected"),
    [
        ("u5 c5 r5 a5", 2, "kddk"),
        ("u5 a5 u5 a5 u5", 4, "ddkkk"),
        ("u5 a5 u5 a5 u5", 1, "ddddk"),
        ("s5 u5 a5 u5", 9, "kkkk"),
        ("u5 cc5 r5 r5", 1, "kkkk"),
    ],
)
def test_max_turns_never_splits_a_step_and_never_raises(
    sketch: str, most: int, expected: str
) -> None:
    request = fit(history(sketch), 5_000, "sliding", max_turns=most)
    assert outcomes(request) == expected


def test_a_token_budget_trims_but_never_raises() -> None:
    messages = history("s5 " + "u20 a20 " * 10 + "u20")
    request = fit(messages, 5_000, "sliding", token_budget=200)
    assert request.plan.tokens <= 200
    assert fit(messages, 5_000, "sliding", token_budget=5).plan.tokens > 5


# Pins, priorities, keep_recent, custom passes


@pytest.mark.parametrize("policy", ["steady", "thrift", "rolling", "sliding"])
def test_pinned_messages_are_kept_by_index_and_by_field(policy: str) -> None:
    messages = history("s5 u10 " + "c5 r100 " * 10 + "c5 r100! " + "c5 r100 " * 10)
    request = fit(messages, 900, policy, pins=[7])
    for pinned in (7, 23):
        assert request.plan.decisions[pinned].outcome == "kept"
        assert request.plan.decisions[pinned - 1].outcome != "dropped", "its call is kept with it"
    assert all("_pin" not in message for message in request.messages)


def test_an_overflow_caused_by_pins_names_them() -> None:
    messages = history("s5 u10 a600! u5")
    with pytest.raises(brim.ContextOverflowError) as caught:
        fit(messages, 400)
    assert max(caught.value.parts, key=caught.value.parts.__getitem__) == "pins"
    assert "npin" in caught.value.advice


@pytest.mark.parametrize("policy", ["steady", "rolling", "sliding"])
def test_lower_priorities_are_dropped_first(policy: str) -> None:
    messages = history("s5 u10 " + "a50+1 u10+1 " * 3 + "a50 u10 " + "a50+1 u10+1 " * 3)
    request = fit(messages, size(messages) - 40, policy)
    low = [i for i, m in enumerate(messages) if m["role"] == "assistant" and "_priority" not in m]
    assert request.plan.decisions[low[0]].outcome == "dropped"
    assert all("_priority" not in message for message in request.messages)


@pytest.mark.parametrize("policy", ["steady", "rolling", "sliding"])
def test_keep_recent_protects_the_last_units(policy: str) -> None:
    messages = steps(*(output(100, n) for n in range(30)))
    request = fit(messages, 1_800, policy, keep_recent=8)
    assert set(outcomes(request)[-16:]) == {"k"}


def test_a_policy_can_be_a_list_of_custom_passes() -> None:
    def drop_greetings(draft: Draft) -> None:
        for unit in draft.droppable_units():
            words = draft.history.messages[draft.history.units[unit].start].words
            if draft.excess > 0 and words == ("hello",):
                draft.drop_unit(unit, "small talk")

    messages = history("s5 u50 a1 a50 u50 a50 u50")
    messages[2]["content"] = "hello"
    request = fit(messages, size(messages) - 1, [drop_greetings])
    assert request.plan.policy == "custom"
    assert request.plan.decisions[2].reason == "small talk"
    with pytest.raises(brim.ContextOverflowError):
        fit(messages, size(messages) - 90, [drop_greetings])
    assert fit(messages, size(messages) - 90, [drop_greetings, drop_oldest]).plan.fits


def test_a_pass_is_configured_with_partial() -> None:
    messages = steps(*(output(300, n) for n in range(8)))
    request = fit(messages, size(messages) - 200, [partial(clip_large, over=50)])
    assert request.plan.decisions[3].outcome == "clipped"
    assert "50" in request.plan.decisions[3].reason
