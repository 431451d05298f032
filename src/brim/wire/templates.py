"""Strict chat templates: what they refuse, and the form that they take (tables in TOML).

brim plans on the conversation as it is. At the very end `shape` gives it the form that the target's
template renders: neighbours merged, steps told as text where there is no tool role, short turns
put in where two may not meet. What no rule asks for is not touched. `counted` makes a counter that
costs a message in that form, so that a plan that fits still fits after shaping; `accepts` says what
a template would refuse, and knows nothing of how `shape` goes about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from brim.catalog import Index
from brim.errors import InputError
from brim.messages import Call, Message
from brim.wire.turns import text_of

if TYPE_CHECKING:
    from brim.tokens import Counter

Raw: TypeAlias = Mapping[str, Any]

OPENING: Final = "[the conversation goes on]"
"""A user's turn where a template wants one and there is none."""
BETWEEN: Final = "[interrupted]"
"""An assistant's turn between a result and a user's words."""
CLOSING: Final = "[results above; go on]"
"""A user's last turn where results have become the assistant's own text.

Without it the model would continue that text instead of answering.
"""
RESULT: Final = "[result]"
NO_RESULT: Final = "[no result]"
SYSTEM: Final = "[system]"

_NINE = re.compile(r"[0-9A-Za-z]{9}")
_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOT_PLAIN = re.compile(r"[^0-9A-Za-z_-]+")
_LONGEST_ROLE: Final = 20
_SPELLED: Final[Mapping[str, str]] = {"developer": "system", "function": "tool"}
_THINKING: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a chat template takes; as it stands here, everything."""

    name: str = "free"
    alternate: bool = False
    """A user begins, an assistant's turn without calls stands before each further user turn, and no
    assistant turn follows another. Such a template takes nothing else in between, so the rules
    about system turns, orphans, unanswered calls and other roles must be set too."""
    one_system: bool = False
    """There is one system message at most, and it stands first."""
    system: Literal["own", "user"] = "own"
    """Where the system text goes: `user` is before the first user's words."""
    tool_role: bool = True
    """Whether calls and results can be expressed at all."""
    parallel: bool = True
    """Whether one turn may call several tools."""
    orphans: bool = True
    """Whether a result may stand without its call."""
    unanswered: bool = True
    """Whether a call may stand without its result."""
    other_roles: bool = True
    """Whether there may be other roles than system, user, assistant and tool."""
    needs_user: bool = False
    """Whether there has to be a user turn."""
    ids: Literal["any", "nine"] = "any"
    """The ids of calls: any text, or nine letters and digits."""

    def __post_init__(self) -> None:
        loose = self.orphans or self.unanswered or self.other_roles or not self.one_system
        if self.alternate and loose:
            raise InputError(
                f"{self.name}: a template whose turns alternate has one system message, "
                "no orphans, no unanswered calls and no other roles"
            )

    @property
    def free(self) -> bool:
        """Whether every conversation can go out as it is."""
        return replace(self, name=FREE.name) == FREE


FREE: Final = Rules()


@lru_cache(maxsize=256)
def rules_for(model: str | None) -> Rules:
    """The rules of a model's template, by any spelling of its name; none for an unknown one."""
    return (_tables()[1].find(model) if model else None) or FREE


def names() -> list[str]:
    """What `rules_named` knows."""
    return sorted(_tables()[0])


def rules_named(name: str) -> Rules:
    """The rules that somebody asks for by the name of their table."""
    known = _tables()[0]
    try:
        return known[name.strip().lower()]
    except KeyError:
        raise InputError(
            f"no template rules are called {name!r}; there are {', '.join(names())}"
        ) from None


@cache
def _tables() -> tuple[dict[str, Rules], Index[Rules]]:
    import tomllib
    from importlib import resources

    text = resources.files("brim").joinpath("data/templates.toml").read_text(encoding="utf-8")
    known = {FREE.name: FREE}
    index: Index[Rules] = Index(versions=False)
    for name, facts in tomllib.loads(text).items():
        beginnings = facts.pop("names")
        known[name] = Rules(name, **facts)
        for beginning in beginnings:
            index.add(beginning, known[name])
    return known, index


# What a template would say


def accepts(messages: Sequence[Raw], rules: Rules) -> str | None:
    """None where the template renders the messages, else what it would raise."""
    reader = _Reader(rules)
    for index, message in enumerate(messages):
        if complaint := reader.next(message, index) or reader.order(message):
            return f"message {index}: {complaint}"
    return reader.end()


