"""Finds models on this machine if none is configured.

It queries the default ports of model servers concurrently, with the standard library only, and
looks for API keys in the environment. Unknown responses are ignored, and nothing here raises.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from brim.config import ModelConfig

PORTS: Final = (8080, 11434, 1234, 8000, 30000)
"""Default ports of llama.cpp, Ollama, LM Studio, vLLM and SGLang."""
MAX_MODELS: Final = 5
"""Models to list per server."""
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024

OPENAI: Final = "https://api.openai.com/v1"
ANTHROPIC: Final = "https://api.anthropic.com"
OLLAMA_PORT: Final = 11434
_OWNERS: Final = {
    "llamacpp": "llama.cpp",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "library": "Ollama",
    "organization_owner": "LM Studio",
}
"""Kinds of servers by the `owned_by` of their models."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """An available model: a name for it, its settings, and how it was found."""

    name: str
    model: ModelConfig
    source: str


def find_models(
    environment: Mapping[str, str], *, ports: Sequence[int] = PORTS, timeout: float = 0.4
) -> list[FoundModel]:
    """Return the models of local servers, then those that the environment has a key for.

    A response may take `timeout` seconds.
    """
    places = _list_places(environment, ports)
    servers = _probe_all([(place, environment) for place in places], timeout)
    return list(_make_names_unique([*servers, *_models_from_keys(environment)]))


def _make_names_unique(found: Iterable[FoundModel]) -> Iterator[FoundModel]:
    """Add numbers to names that occur twice."""
    taken: set[str] = set()
    for each in found:
        name, number = each.name, 2
        while name in taken:
            name, number = f"{each.name}-{number}", number + 1
        taken.add(name)
        yield replace(each, name=name)


# Keys


def _models_from_keys(environment: Mapping[str, str]) -> Iterator[FoundModel]:
    from brim.config import ModelConfig

    elsewhere = _base(environment.get("OPENAI_BASE_URL") or OPENAI) != _base(OPENAI)
    if environment.get("OPENAI_API_KEY") and not elsewhere:
        name = small_model("openai")
        model = ModelConfig(endpoint=OPENAI, model=name, key_env="OPENAI_API_KEY")
        yield FoundModel(name, model, f"OPENAI_API_KEY is set; {name} is a small OpenAI model")
    if environment.get("ANTHROPIC_API_KEY"):
        name, key = small_model("anthropic"), "ANTHROPIC_API_KEY"
        model = ModelConfig(endpoint=ANTHROPIC, format="anthropic", model=name, key_env=key)
        yield FoundModel(name, model, f"{key} is set; {name} is a small Anthropic model")


_SMALL: Final[Mapping[str, Callable[[str], bool]]] = {
    "openai": lambda name: name.startswith("gpt-") and name.endswith("-mini"),
    "anthropic": lambda name: "-haiku-" in name,
}


def small_model(provider: str) -> str:
    """Return the newest small model of a provider in the catalog."""
    from brim.models import catalog

    known = [model.name for model in catalog.models() if model.provider == provider]
    return [name for name in known if _SMALL[provider](name)][-1]


# Addresses


@dataclass(frozen=True, slots=True)
class _Place:
    """The address of a possible server, and the variable that holds its key."""

    url: str
    key_env: str | None = None


def _list_places(environment: Mapping[str, str], ports: Sequence[int]) -> list[_Place]:
    """Return each address once, those from the environment first."""
    named = [
        _Place(url, key)
        for url, key in (
            (_base(environment.get("OPENAI_BASE_URL", "")), "OPENAI_API_KEY"),
            (_ollama_host(environment.get("OLLAMA_HOST", "")), None),
        )
        if url and url != _base(OPENAI)
    ]
    usual = [_Place(f"http://127.0.0.1:{port}") for port in ports]
    # Listed again at the end, so that a default address from the environment keeps its key.
    return list({place.url: place for place in (*named, *usual, *named)}.values())


def _base(url: str) -> str | None:
    """Return a URL without its version; None if it is not an HTTP URL."""
    return url.rstrip("/").removesuffix("/v1") if url.startswith(("http://", "https://")) else None


def _ollama_host(named: str) -> str | None:
    """Return the URL in OLLAMA_HOST, in any form that Ollama accepts."""
    if not named.strip():
        return None
    scheme, separator, _ = named.strip().partition("://")
    try:
        parts = urlsplit(named.strip() if separator else f"http://{named.strip()}")
        port = parts.port
    except ValueError:
        return None
    usual = {"http": 80, "https": 443}.get(scheme, OLLAMA_PORT) if separator else OLLAMA_PORT
    host = parts.hostname or ""
    host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port or usual}"


# Queries


def _probe_all(
    places: Sequence[tuple[_Place, Mapping[str, str]]], timeout: float
) -> list[FoundModel]:
    """Query all addresses concurrently; slow ones are ignored."""
    found: dict[int, list[FoundModel]] = {}
    until = time.monotonic() + 2 * timeout

    def ask(number: int, place: _Place, environment: Mapping[str, str]) -> None:
        found[number] = _models_at(_Probe(place, environment, timeout, until))

    # Not a pool: the program would wait for its threads at exit.
    threads = [
        threading.Thread(target=ask, args=(number, *place), daemon=True)
        for number, place in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [each for number in sorted(found) for each in found[number]]


@dataclass(frozen=True, slots=True)
class _HttpReply:
    """A response; the body is None if it is not JSON."""

    status: int
    server: str
    body: Any


@dataclass(frozen=True, slots=True)
class _Probe:
    """Queries one address within its time limit."""

    place: _Place
    environment: Mapping[str, str]
    timeout: float
    until: float

    def get(self, path: str) -> _HttpReply | None:
        """Return the response for a path; None if there is no HTTP server."""
        from http.client import HTTPException

        left = min(self.timeout, self.until - time.monotonic())
        if left <= 0:
            return None
        try:
            return self._request(path, left)
        except (OSError, HTTPException, ValueError):
            return None

    def _request(self, path: str, timeout: float) -> _HttpReply:
        from http.client import HTTPConnection, HTTPSConnection

        parts = urlsplit(self.place.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        key = self.environment.get(self.place.key_env or "")
        headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})
        with closing(kind(parts.hostname or "", parts.port, timeout=timeout)) as connection:
            connection.request("GET", parts.path + path, headers=headers)
            response = connection.getresponse()
            raw = response.read(MAX_REPLY_BYTES)
        return _HttpReply(response.status, response.getheader("Server") or "", _json(raw))

    def rows(self, path: str, key: str) -> list[Mapping[str, Any]]:
        """Return the objects in the list at a path."""
        return _rows(self.get(path), key)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _rows(reply: _HttpReply | None, key: str) -> list[Mapping[str, Any]]:
    body = reply.body if reply is not None and reply.status == 200 else None
    rows = body.get(key) if isinstance(body, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


# Kinds of servers


def _models_at(probe: _Probe) -> list[FoundModel]:
    """Return the models of the server at an address, for any kind of server."""
    listing = probe.get("/v1/models")
    if listing is None:
        return []
    if "llama.cpp" in listing.server and listing.status == 401 and not probe.place.key_env:
        # llama.cpp reads its own key from this variable; no other key is sent to it.
        probe = replace(probe, place=replace(probe.place, key_env="LLAMA_API_KEY"))
        listing = probe.get("/v1/models")
    models = [row for row in _rows(listing, "data") if _name(row.get("id"))]
    kind = _kind(listing, models)
    for named, ask in _DETAILS.items():
        if kind in (named, None) and (found := ask(probe, models)):
            return found
    return _list_offered(probe, kind or "an OpenAI-compatible server", models)


def _kind(listing: _HttpReply | None, models: Sequence[Mapping[str, Any]]) -> str | None:
    if listing is not None and "llama.cpp" in listing.server:
        return "llama.cpp"
    owners = {str(row.get("owned_by")).lower() for row in models}
    kinds = {_OWNERS[owner] for owner in owners if owner in _OWNERS}
    return kinds.pop() if len(kinds) == 1 else None


def _llama(probe: _Probe, models: Sequence[Mapping[str, Any]]) -> list[FoundModel]:
    reply = probe.get("/props")
    props = reply.body if reply is not None and reply.status == 200 else None
    settings = props.get("default_generation_settings") if isinstance(props, Mapping) else None
    if not isinstance(settings, Mapping):
        return []
    return _list_offered(probe, "llama.cpp", models, _size(settings.get("n_ctx")))


def _ollama(probe: _Probe, _: Sequence[Mapping[str, Any]]) -> list[FoundModel]:
    rows = probe.rows("/api/tags", "models")
    models = [{"id": row.get("model") or row.get("name")} for row in rows]
    return _list_offered(probe, "Ollama", models)


def _lm_studio(probe: _Probe, models: Sequence[Mapping[str, Any]]) -> list[FoundModel]:
    rows = [row for row in probe.rows("/api/v0/models", "data") if row.get("type") != "embeddings"]
    if not any("state" in row for row in rows):
        return []
    rows.sort(key=lambda row: row.get("state") != "loaded")
    return _list_offered(probe, "LM Studio", rows or models)


_DETAILS: Final[Mapping[str, Callable[[_Probe, Sequence[Mapping[str, Any]]], list[FoundModel]]]] = {
    "llama.cpp": _llama,
    "Ollama": _ollama,
    "LM Studio": _lm_studio,
}
"""Details per kind of server; a server of unknown kind is queried for all of them."""


def _list_offered(
    probe: _Probe, kind: str, models: Sequence[Mapping[str, Any]], window: int | None = None
) -> list[FoundModel]:
    """Return the first models of a server that are not for embeddings."""
    from brim.config import ModelConfig

    names = [name for row in models if (name := _name(row.get("id"))) and "embed" not in name]
    where = f"{kind} at {probe.place.url}"
    if len(names) == 1:
        sizes = [_size(row.get("max_model_len")) for row in models]
        window = window or next(filter(None, sizes), None)
        what = _short(names[0]) + (f", {window:,} tokens" if window else "")
    else:
        what = f"{len(names)} models"
    at = ModelConfig(endpoint=probe.place.url, key_env=probe.place.key_env)
    return [
        FoundModel(_short(name), replace(at, model=name), f"{where}, {what}")
        for name in names[:MAX_MODELS]
    ]


def _name(value: object) -> str:
    """Return a valid name; empty if it is not one."""
    fits = isinstance(value, str) and value.isprintable() and len(value) <= 200
    return str(value).strip() if fits else ""


def _short(name: str) -> str:
    """Return the name of a model file without its folder and suffix."""
    is_file = name.endswith(".gguf")
    return name.rpartition("/")[2].removesuffix(".gguf") if is_file else name


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
