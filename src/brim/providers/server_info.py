"""ServerInfo: what a model server reports: its kind, its models and their context windows.

ProfileSource: what was saved about a server's models.

The window of a model card does not matter, only the window that the running server provides.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from brim.errors import (
    AuthenticationError,
    ConnectionFailedError,
    ProviderError,
    ProviderTimeoutError,
)
from brim.fitting.calibration import UNCALIBRATED, Calibration
from brim.fitting.profile import ModelProfile, PriceBasis
from brim.providers.endpoint import Endpoint, quote_model
from brim.providers.errors import NOT_FOUND_STATUSES
from brim.providers.transport import Transport
from brim.storage.calibration_store import CalibrationStore
from brim.wire.template_trial import TemplateVerdict

ServerKind = Literal[
    "llama.cpp",
    "vllm",
    "sglang",
    "ollama",
    "lmstudio",
    "tgi",
    "openrouter",
    "openai",
    "anthropic",
    "unknown",
]

SELF_HOSTED: Final[frozenset[ServerKind]] = frozenset(
    ("llama.cpp", "ollama", "lmstudio", "vllm", "sglang", "tgi")
)
"""Servers that users run themselves, at no cost per token."""
MIN_REPLY_TOKENS: Final[Mapping[ServerKind, int]] = {"llama.cpp": 1}
"""Tokens that a server always reserves for the reply."""

RETRY_SECONDS = 30.0
"""Seconds until a server that did not report a window is asked again."""
TIMEOUT_SECONDS = 5.0
MAX_WINDOWS = 1_000
"""Models whose windows are remembered; clients choose the names, so the number is limited."""

_HOSTS: Final[Mapping[str, ServerKind]] = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openrouter.ai": "openrouter",
}
_HOSTS_WITHOUT_WINDOWS: Final = frozenset(("api.openai.com", "api.anthropic.com"))
"""Hosts that do not report windows."""
_KINDS_BY_OWNER: Final[Mapping[str, ServerKind]] = {
    "llamacpp": "llama.cpp",
    "vllm": "vllm",
    "sglang": "sglang",
    "library": "ollama",
    "organization_owner": "lmstudio",
}
_WINDOW_FIELDS: Final = (
    *("max_model_len", "context_length", "context_window", "max_context_length"),
    "inputTokenLimit",
)
"""How lists of models call the window."""
DERIVED = re.compile(r"[-:]brim-\d+\Z")
"""The end of the name of a model that brim derived, to set its window."""
_NUM_CTX = re.compile(r"(?m)^\s*num_ctx\s+(\d+)\s*$")


@dataclass(frozen=True, slots=True)
class Window:
    """The context window of a model at a server, and where it was read."""

    tokens: int | None
    source: str
    kind: ServerKind = "unknown"
    template: str | None = None
    """The text of the model's chat template, if the server reports it."""


@dataclass(frozen=True, slots=True)
class _ModelList:
    kind: ServerKind
    models: tuple[Mapping[str, Any], ...]