class _Reader:
    """Goes over messages as a template does, once and forward."""

    _FOLLOWS: Final[Mapping[str, str]] = {
        "start": "user",
        "user": "assistant calls",
        "assistant": "user",
        "calls": "tool",
        "tool": "tool assistant calls",
    }
    """What may come after what, where turns alternate."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = "start"
        self.waiting: list[str] = []
        self.users = 0

    def next(self, message: Raw, index: int) -> str | None:
        match message["role"]:
            case "system":
                return self._system(index)
            case "user":
                self.users += 1
                return self._turn()
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
        """What is wrong with the place of a message among its neighbours."""
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

    def _system(self, index: int) -> str | None:
        if self.rules.system == "user":
            return "no system role"
        return "a system message that is not the first" if self.rules.one_system and index else None

    def _turn(self) -> str | None:
        """Whatever is neither a result nor a system text ends the step before it."""
        left, self.waiting = self.waiting, []
        return "calls without results" if left and not self.rules.unanswered else None

    def _calls(self, message: Raw) -> str | None:
        rules, calls = self.rules, message.get("tool_calls")
        if calls is None and message.get("function_call") and rules.other_roles:
            self.waiting = [str(message["function_call"].get("name", ""))]
            return None if rules.tool_role else "no tools"
        if "tool_calls" in message and not calls and (rules.alternate or not rules.parallel):
            return "a list of calls without calls"
        if not calls:
            return None
        self.waiting = [str(call.get("id", "")) for call in calls]
        if not rules.tool_role:
            return "no tools"
        if len(calls) > 1 and not rules.parallel:
            return "several calls at once"
        return self._ids(call.get("id") for call in calls)

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
        wrong = [name for name in ids if not isinstance(name, str) or not _NINE.fullmatch(name)]
        return f"an id that is not nine letters and digits: {wrong[0]}" if wrong else None


# The form that goes out


def shape(messages: Sequence[Raw], rules: Rules) -> list[Raw]:
    """The messages as the template takes them: the very same ones where no rule asks for more.

    Shaping what was shaped changes nothing. No words are lost but those of a result whose call
    does not exist.
    """
    turns = list(messages)
    if rules.free:
        return turns
    turns = [_plain(turn, rules) for turn in turns]
    turns = _in_steps(turns, rules)
    turns = _with_systems(turns, rules)
    if rules.ids == "nine":
        turns = _with_short_ids(turns)
    if rules.alternate:
        turns = _alternating(turns)
    if rules.needs_user and all(turn["role"] != "user" for turn in turns):
        turns.insert(_leading(turns), _said("user", OPENING))
    if _needs_closing(messages, turns):
        turns.append(_said("user", CLOSING))
    return turns


def _said(role: str, text: str) -> Raw:
    return {"role": role, "content": text}


def _kind(turn: Raw) -> str:
    """The role of a turn, in one of the four words, or its own word where nobody knows it."""
    role: str = turn["role"]
    return _SPELLED.get(role, role)


def _plain(turn: Raw, rules: Rules) -> Raw:
    """A turn in the words that every template knows."""
    if not rules.other_roles:
        turn = _known(turn)
    counts_calls = rules.alternate or not rules.parallel
    if counts_calls and turn["role"] == "assistant" and turn.get("tool_calls", True) in ([], None):
        return _without(turn, "tool_calls")
    return turn


def _known(turn: Raw) -> Raw:
    match turn["role"]:
        case "system" | "user" | "tool":
            return turn
        case "assistant":
            if turn.get("tool_calls") is None and (calls := _calls(turn)):
                return {**_without(turn, "function_call"), "tool_calls": calls}
            return turn
        case "developer":
            return {**turn, "role": "system"}
        case "function":
            return {**_without(turn, "name"), "role": "tool", "tool_call_id": _answers(turn)}
        case role:
            return _as_user(turn, f"[{_NOT_PLAIN.sub('', role)[:_LONGEST_ROLE]}]")


def _as_user(turn: Raw, heading: str) -> Raw:
    content = turn.get("content")
    if content is None or isinstance(content, str):
        content = f"{heading}\n{content}" if content else heading
    else:
        content = [_text_part(heading), *content]
    return {**turn, "role": "user", "content": content}


def _without(turn: Raw, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in turn.items() if key not in keys}


# Calls and their results


def _calls(turn: Raw) -> list[Raw]:
    """The calls of a turn; the older way to call a function is one call named like it."""
    if turn["role"] != "assistant":
        return []
    calls = turn.get("tool_calls")
    legacy = turn.get("function_call")
    if calls is None and isinstance(legacy, Mapping):
        return [{"id": str(legacy.get("name", "")), "type": "function", "function": legacy}]
    return list(calls or ())


def _id(call: Raw) -> str:
    return str(call.get("id", ""))


def _answers(turn: Raw) -> str | None:
    answered = turn.get("name" if turn["role"] == "function" else "tool_call_id")
    return None if answered is None else str(answered)


class _Step:
    """A calling turn, its results, and what stands between them without belonging to them."""

    def __init__(self, calling: Raw) -> None:
        self.calling = calling
        self.calls = _calls(calling)
        self.members = [calling]
        """All of it, in the order in which it came."""
        self.results: list[Raw] = []
        self.strays: list[Raw] = []
        """System turns and results of other calls."""
        self.pending = [_id(call) for call in self.calls]

    def take(self, turn: Raw, rules: Rules) -> bool:
        """Take in a turn that stands within the step; False where the step is over."""
        if not self.pending or _kind(turn) not in ("tool", "system"):
            return False
        name = _answers(turn) if _kind(turn) == "tool" else None
        if name in self.pending:
            self.pending.remove(name)
            self.results.append(turn)
            self.members.append(turn)
        elif not _is_refused_orphan(turn, rules):
            self.strays.append(turn)
            self.members.append(turn)
        return True

    def pairs(self) -> list[tuple[Raw, Raw | None]]:
        """Each call with its result, whatever the order in which they came."""
        left = list(self.results)
        found: list[tuple[Raw, Raw | None]] = []
        for call in self.calls:
            result = next((turn for turn in left if _answers(turn) == _id(call)), None)
            if result is not None:
                left.remove(result)
            found.append((call, result))
        return found


def _in_steps(turns: Iterable[Raw], rules: Rules) -> list[Raw]:
    """Give every step its form, and leave out results without calls where these are refused."""
    out: list[Raw] = []
    step: _Step | None = None
    for turn in turns:
        if step is not None:
            if step.take(turn, rules):
                continue
            out += _formed(step, rules)
            step = None
        if _calls(turn):
            step = _Step(turn)
        elif not _is_refused_orphan(turn, rules):
            out.append(turn)
    return out if step is None else out + _formed(step, rules)


def _is_refused_orphan(turn: Raw, rules: Rules) -> bool:
    return _kind(turn) == "tool" and not (rules.orphans and rules.tool_role)


def _formed(step: _Step, rules: Rules) -> list[Raw]:
    if not rules.tool_role:
        return [_told(step), *step.strays]
    if not rules.parallel and len(step.calls) > 1:
        return [*_one_by_one(step, rules), *step.strays]
    added = [] if rules.unanswered else [_no_result(name, step) for name in step.pending]
    if added or (_moves_systems(rules) and any(_kind(turn) == "system" for turn in step.strays)):
        return [step.calling, *step.results, *added, *step.strays]
    return step.members


def _moves_systems(rules: Rules) -> bool:
    """Whether a system turn in the middle becomes a user's, which cannot stand within a step."""
    return rules.one_system or rules.system == "user"


