"""A session whose server does not count, and takes more tokens than brim estimates."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import brim
from brim.errors import Overflow
from brim.models.pricing import Usage
from brim.session.session import get_driver
from brim.wire.reply import Reply

WINDOW, REPLY = 8_192, 500
ROOM = WINDOW - REPLY
TEXT = "The pilots argued about the tide tables as if the sea had ever cared. "


@dataclass
class DenseServer:
    """A server with a fixed number of characters per token and a session that talks to it."""

    chars_per_token: float
    window: int = WINDOW
    rejected: int = 0
    session: brim.Session = field(
        default_factory=lambda: brim.Session("local", window=WINDOW, reply=REPLY)
    )

    def text(self, tokens: int) -> str:
        chars = int(tokens * self.chars_per_token)
        return (TEXT * (chars // len(TEXT) + 1))[:chars]

    def count(self, body: Any) -> int:
        messages = body["messages"]
        return 4 + sum(5 + int(len(each["content"]) / self.chars_per_token) for each in messages)

    def send(self, tokens: int) -> brim.Request:
        """Send a message of this many tokens; recover once from a context-length error."""
        self.session.user(self.text(tokens))
        request = self.session.request()
        if self.count(request) > self.window - REPLY:
            self.rejected += 1
            overflow = Overflow(limit=self.window, sent=self.count(request))
            get_driver(self.session).handle_context_length_error(overflow)
            request = self.session.request()
        size, text = self.count(request), self.text(100)
        assert size <= self.window - REPLY
        reply = {"role": "assistant", "content": text}
        self.session.receive(Reply(reply, text, usage=Usage(input=size, output=100)))
        return request


@pytest.mark.parametrize("chars_per_token", [1.6, 2, 2.5, 3, 3.5])
def test_a_large_message_is_counted_with_the_newest_calibration(chars_per_token: float) -> None:
    server = DenseServer(chars_per_token)
    for tokens in (200, 200, 200, ROOM * 4 // 5, ROOM * 4 // 5):
        server.send(tokens)
    assert server.rejected == 0


def test_a_new_message_is_scaled_before_the_next_trim() -> None:
    server = DenseServer(2)
    server.send(1_000)
    before = server.session.current_plan.size
    server.session.user(server.text(500))
    assert 500 <= server.session.current_plan.size - before <= 600


@pytest.mark.parametrize("chars_per_token", [1.6, 2, 2.5, 3])
def test_the_ratio_is_applied_once_after_a_context_length_error(chars_per_token: float) -> None:
    server = DenseServer(chars_per_token)
    for _ in range(18):
        server.send(150)
    server.window = 4_000  # the server was restarted with a smaller window
    request = server.send(500)
    assert server.rejected == 1
    assert server.count(request) >= 0.7 * (server.window - REPLY)


class NumberServer(DenseServer):
    """A server whose vocabulary splits numbers into small tokens."""

    def count(self, body: Any) -> int:
        contents = [each["content"] for each in body["messages"]]
        return 4 + sum(
            5 + int(len(text) / (1.2 if text[0].isdigit() else self.chars_per_token))
            for text in contents
        )


def test_the_size_of_a_rejected_request_calibrates() -> None:
    server = NumberServer(5)
    for _ in range(3):
        server.send(200)
    numbers = " ".join(str(number**3) for number in range(100_000, 100_000 + ROOM // 15))
    for _ in range(5):
        length = len(server.session.history)
        server.session.user(numbers)
        with suppress(brim.ContextOverflowError):
            size = server.count(server.session.request())
            if size > ROOM:
                server.rejected += 1
                get_driver(server.session).handle_context_length_error(Overflow(WINDOW, size))
        server.session.rewind(length)
        server.send(200)
    assert server.rejected == 1


@pytest.mark.parametrize(("window", "seed"), [(700, 0), (700, 1), (1_000, 4)])
def test_a_trim_leaves_room_if_it_keeps_the_denser_messages(window: int, seed: int) -> None:
    server, chance = NumberServer(5), random.Random(seed)
    server.session = session = brim.Session("local", window=window, reply=1)
    for turn in range(40):
        if turn % 2:
            numbers = range(1_000 * turn, 1_000 * turn + chance.randrange(3, 10))
            session.user(" ".join(str(number**3) for number in numbers))
        else:
            session.user(server.text(chance.randrange(20, 80)))
        size = server.count(session.request())
        assert size < window
        reply = {"role": "assistant", "content": server.text(20)}
        session.receive(Reply(reply, server.text(20), usage=Usage(input=size, output=20)))


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("chars_per_token", [2, 3.5, 5])
def test_an_overflow_error_does_not_contradict_itself(chars_per_token: float, trims: bool) -> None:
    errors: dict[int, brim.ContextOverflowError] = {}
    for tokens in range(ROOM * 8 // 10, ROOM * 11 // 10, ROOM // 40):
        server = DenseServer(chars_per_token)
        for _ in range(3):
            server.send(200)
        server.session.trim = trims
        server.session.user(server.text(tokens))
        try:
            server.session.request()
        except brim.ContextOverflowError as error:
            errors[tokens] = error
    assert min(errors) > (0.85 if trims else 0.75) * ROOM
    for each in errors.values():
        assert each.limit < each.tokens <= each.plan.size_before
        assert sum(each.parts.values()) == each.tokens


def test_the_advice_names_a_reply_that_takes_the_whole_window() -> None:
    with pytest.raises(brim.ContextOverflowError, match=r"reply of 4,096 .* window of 2,048"):
        brim.fit([{"role": "user", "content": "Hello"}], window=2_048, reply=4_096)
