"""The gateway's paths, as OpenAPI describes such things.

What passes through is described no closer than brim reads it: fields that nobody knows are allowed
in both directions. Everything that brim says itself is described in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, get_args

from brim import __version__
from brim.fitting.policies import OFF, POLICIES
from brim.gateway import options
from brim.gateway.formats import CHAT, MESSAGES, PATHS, RESPONSES, BodyFormat
from brim.gateway.records import CountSource, RequestEnd

Schema = dict[str, Any]

FAULTS: Final[Mapping[int, str]] = {
    400: "The body or a header cannot be used, the format is another than the model's upstream "
    "speaks, or the conversation cannot be made to fit (`context_length_exceeded`).",
    401: "No key of this gateway was shown, where keys are asked for, or one that does not live.",
    403: "A web page asks that is not listed in `gateway.origins`, the key is for something else, "
    "or it has a cap in dollars and the model no price.",
    404: "No upstream serves the model.",
    408: "The body did not come in time (`gateway.body_seconds`).",
    413: "The body is too large (`gateway.max_body_bytes`).",
    429: "A cap has no room for the request (`insufficient_quota`).",
    500: "brim failed; its log says why.",
    502: "The upstream could not be reached, or what it answered makes no sense.",
    503: "Too many requests run already (`gateway.max_requests`), the gateway is stopping, or the "
    "store of keys and caps is away (`books_away`).",
    504: "The upstream did not answer in time.",
}
"""What brim says in place of an answer, by status."""
_OF_BODIES: Final = (400, 401, 403, 404, 408, 413, 500, 503)
_OF_KEYS: Final = (401, 403, 503)


@cache
def description() -> Schema:
    """All of it, as one JSON object. Who gets it does not change it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "brim",
            "version": __version__,
            "description": "One address for every client, and no request that exceeds its model's "
            "window. Bodies go to their upstreams, and answers come back, byte for byte where "
            "nothing had to be cut.",
        },
        "paths": {**_answering(), **_beside()},
        "components": {"schemas": _schemas(), "headers": _heads()},
    }


# Paths


def _answering() -> Schema:
    """The paths at which a model answers, with the version and without."""
    return {path: {"post": _asked_for(form, path)} for path, form in PATHS.items()}


def _asked_for(form: BodyFormat, path: str) -> Schema:
    whole = {"anyOf": [{"type": "object"}, _of("schemas", "Plan")]}
    passed = "What the upstream answers, as a whole or as a stream; for a dry run, the plan."
    return {
        "operationId": path.strip("/").replace("/", "_"),
        "summary": f"An answer, asked for as {form.title}",
        "parameters": [*_wishes()],
        "requestBody": _body(form),
        "responses": {
            "200": _told(passed, {**_json(whole), "text/event-stream": {}}, _HEADS),
            **{
                str(status): _told(f"{said} Or what the upstream said.", _EITHER, _HEADS)
                for status, said in FAULTS.items()
            },
            "default": _told("What the upstream said, as it came.", {"*/*": {}}, _HEADS),
        },
    }


def _beside() -> Schema:
    models = {"anyOf": [_of("schemas", "Models"), _of("schemas", "AnthropicModels")]}
    model = {"anyOf": [_of("schemas", "Model"), _of("schemas", "AnthropicModel")]}
    versioned = {
        "/models": _got("The models that can be asked for", models, (), _OF_KEYS),
        "/models/{name}": _got("One of them", model, [_in_path("name")], (*_OF_KEYS, 404)),
        "/messages/count_tokens": _counted(MESSAGES),
        "/responses/input_tokens": _counted(RESPONSES),
    }
    records = _of("schemas", "Records")
    number = {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}
    last = {"name": "last", "in": "query", "schema": number}
    span = {"type": "integer", "minimum": 1, "maximum": 366, "default": 30}
    days = {"name": "days", "in": "query", "schema": span}
    return {
        **{version + path: each for version in ("/v1", "") for path, each in versioned.items()},
        "/brim/requests": _got("The last requests, the newest first", records, [last],
                               (400, *_OF_KEYS)),
        "/brim/requests/{id}": _got(
            "One request, and what became of each message", _of("schemas", "Settled"),
            [_in_path("id")], (*_OF_KEYS, 404),
        ),
        "/metrics": _got("What was done, in numbers for Prometheus", {"type": "string"},
                         faults=_OF_KEYS, media="text/plain"),
        "/": _got("The operator's page", {"type": "string"}, media="text/html"),
        "/brim/page/{name}": _got("A file of it", {"type": "string"}, [_in_path("name")], (404,),
                                  media="*/*"),
        "/brim/spending": _got("What was spent lately, and what may be", _of("schemas", "Spending"),
                               [days], (400, *_OF_KEYS)),
        "/brim/lanes": _got("What is known of each model", _of("schemas", "Lanes"),
                            faults=_OF_KEYS),
        "/healthz": _got("Whether it runs", _of("schemas", "Health")),
        "/readyz": _ready(),
        "/openapi.json": _got("This description", {"type": "object", "required": ["openapi"]}),
    }  # fmt: skip