def _one_by_one(step: _Step, rules: Rules) -> list[Raw]:
    """A turn for each call; the words stay with the first."""
    out: list[Raw] = []
    for call, result in step.pairs():
        words = {"role": "assistant", "content": None} if out else step.calling
        out.append({**words, "tool_calls": [call]})
        if result is not None:
            out.append(result)
        elif not rules.unanswered:
            out.append(_no_result(_id(call), step))
    return out


def _no_result(name: str, step: _Step) -> Raw:
    if "tool_calls" in step.calling:
        return {"role": "tool", "tool_call_id": name, "content": NO_RESULT}
    return {"role": "function", "name": name, "content": NO_RESULT}


def _told(step: _Step) -> Raw:
    """A step as the assistant's own text."""
    contents = [step.calling.get("content")]
    contents += [_call_told(call, result) for call, result in step.pairs()]
    fields = {
        **{key: turn[key] for turn in step.results for key in turn if str(key).startswith("_")},
        **_without(step.calling, "tool_calls", "function_call"),
    }
    return {**fields, "content": _joined(contents)}


def _call_told(call: Raw, result: Raw | None) -> Any:
    function = call.get("function") or call.get("custom") or {}
    arguments = text_of(function.get("arguments", function.get("input", "")))
    lines = [f"[tool: {function.get('name', '')}]", arguments]
    lines.append(NO_RESULT if result is None else RESULT)
    content = None if result is None else result.get("content")
    if isinstance(content, str):
        lines.append(content)
    text = "\n".join(line for line in lines if line)
    return text if content is None or isinstance(content, str) else [_text_part(text), *content]


