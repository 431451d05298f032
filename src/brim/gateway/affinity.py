"""Session affinity: the requests of a conversation go to the same upstream.

An upstream's prompt cache knows only the prompts that it got itself. So the conversation of a
request, by a header or by its beginning, ranks the upstreams by weighted rendezvous hashing: all
gateways find the same order without talking to each other, and if an upstream fails, only its own
conversations move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Final, TypeVar

import orjson

from brim.gateway.fit_request import ClientRequest
from brim.gateway.headers import SESSION, ClientHeaders
from brim.wire.formats import RESPONSES

T = TypeVar("T")

SESSION_HEADERS: Final = (SESSION.encode(), b"x-claude-code-session-id", b"session_id")
"""Headers that name the conversation: brim's own, Claude Code's and Codex's."""
CACHE_KEY_FIELD: Final = "prompt_cache_key"
"""OpenAI's field for requests that share a prompt cache."""
_SYSTEM_ROLES: Final = ("system", "developer")
_DIGEST_BYTES: Final = 8
_random: Final = Random()


def find_conversation(request: ClientRequest, headers: ClientHeaders, key: str | None) -> bytes:
    """Return what is the same in all requests of a conversation, and in few others.

    `key` is the client's key, so that two clients with the same prompt are two conversations.
    """
    owner = (key or "").encode()
    for name in SESSION_HEADERS:
        if value := headers.by_name.get(name):
            return b"%b\0%b" % (owner, value)
    named = request.body.get(CACHE_KEY_FIELD)
    if isinstance(named, str) and named:
        return b"%b\0%b" % (owner, named.encode("utf-8", "replace"))
    if request.format.server_format == RESPONSES.name and request.body.get("store") is not False:
        return owner  # a later request may refer to this one, which only its upstream keeps
    return owner + b"\0" + _dump(list(_iter_beginning(request)))


def pick_conversation() -> bytes:
    """Return a random conversation: without affinity, only the weights count."""
    return _random.randbytes(_DIGEST_BYTES)


def _iter_beginning(request: ClientRequest) -> Iterator[Any]:
    """Yield the parts of a body that later requests of its conversation begin with."""
    body, format = request.body, request.format
    if format.system_key:
        yield body.get(format.system_key)
    messages = body.get(format.messages_key)
    for message in messages if isinstance(messages, list) else (messages,):
        yield message
        if not isinstance(message, Mapping) or message.get("role") not in _SYSTEM_ROLES:
            return


def _dump(parts: list[Any]) -> bytes:
    try:
        return orjson.dumps(parts)
    except TypeError:  # a lone surrogate, or a number of more than 64 bits
        return repr(parts).encode("utf-8", "replace")


def rank_by_weight(
    conversation: bytes, choices: Iterable[T], name_and_weight: Callable[[T], tuple[str, float]]
) -> Sequence[T]:
    """Return the choices in the order in which a conversation tries them.

    Each is first for a share of the conversations that is proportional to its weight; those of
    weight 0 come last.
    """

    def score(choice: T) -> float:
        name, weight = name_and_weight(choice)
        digest = blake2b(conversation, digest_size=_DIGEST_BYTES, person=_shorten(name)).digest()
        share = (int.from_bytes(digest) + 1) / (256**_DIGEST_BYTES + 1)
        # Minus an exponential variate: the largest belongs to each with the odds of its weight.
        return math.log(share) / weight if weight else -math.inf

    return sorted(choices, key=score, reverse=True)


def _shorten(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()
