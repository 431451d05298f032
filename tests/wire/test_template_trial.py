"""Rules of templates found by trial: small templates, rendered by jinja2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.errors import InputError
from brim.fitting.profile import ModelProfile
from brim.tokens import counter_for
from brim.wire.template_adapter import apply_template
from brim.wire.template_renderer import TemplateRejectionError, TemplateRenderer
from brim.wire.template_rules import PERMISSIVE, describe_rules, list_changes
from brim.wire.template_source import find_rules, read_template
from brim.wire.template_trial import (
    ALL_FEATURES,
    Feature,
    RenderJob,
    TemplateVerdict,
    find_features,
    render_job,
    run_trial,
    try_template,
    try_text,
)
from tests.support.strategies import Raw, history
from tests.support.wire.strict_templates import (
    ALL,
    CHATML,
    GEMMA,
    LLAMA,
    MISTRAL,
    NEMO,
    PHI,
    QWEN,
    R1,
)

TOOLS: list[Raw] = [{"type": "function", "function": {"name": "run", "parameters": {}}}]
ALTERNATING = {
    "alternate": True,
    "one_system": True,
    "orphans": False,
    "unanswered": False,
    "other_roles": False,
}


@pytest.mark.parametrize(
    ("template", "changes"),
    [
        (MISTRAL, {**ALTERNATING, "ids": "nine", "call_text": False}),
        (GEMMA, {**ALTERNATING, "system": "user", "tool_role": False, "call_text": False}),
        (LLAMA, {"parallel": False, "call_text": False}),
        (QWEN, {"one_system": True, "other_roles": False, "needs_user": True}),
        (PHI, {"tool_role": False, "other_roles": False, "call_text": False}),
        (NEMO, {"system": "user", "one_system": True, "call_text": False, "repeats": False}),
        (R1, {"call_content": "null", "call_text": False}),
        (CHATML, {"call_content": "empty", "tools": False}),
    ],
)
def test_a_trial_finds_the_rules_of_a_template(template: str, changes: dict[str, Any]) -> None:
    verdict = try_text(template)
    assert verdict is not None
    found = list_changes(verdict.rules)
    assert {key: found.get(key) for key in changes} == changes


def test_a_template_that_accepts_everything_has_no_rules() -> None:
    verdict = try_text(
        "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
        "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    )
    assert verdict is not None
    assert verdict.rules.free


MANUAL = "The crew of this boat reads the manual first and asks the harbour master after. "
WORDY = (
    "{{ today }}<|begin|>"
    "{% if messages[0].role != 'system' %}<|system|>"
    + 20 * MANUAL
    + "{% endif %}{% if tools %}"
    + 5 * MANUAL
    + "{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}<|assistant|>"
)


def count_lines(number: int) -> int:
    return counter_for(None).text(number * MANUAL)


def test_a_trial_measures_the_text_that_a_template_adds() -> None:
    verdict = try_text(WORDY)
    assert verdict is not None
    assert verdict.rules.free
    assert list_changes(verdict.rules) == {
        "default_system": pytest.approx(count_lines(20), abs=20),
        "tool_text": pytest.approx(count_lines(5), abs=20),
    }
    assert TemplateVerdict.from_dict(verdict.to_dict()) == verdict


@pytest.mark.parametrize("with_tools", [False, True])
def test_requests_of_an_unknown_model_count_the_text_that_its_template_adds(
    with_tools: bool,
) -> None:
    tools = TOOLS if with_tools else None
    silent = WORDY.replace(MANUAL, "")
    for messages, lines in ((history("u2"), 20), (history("s2 u2"), 0)):
        expected = count_lines(lines + 5 * with_tools)
        bodies = [
            brim.fit(messages, window=9_000, tools=tools, template=text) for text in (WORDY, silent)
        ]
        assert bodies[0].plan.tokens - bodies[1].plan.tokens == pytest.approx(expected, abs=20)
        sessions = [
            brim.Session(window=9_000, tools=tools, template=text) for text in (WORDY, silent)
        ]
        for session in sessions:
            for message in messages:
                session.append(message)
        more, less = (session.request().plan.tokens for session in sessions)
        assert more - less == pytest.approx(expected, abs=20)


@pytest.mark.parametrize("template", ALL)
def test_a_trial_needs_at_most_twenty_renderings(template: str) -> None:
    renderer, jobs = TemplateRenderer(template), []

    def render(job: RenderJob) -> str | None:
        jobs.append(job)
        return render_job(renderer, job)

    assert run_trial(try_template(ALL_FEATURES), render) is not None
    assert len(jobs) <= 20


BLOCKS = ("s2", "u2", "a2", "c3 r2", "cc3 r2 r2", "c3 r2 a2")


@given(st.sampled_from(ALL), st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=9))
def test_adapted_conversations_are_rendered_completely(template: str, blocks: list[str]) -> None:
    messages = history(" ".join([*blocks, "u2"]))
    verdict = try_text(template)
    assert verdict is not None
    prompt = TemplateRenderer(template).render(apply_template(messages, verdict.rules), TOOLS)
    for message in messages:
        assert (message["content"] or "").strip() in prompt


def test_a_conversation_is_tried_only_for_what_it_uses() -> None:
    plain = find_features(history("s2 u2"), None)
    assert plain == {"turns"}
    assert find_features(history("u2 c3 r2"), None) == {"turns", "steps"}
    assert find_features(history("u2"), TOOLS) == {"turns", "steps", "tools"}
    assert find_features([{"role": "developer", "content": "a"}], None) == {"turns", "roles"}
    jobs = next(try_template(plain))
    assert not any("tool_calls" in turn for job in jobs for turn in job.messages)


@pytest.mark.parametrize(("template", "is_printed"), [(NEMO, True), (CHATML, False)])
def test_only_tools_that_a_template_prints_take_tokens(template: str, is_printed: bool) -> None:
    counter = ModelProfile("acme/unknown", template=template).counter()
    assert bool(counter.tools(TOOLS)) is bool(counter.tool_margin(TOOLS, 8_000)) is is_printed


def test_a_template_that_renders_nothing_has_no_verdict() -> None:
    assert try_text("{{ raise_exception('no') }}") is None
    assert try_text("nothing") is None


def test_rules_are_described() -> None:
    assert describe_rules(PERMISSIVE) == "every conversation is accepted"
    assert describe_rules(find_rules("llama-3")) == "one call per turn, no text next to calls"
    assert describe_rules(find_rules(R1)).startswith("null content next to calls")


def test_a_verdict_survives_storage() -> None:
    verdict = try_text(NEMO)
    assert verdict is not None
    assert TemplateVerdict.from_dict(verdict.to_dict()) == verdict


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"rules": []},
        {"rules": {"alternate": True}, "features": ["turns"]},
        {"rules": {}, "features": 7},
    ],
)
def test_an_invalid_stored_verdict_is_ignored(data: object) -> None:
    assert TemplateVerdict.from_dict(data) is None


def test_a_verdict_covers_features_of_the_same_template() -> None:
    turns: frozenset[Feature] = frozenset(("turns",))
    verdict = TemplateVerdict(PERMISSIVE, turns, "a")
    assert verdict.covers(turns, "a")
    assert not verdict.covers(turns, "b")
    assert not verdict.covers(ALL_FEATURES, "a")


# Rendering


def test_an_invalid_template_is_an_input_error() -> None:
    with pytest.raises(InputError, match="Invalid chat template"):
        TemplateRenderer("{% if %}")


def test_a_template_cannot_leave_its_sandbox() -> None:
    renderer = TemplateRenderer("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}")
    with pytest.raises(TemplateRejectionError):
        renderer.render([])


def test_arguments_are_objects_unless_a_template_wants_text() -> None:
    calling = history("u1 c3")[1:]
    arguments = "messages[0].tool_calls[0].function.arguments"
    as_object = TemplateRenderer(f"{{{{ {arguments}.keys() | join }}}}")
    assert as_object.render(calling) == "command"
    as_text = TemplateRenderer(f"{{{{ 'x' + {arguments} }}}}")
    assert as_text.render(calling).startswith('x{"command"')


# Sources of templates


def test_the_text_of_a_template_replaces_the_name_of_its_rules() -> None:
    assert find_rules(GEMMA).system == "user"
    assert find_rules(GEMMA) is find_rules(GEMMA)


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    jinja, config = tmp_path / "gemma.jinja", tmp_path / "tokenizer_config.json"
    jinja.write_text(GEMMA)
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": GEMMA}]}))
    assert find_rules(str(jinja)) == find_rules(GEMMA) == find_rules(str(config))


def test_a_template_is_read_from_a_model(short_weights: Path) -> None:
    assert "<|im_start|>" in read_template(str(short_weights))
    changes = list_changes(find_rules(str(short_weights)))
    assert changes == {
        "call_content": "empty",
        "tools": False,
        "default_system": pytest.approx(22, abs=2),
    }


@pytest.mark.parametrize("name", ["missing.jinja", "empty.json", "odd.gguf", "short.gguf"])
def test_a_file_without_a_template_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "odd.gguf").write_bytes(b"GG")
    (tmp_path / "short.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(InputError, match="chat template"):
        find_rules(str(tmp_path / name))


def test_a_template_that_renders_nothing_is_an_input_error() -> None:
    with pytest.raises(InputError, match="renders no conversation"):
        find_rules("{{ raise_exception('no') }}")


def test_tags_and_filters_of_model_servers_are_known() -> None:
    text = (
        "{% generation %}{{ {'é': '<'} | tojson }}{% endgeneration %}{{ strftime_now('%d %b %Y') }}"
    )
    assert TemplateRenderer(text).render([]) == '{"é": "<"}01 Jan 2026'
