"""Measure how far tools and calls are under-counted with a model's own vocabulary.

Prints the `tool_margin` and `step_margin` of each family for `data/families.toml`. The truth is the
public chat template, rendered with jinja2 and tokenized with the model's vocabulary:

    pip download --no-deps --no-binary :all: llama_cpp_python==0.3.36   # contains the templates
    tar xf llama_cpp_python-0.3.36.tar.gz
    pip install 'brim[models]' jinja2
    PYTHONPATH=. python scripts/measure_tools.py \\
        llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import splintr
from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from benchmarks.recordings import Recording, load
from brim.tokens.counter import RequestCounter
from brim.tokens.tokenizer_registry import counter_for
from brim.wire.openai_chat import read_message
from brim.wire.template_adapter import apply_template
from brim.wire.template_counter import wrap_counter
from brim.wire.template_rules import rules_for

TEMPLATES = {
    "llama-3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwen3-coder": "Qwen3-Coder",
    "mistral-nemo": "mistralai-Mistral-Nemo-Instruct-2407",
    "devstral": "unsloth-mistral-Devstral-Small-2507",
    "deepseek-v3.1": "deepseek-ai-DeepSeek-V3.1",
    "deepseek-v3.2": "deepseek-ai-DeepSeek-V3.2",
    "gpt-oss": "openai-gpt-oss-120b",
    "kimi-k2": "moonshotai-Kimi-K2",
    "glm-4": "GLM-4.6",
    "gemma-4": "google-gemma-4-31B-it",
}
CUTS = (2, 6, 14, 30, 60)
ADVICE = ("", " Use it only after the user has confirmed, and never twice for the same order.")
TYPES = {int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}

Turn = dict[str, Any]


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def raise_exception(problem: str) -> None:
        raise ValueError(problem)

    made.filters["tojson"] = lambda value, indent=None, **_: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return made


def render(template: Template, turns: Sequence[Mapping[str, Any]], tools: list[Turn]) -> str:
    """Render with arguments as objects, as servers do, or as text if the template needs that."""
    objects = copy.deepcopy(list(map(dict, turns)))
    for turn in objects:
        turn["content"] = turn.get("content") or ""
        for call in turn.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
    given = {
        "tools": tools or None,
        "add_generation_prompt": True,
        "bos_token": "",
        "eos_token": "",
    }
    try:
        return template.render(messages=objects, **given)
    except TypeError:
        return template.render(messages=turns, **given)


def define_tools(recording: Recording, advice: str) -> list[Turn]:
    """Return definitions of the tools that a recording calls."""
    found: dict[str, Turn] = {}
    for turn in recording.messages:
        for call in turn.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"] or "{}")
            found.setdefault(call["function"]["name"], {}).update(arguments)
    return [_define(name, arguments, advice) for name, arguments in found.items()]


def _define(name: str, arguments: Turn, advice: str) -> Turn:
    properties = {
        key: {
            "type": TYPES.get(type(value), "string"),
            "description": f"The {key.replace('_', ' ')}.{advice}",
        }
        for key, value in arguments.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    about = f"{name.replace('_', ' ')}.{advice}"
    return {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": schema},
    }


def conversations() -> Iterator[tuple[list[Turn], list[Turn]]]:
    recordings = [each for each in load() if any(turn.get("tool_calls") for turn in each.messages)]
    for recording in recordings:
        for number, cut in enumerate(CUTS):
            turns = recording.messages[:cut]
            while turns and turns[-1]["role"] == "assistant":
                turns = turns[:-1]
            if turns:
                yield turns, define_tools(recording, ADVICE[number % 2])


def measure(model: str, template: Template) -> tuple[int, float, float]:
    """Return the number of requests, and the worst shares of tools and of other tokens."""
    plain, rules = counter_for(model), rules_for(model)
    assert isinstance(plain, RequestCounter)
    counter = wrap_counter(plain, rules)
    encode = splintr.Tokenizer.from_pretrained(plain.family.vocabulary or "").encode
    tool_shares, step_shares = [0.0], [0.0]
    for turns, tools in conversations():
        shaped = apply_template(turns, rules)
        without, with_tools = (len(encode(render(template, shaped, each))) for each in ([], tools))
        views = [read_message(turn, index) for index, turn in enumerate(turns)]
        counted = counter.overhead + sum(map(counter.message, views))
        step_shares.append(without / counted - 1)
        tool_shares.append((with_tools - without) / counter.tools(tools) - 1)
    return len(step_shares) - 1, max(tool_shares), max(step_shares)


def main(folder: Path) -> None:
    for model, file in TEMPLATES.items():
        template = environment().from_string((folder / f"{file}.jinja").read_text("utf-8"))
        number, tool_share, step_share = measure(model, template)
        print(f"{model}: tool_margin = {tool_share:.2f}, step_margin = {step_share:.2f} ({number})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