# Merging


def _text_part(text: str) -> Raw:
    return {"type": "text", "text": text}


def _joined(contents: Iterable[Any]) -> Any:
    """Contents as one: texts with a blank line between, parts one after the other."""
    given = [content for content in contents if content is not None]
    filled = [content for content in given if content] or given[:1]
    if len(filled) < 2:
        return filled[0] if filled else None
    if all(isinstance(content, str) for content in filled):
        return "\n\n".join(filled)
    return [part for content in filled for part in _parts(content)]


def _parts(content: Any) -> list[Any]:
    return [_text_part(content)] if isinstance(content, str) else list(content)


def _merged(turns: Sequence[Raw]) -> Raw:
    """Turns of one role as one; of fields that cannot be joined the first turn's stay."""
    if len(turns) == 1:
        return turns[0]
    fields: dict[str, Any] = {}
    for turn in reversed(turns):
        fields |= turn
    for field in ("content", *(field for field in _THINKING if field in fields)):
        fields[field] = _joined(turn.get(field) for turn in turns)
    return fields


def _with_systems(turns: list[Raw], rules: Rules) -> list[Raw]:
    """One system text in front, or none; a later one is said by the user, in its place.

    Put in front it would change the beginning of the prompt, which the server has in its cache.
    """
    if not _moves_systems(rules):
        return turns
    start = _leading(turns)
    rest = [_as_user(turn, SYSTEM) if _kind(turn) == "system" else turn for turn in turns[start:]]
    if not start:
        return rest
    first = _merged(turns[:start])
    if rules.system == "own":
        return [first, *rest]
    first = {**first, "role": "user"}
    if rest and rest[0]["role"] == "user":
        return [_merged((first, rest[0])), *rest[1:]]
    return [first, *rest]


def _leading(turns: Iterable[Raw]) -> int:
    """How many system turns stand in front."""
    count = 0
    for turn in turns:
        if _kind(turn) != "system":
            break
        count += 1
    return count


def _alternating(turns: Iterable[Raw]) -> list[Raw]:
    groups: list[list[Raw]] = []
    for turn in turns:
        role, before = turn["role"], groups[-1][-1]["role"] if groups else "system"
        if role == before and role in ("user", "assistant"):
            groups[-1].append(turn)
            continue
        if role == "assistant" and before == "system":
            groups.append([_said("user", OPENING)])
        elif role == "user" and before == "tool":
            groups.append([_said("assistant", BETWEEN)])
        groups.append([turn])
    return [_merged(group) for group in groups]


def _needs_closing(before: Sequence[Raw], after: Sequence[Raw]) -> bool:
    """Whether results came last, and an assistant turn does now, or nothing is left.

    An assistant turn that was last before is a beginning which the model shall continue.
    """
    if not before or (after and after[-1]["role"] != "assistant"):
        return False
    if not after:
        return True
    return _kind(before[-1]) == "tool" or bool(_calls(before[-1]) and not _calls(after[-1]))


# Ids


def short_id(name: str, attempt: int = 0) -> str:
    """Nine letters and digits for an id: always the same ones, and others at another attempt."""
    from hashlib import sha256  # loads OpenSSL, and few need it

    number = int.from_bytes(sha256(f"{attempt}:{name}".encode("utf-8", "replace")).digest()[:12])
    letters = []
    for _ in range(9):
        number, place = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[place])
    return "".join(letters)


def _with_short_ids(turns: list[Raw]) -> list[Raw]:
    given = [_id(call) for turn in turns for call in _calls(turn)]
    given += [_answers(turn) or "" for turn in turns if turn["role"] == "tool"]
    names = _short_ids(given)
    return [_renamed(turn, names) for turn in turns] if names else turns


def _short_ids(given: Iterable[str]) -> dict[str, str]:
    """New ids for those that need one, each its own."""
    names = dict.fromkeys(given)
    taken = {name for name in names if _NINE.fullmatch(name)}
    short: dict[str, str] = {}
    for name in names:
        if _NINE.fullmatch(name):
            continue
        attempt = 0
        while (chosen := short_id(name, attempt)) in taken:
            attempt += 1
        taken.add(chosen)
        short[name] = chosen
    return short


def _renamed(turn: Raw, names: Mapping[str, str]) -> Raw:
    if turn["role"] == "tool":
        name = _answers(turn) or ""
        return {**turn, "tool_call_id": names[name]} if name in names else turn
    calls = (turn.get("tool_calls") or ()) if turn["role"] == "assistant" else ()
    if not any(_id(call) in names for call in calls):
        return turn
    renamed = [{**call, "id": names[_id(call)]} if _id(call) in names else call for call in calls]
    return {**turn, "tool_calls": renamed}