def _got(
    summary: str,
    schema: Schema,
    parameters: Iterable[Schema] = (),
    faults: Iterable[int] = (),
    media: str = "application/json",
) -> Schema:
    found = _told(summary, {media: {"schema": schema}})
    responses = {"200": found, **_faults((*faults, 500))}
    return {"get": {"summary": summary, "parameters": [*parameters], "responses": responses}}


def _counted(form: BodyFormat) -> Schema:
    summary = "The tokens of a body, by its server's count or else by brim's"
    found = _told(summary, _json(_of("schemas", "Tokens")), ("brim-count",))
    responses = {"200": found, **_faults(_OF_BODIES)}
    return {"post": {"summary": summary, "requestBody": _body(form), "responses": responses}}


def _ready() -> Schema:
    path = _got("Whether new requests are welcome", _of("schemas", "Health"))
    stopping = _told("It is stopping.", _json(_of("schemas", "Health")))
    path["get"]["responses"]["503"] = stopping
    return path


def _faults(statuses: Iterable[int]) -> Schema:
    fault = _json(_of("schemas", "Fault"))
    return {str(status): _told(FAULTS[status], fault) for status in statuses}


def _body(form: BodyFormat) -> Schema:
    names = {CHAT.name: "ChatBody", MESSAGES.name: "MessagesBody", RESPONSES.name: "ResponsesBody"}
    return {"required": True, "content": _json(_of("schemas", names[form.name]))}


def _wishes() -> Iterable[Schema]:
    for name, (choices, said) in {
        options.POLICY: ([*POLICIES], "What is left out of a conversation that is too long."),
        options.FITTING: (
            [*get_args(options.FittingMode)],
            "Off: the body goes on as it is. Dry run: nothing is sent, the plan is the answer.",
        ),
        options.CACHE_MARKS: (["on", "off"], "Whether Anthropic's cache marks are set."),
    }.items():
        schema = {"type": "string", "enum": choices}
        yield {"name": name, "in": "header", "schema": schema, "description": said}


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _told(description: str, content: Schema, heads: Iterable[str] = ()) -> Schema:
    found: Schema = {"description": description, "content": content}
    named = {name: _of("headers", name) for name in heads}
    return {**found, "headers": named} if named else found


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _of(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


_EITHER: Final = {
    "application/json": {"schema": {"anyOf": [{"$ref": "#/components/schemas/Fault"}, {}]}},
    "*/*": {},
}
"""A fault of brim's, or an error of the upstream's as it came."""


# Headers

_HEADS: Final[Mapping[str, tuple[str, Schema]]] = {
    "brim-request-id": (
        "Under which GET /brim/requests/{id} tells of it.",
        {"type": "string", "pattern": "^brim_[0-9a-f]{24}$"},
    ),
    "brim-upstream": ("The name of the upstream.", {"type": "string"}),
    "brim-tokens-before": ("The tokens of what came in.", {"type": "integer"}),
    "brim-tokens": ("The tokens of what went out.", {"type": "integer"}),
    "brim-limit": ("The most that may go out, where that is known.", {"type": "integer"}),
    "brim-count": (
        "How sure the tokens are.",
        {"type": "string", "enum": [*get_args(CountSource)]},
    ),
    "brim-cut": ("How many messages were cut, by what became of them.", {"type": "string"}),
    "brim-policy": (
        "By which policy.",
        {"type": "string", "enum": [*POLICIES, OFF.name]},
    ),
    "brim-resent": (
        "How often it was sent again, smaller.",
        {"type": "integer", "minimum": 1},
    ),
    "brim-fallback": ("The model that stood in.", {"type": "string"}),
}


def _heads() -> Schema:
    return {
        name: {"description": said, "schema": schema} for name, (said, schema) in _HEADS.items()
    }


# Bodies


def _schemas() -> Schema:
    return {**_requests(), **_faults_said(), **_listed(), **_records()}


def _requests() -> Schema:
    role = {"role": {"type": "string", "minLength": 1}}
    content = {"content": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]}}
    message = _object({**role, **content}, ["role", "content"])
    common: Schema = {
        "model": {"type": ["string", "null"]},
        "stream": {"type": "boolean"},
        "tools": {"type": "array", "items": {"type": "object"}},
    }
    longest = {"max_tokens": {"type": "integer", "minimum": 1}}
    messages = {"messages": {"type": "array", "items": message}}
    items = {"input": {"anyOf": [_TEXT, {"type": "array", "items": message}]}}
    return {
        "ChatBody": _object({**common, **longest, **messages}, ["messages"]),
        "MessagesBody": _object({**common, **longest, **messages}, ["messages"]),
        "ResponsesBody": _object({**common, **items}, ["input"]),
    }


