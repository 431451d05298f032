"""Render random conversations with every template, by the rules that a trial finds.

The model's name is unknown. An error is a conversation that the template rejects; a loss is one
whose prompt lacks text of a user, an assistant, a system message or a result.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brim.wire.template_adapter import apply_template
from brim.wire.template_renderer import TemplateRejectionError, TemplateRenderer
from brim.wire.template_trial import try_text

CONVERSATIONS: Final = 40
IDS: Final = ("call_{:024}", "abc{:06}", "toolu_{}")
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}


@dataclass
class Tally:
    """The results of one template."""

    name: str
    renderings: int = 0
    errors: int = 0
    lost: int = 0


class Story:
    """A random conversation, each text of which is a word of its own."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.words: list[str] = []
        self.messages: list[dict[str, Any]] = []
        if self._chance.random() < 0.6:
            self._say("system")
        for _ in range(self._chance.randint(1, 14)):
            self._add_turn()
        users = [turn for turn in self.messages if turn["role"] == "user"]
        if users and self._chance.random() < 0.15:
            self.messages.append(dict(users[0]))

    def _add_turn(self) -> None:
        roles = ("user", "assistant", "system", "developer", "step")
        (role,) = self._chance.choices(roles, (35, 20, 5, 3, 37))
        if role == "step":
            self._add_step()
        else:
            self._say(role)

    def _say(self, role: str, **fields: Any) -> None:
        self.messages.append({"role": role, "content": self._word(), **fields})

    def _word(self) -> str:
        self.words.append(f"zq{len(self.words)}w")
        return self.words[-1]

    def _add_step(self) -> None:
        chance = self._chance
        number = chance.choice((1, 1, 1, 2, 3))
        names = [chance.choice(IDS).format(chance.randrange(10**6)) for _ in range(number)]
        content = chance.choice((None, "", "text"))
        content = self._word() if content == "text" else content
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": "lookup", "arguments": json.dumps({"word": "harbour"})},
            }
            for name in names
        ]
        self.messages.append({"role": "assistant", "content": content, "tool_calls": calls})
        if chance.random() < 0.1:
            names.pop()
        if chance.random() < 0.2:
            chance.shuffle(names)
        for name in names:
            self._say("tool", tool_call_id=name)


def try_templates(folder: Path) -> list[Tally]:
    """Return the results of all templates in a folder."""
    stories = [Story(seed) for seed in range(CONVERSATIONS)]
    return [_try_template(path, stories) for path in sorted(folder.glob("*.jinja"))]


def _try_template(path: Path, stories: list[Story]) -> Tally:
    text, tally = path.read_text(encoding="utf-8"), Tally(path.stem)
    verdict, renderer = try_text(text), TemplateRenderer(text)
    offers = ((TOOL,), ()) if _renders_without_tools(renderer) else ((TOOL,),)
    for story in stories:
        for tools in offers:
            tally.renderings += 1
            if verdict is None:
                tally.errors += 1
                continue
            try:
                prompt = renderer.render(apply_template(story.messages, verdict.rules), tools)
            except TemplateRejectionError:
                tally.errors += 1
                continue
            tally.lost += any(word not in prompt for word in story.words)
    return tally


def _renders_without_tools(renderer: TemplateRenderer) -> bool:
    """Whether a template is not only for requests with tools, as some named `tool_use` are."""
    try:
        renderer.render([{"role": "user", "content": "Hello"}])
    except TemplateRejectionError:
        return False
    return True