# Counting what goes out


def counted(counter: Counter, rules: Rules) -> Counter:
    """A counter that costs messages in the form in which they go out.

    A message pays for what it can cause, whatever its neighbours turn out to be; so the sum over
    any messages that are kept, step by step, is at least what their shaped form takes.
    """
    return counter if rules.free else ShapedCounter(counter, rules)


_SLACK: Final = 2
"""Tokens by which a text may be longer than the two that it was joined from, at the most."""


class ShapedCounter:
    """Counts with another counter, and adds what a template's rules may add."""

    def __init__(self, counter: Counter, rules: Rules) -> None:
        self.name = f"{counter.name}+{rules.name}"
        self.uncertainty = counter.uncertainty
        self.density = counter.density
        self.text = counter.text
        self.tools = counter.tools
        self._counter = counter
        self._rules = rules
        self._scale = max(1, counter.text("\n"))
        """What the counter takes one token for, where it scales them."""
        self._slack = _SLACK * self._scale
        self._turns = {
            "system": self._system_turn(),
            "user": self._merge(rules.alternate or rules.system == "user") + self._between(),
            "assistant": self._merge(rules.alternate),
            "tool": 0 if rules.tool_role else self._slack - counter.message(Message("tool")),
            "other": 0 if rules.other_roles else self._other_turn(),
        }
        self._call = self._told_call()
        self.overhead = counter.overhead + self._request()

    def message(self, message: Message) -> int:
        rules, count = self._rules, self._counter.message
        if (
            rules.ids == "nine"
            and rules.tool_role
            and (message.calls or message.answers is not None)
        ):
            message = _with_short_answers(message)
        total = count(message) + self._turns[message.role]
        if message.thinking and rules.alternate:
            total += self._join() * len(message.thinking)
        if message.calls:
            total += self._call * len(message.calls)
            if rules.tool_role and not rules.parallel:
                total += count(Message("assistant")) * (len(message.calls) - 1)
            if rules.tool_role and not rules.unanswered:
                for call in message.calls:
                    total += count(Message("tool", outputs=(NO_RESULT,), answers=call.id))
        return total

    def exact(
        self, messages: Iterable[Message], tools: Sequence[Mapping[str, object]] = ()
    ) -> bool:
        """Only where nothing had to be added for what the rules may do."""
        if self.overhead != self._counter.overhead:
            return False
        given = list(messages)
        plain = all(self.message(each) == self._counter.message(each) for each in given)
        return plain and self._counter.exact(given, tools)

    def _request(self) -> int:
        """The turns that are put in once at most."""
        rules, added = self._rules, 0
        if rules.alternate or rules.needs_user:
            added += self._counter.message(Message("user", words=(OPENING,)))
        if not (rules.orphans and rules.tool_role):
            added += self._counter.message(Message("user", words=(CLOSING,)))
        return added

    def _join(self) -> int:
        return self.text("\n\n") + self._slack

    def _merge(self, merges: bool) -> int:
        """A turn that is joined to another is no longer one of its own, which saves something."""
        return max(0, self._join() - self._counter.message(Message("user"))) if merges else 0

    def _between(self) -> int:
        """A turn before a user's, where that may follow a result."""
        if not self._rules.alternate or not self._rules.tool_role:
            return 0
        return self._counter.message(Message("assistant", words=(BETWEEN,)))

    def _system_turn(self) -> int:
        if not _moves_systems(self._rules):
            return 0
        return self._merge(merges=True) + self._between() + self.text(f"{SYSTEM}\n") + self._slack

    def _other_turn(self) -> int:
        heading = _LONGEST_ROLE * self._scale + self.text("[]\n") + self._slack
        return self._merge(self._rules.alternate) + self._between() + heading

    def _told_call(self) -> int:
        if self._rules.tool_role:
            return 0
        told = self.text("\n\n[tool: ") + self.text(f"]\n\n{NO_RESULT}\n") + 2 * self._slack
        bare = self._counter.message(Message("assistant"))
        calling = self._counter.message(Message("assistant", calls=(Call("", "", ""),)))
        return told - (calling - bare)


def _with_short_answers(message: Message) -> Message:
    calls = tuple(replace(call, id=_nine(call.id)) for call in message.calls)
    answers = None if message.answers is None else _nine(message.answers)
    return replace(message, calls=calls, answers=answers)


def _nine(name: str) -> str:
    return name if _NINE.fullmatch(name) else short_id(name)
