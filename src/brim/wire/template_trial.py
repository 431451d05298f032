"""Find the rules of a chat template by rendering small conversations; no I/O.

Each text of a trial conversation is a marker. If the template rejects a conversation, or a marker
is not in the rendered prompt, a rule is needed. The conversations of a later round are adapted to
the rules found so far, so that each shows one thing. The last round checks long conversations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from brim.errors import InputError
from brim.messages import Message
from brim.tokens import counter_for
from brim.wire.template_adapter import apply_template
from brim.wire.template_renderer import TemplateRejectionError, TemplateRenderer
from brim.wire.template_rules import PERMISSIVE, Raw, TemplateRules, find_named_rules, list_changes

Feature: TypeAlias = Literal["turns", "roles", "steps", "tools"]
ALL_FEATURES: Final[frozenset[Feature]] = frozenset(("turns", "roles", "steps", "tools"))
_KNOWN_ROLES: Final = frozenset(("system", "user", "assistant", "tool"))
_TOOL_ROLES: Final = frozenset(("tool", "function"))

_TOOL_WORD: Final = "qztoolx"
_TOOL: Final[Raw] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": f"Look up a word, {_TOOL_WORD}.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}
_TEXT_MARKER = re.compile(r"qz[a-z]ax")
_MARKER = re.compile(r"qz[a-z][a-c]x")
_SPECIAL = re.compile(r"<[|｜][^<>]*[|｜]>|\[/?[A-Z_]+\]|</?s>")
"""Text that is probably a single token."""
_MIN_OWN_TEXT: Final = 12
"""Fewer tokens are the frame of a message."""


class RenderJob(NamedTuple):
    """A conversation to render."""

    messages: Sequence[Raw]
    tools: Sequence[Raw]

    def is_complete(self, prompt: str | None, *, with_calls: bool) -> bool:
        """Whether a prompt contains all text of the conversation; None: it was rejected.

        Some templates print results but no calls, which the model then has to infer.
        """
        if prompt is None:
            return False
        marker = _MARKER if with_calls else _TEXT_MARKER
        return all(each in prompt for each in marker.findall(json.dumps(self.messages)))


Trial: TypeAlias = Generator[Sequence[RenderJob], Sequence[str | None], "TemplateVerdict | None"]
"""Yields the jobs of a round, and is sent a prompt for each; None for a rejected conversation."""


@dataclass(frozen=True, slots=True)
class TemplateVerdict:
    """The rules that a trial found, for the features that it tried."""

    rules: TemplateRules
    features: frozenset[Feature]
    fingerprint: str | None = None
    """Identifies the template; a server with another one needs another trial. None: unknown."""

    def covers(self, features: frozenset[Feature], fingerprint: str | None) -> bool:
        """Whether the verdict says enough about a conversation at a server."""
        return features <= self.features and fingerprint == self.fingerprint

    def to_dict(self) -> dict[str, Any]:
        return {
            "rules": list_changes(self.rules),
            "features": sorted(self.features),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_dict(cls, data: object) -> TemplateVerdict | None:
        """Return the verdict that `to_dict` wrote; None if it is invalid."""
        if not isinstance(data, Mapping) or not isinstance(data.get("rules"), Mapping):
            return None
        known = {field.name for field in fields(TemplateRules)}
        given = {key: value for key, value in data["rules"].items() if key in known}
        try:
            features = frozenset(each for each in ALL_FEATURES if each in data["features"])
            return cls(_name_rules(TemplateRules(**given)), features, data.get("fingerprint"))
        except (InputError, KeyError, TypeError):
            return None


def _name_rules(rules: TemplateRules) -> TemplateRules:
    """Return rules with a name that tells them from others; counts are cached by it."""
    changes = [f"{key}={json.dumps(value)}" for key, value in list_changes(rules).items()]
    return replace(rules, name=f"trial({', '.join(changes)})")


def find_features(messages: Iterable[Raw], tools: Sequence[Raw] | None) -> frozenset[Feature]:
    """Return the features of templates that a conversation uses."""
    found: set[Feature] = {"turns"}
    if tools:
        found |= {"steps", "tools"}
    for turn in messages:
        role = turn.get("role")
        if role in _TOOL_ROLES or turn.get("tool_calls") or turn.get("function_call"):
            found.add("steps")
        if role not in _KNOWN_ROLES:
            found.add("roles")
    return frozenset(found)


def try_template(features: frozenset[Feature]) -> Trial:
    """Find the rules of a template; return None if it renders nothing at all."""
    rules, tools = PERMISSIVE, (_TOOL,) if "tools" in features else ()
    with_calls = True
    for step in _ROUNDS:
        probes = [probe for probe in step if probe.feature in features]
        jobs = [_build_job(each.turns, rules, tools if each.has_tools else ()) for each in probes]
        prompts = yield jobs
        found = zip(probes, jobs, prompts, strict=True)
        shown = {probe.name: _Shown(job, prompt) for probe, job, prompt in found}
        steps = [shown[name] for name in ("empty", "null") if name in shown]
        prints_calls = not steps or any(each.is_complete(with_calls=True) for each in steps)
        with_calls = with_calls and prints_calls
        rules = _conclude(rules, shown, with_calls)
        if "plain" in shown:
            rules = _measure_text(rules, shown)
    # Stricter rules, if those that were found are not enough.
    for candidate in (rules, replace(rules, tool_role=False), find_named_rules("strict")):
        jobs = [_build_job(turns, candidate, tools) for turns in _CHECKS["steps" in features]]
        prompts = yield jobs
        if all(
            job.is_complete(prompt, with_calls=with_calls)
            for job, prompt in zip(jobs, prompts, strict=True)
        ):
            return TemplateVerdict(_name_rules(candidate), features)
    return None


def try_text(text: str, features: frozenset[Feature] = ALL_FEATURES) -> TemplateVerdict | None:
    """Return the verdict about the text of a template, rendered here; None: it renders nothing."""
    renderer = TemplateRenderer(text)
    return run_trial(try_template(features), lambda job: render_job(renderer, job))


def run_trial(trial: Trial, render: Callable[[RenderJob], str | None]) -> TemplateVerdict | None:
    """Run a trial with a function that renders."""
    jobs = next(trial)
    while True:
        try:
            jobs = trial.send([render(job) for job in jobs])
        except StopIteration as done:
            verdict: TemplateVerdict | None = done.value
            return verdict


def render_job(renderer: TemplateRenderer, job: RenderJob) -> str | None:
    """Return the prompt of a conversation; None if the template rejects it."""
    try:
        return renderer.render(job.messages, job.tools)
    except TemplateRejectionError:
        return None


# Probes


class _Probe(NamedTuple):
    name: str
    feature: Feature
    turns: str
    """One letter per turn, see `_build_turn`."""
    has_tools: bool = True


_ROUNDS: Final = (
    (
        _Probe("order", "turns", "aauu"),
        _Probe("system", "turns", "su"),
        _Probe("plain", "turns", "u", has_tools=False),
        _Probe("developer", "roles", "du"),
        _Probe("other", "roles", "uao"),
        _Probe("empty", "steps", "ucrau"),
        _Probe("null", "steps", "unrau"),
        _Probe("text", "steps", "utrau"),
    ),
    (
        _Probe("systems", "turns", "ssuasu"),
        _Probe("no user", "turns", "sa"),
        _Probe("parallel", "steps", "uprrau"),
        _Probe("long id", "steps", "ulrau"),
        _Probe("unanswered", "steps", "ucu"),
        _Probe("orphan", "steps", "urau"),
        _Probe("result last", "steps", "sucr"),
        _Probe("once", "steps", "uau"),
        _Probe("repeat", "steps", "uaU"),
    ),
)
_CHECKS: Final = (("suaauusu",), ("sutrptrrtrautruusau", "suptrrtr"))
"""Long conversations, without and with steps."""

_ALTERNATING: Final = {
    "alternate": True,
    "one_system": True,
    "orphans": False,
    "unanswered": False,
    "other_roles": False,
}
_NEEDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "order": _ALTERNATING,
    "system": {"system": "user"},
    "developer": {"other_roles": False},
    "other": {"other_roles": False},
    "text": {"call_text": False},
    "systems": {"one_system": True},
    "no user": {"needs_user": True},
    "parallel": {"parallel": False},
    "long id": {"ids": "nine"},
    "unanswered": {"unanswered": False},
    "orphan": {"orphans": False},
    "result last": {"system": "user"},
}
"""The rules that a template needs if a probe is rejected or incomplete."""


class _Shown(NamedTuple):
    """A probe and its prompt."""

    job: RenderJob
    prompt: str | None

    def is_complete(self, with_calls: bool) -> bool:
        return self.job.is_complete(self.prompt, with_calls=with_calls)

    def count(self, text: str) -> int:
        return (self.prompt or "").count(text)

    def count_own_text(self) -> int | None:
        """Return the tokens that are of neither the messages nor the tools; None: rejected."""
        if self.prompt is None:
            return None
        counter = counter_for(None)
        texts = _SPECIAL.split(_MARKER.sub("", self.prompt))
        total = len(texts) - 1 + sum(map(counter.text, texts))
        frames = [Message(each["role"]) for each in self.job.messages]
        total -= counter.overhead + sum(map(counter.message, frames))
        return total - (counter.tools(self.job.tools) if self.count(_TOOL_WORD) else 0)


def _conclude(rules: TemplateRules, shown: Mapping[str, _Shown], with_calls: bool) -> TemplateRules:
    """Return the rules with those that the probes of a round show."""
    lost = [name for name in shown if not shown[name].is_complete(with_calls)]
    changes: dict[str, Any] = {}
    for name in lost:
        changes |= _NEEDED.get(name, {})
    if "empty" in shown:
        changes |= _conclude_content(shown["empty"], shown["null"], lost)
    if "repeat" in shown and shown["repeat"].count(_TOOL_WORD) > shown["once"].count(_TOOL_WORD):
        changes["repeats"] = False
    if "once" in shown and not _prints_tools(shown.values()):
        changes["tools"] = False
    return replace(rules, **changes)


def _measure_text(rules: TemplateRules, shown: Mapping[str, _Shown]) -> TemplateRules:
    """Return the rules with the sizes of what the template prints of its own."""
    plain, system = shown["plain"].count_own_text(), shown["system"].count_own_text()
    if plain is None or system is None:
        return rules
    with_tools = shown["order"].count_own_text()
    if not shown["system"].job.tools:
        tool_text = 0
    elif with_tools is not None:
        tool_text = with_tools - plain
    else:
        tool_text = system - plain
    always = min(plain, system - max(0, tool_text))
    sizes = {"own_text": always, "default_system": plain - always, "tool_text": tool_text}
    large = {name: size for name, size in sizes.items() if size >= _MIN_OWN_TEXT}
    return replace(rules, **large)  # type: ignore[arg-type]


def _prints_tools(shown: Iterable[_Shown]) -> bool:
    """Return whether a prompt contains the tool; also if none was given, or nothing rendered."""
    prompts = [each for each in shown if each.job.tools and each.prompt is not None]
    return not prompts or any(each.count(_TOOL_WORD) for each in prompts)


def _conclude_content(empty: _Shown, null: _Shown, lost: Sequence[str]) -> dict[str, Any]:
    if "empty" in lost:
        return {"tool_role": False} if "null" in lost else {"call_content": "null"}
    prints_null = any(null.count(text) > empty.count(text) for text in ("None", "null"))
    return {"call_content": "empty"} if "null" in lost or prints_null else {}


def _build_job(turns: str, rules: TemplateRules, tools: Sequence[Raw]) -> RenderJob:
    messages: list[Raw] = []
    for kind in turns:
        messages.append(_build_turn(kind, messages))
    return RenderJob(apply_template(messages, rules), tools)


_ROLES: Final = {
    "s": "system",
    "u": "user",
    "a": "assistant",
    "d": "developer",
    "o": "observer",
}


def _build_turn(kind: str, before: Sequence[Raw]) -> Raw:
    """Return a turn by its letter.

    These are (s)ystem, (u)ser, (a)ssistant, (d)eveloper, an(o)ther role, (r)esult, and calls with
    empty (c), null (n) or other (t) content, with a long id (l), and two (p)arallel ones. (U) is a
    copy of the first turn.
    """
    place = len(before)
    text = _mark(place, "a")
    if kind == "U":
        return before[0]
    if kind == "r":
        return {"role": "tool", "tool_call_id": _find_open_call(before), "content": text}
    if kind in _ROLES:
        return {"role": _ROLES[kind], "content": text}
    prefix = "call_0123456789abcdef" if kind == "l" else "abcdef"
    parts = "bc" if kind == "p" else "b"
    return {
        "role": "assistant",
        "content": {"n": None, "t": text}.get(kind, ""),
        "tool_calls": [_build_call(f"{prefix}{place:02}{part}", place, part) for part in parts],
    }


def _mark(place: int, part: str) -> str:
    return f"qz{chr(ord('a') + place)}{part}x"


def _build_call(name: str, place: int, part: str) -> Raw:
    arguments = json.dumps({"word": _mark(place, part)})
    return {
        "id": name,
        "type": "function",
        "function": {"name": "lookup", "arguments": arguments},
    }


def _find_open_call(before: Sequence[Raw]) -> str:
    """Return the id of the first call without a result; another id if there is none."""
    answered = [turn.get("tool_call_id") for turn in before]
    calls = (call["id"] for turn in before for call in turn.get("tool_calls", ()))
    return next((name for name in calls if name not in answered), "abcdef99z")
