"""Count messages as a template renders them, so that a plan that fits still fits afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from brim.messages import Call, Message
from brim.tokens import Counter
from brim.wire.notes import (
    CONVERSATION_CONTINUES,
    INTERRUPTED,
    NO_RESULT,
    RESULTS_ABOVE,
    SYSTEM_HEADING,
)
from brim.wire.template_adapter import MAX_ROLE_LENGTH, make_short_id
from brim.wire.template_rules import NINE_CHARACTERS, PERMISSIVE, TemplateRules


def wrap_counter(counter: Counter, rules: TemplateRules) -> Counter:
    """Return a counter that counts messages as they will be sent.

    A message pays for every change that it can cause with any neighbors; so the sum over
    any kept messages, step by step, is at least the count of their adapted form.
    """
    if rules is PERMISSIVE or (rules.free and not (rules.adds_text and counter.is_unknown)):
        return counter
    return TemplateCounter(counter, rules)


_SLACK: Final = 2
"""Most tokens that joining two texts can add."""


_REPEAT: Final = "\n \n \n"
"""White space as long as that of the 63rd repeat of a text."""


class TemplateCounter:
    """Counts with another counter and adds what the rules of a template may add."""

    def __init__(self, counter: Counter, rules: TemplateRules) -> None:
        self.name = f"{counter.name}+{rules.name}"
        self.uncertainty = counter.uncertainty
        self.density = counter.density
        self.ratio = counter.ratio
        self.is_unknown = counter.is_unknown
        self.text = counter.text
        self._counter = counter
        self._rules = rules
        self._scale = max(1, counter.text("\n"))
        """The counter's value of one token, if it scales them."""
        self._slack = _SLACK * self._scale
        self._turns = {
            "system": self._system_turn(),
            "user": (
                self._merge(rules.alternate or rules.system == "user")
                + self._between()
                + (0 if rules.repeats else self.text(_REPEAT) + self._slack)
            ),
            "assistant": self._merge(rules.alternate),
            "tool": 0 if rules.tool_role else self._slack - counter.message(Message("tool")),
            "other": 0 if rules.other_roles else self._other_turn(),
        }
        self._call = self._folded_call()
        self._separates = rules.tool_role and not rules.call_text
        """Whether the text of a calling turn becomes a turn of its own."""
        self._separation = (
            counter.message(Message("user", words=(CONVERSATION_CONTINUES,)))
            if self._separates and rules.alternate
            else 0
        )
        """Tokens of the turn between such a text and its call."""
        self.overhead = counter.overhead + self._request()
        self.default_system, self._tool_text = 0, 0
        if counter.is_unknown:  # those of a known model's template are in its family's numbers
            self.overhead += self._scale_size(rules.own_text)
            self.default_system = self._scale_size(rules.default_system)
            self._tool_text = self._scale_size(rules.tool_text)

    def message(self, message: Message) -> int:
        rules, count = self._rules, self._counter.message
        if (
            rules.ids == "nine"
            and rules.tool_role
            and (message.calls or message.answers is not None)
        ):
            message = _with_short_ids(message)
        total = count(message) + self._turns[message.role]
        if message.thinking and rules.alternate:
            total += self._join() * len(message.thinking)
        if message.role == "assistant" and (message.words or not message.calls):
            total += self._separation
            if message.calls and self._separates:
                total += count(Message("assistant")) + self._slack
        if message.calls:
            total += self._call * len(message.calls)
            if rules.tool_role and not rules.parallel:
                total += count(Message("assistant")) * (len(message.calls) - 1)
            if rules.tool_role and not rules.unanswered:
                for call in message.calls:
                    total += count(Message("tool", outputs=(NO_RESULT,), answers=call.id))
        return total

    def tools(self, tools: Sequence[Mapping[str, object]]) -> int:
        own = self._counter.tools(tools if self._rules.tools else ())
        return own + self._tool_text if tools else own

    def tool_margin(self, tools: Sequence[Mapping[str, object]], room: int) -> int:
        return self._counter.tool_margin(tools if self._rules.tools else (), room)

    def _scale_size(self, tokens: int) -> int:
        return ceil(self.ratio * tokens)

    def exact(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> bool:
        """Whether the count is exact: only if the rules add nothing."""
        if self.overhead != self._counter.overhead:
            return False
        given = list(messages)
        plain = all(self.message(each) == self._counter.message(each) for each in given)
        return plain and self._counter.exact(given, tools)

    def _request(self) -> int:
        """Tokens of the turns that are inserted at most once."""
        rules, added = self._rules, 0
        if rules.alternate or rules.needs_user:
            added += self._counter.message(Message("user", words=(CONVERSATION_CONTINUES,)))
        if not (rules.orphans and rules.tool_role):
            added += self._counter.message(Message("user", words=(RESULTS_ABOVE,)))
        return added

    def _join(self) -> int:
        return self.text("\n\n") + self._slack

    def _merge(self, merges: bool) -> int:
        """Tokens that merging a turn adds; a merged turn saves the tokens of its own frame."""
        return max(0, self._join() - self._counter.message(Message("user"))) if merges else 0

    def _between(self) -> int:
        """Tokens of the turn inserted before a user turn that may follow a result."""
        if not self._rules.alternate or not self._rules.tool_role:
            return 0
        return self._counter.message(Message("assistant", words=(INTERRUPTED,)))

    def _system_turn(self) -> int:
        if not self._rules.moves_systems:
            return 0
        return (
            self._merge(merges=True)
            + self._between()
            + self.text(f"{SYSTEM_HEADING}\n")
            + self._slack
        )

    def _other_turn(self) -> int:
        heading = MAX_ROLE_LENGTH * self._scale + self.text("[]\n") + self._slack
        return self._merge(self._rules.alternate) + self._between() + heading

    def _folded_call(self) -> int:
        if self._rules.tool_role:
            return 0
        folded = self.text("\n\n[tool: ") + self.text(f"]\n\n{NO_RESULT}\n") + 2 * self._slack
        bare = self._counter.message(Message("assistant"))
        calling = self._counter.message(Message("assistant", calls=(Call("", "", ""),)))
        return folded - (calling - bare)


def _with_short_ids(message: Message) -> Message:
    calls = tuple(replace(call, id=_to_nine_characters(call.id)) for call in message.calls)
    answers = None if message.answers is None else _to_nine_characters(message.answers)
    return message._replace(calls=calls, answers=answers)


def _to_nine_characters(name: str) -> str:
    return name if NINE_CHARACTERS.fullmatch(name) else make_short_id(name)
