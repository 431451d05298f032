"""The server's prefix cache over a long conversation: the number of evaluated prompt tokens."""

from __future__ import annotations

import random
from typing import Any

import brim
from benchmarks.promises.material import CODE, PROSE
from benchmarks.promises.reference_server import ReferenceServer
from brim.fitting.policies import resolve_policy
from brim.models.pricing import Usage
from brim.providers.local import LocalServer
from brim.wire.reply import Reply

TURNS = 60


def count_evaluated_tokens(
    model: Any,
    policy: str,
    *,
    window: int = 2048,
    turns: int = TURNS,
    parts: int = 2,
    reuse: int = 0,
) -> int:
    """Return the prompt tokens that a new server with one slot evaluates over a conversation.

    A user's turn has this many `parts`, of about forty tokens each. With `reuse` the server may
    shift old cache entries of this many tokens at least to another place.
    """
    total = 0
    with LocalServer.start(model, window=window, slots=1, threads=1) as server:
        reference = ReferenceServer(server)
        session = brim.Session(
            server.model, system=PROSE[1], window=window, reply=1, policy=resolve_policy(policy)
        )
        chance = random.Random(60)
        for _ in range(turns):
            session.user("\n".join(chance.choices(PROSE + CODE, k=parts)))
            request = session.request()
            status, answer = reference.send(request, cache_prompt=True, n_cache_reuse=reuse)
            assert status == 200, answer
            total += answer["timings"]["prompt_n"]
            text = chance.choice(PROSE)
            usage = Usage(input=answer["usage"]["prompt_tokens"], output=1)
            session.receive(Reply({"role": "assistant", "content": text}, text, usage=usage))
        reference.close()
    return total
