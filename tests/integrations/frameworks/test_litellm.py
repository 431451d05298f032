"""litellm with the real library: calls, and the hook of its proxy."""

from typing import Any

import litellm
import numpy
import pandas
import pytest

import brim
from brim.integrations.litellm import BrimCompletion, BrimProxyHook
from tests.support.frameworks import CALLS, MODEL, QUESTION, WINDOW, check, read_file, serve
from tests.support.pages import run_page

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]


def run_loop(complete: Any) -> list[Any]:
    """Run the tool loop as every example does: with the library's own message objects."""
    messages: list[Any] = [{"role": "system", "content": "You read files. " * 20}]
    messages.append({"role": "user", "content": QUESTION})
    while True:
        response = complete(model=f"openai/{MODEL}", messages=messages, tools=TOOLS, max_retries=0)
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return messages
        text = read_file(len(messages))
        messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": text})


def test_without_brim_the_loop_fails() -> None:
    with serve() as server, pytest.raises(Exception, match="context"):
        run_loop(litellm.completion)
    assert server.rejected


def test_the_loop_is_completed_and_the_messages_stay_whole() -> None:
    plans: list[Any] = []
    client = BrimCompletion(window=WINDOW, reply=500, on_plan=plans.append)
    with serve() as server:
        messages = run_loop(client.completion)
    check(server, plans)
    assert len(messages) == 2 * CALLS + 3


async def test_the_proxys_hook_fits_completions_and_nothing_else() -> None:
    hook = BrimProxyHook(window=WINDOW, reply=500)
    chat = [{"role": ("user", "assistant")[i % 2], "content": read_file(i)} for i in range(41)]
    data = {"model": MODEL, "messages": list(chat), "metadata": {"user": "a"}}
    fitted = await hook.async_pre_call_hook(None, None, data, "completion")
    assert fitted is data
    assert len(fitted["messages"]) < len(chat)
    assert fitted["metadata"] == {"user": "a"}
    other = {"model": MODEL, "input": "text"}
    assert await hook.async_pre_call_hook(None, None, other, "embeddings") == {
        "model": MODEL,
        "input": "text",
    }


def test_messages_of_litellm_come_back_as_they_were() -> None:
    message = litellm.Message(content="hello", role="assistant")
    request = brim.fit([{"role": "user", "content": "hi"}, message], model=MODEL)
    assert request.messages[1] is message
    assert "tool_calls" not in str(brim.Session(MODEL).history)


@pytest.mark.parametrize(
    "make", [numpy.array, pandas.Series, lambda rows: pandas.Series(rows).to_numpy()]
)
def test_arrays_are_read_like_lists(make: Any) -> None:
    rows: list[Any] = [{"role": "user", "content": f"{n} " + read_file(n)} for n in range(30)]
    nested = [
        {"role": "user", "content": numpy.array([{"type": "text", "text": "hi"}], dtype=object)},
        *rows,
    ]
    plain = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, *rows]
    request = brim.fit(make(nested), model=MODEL, window=WINDOW)
    assert request.plan == brim.fit(plain, model=MODEL, window=WINDOW).plan
    assert brim.fit({"messages": make(rows)}, model=MODEL, window=WINDOW).messages
    assert brim.count(list(nested), model=MODEL) == brim.count(plain, model=MODEL)
    assert brim.fit(list(nested), model=MODEL).messages[0] is nested[0]


def test_the_page_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        run_page("litellm", server, monkeypatch)
    assert not server.rejected
