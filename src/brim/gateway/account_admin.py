"""The administration API: keys, caps and the audit log over HTTP, for operators.

It does what `brim keys` does, with the same checks and the same entries in the audit log.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from brim.errors import BrimError, InputError
from brim.gateway import bodies, headers
from brim.gateway.accounts.audit import MAX_LISTED_CHANGES
from brim.gateway.accounts.caps import (
    ALL,
    DAY_SECONDS,
    Cap,
    each_user_scope,
    key_scope,
    parse_caps,
    project_scope,
    scope_parts,
)
from brim.gateway.accounts.editor import AccountEditor
from brim.gateway.accounts.keys import (
    MAX_EXPIRY,
    NO_RULES,
    ApiKey,
    KeyRules,
    change_labels,
    check_name,
    create_key,
    create_secret,
    hash_secret,
    parse_duration,
    parse_expiry,
    parse_overlap,
    unique_names,
)
from brim.gateway.accounts.store import (
    AccountStore,
    CapUsage,
    check_retention,
    read_cap_usage,
)
from brim.gateway.errors import GatewayError
from brim.gateway.gateway import Gateway
from brim.gateway.idempotency import IdempotentCalls
from brim.gateway.responses import json_response, parse_number
from brim.gateway.spending_views import MAX_ROWS, cap_to_dict, read_end_users

View = Callable[[Request], Awaitable[Response]]
Change = Callable[[AccountEditor, Mapping[str, Any], Request], Awaitable[Response]]

ANONYMOUS: Final = "local"
"""The actor of a request to a gateway that requires no keys."""
_FIELDS_OF_A_NEW_KEY: Final = frozenset(("name", "project", "operator", "caps"))


class AccountAdmin:
    """The views of the administration API."""

    def __init__(self, gateway: Gateway) -> None:
        self._accounts = gateway.services.accounts
        self._gateway = gateway
        self._calls = IdempotentCalls()

    @property
    def views(self) -> list[tuple[str, str, View]]:
        return [
            ("GET", "/brim/keys", self.keys),
            ("POST", "/brim/keys", self._change(_add_key)),
            ("GET", "/brim/keys/{name}", self.key),
            ("PATCH", "/brim/keys/{name}", self._change(_edit_key)),
            ("POST", "/brim/keys/{name}/rotate", self._change(_rotate_key)),
            ("DELETE", "/brim/keys/{name}", self._change(_revoke_key)),
            ("GET", "/brim/keys/{name}/users", self.users),
            ("POST", "/brim/prune", self._change(_prune)),
            ("GET", "/brim/caps", self.caps),
            ("PUT", "/brim/caps", self._change(_set_caps)),
            ("GET", "/brim/audit", self.audit),
            ("POST", "/brim/reload", self.reload),
        ]

    # Reading

    async def keys(self, request: Request) -> Response:
        """Return the active keys, the newest first; with `all=true` also the revoked ones."""
        listed: list[dict[str, Any]] = []
        if self._accounts.requires_keys:
            store = self._accounts.open_store()
            keys, usages = await store.keys(), await read_cap_usage(store)
            shows_all, names = request.query_params.get("all") == "true", unique_names(keys)
            shown = [key for key in reversed(keys) if shows_all or _is_active(key)]
            listed = [_key_to_dict(key, names, usages) for key in shown]
        has_accounts = self._accounts.requires_keys
        return json_response({"object": "list", "data": listed, "has_accounts": has_accounts})

    async def key(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self._accounts.requires_keys:
            raise _key_not_found(name)
        store = self._accounts.open_store()
        return await _key_response(store, await _find_key(store, name, is_active=False))

    async def users(self, request: Request) -> Response:
        """Return the end users of a key and what they spent, the highest cost first."""
        name = request.path_params["name"]
        if not self._accounts.requires_keys:
            raise _key_not_found(name)
        store, since = self._accounts.open_store(), _read_since(request)
        key = await _find_key(store, name, is_active=False)
        found = await read_end_users(store, key.id, since)
        listed, omitted = found[:MAX_ROWS], max(0, len(found) - MAX_ROWS)
        shown = {"object": "list", "since": since.isoformat(), "data": listed}
        return json_response({**shown, "omitted": omitted})

    async def caps(self, _: Request) -> Response:
        """Return all caps with their use."""
        listed: list[dict[str, Any]] = []
        if self._accounts.requires_keys:
            store = self._accounts.open_store()
            names = unique_names(await store.keys())
            listed = [cap_to_dict(each, names) for each in await read_cap_usage(store)]
        return json_response({"object": "list", "data": listed})

    async def audit(self, request: Request) -> Response:
        """Return the last changes, the newest first."""
        number = parse_number(request, "last", default=100, most=MAX_LISTED_CHANGES)
        entries = []
        if self._accounts.requires_keys:
            entries = await self._accounts.open_store().audit_entries(number)
        return json_response({"object": "list", "data": [each.to_dict() for each in entries]})

    async def reload(self, request: Request) -> Response:
        """Read the configuration again; if it is invalid, the old one stays."""
        try:
            change = await self._gateway.reload()
        except BrimError as error:
            raise GatewayError(400, "invalid_configuration", str(error)) from None
        if self._accounts.requires_keys:
            editor = AccountEditor(self._accounts.open_store(), request.state.actor)
            await editor.record("configuration.reload", "", asdict(change))
        return json_response({"object": "brim.reload", **asdict(change)})

    # Changing

    def _change(self, change: Change) -> View:
        """Return the view of a change: it needs keys, and may be repeated with the same result."""

        async def view(request: Request) -> Response:
            if not self._accounts.requires_keys:
                message = (
                    "This gateway has no keys yet. Create the first one with "
                    "`brim keys add NAME --operator`."
                )
                raise GatewayError(409, "no_keys", message)
            client = headers.read_headers(request.headers.raw)
            raw = await self._gateway.services.limits.read_body(client, request.receive)
            body = bodies.parse_body(raw) if raw else {}
            actor = request.state.actor

            async def work() -> Response:
                editor = AccountEditor(self._accounts.open_store(), actor)
                try:
                    return await change(editor, body, request)
                except InputError as error:
                    raise GatewayError(400, "invalid_request", str(error)) from None

            key = request.headers.get("idempotency-key")
            if key is None:
                return await work()
            place = f"{request.method} {request.url.path}\n".encode()
            return await self._calls.run(actor, key, place + raw, work)

        return view


async def _add_key(editor: AccountEditor, body: Mapping[str, Any], _: Request) -> Response:
    _check_fields(body, _FIELDS_OF_A_NEW_KEY | RULES.keys())
    name, project = _text(body, "name"), _text(body, "project", "")
    is_operator = _flag(body, "operator")
    caps = _read_caps(body.get("caps", []))
    if is_operator and (caps or project):
        message = "An operator key cannot send requests, so it takes no caps and no project."
        raise GatewayError(400, "invalid_request", message)
    rules = _change_rules(NO_RULES, body)
    key, secret = create_key(name, project, is_operator=is_operator, rules=rules)
    if any(each.name == name and _is_active(each) for each in await editor.store.keys()):
        message = f"Key name already in use: {name}. Revoke that key, or choose another name."
        raise GatewayError(409, "name_in_use", message, param="name")
    await editor.add_key(key, hash_secret(secret), caps)
    return await _key_response(editor.store, key, status=201, secret=secret)


async def _edit_key(editor: AccountEditor, body: Mapping[str, Any], request: Request) -> Response:
    """Change the rules and the caps that the body has; the others stay."""
    _check_fields(body, RULES.keys() | {"caps"})
    key = await _find_key(editor.store, request.path_params["name"])
    rules = _change_rules(key.rules, body)
    caps = _read_caps(body["caps"]) if "caps" in body else None
    if caps and key.is_operator:
        message = f"{key.name} is an operator key, which cannot send requests and has no caps."
        raise GatewayError(400, "invalid_request", message, param="caps")
    if rules != key.rules:
        key = await editor.set_rules(key, rules)
    if caps is not None:
        await editor.set_caps(key_scope(key.id), caps)
    return await _key_response(editor.store, key)


async def _rotate_key(editor: AccountEditor, body: Mapping[str, Any], request: Request) -> Response:
    """Give a key a new secret; the old one stays valid for the overlap."""
    _check_fields(body, ("overlap",))
    overlap = parse_overlap(_text(body, "overlap", "24h"))
    key = await _find_key(editor.store, request.path_params["name"])
    secret = create_secret()
    key = await editor.rotate(key.id, hash_secret(secret), overlap)
    return await _key_response(editor.store, key, secret=secret)


async def _revoke_key(editor: AccountEditor, body: Mapping[str, Any], request: Request) -> Response:
    _check_fields(body, ())
    key = await _find_key(editor.store, request.path_params["name"])
    return await _key_response(editor.store, await editor.revoke(key.id))


async def _set_caps(editor: AccountEditor, body: Mapping[str, Any], _: Request) -> Response:
    """Replace the caps of a key, a project or all keys."""
    _check_fields(body, ("scope", "caps"))
    if "caps" not in body:
        message = '`caps` is missing. Send a list such as ["5/day"], or [] to remove the caps.'
        raise GatewayError(400, "invalid_request", message, param="caps")
    scope, caps = await _parse_scope(editor.store, _text(body, "scope")), _read_caps(body["caps"])
    await editor.set_caps(scope, caps)
    usages = [each for each in await read_cap_usage(editor.store) if each.scope == scope]
    names = unique_names(await editor.store.keys())
    listed = [cap_to_dict(each, names) for each in usages]
    return json_response({"object": "list", "data": listed})


async def _prune(editor: AccountEditor, body: Mapping[str, Any], _: Request) -> Response:
    """Delete old rows of the ledger; caps stay exact."""
    _check_fields(body, ("older_than",))
    text = _text(body, "older_than")
    if (seconds := parse_duration(text)) is None:
        raise _invalid_field("older_than", "a duration such as 90d or 52w")
    days = check_retention(max(1, int(seconds // DAY_SECONDS)))
    before = datetime.now(UTC).date() - timedelta(days=days)
    rows = await editor.store.prune(before)
    await editor.record("ledger.prune", "", {"before": before.isoformat(), "rows": rows})
    return json_response({"object": "brim.prune", "before": before.isoformat(), "rows": rows})


# Values in a body


def _read_since(request: Request) -> date:
    """Return the first day in a query; by default the first of this month."""
    text = request.query_params.get("since")
    if text is None:
        return datetime.now(UTC).date().replace(day=1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _invalid_field("since", "a day such as 2026-11-01") from None


def _check_fields(body: Mapping[str, Any], known: Sequence[str] | Any) -> None:
    """Raise `GatewayError` for the first unknown field."""
    for name in body:
        if name not in known:
            listed = ", ".join(sorted(known)) or "no fields"
            message = f"Unknown field: {name[:60]!r}. This request takes {listed}."
            raise GatewayError(400, "invalid_request", message, param=name[:60])


def _invalid_field(name: str, expected: str) -> GatewayError:
    return GatewayError(400, "invalid_request", f"`{name}` must be {expected}.", param=name)


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise _invalid_field(name, "text")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise _invalid_field(name, "true or false")
    return value


def _read_texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise _invalid_field(name, "a list of texts")
    return tuple(value)


def _read_note(name: str, value: object) -> str:
    return _text({name: value}, name)


def _read_expiry(name: str, value: object) -> float | None:
    """Return the end of a key: null, seconds since 1970, or text as in `brim keys add`."""
    if value is None:
        return None
    if isinstance(value, str):
        return parse_expiry(value, time.time())
    if isinstance(value, int | float) and time.time() < value <= MAX_EXPIRY:
        return float(value)
    raise _invalid_field(name, "null, 12h, 30d, 2w, a last day, or a future time in seconds")


def _read_labels(name: str, value: object) -> tuple[str, ...]:
    return change_labels((), _read_texts(name, value))


RULES: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "expires": _read_expiry,
    "models": _read_texts,
    "note": _read_note,
    "labels": _read_labels,
}
"""The rules of a key that a body may have, and how they are read."""


def _change_rules(rules: KeyRules, body: Mapping[str, Any]) -> KeyRules:
    """Return rules with those that the body has."""
    given = {name: read(name, body[name]) for name, read in RULES.items() if name in body}
    return replace(rules, **given)


def _read_caps(value: object) -> tuple[Cap, ...]:
    return parse_caps(_read_texts("caps", value))


async def _parse_scope(store: AccountStore, text: str) -> str:
    """Return the scope `key:NAME` (or its id), `users:NAME`, `project:NAME` or `all`."""
    kind, name = scope_parts(text)
    if text == ALL:
        return ALL
    if kind == "project":
        check_name("project", name)
        return project_scope(name)
    if kind not in ("key", "users"):
        raise _invalid_field("scope", "key:NAME, users:NAME, project:NAME or all")
    key = await _find_key(store, name)
    if key.is_operator:
        raise InputError(f"{name} is an operator key, which cannot send requests.")
    return key_scope(key.id) if kind == "key" else each_user_scope(key.id)


def _is_active(key: ApiKey) -> bool:
    return key.revoked is None


async def _find_key(store: AccountStore, name: str, *, is_active: bool = True) -> ApiKey:
    """Return the key with this name or id, an active one first."""
    keys = sorted(await store.keys(), key=_is_active, reverse=True)
    for key in keys:
        if name in (key.id, key.name) and (not is_active or _is_active(key)):
            return key
    raise _key_not_found(name)


def _key_not_found(name: str) -> GatewayError:
    message = f"No active key: {name[:70]}. GET /brim/keys lists the keys."
    return GatewayError(404, "key_not_found", message)


# Responses


async def _key_response(
    store: AccountStore, key: ApiKey, *, status: int = 200, secret: str | None = None
) -> Response:
    """Return a key with its caps; a new one with its secret, which is not shown again."""
    shown = _key_to_dict(key, {key.id: key.name}, await read_cap_usage(store))
    made = {} if secret is None else {"key": secret}
    return json_response({"object": "brim.key", **shown, **made}, status=status)


def _key_to_dict(
    key: ApiKey, names: Mapping[str, str], usages: Sequence[CapUsage]
) -> dict[str, Any]:
    scope = key_scope(key.id)
    return {
        "id": key.id,
        "name": key.name,
        "project": key.project,
        "operator": key.is_operator,
        "created": key.created,
        "revoked": key.revoked,
        **{name: getattr(key.rules, name) for name in RULES},
        "caps": [cap_to_dict(each, names) for each in usages if each.scope == scope],
        "user_caps": [str(each.cap) for each in usages if each.scope == each_user_scope(key.id)],
    }
