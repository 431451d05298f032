"""A conversation that grows turn by turn, and its requests."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import brim
from benchmarks.promises.material import Conversation, Message
from brim.errors import MessageError
from brim.fitting.plan import Request
from brim.messages import Call
from brim.models.pricing import Usage
from brim.session.session import get_driver
from brim.wire.reply import Reply


def replay_requests(
    conversation: Conversation,
    session: brim.Session,
    make: Callable[[brim.Session], Request],
) -> Generator[Request | brim.ContextOverflowError, int | None, None]:
    """Yield the request before each assistant turn; receive the true size of its prompt.

    The recorded reply is the answer, so that every run is the same. A recorded turn that a session
    rejects (a result without its call) ends the conversation.
    """
    for message in conversation.messages:
        try:
            if message["role"] != "assistant":
                session.append(message)
                continue
            try:
                request = make(session)
            except brim.ContextOverflowError as error:
                yield error
                session.append(message)
                continue
            tokens = yield request
            session.receive(_reply(message, tokens))
        except MessageError:
            return


def _reply(message: Message, tokens: int | None) -> Reply:
    calls = tuple(
        Call(str(call["id"]), call["function"]["name"], str(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    text = message.get("content") or ""
    usage = None if tokens is None else Usage(input=tokens, output=1)
    return Reply(message, text if isinstance(text, str) else "", calls=calls, usage=usage)


def build_unfitted_body(session: brim.Session) -> dict[str, Any]:
    """Return the request of a client without fitting."""
    system = get_driver(session).system_text
    head = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {"messages": [*head, *session.history]}
    if session.tools:
        body["tools"] = session.tools
    return body
