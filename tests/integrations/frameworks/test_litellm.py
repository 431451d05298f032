"""litellm with the real library: calls, and the hook of its proxy."""

from pathlib import Path
from typing import Any

import litellm as library
import numpy
import openai
import pandas
import pytest
from fastapi.testclient import TestClient

import brim
from brim.integrations.litellm import BrimProxyHook
from tests.support.frameworks import (
    DONE,
    MODEL,
    WINDOW,
    check_failure,
    check_loop,
    litellm,
    read_file,
    serve,
)
from tests.support.pages import run_page

pytestmark = pytest.mark.anyio
CHAT: list[Any] = [
    {"role": ("user", "assistant")[number % 2], "content": read_file(number)}
    for number in range(41)
]


def test_without_brim_the_loop_fails() -> None:
    check_failure(litellm)


def test_the_loop_is_completed_and_the_history_is_whole() -> None:
    check_loop(litellm)


async def test_the_proxys_hook_fits_completions_and_nothing_else() -> None:
    hook = BrimProxyHook(window=WINDOW, reply=500)
    data = {"model": MODEL, "messages": list(CHAT), "metadata": {"user": "a"}}
    fitted = await hook.async_pre_call_hook(None, None, data, "completion")
    assert fitted is data
    assert len(fitted["messages"]) < len(CHAT)
    assert fitted["metadata"] == {"user": "a"}
    other = {"model": MODEL, "input": "text"}
    assert await hook.async_pre_call_hook(None, None, other, "embeddings") == {
        "model": MODEL,
        "input": "text",
    }


PROXY_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{url}", api_key: key, max_retries: 0}}
litellm_settings:
  callbacks: brim_hook.hook
"""
HOOK = """
from brim.integrations.litellm import BrimProxyHook

hook = BrimProxyHook(window=4_096, reply=500)
"""


def test_the_proxy_fits_requests_and_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-" + 8 * "01234567"
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LITELLM_MASTER_KEY", key)
    monkeypatch.setenv("CONFIG_FILE_PATH", str(tmp_path / "config.yaml"))
    (tmp_path / "brim_hook.py").write_text(HOOK)
    with serve(replies=[DONE, DONE]) as server:
        (tmp_path / "config.yaml").write_text(PROXY_CONFIG.format(model=MODEL, url=server.url))
        from litellm.proxy.proxy_server import app

        with TestClient(app) as http:
            client = openai.OpenAI(base_url="http://testserver/v1", api_key=key, http_client=http)
            reply = client.chat.completions.create(model=MODEL, messages=CHAT)
            events = [*client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)]
    assert reply.choices[0].message.content == DONE
    assert "".join(event.choices[0].delta.content or "" for event in events) == DONE
    assert not server.rejected
    assert all(len(request.body["messages"]) < len(CHAT) for request in server.requests)


def test_messages_of_litellm_come_back_as_they_were() -> None:
    message = library.Message(content="hello", role="assistant")
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
