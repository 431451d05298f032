"""Settings: their sources, their precedence, and the errors of invalid ones."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from brim import config
from brim.cli import main
from brim.config import Config, LoadedConfig, Trust, load
from brim.config.load import user_file
from brim.config.schema import RoutingRule
from brim.config.toml_text import format_key, key_lines
from brim.errors import ConfigError, InputError
from brim.models.pricing import Price
from brim.providers.from_config import choose_model, create_session
from brim.shell.model_clients import ModelClients


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def load_config(
    user: Path | None = None,
    project: Path | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
    trusted: bool = True,
) -> LoadedConfig:
    return load(
        user=user,
        project=project,
        environment=environment or {},
        flags=flags or {},
        trusted=lambda *_: trusted,
    )


def sources(found: LoadedConfig) -> dict[str, str]:
    """Return the source of each value, by dotted key."""
    return {key: setting.source for key, setting in found.settings.items()}


def problems_of(tmp_path: Path, text: str) -> list[str]:
    """Return the problems of a file with this text, without its path."""
    file = write(tmp_path / "config.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return [problem.removeprefix(f"{file}:") for problem in caught.value.problems]


# Layers


def test_without_sources_every_setting_has_its_default() -> None:
    found = load_config()
    assert found.config == Config()
    assert set(sources(found).values()) == {"default"}
    assert found.config.context.policy == "steady"
    assert found.config.count.server == "near"
    assert found.config.short_view.max_turn_chars == 800
    assert found.config.goal.max_steps == 25


def test_each_source_overrides_the_previous_one_key_by_key(tmp_path: Path) -> None:
    user = write(
        tmp_path / "config.toml",
        '[context]\npolicy = "thrift"\nmax_turns = 10\nkeep_recent = 1\n[project]\ndepth = 9\n',
    )
    project = write(
        tmp_path / ".brim.toml", '[context]\npolicy = "sliding"\nmax_turns = 20\nkeep_recent = 2\n'
    )
    found = load_config(
        user,
        project,
        {"BRIM_CONTEXT__POLICY": "rolling", "BRIM_CONTEXT__MAX_TURNS": "30", "BRIM_DATA": "/x"},
        {"context.policy": "steady", "context.token_budget": None},
    )
    context = found.config.context
    assert (context.policy, context.max_turns, context.keep_recent) == ("steady", 30, 2)
    assert found.config.project.depth == 9
    found_sources = sources(found).items()
    assert {key: at for key, at in found_sources if re.fullmatch(r"context\.\w+", key)} == {
        "context.policy": "--policy",
        "context.low_water_mark": "default",
        "context.max_turns": "BRIM_CONTEXT__MAX_TURNS",
        "context.token_budget": "default",
        "context.keep_recent": f"{project}:4",
        "context.recall": "default",
    }
    assert sources(found)["project.depth"] == f"{user}:6"


def test_a_project_can_override_settings_of_a_users_model(tmp_path: Path) -> None:
    user = write(
        tmp_path / "config.toml",
        '[models."gpt-4.1"]\nendpoint = "https://api.openai.com/v1"\nkey_env = "OPENAI_API_KEY"\n'
        'headers = { A = "1", B = "2" }\nprice.input = 0.1\n',
    )
    project = write(
        tmp_path / ".brim.toml",
        '[models."gpt-4.1"]\nwindow = 1000\nheaders.B = "3"\nprice = { output = 2 }\n',
    )
    found = load_config(user, project, {"BRIM_MODELS__GPT_4_1__REPLY": "50"})
    model = found.config.models["gpt-4.1"]
    assert model.endpoint == "https://api.openai.com/v1"
    assert (model.window, model.reply, model.timeout, model.format) == (1000, 50, 600.0, "openai")
    assert model.headers == {"A": "1", "B": "3"}
    assert model.price == Price(input=Decimal("0.1"), output=Decimal(2))
    assert sources(found)['models."gpt-4.1".headers.B'] == f"{project}:3"
    assert sources(found)['models."gpt-4.1".short_view'] == "default"


@pytest.mark.parametrize(("margin", "limit"), [("0", 3_000), ("70", 2_930), (None, 2_400)])
def test_the_margin_of_a_model_is_configured(
    tmp_path: Path, margin: str | None, limit: int
) -> None:
    """Without the setting, it is the uncertainty of the count: 25 % for an unknown model."""
    text = '[models.mine]\nendpoint = "http://127.0.0.1:9/v1"\nwindow = 4000\nreply = 1000\n'
    user = write(tmp_path / "config.toml", text + (f"margin = {margin}\n" if margin else ""))
    found = load_config(user).config
    assert create_session(choose_model(found, "mine", {}), found).budget.limit == limit
    profile = ModelClients(found, {}).profile("mine")
    assert profile.budget(profile.counter()).limit == limit


@pytest.mark.parametrize(
    ("variable", "value", "key", "expected"),
    [
        ("BRIM_COUNT__SERVER", "off", "count.server", "off"),
        ("BRIM_PROJECT__AUTO_TREE", "false", "project.auto_tree", False),
        ("BRIM_COST__CAP_AT_DOLLARS", "2.50", "cost.cap_at_dollars", Decimal("2.50")),
        ("BRIM_MODELS__FAST__ENDPOINT", "http://h:1", "models.fast.endpoint", "http://h:1"),
        ("BRIM_MODELS__FAST__MODEL", "7", "models.fast.model", "7"),
        ("BRIM_MODELS__FAST__HEADERS", '{ X = "y" }', "models.fast.headers.X", "y"),
        ("BRIM_SUMMARY__MAX_CHARS", "1_000", "summary.max_chars", 1000),
        ("BRIM_CONTEXT__POLICY", "", "context.policy", "steady"),
        ("BRIM_GATEWAY__PORT", "9000", "gateway.port", 9000),
        (
            "BRIM_GATEWAY__PASSTHROUGH_PATHS",
            '["/v1/files"]',
            "gateway.passthrough_paths",
            ("/v1/files",),
        ),
        (
            "BRIM_GATEWAY__PASSTHROUGH_PATHS",
            '["/v1/x/*"]',
            "gateway.passthrough_paths",
            ("/v1/x/*",),
        ),
    ],
)
def test_variables_set_the_key_in_their_name(
    variable: str, value: str, key: str, expected: object
) -> None:
    found = load_config(environment={variable: value})
    assert found.settings[key].value == expected
    assert sources(found)[key] == (variable if value else "default")


@pytest.mark.parametrize(
    ("variable", "value", "problem_text"),
    [
        (
            "BRIM_CONTEXT__POLCY",
            "x",
            "context.polcy is not a known key. Did you mean context.policy?",
        ),
        (
            "BRIM_GOAL__MAX_STEPS",
            "many",
            'goal.max_steps must be a whole number of at least 1, not "m',
        ),
        ("BRIM_MODELS__F__HEADERS__X", "y", "models.f.headers can only be set as a whole"),
        ("BRIM_CONTEXT__POLICY__X", "y", "context.policy can only be set as a whole"),
        ("BRIM_MODELS__FAST", "y", "models.fast must be a table of its own, [models.NAME]"),
    ],
)
def test_an_invalid_variable_is_named(variable: str, value: str, problem_text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environment={variable: value})
    assert str(caught.value).startswith(f"{variable}: {problem_text}")


def test_other_variables_are_ignored() -> None:
    environment = {"BRIM_STATE": "/s", "BRIM_OTHER__THING": "1", "BRIM_COST": "3", "PATH": "/bin"}
    assert load_config(environment=environment).config == Config()


@pytest.mark.parametrize("key", ["context.polcy", "polcy"])
def test_an_invalid_flag_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^--polcy: .*Did you mean context\.policy\?"):
        load_config(flags={key: "x"})


def test_an_invalid_upstream_is_reported_with_its_flag() -> None:
    with pytest.raises(
        ConfigError, match=r"^--upstream: upstreams\.default\.endpoint must be a URL"
    ):
        load_config(flags={"upstreams.default.endpoint": "nonsense"})


# What is wrong


@pytest.mark.parametrize(
    ("text", "problem_text"),
    [
        (
            '[context]\npolcy = "x"',
            "2: context.polcy is not a known key. Did you mean context.policy?",
        ),
        ("\nmax_steps = 3", "2: max_steps is not a known key. Did you mean goal.max_steps?"),
        ("[model.fast]", "1: model is not a known key. Did you mean models?"),
        (
            "[goal]\nzzz = 1",
            "2: goal.zzz is not a known key. Known keys: max_steps, max_tokens, max_dollars",
        ),
        (
            'context.policy = "roling"',
            "1: context.policy must be one of steady, thrift, rolling, sliding, recall, "
            'not "roling"; did you mean rolling?',
        ),
        (
            "context.max_turns = 0",
            "1: context.max_turns must be a whole number of at least 1, not 0",
        ),
        (
            "goal.max_steps = true",
            "1: goal.max_steps must be a whole number of at least 1, not true",
        ),
        ("project.depth = 1.5", "1: project.depth must be a whole number of at least 1, not 1.5"),
        ("count.server = 1", "1: count.server must be one of near, always, off, not 1"),
        (
            "cost.cap_at_dollars = -1",
            "1: cost.cap_at_dollars must be an amount of dollars of at least 0, not -1",
        ),
        (
            "cost.cap_at_dollars = nan",
            "1: cost.cap_at_dollars must be an amount of dollars of at least 0, not NaN",
        ),
        ("models.f.timeout = 0", "1: models.f.timeout must be a number of seconds above 0, not 0"),
        ("models.f.model = ' '", '1: models.f.model must be a string, not " "'),
        ("models.f.short_view = 1", "1: models.f.short_view must be true or false, not 1"),
        ("context = 3", "1: context must be a table, not a single value"),
        (
            "[context.policy]",
            "1: context.policy must be one of steady, thrift, rolling, sliding, recall, ",
        ),
        ("[models]\nmodel = 'x'", "2: models.model must be a table of its own, [models.NAME], "),
        ("mcp.a.args = 'x'", '1: mcp.a.args must be a list of strings, not "x"'),
        ("[mcp.a]\nargs = []", "2: mcp.a needs a command or a url"),
        (
            "[mcp.a]\ncommand = 'x'\nurl = 'http://h'",
            "2: mcp.a has both a command and a url. Remove one of them.",
        ),
        ("upstreams.a.models = ['m']", "1: upstreams.a needs an endpoint"),
        (
            "upstreams.a.format = ['openai', 'antropic']",
            "1: upstreams.a.format must be one of openai, anthropic, responses, gemini, "
            'not "antropic"; did you mean anthropic?',
        ),
        ("upstreams.a.format = []", "1: upstreams.a.format must be one or more of openai, anthro"),
        ("upstreams.a.format = 3", "1: upstreams.a.format must be one or more of openai, anthro"),
        (
            "upstreams.a.policy = 'of'",
            "1: upstreams.a.policy must be one of steady, thrift, rolling, sliding, recall, off, "
            'not "of"; did you mean off?',
        ),
        ("gateway.policy = 'off'", "1: gateway.policy must be one of steady, thrift, rolling, sl"),
        ("gateway.port = 65536", "1: gateway.port must be a port from 0 to 65535, not 65536"),
        ("gateway.port = true", "1: gateway.port must be a port from 0 to 65535, not true"),
        ("gateway.prot = 1", "1: gateway.prot is not a known key. Did you mean gateway.port?"),
        (
            "gateway.stop_seconds = 0",
            "1: gateway.stop_seconds must be a number of seconds above 0, not 0",
        ),
        ("routing.rules = 3", "1: routing.rules must be a list of tables, not 3"),
        (
            "[[routing.rules]]\nmatch = 'a'\nmodel = 'm'\n\n[[routing.rules]]\nmatch = '('",
            '6: routing.rules[1].match must be a regular expression, not "("',
        ),
        ("[[routing.rules]]\nmodel = 'm'", "1: routing.rules[0] has no match"),
        ("[[routing.rules]]\nmatch = 'm'", "1: routing.rules[0] needs a class or a model"),
        ("a = 1\nb = \n", "2: not TOML, column 5: Invalid value"),
        ("a = [1,", "1: not TOML: "),
        ("[a]\n[a]", "2: not TOML, column 3: Cannot declare "),
    ],
)
def test_problems_have_a_line_and_the_nearest_valid_key(
    tmp_path: Path, text: str, problem_text: str
) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith(problem_text)


@pytest.mark.parametrize("value", ["nonsense", "ftp://h", "http://", "http://u:p@h", "http://a b"])
def test_an_endpoint_must_be_a_url(tmp_path: Path, value: str) -> None:
    (problem,) = problems_of(tmp_path, f"models.f.endpoint = '{value}'")
    assert problem.startswith("1: models.f.endpoint must be a URL such as http://127.0.0.1")


def test_an_endpoint_has_no_query_or_fragment(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "models.f.endpoint = 'http://h/v1?key=SECRET'")
    assert problem == "1: models.f.endpoint must be a URL without a query or fragment"


@pytest.mark.parametrize(
    "path",
    [
        "v1/moderations",
        "/v1/../x",
        "/v1//x",
        "/v1/x?y=1",
        "/v1/x#y",
        "/v 1",
        "/é",
        "",
        "*",
        "/v1*",
        "/v1/*/x",
        "/v1/**",
        "/v1//*",
    ],
)
def test_a_passthrough_path_is_only_a_path(tmp_path: Path, path: str) -> None:
    (problem,) = problems_of(tmp_path, f"gateway.passthrough_paths = ['/v1/files', '{path}']")
    assert problem.startswith(
        "1: gateway.passthrough_paths must be a list of paths such as /v1/mod"
    )


@pytest.mark.parametrize(
    ("given", "formats"),
    [
        ("'anthropic'", ("anthropic",)),
        ("['openai', 'responses', 'openai']", ("openai", "responses")),
    ],
)
def test_an_upstream_has_one_format_or_several(
    tmp_path: Path, given: str, formats: tuple[str, ...]
) -> None:
    text = f"[upstreams.a]\nendpoint = 'http://h'\nformat = {given}\n"
    found = load_config(write(tmp_path / "config.toml", text))
    assert found.config.upstreams["a"].format == formats


@pytest.mark.parametrize(
    ("endpoint", "formats"),
    [
        ("https://api.openai.com/v1", ("openai", "responses")),
        ("https://api.anthropic.com", ("anthropic",)),
        ("http://127.0.0.1:8080/v1", ("openai",)),
    ],
)
def test_the_formats_of_known_hosts_are_known(endpoint: str, formats: tuple[str, ...]) -> None:
    assert config.UpstreamConfig(endpoint).formats == formats
    assert config.UpstreamConfig(endpoint, format=("responses",)).formats == ("responses",)


def test_variables_alone_can_configure_an_upstream() -> None:
    found = load_config(
        environment={
            "BRIM_UPSTREAMS__OPENAI__ENDPOINT": "https://api.openai.com/v1",
            "BRIM_UPSTREAMS__OPENAI__FORMAT": "responses",
            "BRIM_UPSTREAMS__OPENAI__MODELS": '["gpt-5*"]',
        }
    )
    upstream = found.config.upstreams["openai"]
    assert upstream.endpoint == "https://api.openai.com/v1"
    assert (upstream.format, upstream.models) == (("responses",), ("gpt-5*",))


def test_an_unknown_template_is_reported(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "models.f.template = 'mistrl'")
    assert problem.endswith("did you mean mistral?")
    file = write(tmp_path / "config.toml", "models.f.template = 'Gemma'")
    assert load_config(file).config.models["f"].template == "gemma"


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    user = write(tmp_path / "config.toml", "context.policy = 1\ngoal.max_steps = 0\n")
    project = write(tmp_path / ".brim.toml", "zzz")
    with pytest.raises(ConfigError) as caught:
        load_config(user, project, {"BRIM_COUNT__SERVER": "on"}, {"cost.warn_at_tokens": 0})
    places = [problem.partition(": ")[0] for problem in caught.value.problems]
    own = [f"{user}:1", f"{user}:2"]
    assert sorted(places) == sorted(
        [f"{project}:1", *own, "BRIM_COUNT__SERVER", "--warn-at-tokens"]
    )
    assert str(caught.value).startswith("5 settings are invalid:\n  ")
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(
    "text",
    [
        "models.f.key_env = 'sk-SECRET'",
        "models.f.headers = { A = ['SECRET'] }",
        "models.f.headers = 'SECRET'",
        "models.f.endpoint = 'http://me:SECRET@h'",
        "mcp.f.env = { A = ['SECRET'] }",
        "upstreams.f.key_env = 'sk-SECRET'",
        "upstreams.f.headers = { A = ['SECRET'] }",
        "upstreams.f.endpoint = 'http://me:SECRET@h'",
    ],
)
def test_problems_never_contain_secrets(tmp_path: Path, text: str) -> None:
    assert "SECRET" not in "".join(problems_of(tmp_path, text))


def test_a_long_value_is_abbreviated_in_a_problem(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, f"context.policy = '{'x' * 5000}'")
    assert len(problem) < 200


def test_a_file_that_is_not_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"# one\n# two \xff\n")
    with pytest.raises(ConfigError, match=r":2: the file is not UTF-8"):
        load_config(file)


def test_byte_order_marks_and_crlf_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b'\xef\xbb\xbf[context]\r\npolicy = "rolling"\r\n')
    assert sources(load_config(file))["context.policy"] == f"{file}:2"


def test_the_home_folder_is_shown_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = write(tmp_path / "config.toml", "x = 1")
    with pytest.raises(ConfigError, match=r"^~/config\.toml:1: x is not a known key"):
        load_config(file)


# Lines

TRICKY = '''\
# [not.a.table]
top."quo.ted".'lit' = """
[inside]
key = 1
""" # more
list = [ # ]
  "]", '[', {a = 1},
]

[ a . b ] # [c]
x = 'its # not a comment'
[[rows]]
k = 1
[rows.sub]
j = 2
[[rows]]
k = { deep = 3 }
'''


def test_line_numbers_are_found_in_any_valid_toml() -> None:
    assert key_lines(TRICKY) == {
        ("top",): 2,
        ("top", "quo.ted"): 2,
        ("top", "quo.ted", "lit"): 2,
        ("list",): 6,
        ("a",): 10,
        ("a", "b"): 10,
        ("a", "b", "x"): 11,
        ("rows",): 12,
        ("rows", 0): 12,
        ("rows", 0, "k"): 13,
        ("rows", 0, "sub"): 14,
        ("rows", 0, "sub", "j"): 15,
        ("rows", 1): 16,
        ("rows", 1, "k"): 17,
    }


VALUES = st.one_of(
    st.integers(),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
    st.lists(st.text("[]{}#'\"= ab"), max_size=3),
    st.dictionaries(st.text("ab.#[", min_size=1), st.integers(), max_size=3),
)


@given(st.dictionaries(st.text("ab.#[\"' ", min_size=1), VALUES, max_size=5))
def test_the_line_of_every_key_is_found(values: dict[str, Any]) -> None:
    lines = [
        f"{format_key((key,))} = {config.format_value(value)}" for key, value in values.items()
    ]
    found = key_lines("\n".join(lines))
    assert found == {(key,): number for number, key in enumerate(values, 1)}


# Trust


def test_an_untrusted_overlay_is_not_parsed(tmp_path: Path) -> None:
    project = write(tmp_path / ".brim.toml", "what is this?")
    found = load_config(project=project, trusted=False)
    assert found.config == Config()
    assert found.notices == (f"{project} is not trusted and not used. Run `brim config trust`.",)
    assert [file.state for file in found.files] == ["not trusted"]


def test_trust_ends_when_the_file_changes_or_trust_is_revoked(tmp_path: Path) -> None:
    project = write(tmp_path / ".brim.toml", "context.policy = 'rolling'")
    store = Trust.of({"BRIM_STATE": str(tmp_path / "state")})

    def policy() -> str:
        found = load(user=None, project=project, environment={}, trusted=store.is_trusted)
        return found.config.context.policy

    assert policy() == "steady"
    store.trust(project, config.digest(project.read_bytes()))
    assert policy() == "rolling"
    write(project, "context.policy = 'sliding'")
    assert policy() == "steady"
    store.trust(project, config.digest(project.read_bytes()))
    assert policy() == "sliding"
    assert store.revoke(project)
    assert not store.revoke(project)
    assert policy() == "steady"


def test_the_same_content_in_another_folder_is_not_trusted(tmp_path: Path) -> None:
    store = Trust(tmp_path / "trusted.json")
    store.trust(tmp_path / "a", "digest")
    assert store.is_trusted(tmp_path / "b" / ".." / "a", "digest")
    assert not store.is_trusted(tmp_path / "b", "digest")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_user_can_read_or_write_the_trust_file(tmp_path: Path) -> None:
    store = Trust(tmp_path / "state" / "trusted.json")
    store.trust(tmp_path, "digest")
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in store.path.parent.iterdir()] == ["trusted.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}'])
def test_an_invalid_trust_file_trusts_nothing_and_is_replaced(tmp_path: Path, text: str) -> None:
    store = Trust(write(tmp_path / "trusted.json", text))
    assert not store.is_trusted(tmp_path, "digest")
    store.trust(tmp_path, "digest")
    assert store.is_trusted(tmp_path, "digest")


# Where files are


def test_the_nearest_overlay_in_the_repository_is_used(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "a" / "b"
    inner.mkdir(parents=True)
    outer = write(tmp_path / ".brim.toml", "")
    assert config.project_file(inner) == outer
    (tmp_path / "repository" / ".git").mkdir()
    assert config.project_file(inner) is None
    own = write(tmp_path / "repository" / ".brim.toml", "")
    assert config.project_file(inner) == own


def test_a_user_file_named_by_a_variable_must_exist(tmp_path: Path) -> None:
    named = {"BRIM_CONFIG": str(tmp_path / "my.toml")}
    file = user_file(named)
    assert file == tmp_path / "my.toml"
    with pytest.raises(ConfigError, match="BRIM_CONFIG: file not found: "):
        load_config(file, environment=named)
    assert load_config(file).files[0].state == "not found"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "~/.config/brim/config.toml"), ({"XDG_CONFIG_HOME": "/x"}, "/x/brim/config.toml")],
)
def test_without_platformdirs_default_folders_are_used(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert user_file(environment) == Path(expected).expanduser()
    state = Trust.of({"XDG_STATE_HOME": "/s"}).path
    assert state == Path("/s/brim/trusted.json")


# The example


def uncomment(text: str, *, examples: bool) -> str:
    """Return the example with its keys set: all, or only those that show a default."""
    lines = text.splitlines()
    return "\n".join(
        line.removeprefix("# ")
        for above, line in zip(["", *lines], lines, strict=False)
        if not line.startswith("##") and (examples or not above.endswith("(not set)"))
    )


def test_the_example_sets_nothing(tmp_path: Path) -> None:
    found = load_config(write(tmp_path / "config.toml", config.read_example()))
    assert found.config == Config()


def test_defaults_in_the_example_are_the_real_ones(tmp_path: Path) -> None:
    text = uncomment(config.read_example(), examples=False).replace(
        "[mcp.files]\nargs = []\nallow = []\n", ""
    )
    text = text.replace("[upstreams.openai]\n", "[upstreams.openai]\nendpoint = 'http://h'\n")
    found = load_config(write(tmp_path / "config.toml", text))
    assert found.config == Config(
        models={"fast": config.ModelConfig()},
        upstreams={"openai": config.UpstreamConfig("http://h")},
    )
    assigned = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert len(assigned) > 40
    assert len([source for source in sources(found).values() if source != "default"]) == len(
        assigned
    )


def test_values_in_the_example_are_valid(tmp_path: Path) -> None:
    found = load_config(
        write(tmp_path / "config.toml", uncomment(config.read_example(), examples=True))
    )
    assert found.config.models["fast"].price == Price(
        Decimal("0.25"), Decimal("0.025"), Decimal("2.0"), Decimal("0.25")
    )
    assert found.config.routing.rules == (
        RoutingRule(r"\btranslate\b", class_="text", model="fast"),
    )
    unset = {key for key, source in sources(found).items() if source == "default"}
    assert unset == {"mcp.files.url"}


CLASSES = [
    value
    for name, value in vars(config).items()
    if name.endswith("Config") and is_dataclass(value) and value is not config.LoadedConfig
]


@pytest.mark.parametrize("made", [*CLASSES, Price, RoutingRule], ids=lambda c: c.__name__)
def test_every_key_is_in_the_example(made: type[Any]) -> None:
    text = config.read_example()
    for each in fields(made):
        name = each.name.rstrip("_")
        assert re.search(rf"^(# )?\[?(\w+\.)?{name}\b|\b{name} = ", text, re.MULTILINE)


def test_every_key_has_a_description() -> None:
    undescribed = re.compile(r"^(?!## ).*\n##? (\w+) = ", re.MULTILINE)
    assert undescribed.findall(config.read_example()) == []


# The command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a repository of a user without configuration."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith(("BRIM_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BRIM_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(folder)
    return folder


def brim_config(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", *arguments])


def test_the_command_reports_an_empty_configuration(place: Path) -> None:
    shown = brim_config().stdout.splitlines()
    assert shown[0] == f"{place.parent / 'config/brim/config.toml'}: not found"
    assert shown[-1] == "Nothing is set. Use `brim config --all` to show the defaults."


def test_the_password_in_a_url_is_not_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = "postgresql://brim:s@cret/#@db.example.com/brim"
    user = write(place / "my.toml", f"[gateway]\nstore = '{store}'\n")
    monkeypatch.setenv("BRIM_CONFIG", str(user))
    shown = brim_config().stdout + brim_config("--json").stdout + brim_config("--all").stdout
    assert shown.count("postgresql://***@db.example.com/brim") == 3
    assert "s@cret" not in shown
    assert "cret/#@" not in shown


def test_the_command_shows_settings_with_their_sources(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = write(place / "my.toml", "[models.f]\nendpoint = 'http://h'\nheaders.Key = 'SECRET'\n")
    monkeypatch.setenv("BRIM_CONFIG", str(user))
    monkeypatch.setenv("BRIM_GOAL__MAX_DOLLARS", "0.5")
    assert brim_config().stdout.splitlines() == [
        f"{user}: used",
        "",
        f'models.f.endpoint = "http://h"  # {user}:2',
        f'models.f.headers.Key = "***"    # {user}:3',
        "goal.max_dollars = 0.5          # BRIM_GOAL__MAX_DOLLARS",
    ]
    report = json.loads(brim_config("--json").stdout)
    assert report["settings"]["models.f.headers.Key"] == {"value": "***", "source": f"{user}:3"}
    assert report["settings"]["goal.max_dollars"]["value"] == 0.5
    assert report["files"] == [{"path": str(user), "state": "used"}]
    everything = json.loads(brim_config("--all", "--json").stdout)["settings"]
    assert everything["context.policy"] == {"value": "steady", "source": "default"}
    assert everything["context.max_turns"]["value"] is None
    assert re.search(
        r'^context\.policy = "steady" +# default$', brim_config("--all").stdout, re.MULTILINE
    )


def test_the_command_prints_the_example(place: Path) -> None:  # noqa: ARG001
    assert brim_config("--example").stdout == config.read_example()


def test_the_users_own_file_needs_no_trust_in_any_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place / ".brim.toml", "context.policy = 'rolling'")
    monkeypatch.setenv("BRIM_CONFIG", ".brim.toml")
    assert 'context.policy = "rolling"' in brim_config().stdout
    assert brim_config().stderr == ""


def test_invalid_settings_end_the_command(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_CONFIG", str(write(place / "my.toml", "contxt.policy = 1")))
    ended = brim_config()
    assert ended.exit_code == 2
    problem_text = "contxt is not a known key. Did you mean context?"
    assert ended.stderr == f"brim: {place / 'my.toml'}:1: {problem_text}\n"


def test_an_overlay_is_used_after_it_is_trusted(place: Path) -> None:
    file = write(place / ".brim.toml", "# \u202eturned\ncontext.policy = 'rolling'\n")
    assert (
        f"brim: {file} is not trusted and not used. Run `brim config trust`."
        in brim_config().stderr
    )
    unconfirmed = brim_config("trust")
    assert unconfirmed.exit_code == 2
    assert "--yes" in unconfirmed.stderr
    shown = brim_config("trust", "--yes")
    assert shown.exit_code == 0
    assert "# \\u202eturned\ncontext.policy = 'rolling'\n" in shown.stdout
    assert f'context.policy = "rolling"  # {file}:2' in brim_config().stdout
    assert "already" in brim_config("trust", str(place)).stdout
    assert "no longer trusted" in brim_config("trust", "--revoke").stdout
    assert "was not trusted" in brim_config("trust", "--revoke").stdout
    assert f"{file}: not trusted" in brim_config().stdout


def test_only_a_valid_overlay_can_be_trusted(place: Path) -> None:
    assert brim_config("trust", "--yes").stderr == (
        "brim: .brim.toml not found in this folder or its parents.\n"
    )
    write(place / ".brim.toml", "x = 1")
    ended = brim_config("trust", "--yes")
    assert ended.exit_code == 2
    assert ".brim.toml:1: x is not a known key" in ended.stderr
    assert brim_config("trust", "--yes", "missing.toml").exit_code == 2
    assert brim_config("--json", "trust").exit_code == 2


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_the_user_is_asked_on_a_terminal(place: Path, answer: bytes, code: int) -> None:
    write(place / ".brim.toml", "context.policy = 'rolling'\n")
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "brim.cli", "config", "trust"]
    run = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.write(screen, answer)
    shown = b""
    with suppress(OSError):  # on Linux, if the other side is closed
        while some := os.read(screen, 65_536):
            shown += some
    os.close(screen)
    assert run.wait() == code
    assert b"Trust this file? [y/N]" in shown
    assert (code == 0) == ("rolling" in brim_config("--json").stdout)