class ServerInfo:
    """Queries the server of a transport; what the server does not report is None, not an error."""

    def __init__(
        self, transport: Transport, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.transport = transport
        self._clock = clock
        self._kind: ServerKind | None = None
        self._windows: OrderedDict[str, tuple[Window, float]] = OrderedDict()
        self._silent_until = -math.inf
        """Until when no probe but the list of models is tried: all others failed for some model."""

    async def models(self, headers: Mapping[str, str] | None = None) -> list[str]:
        """Return the names of the models; raise ProviderError if the server does not list them.

        `headers` are those of the client that wants to know; they override the endpoint's own.
        """
        listing = await self._list_models(retries=None, timeout=None, headers=headers)
        names = (model.get("id") for model in listing.models)
        return [name for name in names if isinstance(name, str) and name]

    async def offered(self) -> list[str]:
        """Return the names of the models; none if the server has no list of them."""
        try:
            return await self.models()
        except ProviderError as error:
            if error.status in NOT_FOUND_STATUSES:
                return []
            raise

    async def window_of(self, model: str, headers: Mapping[str, str] | None = None) -> Window:
        """Return the window of a model at the running server; it is the same for every client."""
        known = self._windows.get(model)
        if known is not None and (known[0].tokens is not None or self._clock() < known[1]):
            return known[0]
        window = await self._query_window(model, headers)
        self._windows[model] = (window, self._clock() + RETRY_SECONDS)
        if len(self._windows) > MAX_WINDOWS:
            self._windows.popitem(last=False)
        return window

    async def provide_window(self, model: str, tokens: int) -> str:
        """Return the name of a model whose window has this size, for a model of Ollama.

        Ollama's API for OpenAI's clients takes no `num_ctx`, so a model with that parameter is
        derived, as Ollama's documentation recommends. Return `model` if Ollama rejects that.
        """
        base = model.removesuffix(":latest")
        name = f"{base}{'-' if ':' in base else ':'}brim-{tokens}"
        if name not in self._windows and (await self.window_of(name)).tokens is None:
            parameters = {"num_ctx": tokens}
            wanted = {"model": name, "from": model, "parameters": parameters, "stream": False}
            await _get_object(self.transport, "/api/create", wanted)
            self.forget(name)
        return model if (await self.window_of(name)).tokens is None else name

    def forget(self, model: str) -> None:
        """Query the server again at the next use, for example after it was restarted."""
        self._windows.pop(model, None)

    async def _query_window(self, model: str, headers: Mapping[str, str] | None) -> Window:
        host = self.transport.endpoint.host
        if host in _HOSTS_WITHOUT_WINDOWS:
            self._kind = _HOSTS[host]
            return Window(None, f"{host} does not report windows", self._kind)
        try:
            listing = await self._list_models(retries=0, timeout=TIMEOUT_SECONDS, headers=headers)
        except (ConnectionFailedError, ProviderTimeoutError):
            return Window(None, f"{host} cannot be reached", self._kind or "unknown")
        except AuthenticationError as error:
            return Window(None, str(error), self._kind or _HOSTS.get(host, "unknown"))
        except ProviderError:
            listing = _ModelList(_HOSTS.get(host, "unknown"), ())
        probes = _PROBES.get(listing.kind, (_probe_model_list,))
        if listing.kind == "unknown" and self._clock() < self._silent_until:
            probes = (_probe_model_list,)
        for probe in probes:
            if (window := await probe(self.transport, model, listing)) is not None:
                self._kind = window.kind
                return window
        self._kind, self._silent_until = listing.kind, self._clock() + RETRY_SECONDS
        return Window(None, f"{host} does not report the window", listing.kind)

    async def _list_models(
        self,
        *,
        retries: int | None,
        timeout: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> _ModelList:
        endpoint = self.transport.endpoint
        response = await self.transport.request_json(
            "GET", endpoint.under("/models"), retries=retries, timeout=timeout, headers=headers
        )
        body = response.body
        found = body.get("data", body.get("models")) if isinstance(body, Mapping) else body
        models = tuple(_with_id(row) for row in _list(found) if isinstance(row, Mapping))
        return _ModelList(_detect_kind(endpoint, response.headers, models), models)


WindowProbe = Callable[["Transport", str, _ModelList], Awaitable[Window | None]]


async def _probe_model_list(_: Transport, model: str, listing: _ModelList) -> Window | None:
    """Read the window from the list of models, as vLLM, SGLang and OpenRouter report it."""
    row = _find_model(listing, model)
    top = row.get("top_provider")
    rows = (row, top) if isinstance(top, Mapping) else (row,)
    sizes = [size for each in rows for name in _WINDOW_FIELDS if (size := _size(each.get(name)))]
    return Window(min(sizes), "/v1/models", listing.kind) if sizes else None


async def _probe_llama_cpp(transport: Transport, model: str, listing: _ModelList) -> Window | None:
    """Return the window of one slot; the model's own (`n_ctx_train`) may be larger."""
    meta = _find_model(listing, model).get("meta")
    listed = _size(meta.get("n_ctx")) if isinstance(meta, Mapping) else None
    query = f"?model={quote_model(model)}" if len(listing.models) > 1 and model else ""
    props = await _get_object(transport, f"/props{query}")
    settings = props.get("default_generation_settings")
    reported = _size(settings.get("n_ctx")) if isinstance(settings, Mapping) else None
    text = props.get("chat_template")
    template = text if isinstance(text, str) and text else None
    if reported and (listed is None or reported <= listed):
        return Window(reported, "/props", "llama.cpp", template)
    if listed:
        return Window(listed, "/v1/models", "llama.cpp", template)
    return None


async def _probe_ollama(transport: Transport, model: str, _: _ModelList) -> Window | None:
    """Return the window with which the model is loaded, else the one in its parameters."""
    loaded = (await _get_object(transport, "/api/ps")).get("models")
    if not isinstance(loaded, list):
        return None
    for row in loaded:
        if not isinstance(row, Mapping) or not _is_same_model(
            row.get("model") or row.get("name"), model
        ):
            continue
        if size := _size(row.get("context_length")):
            return Window(size, "/api/ps", "ollama")
    if model:
        shown = await _get_object(transport, "/api/show", {"model": model})
        if set_to := _NUM_CTX.search(str(shown.get("parameters") or "")):
            return Window(_size(int(set_to[1])), "/api/show", "ollama")
    return Window(None, "Ollama has not loaded the model", "ollama")


async def _probe_lm_studio(transport: Transport, model: str, _: _ModelList) -> Window | None:
    rows = (await _get_object(transport, "/api/v0/models")).get("data")
    if not isinstance(rows, list):
        return None
    for row in rows:
        if not isinstance(row, Mapping) or row.get("id") != model:
            continue
        size = _size(row.get("loaded_context_length"))
        if size is None and row.get("state") == "loaded":
            size = _size(row.get("max_context_length"))
        if size is not None:
            return Window(size, "/api/v0/models", "lmstudio")
    return Window(None, "LM Studio has not loaded the model", "lmstudio")


async def _probe_tgi(transport: Transport, _: str, __: _ModelList) -> Window | None:
    size = _size((await _get_object(transport, "/info")).get("max_total_tokens"))
    return Window(size, "/info", "tgi") if size else None


_PROBES: Final[Mapping[ServerKind, Sequence[WindowProbe]]] = {
    "llama.cpp": (_probe_llama_cpp,),
    "ollama": (_probe_ollama,),
    "lmstudio": (_probe_lm_studio,),
    "tgi": (_probe_tgi,),
    "unknown": (_probe_model_list, _probe_llama_cpp, _probe_ollama, _probe_lm_studio, _probe_tgi),
}
"""What to try, by the kind of server; an unknown one gets every probe."""


async def _get_object(
    transport: Transport, path: str, body: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return the object at a path; empty if there is none."""
    try:
        response = await transport.request_json(
            "GET" if body is None else "POST", path, body, timeout=TIMEOUT_SECONDS, retries=0
        )
    except ProviderError:
        return {}
    return response.body if isinstance(response.body, Mapping) else {}


def _detect_kind(
    endpoint: Endpoint, headers: Mapping[str, str], models: Sequence[Mapping[str, Any]]
) -> ServerKind:
    if (known := _HOSTS.get(endpoint.host)) is not None:
        return known
    if "llama.cpp" in headers.get("server", "").lower():
        return "llama.cpp"
    owners = {str(row.get("owned_by")).lower() for row in models}
    found = {_KINDS_BY_OWNER[owner] for owner in owners if owner in _KINDS_BY_OWNER}
    return found.pop() if len(found) == 1 else "unknown"


def _find_model(listing: _ModelList, model: str) -> Mapping[str, Any]:
    """Return the model's entry; a server with a single model accepts any name."""
    for row in listing.models:
        if _is_same_model(row.get("id"), model):
            return row
    return listing.models[0] if len(listing.models) == 1 else {}


def _is_same_model(one: object, other: str) -> bool:
    """Whether two names mean the same model; `:latest` is the default tag."""
    return isinstance(one, str) and one.removesuffix(":latest") == other.removesuffix(":latest")


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_id(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model with its id; Gemini calls it the name."""
    name = row.get("name")
    if "id" in row or not isinstance(name, str) or not name.startswith("models/"):
        return row
    return {**row, "id": name.removeprefix("models/")}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def detect_truncation(kind: str, window: int | None, counted: int, reported: int) -> str | None:
    """Return a warning if a server seems to have truncated the prompt silently, else None.

    Ollama does: it drops the oldest messages, and truncates what is still too long to about half
    of the window. The prompt tokens that it then reports show it.
    """
    if kind not in ("ollama", "unknown") or window is None or not 0 < reported <= counted - 16:
        return None
    if reported > counted * 0.9:
        return None
    halved = abs(reported - (window // 2 + 2)) <= max(4, window // 100)
    dropped = kind == "ollama" and counted > window * 1.25 and reported <= window
    if not (halved or reported == window or dropped):
        return None
    return (
        f"The server reports {reported:,} tokens for a prompt of about {counted:,}: it probably "
        f"truncated the prompt to its window of {window:,}. Load the model with a larger window "
        f"(Ollama: num_ctx), or set the window to {window:,}."
    )


class ProfileSource:
    """Loads and saves what is known about one server's models: calibrations and template rules."""

    def __init__(self, server: ServerInfo, store: CalibrationStore) -> None:
        self.server = server
        self.store = store
        self._saved: dict[str, Calibration] = {}
        """The calibration of each model, as it was last read or written."""
        self._verdicts: dict[str, TemplateVerdict | None] = {}

    def load(self, model: str) -> Calibration:
        """Return the saved calibration of a model."""
        if model not in self._saved:
            stored = self.store.load(self._url, model) or {}
            self._saved[model] = Calibration.from_dict(stored)
            self._verdicts[model] = TemplateVerdict.from_dict(stored.get("template"))
        return self._saved[model]

    def save(self, model: str, calibration: Calibration) -> Calibration:
        """Save a calibration that has changed, and return it as saved.

        If another process has recorded a smaller window meanwhile, that one is kept.
        """
        saved = self._saved.get(model, UNCALIBRATED)
        if calibration == saved:
            return calibration
        if (found := self._read(model)) != saved:
            calibration = calibration.with_smaller_window(found)
        self._saved[model] = calibration
        self._write(model, calibration.to_dict())
        return calibration

    def load_verdict(self, model: str) -> TemplateVerdict | None:
        """Return the saved rules of a model's template; None if it was not tried."""
        self.load(model)
        return self._verdicts.get(model)

    def save_verdict(self, model: str, verdict: TemplateVerdict) -> None:
        self._verdicts[model] = verdict
        self._write(model, {"template": verdict.to_dict()})

    def _read(self, model: str) -> Calibration:
        return Calibration.from_dict(self.store.load(self._url, model))

    def _write(self, model: str, data: Mapping[str, Any]) -> None:
        stored = self.store.load(self._url, model) or {}
        self.store.save(self._url, model, {**stored, **data})

    @property
    def _url(self) -> str:
        return self.server.transport.endpoint.url


def find_price_basis(kind: ServerKind, endpoint: Endpoint) -> PriceBasis:
    """Return whether a server is free: a self-hosted one on the owner's own network.

    Providers run the same software at public addresses; the price there is unknown.
    """
    if kind not in SELF_HOSTED:
        return "list"
    return "free" if endpoint.is_private else "unknown"


def apply_server_info(profile: ModelProfile, window: Window, endpoint: Endpoint) -> ModelProfile:
    """Return the profile with what its server says: its window, and whether it is free."""
    return profile.with_server(
        window.tokens,
        least_reply=MIN_REPLY_TOKENS.get(window.kind, 0),
        price_basis=find_price_basis(window.kind, endpoint),
    )
