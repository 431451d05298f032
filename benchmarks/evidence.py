"""Evidence: are all turns that hold the answer to a question still in the prompt?

    python -m benchmarks.evidence [FOLDER] [--part chosen|held|unseen] [--json]

A question is asked after the end of a long dialogue, and the dialogue is fitted with it. The share
is that of the questions whose evidence is completely in the prompt. *With search*, the passages
that `brim.search` finds for the question, in 5 % of the limit, count as well; *by search* is the
share for the evidence that is not in the prompt, with that tool alone.

The dialogues are generated: facts stated once, corrected or contradicted, among talk about the same
people and things. The parts have different sentences and seeds. In `chosen` and `held`, a question
names person and thing; `unseen` was written after all decisions and is harder: people speak of
themselves, and a third of its questions call the thing by another word. A folder contains dialogues
in the format of LoCoMo instead (`*.json`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import brim
from benchmarks import report
from benchmarks.recordings import Message

WINDOWS = (4_096, 8_192, 16_384)
REPLY = 500
SHARE = 0.05
"""The part of the limit for the passages of a search."""
POLICIES: tuple[brim.PolicyName, ...] = ("steady", "sliding", "recall")
DIALOGUES = 4
TURNS = 500
FACTS = 40


class Evidence(NamedTuple):
    turn: int
    text: str


@dataclass(frozen=True)
class Question:
    text: str
    evidence: Sequence[Evidence]


@dataclass(frozen=True)
class Dialogue:
    messages: Sequence[Message]
    questions: Sequence[Question]


@dataclass(frozen=True)
class Wording:
    """The sentences of one part; `{who}`, `{thing}` and `{value}` are filled in."""

    seed: int
    facts: Sequence[str]
    corrections: Sequence[str]
    questions: Sequence[str]
    talk: Sequence[str]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other words for things, in questions."""


CHOSEN = Wording(
    seed=1,
    facts=(
        "By the way, {who} keeps the {thing} in {value}.",
        "{who} told me that the {thing} is in {value}.",
        "Remember that {value} is where {who} put the {thing}.",
    ),
    corrections=(
        "I was wrong about {who}: the {thing} is in {value}.",
        "Correction: {who} has moved the {thing} to {value}.",
        "My sister does not agree about {who}; she saw the {thing} in {value}.",
    ),
    questions=(
        "Where does {who} keep the {thing}?",
        "In which place is the {thing} of {who} now?",
    ),
    talk=(
        "The weather was {mood} again, so we stayed at home and read.",
        "I had a {mood} day at work, with two long meetings and a late lunch.",
        "{who} called, and we talked about nothing in particular for an hour.",
        "Someone asked about a {thing}, but I do not know much about that.",
        "It was {mood} to walk along the river, and the water was high.",
    ),
)
HELD = Wording(
    seed=1_000,
    facts=(
        "Yesterday {who} bought a new {thing} and stored it at {value}.",
        "If anybody needs it: the {thing} belongs to {who}, look for it at {value}.",
        "So the {thing} stays at {value} until {who} comes back.",
    ),
    corrections=(
        "Forget what I said, {who} never left the {thing} there. It is at {value}.",
        "An update from {who}: {value} is the new place for the {thing}.",
        "Other people say that {value} has always been the home of the {thing} of {who}.",
    ),
    questions=(
        "I need the {thing} that {who} owns. Do you remember where it was stored?",
        "Can you tell me the latest place of the {thing} that {who} talked about?",
    ),
    talk=(
        "Our train was late, which made the whole evening rather {mood}.",
        "{who} and I cooked soup, and it turned out {mood} in the end.",
        "There is a film about a {thing} in the cinema; the reviews are {mood}.",
        "My neighbour is still painting the fence, and the smell is {mood}.",
        "We planned the holidays, but {who} has to ask for leave first.",
    ),
)
UNSEEN = Wording(
    seed=70_000,
    facts=(
        "{who}: mine ended up at {value}, the {thing} I mean.",
        "{who}: guess what, the {thing} finally has a spot, {value}!",
        "{who}: after the move I just dropped my {thing} off at {value}.",
        "{who}: oh, and {value} is full now because my {thing} takes all the space.",
    ),
    corrections=(
        "{who}: scratch that about the {thing}, we carried it over to {value} this morning.",
        "{who}: I mixed things up earlier. Look at {value} if you want the {thing}.",
        "{who}: no, no, your sister told you wrong, my {thing} has been at {value} all along.",
    ),
    questions=(
        "Where could one find {who}'s {thing} these days?",
        "If {who} had to fetch the {thing}, where would that be?",
        "What place did {who} pick for the {thing} in the end?",
    ),
    talk=(
        "{who}: work was {mood} today, three calls before noon and no coffee left.",
        "{who}: did you watch the match? What a {mood} finish, I could not sit still.",
        "{who}: I am thinking about getting a {thing}, but they cost a fortune now.",
        "{who}: my kids have a {mood} cough again, so we skipped the trip.",
        "{who}: thanks for asking! It felt {mood}, and I slept like a stone after that.",
        "{who}: where do you even put a {thing} in a flat like ours?",
        "{who}: the bakery at the corner closed, which is {mood} news for my breakfast.",
    ),
    synonyms={
        "camera": "photo gear",
        "bicycle": "bike",
        "suitcase": "luggage",
        "heater": "radiator",
        "drill": "power tool",
        "kayak": "boat",
    },
)
PARTS: Mapping[str, Wording] = {"chosen": CHOSEN, "held": HELD, "unseen": UNSEEN}
WHO = [
    "Anna",
    "Boris",
    "Chloe",
    "David",
    "Elif",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kavya",
    "Liam",
    "Mei",
    "Noor",
    "Omar",
    "Petra",
]
THINGS = [
    "tent",
    "ladder",
    "camera",
    "passport",
    "guitar",
    "drill",
    "projector",
    "suitcase",
    "telescope",
    "bicycle",
    "heater",
    "kayak",
    "microscope",
    "trophy",
    "typewriter",
    "saddle",
]
PLACES = [
    "garage",
    "attic",
    "cellar",
    "office",
    "shed",
    "kitchen",
    "boathouse",
    "locker",
    "studio",
    "workshop",
    "barn",
    "van",
]
COLOURS = ["red", "blue", "green", "yellow", "white", "grey", "black", "brown"]
MOODS = ["pleasant", "tiring", "strange", "quiet", "dull", "lovely", "awful", "ordinary"]


