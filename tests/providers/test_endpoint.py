from __future__ import annotations

import pickle
from typing import Any

import pytest

from brim.errors import InputError
from brim.providers.endpoint import Endpoint
from brim.providers.network import find_proxy
from brim.providers.transport import default_headers


@pytest.mark.parametrize(
    ("given", "url", "chat"),
    [
        ("http://h", "http://h", "/v1/chat/completions"),
        ("http://h/", "http://h", "/v1/chat/completions"),
        ("http://h/v1", "http://h", "/v1/chat/completions"),
        ("http://h/v1/", "http://h", "/v1/chat/completions"),
        (" HTTP://H:80//v1// ", "http://h", "/v1/chat/completions"),
        ("http://h/v1/chat/completions", "http://h", "/v1/chat/completions"),
        ("http://h:8080/x", "http://h:8080/x", "/v1/chat/completions"),
        ("https://h:443", "https://h", "/v1/chat/completions"),
        ("http://[::1]:8080/v1", "http://[::1]:8080", "/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api", "/v1/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai", "/chat/completions"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4", "/chat/completions"),
    ],
)
def test_equivalent_addresses_are_one_endpoint(given: str, url: str, chat: str) -> None:
    endpoint = Endpoint(given)
    assert (endpoint.url, endpoint.chat_path) == (url, chat)
    assert Endpoint(endpoint.url + endpoint.prefix) == endpoint


@pytest.mark.parametrize(
    ("format", "path"), [("anthropic", "/v1/messages"), ("responses", "/v1/responses")]
)
def test_each_format_has_its_path(format: Any, path: str) -> None:
    assert Endpoint("https://api.anthropic.com", format).chat_path == path


def test_the_address_is_without_the_api_prefix_and_models_are_under_it() -> None:
    endpoint = Endpoint("http://h:1/v1/")
    assert endpoint.url == "http://h:1"
    assert endpoint.under("/models") == "/v1/models"


@pytest.mark.parametrize(
    "url",
    ["", "h:8080", "ftp://h", "http://", "http://h:x", "http://a b", "http://h/?key=1",
     "http://u:p@h/v1", "http://h:0", 7],
)  # fmt: skip
def test_invalid_addresses_are_rejected(url: Any) -> None:
    with pytest.raises(InputError, match="Invalid endpoint address"):
        Endpoint(url)


@pytest.mark.parametrize(
    "wrong",
    [{"format": "x"}, {"timeout": 0}, {"timeout": "x"}, {"timeout": float("nan")}, {"retries": -1},
     {"retries": "2"}, {"key": 5}, {"headers": ["a"]}, {"headers": {"a": 1}},
     {"headers": {"a": "b\nc"}}],
)  # fmt: skip
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Endpoint("http://h", **wrong)


def test_the_key_is_never_displayed() -> None:
    endpoint = Endpoint("http://h", key="sk-secret\n", headers={"x-other": "sk-other"})
    assert "sk-" not in f"{endpoint} {endpoint!r}"
    assert endpoint.key == "sk-secret"
    with pytest.raises(InputError) as caught:
        Endpoint("http://h", key="sk-sécret")
    assert "cret" not in str(caught.value)


def test_an_endpoint_can_be_copied_and_compared() -> None:
    endpoint = Endpoint("http://h/v1beta/openai", key="k", headers={"a": "b"}, retries=5)
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert hash(pickle.loads(pickle.dumps(endpoint))) == hash(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "there", "not_there"),
    [
        (Endpoint("http://h", key="k"), {"Authorization": "Bearer k"}, {"x-api-key"}),
        (Endpoint("http://h"), {}, {"Authorization", "x-api-key"}),
        (
            Endpoint("https://api.anthropic.com", "anthropic", key="k"),
            {"x-api-key": "k", "anthropic-version": "2023-06-01"},
            {"Authorization"},
        ),
        (
            Endpoint("http://h", "anthropic", key="k"),
            {"x-api-key": "k", "Authorization": "Bearer k"},
            set(),
        ),
        (
            Endpoint("http://h", key="k", headers={"authorization": "Basic z"}),
            {"authorization": "Basic z"},
            {"Authorization"},
        ),
    ],
)
def test_the_key_is_sent_in_the_headers_that_the_server_reads(
    endpoint: Endpoint, there: dict[str, str], not_there: set[str]
) -> None:
    sent = default_headers(endpoint)
    assert there.items() <= sent.items()
    assert not not_there & set(sent)


def test_the_proxy_comes_from_the_environment_except_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", "http://me:se%40cret@proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    proxy = find_proxy(Endpoint("http://outside.example"))
    assert proxy is not None
    assert proxy.url == "http://proxy:3128"
    assert proxy.headers == {"Proxy-Authorization": "Basic bWU6c2VAY3JldA=="}
    for url in ("http://inside.example", "http://127.0.0.1:8080", "http://localhost:8080"):
        assert find_proxy(Endpoint(url)) is None
    assert find_proxy(Endpoint("https://outside.example")) is None
    monkeypatch.setenv("https_proxy", "socks5://proxy")
    with pytest.raises(InputError, match="socks5"):
        find_proxy(Endpoint("https://outside.example"))
