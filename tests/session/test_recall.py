"""`Session(recall=True)`: the tool with which a model reads what was trimmed."""

from __future__ import annotations

import json
from typing import Any

import pytest

import brim
from brim.session.recall import RECALL_TOOL
from brim.testing import ScriptedServer, TextReply, ToolCallReply
from tests.support.sessions import completion, session
from tests.support.strategies import Raw

FACT = "My locker at the station in Lisbon has the number 4711."

AT = 24


def call(number: int = 1, **arguments: object) -> Raw:
    function = {"name": "recall", "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def fill(chat: brim.Session, turns: int = 40) -> None:
    """Append a fact, as message `AT`, in the middle of remarks: there `steady` drops it."""
    for number in range(turns):
        if 2 * number == AT:
            chat.user(FACT)
            chat.assistant("Noted.")
        chat.user(f"Remark {number}: " + "nothing of interest, only words. " * 12)
        chat.assistant(f"Reply {number}.")


def ask(**settings: Any) -> tuple[brim.Session, brim.Request]:
    chat = session(recall=True, **settings)
    fill(chat)
    chat.user("Which locker was it?")
    return chat, chat.request()


def test_the_tool_is_a_part_of_every_request_from_the_start() -> None:
    chat = session(recall=True)
    chat.user("Hello")
    first = chat.request()
    assert first["tools"] == [RECALL_TOOL]
    assert chat.tools == []
    fill(chat)
    later = chat.request()
    assert later.plan.is_trimmed
    assert later["tools"] == first["tools"]
    assert later.plan.limit == first.plan.limit
    counted = brim.count(later.messages, model="gpt-4o", tools=[dict(RECALL_TOOL)])
    assert later.plan.tokens == counted <= later.plan.limit


def test_the_session_answers_a_query_with_what_was_trimmed() -> None:
    chat, request = ask()
    assert FACT not in str(request.messages)
    reply = chat.receive(completion(None, calls=[call(query="number of the locker")]))
    assert reply.calls == ()
    assert chat.has_open_step
    result = chat.history[-1]
    assert (result["role"], result["tool_call_id"]) == ("tool", "call_1")
    assert result["content"] == f"[message {AT}, user]\n{FACT}"
    again = chat.request()
    assert [message["role"] for message in again.messages][-3:] == ["user", "assistant", "tool"]
    chat.receive(completion("4711"))
    assert not chat.has_open_step


def test_a_message_is_read_by_its_number_in_at_most_5_percent_of_the_limit() -> None:
    chat, request = ask()
    chat.receive(completion(None, calls=[call(message=AT)]))
    assert chat.history[-1]["content"] == f"[message {AT}, user]\n{FACT}"
    for number, content in ((0, FACT * 100), (1, "x = 1\n" * 900)):
        chat = session(recall=True)
        chat.user(content)
        chat.assistant(content)
        chat.user("What was it?")
        request = chat.request()
        chat.receive(completion(None, calls=[call(message=number)]))
        answer = str(chat.history[-1]["content"])
        assert brim.count(answer, model="gpt-4o") <= 0.05 * request.plan.limit
        assert "tokens omitted" in answer


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ('{"query": "submarine"}', "No omitted text matches. Try other words."),
        ('{"message": 900}', "There is no message 900. The numbers go from 0 to 82."),
        ('{"message": true}', "Give a query (a text) or message (a number)."),
        ("{}", "Give a query (a text) or message (a number)."),
        ("[]", "The arguments are not a JSON object."),
    ],
)
def test_an_invalid_call_gets_a_result_that_explains_it(arguments: str, answer: str) -> None:
    chat, _ = ask()
    broken = {**call(), "function": {"name": "recall", "arguments": arguments}}
    chat.receive(completion(None, calls=[broken]))
    assert chat.history[-1]["content"] == answer


def test_calls_of_other_tools_in_the_same_reply_are_left_to_the_caller() -> None:
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
    chat, _ = ask(tools=[tool])
    other = {"id": "call_2", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    reply = chat.receive(completion(None, calls=[call(query="locker"), other]))
    assert [made.name for made in reply.calls] == ["run"]
    assert not chat.has_open_step
    chat.tool("call_2", "done")
    assert chat.has_open_step


def test_the_note_says_what_it_covers_and_names_the_tool_only_if_it_is_offered() -> None:
    _, request = ask()
    (note,) = request.plan.notes
    assert note.text.startswith("[brim: messages ")
    assert note.text.endswith("omitted; call recall to read them]")
    assert "tokens" in note.text
    plain = session()
    fill(plain)
    plain.user("Which locker was it?")
    assert "recall" not in str(plain.request().messages)


def test_without_tools_in_the_template_neither_the_tool_nor_the_note_promises_anything() -> None:
    _, request = ask(template="gemma")
    assert "tools" not in request
    assert request.plan.is_trimmed
    assert "recall" not in str(request.messages)


def test_names_of_the_dropped_text_are_in_the_note() -> None:
    chat = session(recall=True)
    fill(chat)
    for _ in range(3):
        chat.user("We take the train to Lisbon with src/shop/cart.py in mind.")
        chat.assistant("All right.")
    fill(chat)
    chat.user("And now?")
    notes = [note.text for note in chat.request().plan.notes]
    assert any("Lisbon" in text or "cart.py" in text for text in notes)


def test_a_tool_of_the_same_name_is_rejected() -> None:
    with pytest.raises(brim.InputError, match="name of brim's own: recall"):
        brim.Session("gpt-4o", recall=True, tools=[dict(RECALL_TOOL)])
    assert brim.Session("gpt-4o", tools=[dict(RECALL_TOOL)]).tools


def test_a_saved_session_offers_the_tool_again() -> None:
    chat, request = ask()
    copy = brim.Session.from_dict(json.loads(json.dumps(chat.to_dict())))
    assert copy.request() == request


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_sends_again_until_the_model_answers(streams: bool) -> None:
    script: list[Any] = [
        TextReply("Let me see.", [ToolCallReply("recall", {"query": "locker"})]),
        "4711.",
    ]
    with ScriptedServer(script, window=2_000) as server, brim.Client(server.url) as client:
        chat = brim.Session(recall=True, reply=100)
        fill(chat)
        chat.user("Which locker was it?")
        forced: Any = {"tool_choice": {"type": "function", "function": {"name": "recall"}}}
        if streams:
            stream = client.stream(chat, **forced)
            text = "".join(stream.texts())
            assert text == "Let me see.4711."
            reply = stream.reply
        else:
            reply = client.send(chat, **forced)
        assert (reply.text, reply.calls) == ("4711.", ())
        assert FACT in str(chat.history[-2]["content"])
        assert "tool_choice" not in server.requests[-1].body
        assert [entry.category for entry in chat.log.entries] == ["main", "main"]


def test_a_model_that_only_recalls_is_stopped() -> None:
    script = TextReply("", [ToolCallReply("recall", {"query": "locker"})])
    with ScriptedServer(script, window=4_000) as server, brim.Client(server.url) as client:
        chat = brim.Session(recall=True, reply=100)
        chat.user("Which locker was it?")
        assert client.send(chat).calls == ()
        assert len(server.requests) == 8
        assert chat.has_open_step
