"""One turn of a conversation, independent of the provider's format.

A `Message` is a view of one turn: enough to count it, to trim it and to explain the trim. The
modules of `brim.wire` read provider JSON into messages and write changed messages back. Everything
that a message does not represent (unknown fields, signatures, cache marks) stays in the JSON
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool", "other"]
"""A developer message is a system message; an unknown role is `other`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant turn."""

    id: str
    name: str
    arguments: str
    """JSON text, as it is sent."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image, audio, a file or tokens instead of text: counted by formula, never changed."""

    kind: Literal["image", "audio", "file", "tokens"]
    width: int = 0
    """Pixels; 0 if the size is unknown without downloading the image."""
    height: int = 0
    detail: str = ""
    """The requested level of detail, in the provider's terms."""
    size: int = 0
    """Bytes of the data, if the request contains it, or the number of tokens."""


class Message(NamedTuple):
    """One turn.

    A named tuple, because it is created three times as fast as a dataclass, and many are created.
    """

    role: Role
    words: tuple[str, ...] = ()
    """The text of the turn; only that of an earlier step may be clipped."""
    outputs: tuple[str, ...] = ()
    """Output of a tool or a command; may be clipped, masked or dropped."""
    thinking: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    """The id of the call that this turn is the result of."""
    media: tuple[Media, ...] = ()
    extras: tuple[str, ...] = ()
    """Names and unknown parts (as JSON): counted, never changed."""
    pin: bool = False
    priority: int = 0
    private: bool = False
    """Whether the source has fields reserved for brim (`_pin`, …), which are not sent."""
    follows_results: bool = False
    """Whether it is the user's text in the same message as the preceding results."""
    skipped: bool = False
    """Whether it is never sent: an empty reply that a session records."""

    @property
    def is_text_only(self) -> bool:
        """Whether it has text only, as most turns do."""
        return self[2:8] == _NO_PARTS

    @property
    def has_step_text(self) -> bool:
        """Whether it is a step with one text next to its calls, which may be clipped."""
        return self.role == "assistant" and bool(self.calls) and len(self.words) == 1

    @property
    def clippable(self) -> tuple[str, ...]:
        """The texts that may be clipped: outputs, or the text of a step."""
        return self.words if self.has_step_text else self.outputs

    def with_clipped(self, text: str) -> Message:
        """Return a copy with another text in place of those that may be clipped."""
        return self._replace(words=(text,)) if self.has_step_text else self.with_outputs((text,))

    def with_outputs(self, outputs: tuple[str, ...]) -> Message:
        return self._replace(outputs=outputs)

    def without_thinking(self) -> Message:
        return self._replace(thinking=())

    def with_paragraph(self, text: str) -> Message:
        """Return a copy with another last paragraph; the text before it stays whole."""
        if self.role == "tool":
            return self.with_outputs(_add_paragraph(self.outputs, text))
        words = _add_paragraph(self.words, text)
        return Message._make((self.role, words, *self[2:]))  # faster than `_replace`


_NO_PARTS: Final = ((), (), (), None, (), ())
"""No outputs, thinking, calls, answered call, media or extras."""


def _add_paragraph(texts: tuple[str, ...], text: str) -> tuple[str, ...]:
    if not texts or not texts[-1]:
        return (*texts[:-1], text)
    return (*texts[:-1], f"{texts[-1]}\n\n{text}")