def generate(wording: Wording, number: int) -> Dialogue:
    """Return a dialogue; the same number gives the same one."""
    chance = random.Random(wording.seed + number)
    turns = [_talk(wording, chance) for _ in range(TURNS)]
    pairs = [(who, thing) for who in WHO for thing in THINGS]
    questions = []
    for who, thing in chance.sample(pairs, FACTS):
        stated = chance.randrange(0, TURNS // 2)
        places = [stated]
        if chance.random() < 0.4:  # corrected or contradicted later
            places.append(chance.randrange(stated + 1, 3 * TURNS // 4))
        evidence = []
        for place, sentences in zip(places, (wording.facts, wording.corrections), strict=False):
            value = f"the {chance.choice(COLOURS)} {chance.choice(PLACES)} {chance.randrange(90)}"
            text = chance.choice(sentences).format(who=who, thing=thing, value=value)
            turns[place].insert(chance.randrange(len(turns[place]) + 1), text)
            evidence.append(Evidence(place, text))
        called = wording.synonyms.get(thing, thing)
        question = chance.choice(wording.questions).format(who=who, thing=called)
        questions.append(Question(question, evidence))
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": " ".join(turn)} for place, turn in enumerate(turns)
    ]
    return Dialogue(messages, questions)


def _talk(wording: Wording, chance: random.Random) -> list[str]:
    sentences = chance.choices(wording.talk, k=chance.randint(1, 5))
    return [
        sentence.format(
            who=chance.choice(WHO), thing=chance.choice(THINGS), mood=chance.choice(MOODS)
        )
        for sentence in sentences
    ]


def read(path: Path) -> Iterator[Dialogue]:
    """Yield the dialogues of a file in the format of LoCoMo."""
    given = json.loads(path.read_text(encoding="utf-8"))
    for sample in given if isinstance(given, list) else [given]:
        yield _read_sample(sample)


def _read_sample(sample: Mapping[str, Any]) -> Dialogue:
    talk, messages, places = sample["conversation"], list[Message](), dict[str, int]()
    sessions = [key for key in talk if re.fullmatch(r"session_\d+", key)]
    for session in sorted(sessions, key=lambda key: int(key.removeprefix("session_"))):
        for turn in talk[session]:
            places[turn["dia_id"]] = len(messages)
            role = "user" if turn["speaker"] == talk["speaker_a"] else "assistant"
            messages.append({"role": role, "content": turn["text"]})
    questions = []
    for row in sample["qa"]:
        names = [
            name for given in row.get("evidence", ()) for name in re.findall(r"D\d+:\d+", given)
        ]
        if names and all(name in places for name in names):
            turns = [places[name] for name in names]
            evidence = [Evidence(turn, messages[turn]["content"]) for turn in turns]
            questions.append(Question(row["question"], evidence))
    return Dialogue(messages, questions)


def measure(
    dialogues: Sequence[Dialogue], window: int, policy: brim.PolicyName
) -> dict[str, report.Cell]:
    total = sent = lost = found = 0
    for dialogue in dialogues:
        for question in dialogue.questions:
            messages = [*dialogue.messages, {"role": "user", "content": question.text}]
            plan = brim.fit(
                messages, model="gpt-4o", window=window, reply=REPLY, policy=policy
            ).plan
            whole = {*plan.sent_indices} - {*plan.changes}
            missing = [piece for piece in question.evidence if piece.turn not in whole]
            total += 1
            sent += not missing
            if missing:
                lost += 1
                found += _finds(plan, question.text, missing)
    return {
        "window": f"{window:,}",
        "policy": policy,
        "in the prompt %": 100 * sent / total,
        "with search %": 100 * (sent + found) / total,
        "by search %": 100 * found / lost if lost else None,
    }


def _finds(plan: brim.Plan, query: str, missing: Sequence[Evidence]) -> bool:
    """Return whether a search for the question finds all of the missing evidence."""
    passages = brim.search(plan, query, tokens=int(SHARE * plan.limit), model="gpt-4o")
    return all(
        any(piece.turn == found.index and piece.text in found.text for found in passages)
        for piece in missing
    )


def tables(given: report.Options) -> Iterator[report.Table]:
    parts = [PARTS[given.part]] if given.part in PARTS else [*PARTS.values()]
    if given.folder is None:
        dialogues = [generate(part, number) for part in parts for number in range(DIALOGUES)]
    else:
        dialogues = [found for path in sorted(given.folder.glob("*.json")) for found in read(path)]
    rows = [measure(dialogues, window, policy) for window in WINDOWS for policy in POLICIES]
    count = sum(len(dialogue.questions) for dialogue in dialogues)
    tokens = sum(brim.count(dialogue.messages, model="gpt-4o") for dialogue in dialogues)
    title = f"Evidence: {len(dialogues)} dialogues, {tokens:,} tokens, {count:,} questions"
    formats = dict.fromkeys(("in the prompt %", "with search %", "by search %"), ".0f")
    yield report.Table(title, rows, formats)


if __name__ == "__main__":
    report.run(__doc__, tables)
