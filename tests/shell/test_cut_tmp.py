from tests.shell.test_tool_calls import *
from dataclasses import replace
from brim.wire.replies import arguments_of
import brim.session

@pytest.mark.parametrize("fixed",[False,True])
def test_a_call_that_was_cut_off_does_not_end_the_conversation(
    client, llama, servers, monkeypatch, fixed
) -> None:
    if fixed:
        take=brim.session.Session._take
        def patched(self, reply, sent, *, whole):
            message=json.loads(json.dumps(dict(reply.message)))
            for call in message.get("tool_calls",()):
                f=call["function"]
                try: json.loads(f["arguments"] or "{}")
                except ValueError: f["arguments"]=json.dumps(arguments_of(f["arguments"]))
            take(self, replace(reply,message=message), sent, whole=whole)
        monkeypatch.setattr(brim.session.Session,"_take",patched)
    session = session_with([tool for tool in servers.tools if tool.name == "add"])
    session.user("Add 1234567 and 7654321.")
    reply = asked_to_call(client, llama, session, 20)
    assert reply.is_cut
    assert reply.calls
    results = told(session, servers, reply.calls)
    assert results[-1].is_error
    assert client.send(session, max_tokens=8).usage is not None