def _faults_said() -> Schema:
    maybe = {"type": ["string", "null"]}
    openai = {"message": _TEXT, "type": _TEXT, "param": maybe, "code": _TEXT}
    anthropic = {"type": _TEXT, "message": _TEXT}
    wrapped = {"type": {"const": "error"}, "error": _whole(anthropic), "request_id": _TEXT}
    return {
        "Fault": {
            "description": "In the shape that the client's library reads.",
            "anyOf": [_of("schemas", "OpenAIFault"), _of("schemas", "AnthropicFault")],
        },
        "OpenAIFault": _whole({"error": _whole(openai)}),
        "AnthropicFault": _object(wrapped, ["type", "error"]),
    }


def _listed() -> Schema:
    model = {"id": _TEXT, "object": {"const": "model"}, "created": _NUMBER, "owned_by": _TEXT}
    theirs = {"type": {"const": "model"}, "id": _TEXT, "display_name": _TEXT, "created_at": _TEXT}
    return {
        "Model": _whole(model),
        "Models": _list_of("Model"),
        "AnthropicModel": _whole(theirs),
        "AnthropicModels": _whole(
            {
                "data": {"type": "array", "items": _of("schemas", "AnthropicModel")},
                "has_more": {"type": "boolean"},
                "first_id": _MAYBE_TEXT,
                "last_id": _MAYBE_TEXT,
            }
        ),
        "Spending": _object(
            {
                "object": {"const": "brim.spending"},
                "since": _TEXT,
                **_tables("by_", _SUMMED),
                **_tables("", ("keys", "caps")),
            },
            ["object", "since", "keys", "caps"],
        ),
        "Lanes": _object({"object": {"const": "list"}, **_tables("", ("data",))}, ["data"]),
        "Tokens": _object({"object": _TEXT, "input_tokens": _NUMBER}, ["input_tokens"]),
        "Health": _object({"status": _TEXT, "running": _NUMBER}, ["status"]),
    }


def _tables(prefix: str, names: Iterable[str]) -> Schema:
    rows = {"type": "array", "items": {"type": "object"}}
    return {prefix + name: rows for name in names}


def _records() -> Schema:
    record = _record()
    plan = {"plan": {"anyOf": [_plan(), {"type": "null"}]}}
    return {
        "Record": _whole(record),
        "Records": _list_of("Record"),
        "Settled": _whole({"object": {"const": "brim.request"}, **record, **plan}),
        "Plan": _whole(
            {"object": {"const": "brim.plan"}, **record, **plan, "body": {"type": "object"}}
        ),
    }


def _record() -> Schema:
    tokens = ("input", "cached", "written", "output")
    usage = _whole({**dict.fromkeys(tokens, _NUMBER), "counted": _FLAG})
    return {
        **dict.fromkeys(("id", "path", "format", "model"), _TEXT),
        **dict.fromkeys(("key", "project", "upstream", "code", "policy", "fallback"), _MAYBE_TEXT),
        **dict.fromkeys(("tokens_before", "tokens", "limit"), _MAYBE_NUMBER),
        **dict.fromkeys(("status", "resent"), _NUMBER),
        **dict.fromkeys(("cost", "first_byte"), _MAYBE_DECIMAL),
        **dict.fromkeys(("time", "seconds"), _DECIMAL),
        **dict.fromkeys(("streamed", "dry_run"), _FLAG),
        "end": {"enum": [*get_args(RequestEnd)]},
        "count": {"enum": [*get_args(CountSource), None]},
        "cut": {"type": "object", "additionalProperties": _NUMBER},
        "usage": {"anyOf": [usage, {"type": "null"}]},
    }


def _plan() -> Schema:
    outcomes = ["kept", "clipped", "masked", "summarized", "dropped"]
    decision = _whole(
        {
            **dict.fromkeys(("index", "before", "after"), _NUMBER),
            **dict.fromkeys(("role", "reason"), _TEXT),
            "outcome": {"enum": outcomes},
        }
    )
    note = _whole({"at": _NUMBER, "tokens": _NUMBER, "as": _TEXT})
    return _whole(
        {
            "budget": _whole(dict.fromkeys(("window", "reply", "margin"), _NUMBER)),
            "decisions": {"type": "array", "items": decision},
            "notes": {"type": "array", "items": note},
            "warnings": {"type": "array", "items": _TEXT},
        }
    )


_SUMMED: Final = ("day", "key", "model", "project")
_FLAG: Final[Schema] = {"type": "boolean"}
_TEXT: Final[Schema] = {"type": "string"}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_NUMBER: Final[Schema] = {"type": "integer"}
_MAYBE_NUMBER: Final[Schema] = {"type": ["integer", "null"]}
_DECIMAL: Final[Schema] = {"type": "number"}
_MAYBE_DECIMAL: Final[Schema] = {"type": ["number", "null"]}


def _object(properties: Schema, required: list[str]) -> Schema:
    """An object that may have other fields as well."""
    return {"type": "object", "properties": properties, "required": required}


def _whole(properties: Schema) -> Schema:
    """An object with these fields, all of them and no others."""
    return {**_object(properties, [*properties]), "additionalProperties": False}


def _list_of(name: str) -> Schema:
    return _whole(
        {"object": {"const": "list"}, "data": {"type": "array", "items": _of("schemas", name)}}
    )
