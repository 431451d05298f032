"""What a turn is, whatever format it came in.

A `Message` is a view of one turn: enough to count it, to cut it and to say what was cut. The
modules of `brim.wire` read provider JSON into messages and write the changed ones back; what a
message does not mention (unknown fields, signatures, cache marks) stays in the JSON, untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool", "other"]
"""A developer's message is a system message; a role that nobody knows is `other`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an assistant turn."""

    id: str
    name: str
    arguments: str
    """JSON text, as it is sent."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or a file: counted by formula, never edited."""

    kind: Literal["image", "audio", "file"]
    width: int = 0
    """Pixels; 0 where the size cannot be known without fetching."""
    height: int = 0
    detail: str = ""
    """How closely the model is asked to look, in the provider's word."""
    size: int = 0
    """Bytes of the data, where it stands in the request."""


class Message(NamedTuple):
    """One turn. As a named tuple it is made in a third of the time, and many are made."""

    role: Role
    words: tuple[str, ...] = ()
    """What was said; never clipped."""
    outputs: tuple[str, ...] = ()
    """What a tool or a command printed; may be clipped, masked, dropped."""
    thinking: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    """The id of the call that this turn is the result of."""
    media: tuple[Media, ...] = ()
    extras: tuple[str, ...] = ()
    """Names and unknown parts (as JSON): counted, never touched."""
    pin: bool = False
    priority: int = 0
    private: bool = False
    """The source has fields of brim's own (`_pin`, ...), which are not sent."""
    beside: bool = False
    """A user's words in one message with the results before them."""

    @property
    def is_words(self) -> bool:
        """Whether it is nothing but what somebody said, as most turns are."""
        return self[2:8] == _NO_PARTS

    def with_outputs(self, outputs: tuple[str, ...]) -> Message:
        return self._replace(outputs=outputs)

    def without_thinking(self) -> Message:
        return self._replace(thinking=())

    def with_paragraph(self, text: str) -> Message:
        """Add a last paragraph; the words before it stay whole."""
        if self.role == "tool":
            return self.with_outputs(_add_paragraph(self.outputs, text))
        return self._replace(words=_add_paragraph(self.words, text))


_NO_PARTS: Final = ((), (), (), None, (), ())
"""No outputs, no thinking, no calls, no answer to one, no media, no extras."""


def _add_paragraph(texts: tuple[str, ...], text: str) -> tuple[str, ...]:
    if not texts or not texts[-1]:
        return (*texts[:-1], text)
    return (*texts[:-1], f"{texts[-1]}\n\n{text}")
