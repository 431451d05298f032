"""Check messages against the rules of a template, independently of `template_adapter`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from brim.wire.template_rules import NINE_CHARACTERS, Raw, TemplateRules


def find_violation(messages: Sequence[Raw], rules: TemplateRules) -> str | None:
    """Return what the template rejects; None if it renders the messages."""
    reader = _Checker(rules)
    for index, message in enumerate(messages):
        if complaint := reader.next(message, index) or reader.order(message):
            return f"message {index}: {complaint}"
    return reader.end()


class _Checker:
    """Reads messages once, front to back, as a template does."""

    _FOLLOWS: Final[Mapping[str, str]] = {
        "start": "user",
        "user": "assistant calls",
        "assistant": "user",
        "calls": "tool",
        "tool": "tool assistant calls",
    }
    """The roles that may follow each role if roles alternate."""

    def __init__(self, rules: TemplateRules) -> None:
        self.rules = rules
        self.state = "start"
        self.waiting: list[str] = []
        self.users = 0
        self.texts: set[str] = set()

    def next(self, message: Raw, index: int) -> str | None:
        match message["role"]:
            case "system":
                return self._system(index)
            case "user":
                self.users += 1
                return self._repeat(message.get("content")) or self._turn()
            case "assistant":
                return self._turn() or self._calls(message)
            case "tool":
                return self._result(message.get("tool_call_id"), checked=True)
            case role if not self.rules.other_roles:
                return f"unknown role {role}"
            case "developer":
                return self._system(index)
            case "function":
                return self._result(message.get("name"), checked=False)
            case _:
                return self._turn()

    def order(self, message: Raw) -> str | None:
        """Return what is wrong with the position of a message."""
        role = message["role"]
        if not self.rules.alternate or role == "system":
            return None
        kind = "calls" if role == "assistant" and message.get("tool_calls") else role
        before, self.state = self.state, kind
        return None if kind in self._FOLLOWS[before].split() else f"{kind} after {before}"

    def end(self) -> str | None:
        if self.rules.needs_user and not self.users:
            return "no user message"
        return self._turn()

    def _repeat(self, content: object) -> str | None:
        if self.rules.repeats or not isinstance(content, str):
            return None
        is_known = content in self.texts
        self.texts.add(content)
        return "a user turn that equals another" if is_known else None

    def _system(self, index: int) -> str | None:
        if self.rules.system == "user":
            return "no system role"
        return "a system message that is not the first" if self.rules.one_system and index else None

    def _turn(self) -> str | None:
        """End the current step: a turn that is neither a result nor system text follows it."""
        left, self.waiting = self.waiting, []
        return "calls without results" if left and not self.rules.unanswered else None

    def _calls(self, message: Raw) -> str | None:
        rules, calls = self.rules, message.get("tool_calls")
        if calls is None and message.get("function_call") and rules.other_roles:
            self.waiting = [str(message["function_call"].get("name", ""))]
            return self._content(message) if rules.tool_role else "no tools"
        if "tool_calls" in message and not calls and (rules.alternate or not rules.parallel):
            return "a list of calls without calls"
        if not calls:
            return None
        self.waiting = [str(call.get("id", "")) for call in calls]
        if not rules.tool_role:
            return "no tools"
        if len(calls) > 1 and not rules.parallel:
            return "several calls in one turn"
        return self._content(message) or self._ids(call.get("id") for call in calls)

    def _content(self, message: Raw) -> str | None:
        content, wanted = message.get("content"), self.rules.call_content
        if content:
            return None if self.rules.call_text else "text next to a call"
        if (wanted == "empty" and content is None) or (wanted == "null" and content is not None):
            return f"content next to a call that is not {wanted}"
        return None

    def _result(self, answered: object, *, checked: bool) -> str | None:
        if not self.rules.tool_role:
            return "no tools"
        name = None if answered is None else str(answered)
        if name in self.waiting:
            self.waiting.remove(name)
        elif not self.rules.orphans:
            return "a result without its call"
        return self._ids((answered,)) if checked else None

    def _ids(self, ids: Iterable[object]) -> str | None:
        if self.rules.ids == "any":
            return None
        invalid = [
            name for name in ids if not isinstance(name, str) or not NINE_CHARACTERS.fullmatch(name)
        ]
        return f"an id that is not nine letters and digits: {invalid[0]}" if invalid else None
