"""Conversations for the checks: recorded ones, and generated ones of many kinds of text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from benchmarks import recordings

Message: TypeAlias = dict[str, Any]

PROSE: Final = (
    "The harbour lay quiet before the storm, and the pilots argued about the tide tables as if "
    "the sea had ever cared for what was printed. At noon the glass fell again.",
    "A budget is a promise that somebody made before they knew the price. The art is not in the "
    "sum but in saying, early and aloud, which part of it will have to give.",
    "She kept three notebooks: one for what people said, one for what they meant, and a thin one "
    "for the rare days on which the two agreed.",
    "Whoever repairs a bridge learns first what it carried, then what it was built to carry, and "
    "at last, from the cracks, what it was asked to carry when nobody was looking.",
)
CODE: Final = (
    "def windowed(items, size):\n    for start in range(0, len(items), size):\n"
    "        yield items[start : start + size]\n",
    "SELECT day, sum(cost) AS spent\nFROM ledger\nWHERE project = $1 AND day >= $2\n"
    "GROUP BY day\nHAVING sum(cost) > 0.05\nORDER BY day DESC;\n",
    "for (let i = 0; i < rows.length; i++) {\n  if (!rows[i]?.id) continue;\n"
    "  seen.set(rows[i].id, (seen.get(rows[i].id) ?? 0) + 1);\n}\n",
    'Traceback (most recent call last):\n  File "/srv/app/fit.py", line 214, in <module>\n'
    '    raise ValueError(f"{tokens:,} > {limit:,}")\nValueError: 8,193 > 8,192\n',
    "drwxr-xr-x  4 root root 4096 Mar  3 11:52 .\n-rw-r--r--  1 root root  812 Mar  3 11:52 a.py\n"
    "-rwxr-xr-x  1 root root  91k Mar  3 11:49 build-0x7f3a9c.bin\n",
)
SCRIPTS: Final = (
    "海面在暴风雨之前十分平静，领航员们仍在争论潮汐表上的数字。预算是一种承诺。",
    "橋を直す者は、まずそれが何を運んだかを学び、次に何を運ぶはずだったかを学ぶ。",
    "그녀는 공책을 세 권 가지고 있었다. 하나는 사람들이 한 말을 적기 위한 것이었다.",
    "Мост чинят дважды: сначала на бумаге, потом под дождём, и второй раз всегда дороже.",
    "الميناء هادئ قبل العاصفة، والبحارة يتجادلون حول جدول المد والجزر منذ الصباح.",
    "पुल की मरम्मत करने वाला पहले सीखता है कि उसने क्या ढोया, फिर यह कि उसे क्या ढोना था।",
    "สะพานที่ซ่อมแล้วต้องรับน้ำหนักมากกว่าเดิมเสมอ ไม่มีใครบอกช่างไว้ก่อน",
)
EMOJI: Final = ("🎉🚀🔥", "👩‍👩‍👧‍👦 👍🏽", "✅ done ❌ failed ⚠️ 3", "🇩🇪🇯🇵🇧🇷", "🧠→💾→🗑️")
WORDS: Final = ("ok", "yes", "no", "go on", "why?", "hm", "a", "stop", "1", "?")
KINDS: Final = ("prose", "code", "json", "scripts", "emoji", "words", "mixed")


@dataclass(frozen=True)
class Conversation:
    """Messages in the chat format, the tools, and the kind of text."""

    name: str
    kind: str
    messages: list[Message]
    tools: list[Message]


def load_recorded() -> list[Conversation]:
    """Return the agent runs and support chats in the project."""
    return [
        Conversation(recording.id, "recorded", recording.messages, recording.tools)
        for recording in recordings.load()
    ]


def generate(number: int, turns: int = 40, seed: int = 7) -> Iterator[Conversation]:
    """Yield conversations with one kind of text each, in turn."""
    for place in range(number):
        kind = KINDS[place % len(KINDS)]
        chance = random.Random(f"{seed} {kind} {place}")
        yield Conversation(
            f"{kind}-{place}", kind, list(_generate_messages(kind, turns, chance)), []
        )


def _generate_messages(kind: str, turns: int, chance: random.Random) -> Iterator[Message]:
    if chance.random() < 0.5:
        yield {"role": "system", "content": "You help with boats, bridges and budgets."}
    for number in range(turns):
        role = "assistant" if number % 2 else "user"
        yield {"role": role, "content": _choose_text(kind, chance)}
        if role == "assistant" and kind in ("json", "mixed") and chance.random() < 0.5:
            yield {"role": "user", "content": chance.choice(WORDS)}
            yield from _generate_tool_step(number, chance)


def _generate_tool_step(number: int, chance: random.Random) -> Iterator[Message]:
    """Yield a tool call and its result."""
    name = f"call{number:05}"
    arguments = json.dumps({"path": f"/srv/{chance.randrange(999)}", "depth": number})
    function = {"name": "look", "arguments": arguments}
    call = {"id": name, "type": "function", "function": function}
    yield {"role": "assistant", "content": None, "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": name, "content": _choose_text("json", chance)}
    yield {"role": "assistant", "content": chance.choice(PROSE)}


def _choose_text(kind: str, chance: random.Random) -> str:
    if kind == "mixed":
        kind = chance.choice(KINDS[:-1])
    if kind == "words":
        return chance.choice(WORDS)
    if kind == "json":
        rows = [_generate_row(chance) for _ in range(chance.randint(1, 5))]
        return json.dumps(rows, ensure_ascii=False, indent=chance.choice((None, 2)))
    texts: Sequence[str] = {"prose": PROSE, "code": CODE, "scripts": SCRIPTS, "emoji": EMOJI}[kind]
    return "\n".join(chance.choices(texts, k=chance.randint(1, 4)))


def _generate_row(chance: random.Random) -> dict[str, Any]:
    return {
        "id": f"{chance.getrandbits(48):012x}",
        "name": chance.choice(SCRIPTS + PROSE)[:24],
        "cost": round(chance.random() * 100, 4),
        "tags": chance.choices(WORDS, k=2),
    }
