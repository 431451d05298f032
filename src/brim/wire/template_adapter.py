"""Adapt a conversation to a strict chat template, changing no more than its rules require.

brim plans with the conversation as it is; `apply_template` is the last step before sending.
Consecutive turns of one role are merged, steps become text if there is no tool role, and short
turns are inserted where two turns must not be adjacent. `template_counter` counts messages as they
will be sent, so that a plan that fits still fits afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brim.wire.body_parts import make_text, to_text
from brim.wire.notes import (
    CONVERSATION_CONTINUES,
    INTERRUPTED,
    NO_RESULT,
    RESULT_HEADING,
    RESULTS_ABOVE,
    SYSTEM_HEADING,
)
from brim.wire.openai_chat import THINKING, find_answered_id
from brim.wire.template_rules import NINE_CHARACTERS, Raw, TemplateRules

MAX_ROLE_LENGTH: Final = 20
"""Characters shown of a role that the template does not know."""
_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOT_PLAIN = re.compile(r"[^0-9A-Za-z_-]+")
_ROLE_ALIASES: Final[Mapping[str, str]] = {"developer": "system", "function": "tool"}


def apply_template(messages: Sequence[Raw], rules: TemplateRules) -> list[Raw]:
    """Return the messages that the template accepts; unchanged ones are the same objects.

    Applying it twice changes nothing. All text is kept, except results whose call does not exist.
    """
    turns = list(messages)
    if rules.free:
        return turns
    turns = [_normalize_message(turn, rules) for turn in turns]
    turns = _render_steps(turns, rules)
    turns = _place_systems(turns, rules)
    if rules.tool_role:
        turns = [part for turn in turns for part in _shape_call(turn, rules)]
    if rules.ids == "nine":
        turns = _shorten_ids(turns)
    if rules.alternate:
        turns = _alternate_roles(turns, rules)
    if rules.needs_user and all(turn["role"] != "user" for turn in turns):
        turns.insert(_count_leading_systems(turns), _make_message("user", CONVERSATION_CONTINUES))
    if _needs_closing(messages, turns):
        turns.append(_make_message("user", RESULTS_ABOVE))
    return turns if rules.repeats else _distinguish_users(turns)


def match_origins(
    messages: Sequence[Raw], origins: Sequence[int | None], shaped: Sequence[Raw]
) -> list[int | None]:
    """Return the origins of adapted messages, from those of the messages before.

    A message that was merged or rewritten has the origin of the first one that it may contain.
    """
    places = {id(message): place for place, message in enumerate(messages)}
    kept = {id(message) for message in shaped} & places.keys()
    out: list[int | None] = []
    following = 0
    for turn in shaped:
        if (place := places.get(id(turn))) is not None:
            following = place
        elif following == len(messages) or id(messages[following]) in kept:
            out.append(None)
            continue
        out.append(origins[following])
        following += 1
    return out


def _make_message(role: str, text: str) -> Raw:
    return {"role": role, "content": text}


def _normalize_role(turn: Raw) -> str:
    """Return the role of a turn as one of the four standard roles, or an unknown role as it is."""
    role: str = turn["role"]
    return _ROLE_ALIASES.get(role, role)


def _normalize_message(turn: Raw, rules: TemplateRules) -> Raw:
    """Return a turn with the roles and fields that every template knows."""
    if not rules.other_roles:
        turn = _to_known_role(turn)
    counts_calls = rules.alternate or not rules.parallel
    if counts_calls and turn["role"] == "assistant" and turn.get("tool_calls", True) in ([], None):
        return _without(turn, "tool_calls")
    return turn


def _to_known_role(turn: Raw) -> Raw:
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
            return {
                **_without(turn, "name"),
                "role": "tool",
                "tool_call_id": find_answered_id(turn),
            }
        case role:
            return _as_user(turn, f"[{_NOT_PLAIN.sub('', role)[:MAX_ROLE_LENGTH]}]")


def _as_user(turn: Raw, heading: str) -> Raw:
    content = turn.get("content")
    if content is None or isinstance(content, str):
        content = f"{heading}\n{content}" if content else heading
    else:
        content = [make_text(heading), *content]
    return {**turn, "role": "user", "content": content}


def _without(turn: Raw, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in turn.items() if key not in keys}


# Calls and their results


def _calls(turn: Raw) -> list[Raw]:
    """Return the calls of a turn; a legacy `function_call` is one call with its name as id."""
    if turn["role"] != "assistant":
        return []
    calls = turn.get("tool_calls")
    legacy = turn.get("function_call")
    if calls is None and isinstance(legacy, Mapping):
        return [{"id": str(legacy.get("name", "")), "type": "function", "function": legacy}]
    return list(calls or ())


def _id(call: Raw) -> str:
    return str(call.get("id", ""))


class _Step:
    """A calling turn, its results, and unrelated turns between them."""

    def __init__(self, calling: Raw) -> None:
        self.calling = calling
        self.calls = _calls(calling)
        self.members = [calling]
        """All turns, in their original order."""
        self.results: list[Raw] = []
        self.strays: list[Raw] = []
        """System turns and results of other calls."""
        self.pending = [_id(call) for call in self.calls]

    def take(self, turn: Raw, rules: TemplateRules) -> bool:
        """Add a turn inside the step; return False if the step is over."""
        if not self.pending or _normalize_role(turn) not in ("tool", "system"):
            return False
        name = find_answered_id(turn) if _normalize_role(turn) == "tool" else None
        if name in self.pending:
            self.pending.remove(name)
            self.results.append(turn)
            self.members.append(turn)
        elif not _is_rejected_orphan(turn, rules):
            self.strays.append(turn)
            self.members.append(turn)
        return True

    def pairs(self) -> list[tuple[Raw, Raw | None]]:
        """Return each call with its result, in the order of the calls."""
        left = list(self.results)
        found: list[tuple[Raw, Raw | None]] = []
        for call in self.calls:
            result = next((turn for turn in left if find_answered_id(turn) == _id(call)), None)
            if result is not None:
                left.remove(result)
            found.append((call, result))
        return found


def _render_steps(turns: Iterable[Raw], rules: TemplateRules) -> list[Raw]:
    """Render every step, and drop results without calls if the template rejects them."""
    out: list[Raw] = []
    step: _Step | None = None
    for turn in turns:
        if step is not None:
            if step.take(turn, rules):
                continue
            out += _render_step(step, rules)
            step = None
        if _calls(turn):
            step = _Step(turn)
        elif not _is_rejected_orphan(turn, rules):
            out.append(turn)
    return out if step is None else out + _render_step(step, rules)


def _is_rejected_orphan(turn: Raw, rules: TemplateRules) -> bool:
    return _normalize_role(turn) == "tool" and not (rules.orphans and rules.tool_role)


def _render_step(step: _Step, rules: TemplateRules) -> list[Raw]:
    if not rules.tool_role:
        return [_fold_step(step), *step.strays]
    if not rules.parallel and len(step.calls) > 1:
        return [*_split_calls(step, rules), *step.strays]
    added = [] if rules.unanswered else [_make_missing_result(name, step) for name in step.pending]
    if added or (
        rules.moves_systems and any(_normalize_role(turn) == "system" for turn in step.strays)
    ):
        return [step.calling, *step.results, *added, *step.strays]
    return step.members


def _split_calls(step: _Step, rules: TemplateRules) -> list[Raw]:
    """Return one turn per call; the text stays with the first."""
    out: list[Raw] = []
    for call, result in step.pairs():
        words = {"role": "assistant", "content": None} if out else step.calling
        out.append({**words, "tool_calls": [call]})
        if result is not None:
            out.append(result)
        elif not rules.unanswered:
            out.append(_make_missing_result(_id(call), step))
    return out


def _shape_call(turn: Raw, rules: TemplateRules) -> list[Raw]:
    """Return a calling turn with the content that the template prints, after its text."""
    if not _calls(turn):
        return [turn]
    content = turn.get("content")
    if content:
        if rules.call_text:
            return [turn]
        bare = {**turn, "content": "" if rules.call_content == "empty" else None}
        return [{"role": "assistant", "content": content}, bare]
    if rules.call_content == "empty" and content != "":
        return [{**turn, "content": ""}]
    if rules.call_content == "null" and content is not None:
        return [{**turn, "content": None}]
    return [turn]


def _make_missing_result(name: str, step: _Step) -> Raw:
    if "tool_calls" in step.calling:
        return {"role": "tool", "tool_call_id": name, "content": NO_RESULT}
    return {"role": "function", "name": name, "content": NO_RESULT}


def _fold_step(step: _Step) -> Raw:
    """Return a step as assistant text."""
    contents = [step.calling.get("content")]
    contents += [_fold_call(call, result) for call, result in step.pairs()]
    fields = {
        **{key: turn[key] for turn in step.results for key in turn if str(key).startswith("_")},
        **_without(step.calling, "tool_calls", "function_call"),
    }
    return {**fields, "content": _join_contents(contents)}


def _fold_call(call: Raw, result: Raw | None) -> Any:
    function = call.get("function") or call.get("custom") or {}
    arguments = to_text(function.get("arguments", function.get("input", "")))
    lines = [f"[tool: {function.get('name', '')}]", arguments]
    lines.append(NO_RESULT if result is None else RESULT_HEADING)
    content = None if result is None else result.get("content")
    if isinstance(content, str):
        lines.append(content)
    text = "\n".join(line for line in lines if line)
    return text if content is None or isinstance(content, str) else [make_text(text), *content]


# Merging


def _join_contents(contents: Iterable[Any]) -> Any:
    """Join contents: texts with a blank line between them, parts one after the other."""
    given = [content for content in contents if content is not None]
    filled = [content for content in given if content] or given[:1]
    if len(filled) < 2:
        return filled[0] if filled else None
    if all(isinstance(content, str) for content in filled):
        return "\n\n".join(filled)
    return [part for content in filled for part in _parts(content)]


def _parts(content: Any) -> list[Any]:
    return [make_text(content)] if isinstance(content, str) else list(content)


def _merge_turns(turns: Sequence[Raw]) -> Raw:
    """Merge turns of one role; fields that cannot be joined are taken from the first turn."""
    if len(turns) == 1:
        return turns[0]
    fields: dict[str, Any] = {}
    for turn in reversed(turns):
        fields |= turn
    for field in ("content", *(field for field in THINKING if field in fields)):
        fields[field] = _join_contents(turn.get(field) for turn in turns)
    return fields


def _place_systems(turns: list[Raw], rules: TemplateRules) -> list[Raw]:
    """Put the system text first, or into the user text; a later system turn becomes user text.

    Moving a later one to the front would change the cached prefix of the prompt.
    """
    if not rules.moves_systems:
        return turns
    start = _count_leading_systems(turns)
    rest = [
        _as_user(turn, SYSTEM_HEADING) if _normalize_role(turn) == "system" else turn
        for turn in turns[start:]
    ]
    if not start:
        return rest
    first = _merge_turns(turns[:start])
    if rules.system == "own":
        return [first, *rest]
    first = {**first, "role": "user"}
    if rest and rest[0]["role"] == "user":
        return [_merge_turns((first, rest[0])), *rest[1:]]
    return [first, *rest]


def _count_leading_systems(turns: Iterable[Raw]) -> int:
    """Return the number of leading system turns."""
    count = 0
    for turn in turns:
        if _normalize_role(turn) != "system":
            break
        count += 1
    return count


def _alternate_roles(turns: Iterable[Raw], rules: TemplateRules) -> list[Raw]:
    groups: list[list[Raw]] = []
    for turn in turns:
        role, before = turn["role"], groups[-1][-1]["role"] if groups else "system"
        if role == before == "assistant" and not rules.call_text and _calls(turn):
            groups.append([_make_message("user", CONVERSATION_CONTINUES)])
        elif role == before and role in ("user", "assistant"):
            groups[-1].append(turn)
            continue
        if role == "assistant" and before == "system":
            groups.append([_make_message("user", CONVERSATION_CONTINUES)])
        elif role == "user" and before == "tool":
            groups.append([_make_message("assistant", INTERRUPTED)])
        groups.append([turn])
    return [_merge_turns(group) for group in groups]


def _distinguish_users(turns: Iterable[Raw]) -> list[Raw]:
    """Return the turns with white space after each user text that was there before."""
    seen: set[str] = set()
    out: list[Raw] = []
    for turn in turns:
        content = turn.get("content")
        if turn["role"] == "user" and isinstance(content, str):
            repeat, text = 1, content
            while text in seen:
                text = content + f"{repeat:b}".replace("0", " ").replace("1", "\n")
                repeat += 1
            seen.add(text)
            turn = turn if text == content else {**turn, "content": text}
        out.append(turn)
    return out


def _needs_closing(before: Sequence[Raw], after: Sequence[Raw]) -> bool:
    """Whether results were last and an assistant turn is now, or nothing is left.

    An assistant turn that was last before is a prefix that the model continues.
    """
    if not before or (after and after[-1]["role"] != "assistant"):
        return False
    if not after:
        return True
    return _normalize_role(before[-1]) == "tool" or bool(
        _calls(before[-1]) and not _calls(after[-1])
    )


# Ids


def make_short_id(name: str, attempt: int = 0) -> str:
    """Return nine letters and digits for an id, deterministically; another attempt gives others."""
    from hashlib import sha256  # loads OpenSSL, and few callers need it

    number = int.from_bytes(sha256(f"{attempt}:{name}".encode("utf-8", "replace")).digest()[:12])
    letters = []
    for _ in range(9):
        number, place = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[place])
    return "".join(letters)


def _shorten_ids(turns: list[Raw]) -> list[Raw]:
    given = [_id(call) for turn in turns for call in _calls(turn)]
    given += [find_answered_id(turn) or "" for turn in turns if turn["role"] == "tool"]
    names = _choose_short_ids(given)
    return [_rename_ids(turn, names) for turn in turns] if names else turns


def _choose_short_ids(given: Iterable[str]) -> dict[str, str]:
    """Return unique new ids for the ids that need one."""
    names = dict.fromkeys(given)
    taken = {name for name in names if NINE_CHARACTERS.fullmatch(name)}
    short: dict[str, str] = {}
    for name in names:
        if NINE_CHARACTERS.fullmatch(name):
            continue
        attempt = 0
        while (chosen := make_short_id(name, attempt)) in taken:
            attempt += 1
        taken.add(chosen)
        short[name] = chosen
    return short


def _rename_ids(turn: Raw, names: Mapping[str, str]) -> Raw:
    if turn["role"] == "tool":
        name = find_answered_id(turn) or ""
        return {**turn, "tool_call_id": names[name]} if name in names else turn
    calls = (turn.get("tool_calls") or ()) if turn["role"] == "assistant" else ()
    if not any(_id(call) in names for call in calls):
        return turn
    renamed = [{**call, "id": names[_id(call)]} if _id(call) in names else call for call in calls]
    return {**turn, "tool_calls": renamed}
