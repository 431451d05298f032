"""The doctor, with real files and a real llama.cpp."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from brim.cli.accounts import check_account_store
from brim.config import LoadedConfig, load
from brim.errors import ConfigError
from brim.gateway.accounts.keys import create_key, hash_secret
from brim.gateway.accounts.sqlite.store import SqliteAccountStore
from brim.providers.local import LocalServer
from brim.shell.setup import CheckResult
from brim.shell.setup.doctor import format_check, is_healthy, run_checks
from tests.support.fixtures import LlamaWith
from tests.support.shell.model_lists import VLLM, free_port, serve_models
from tests.support.wire.strict_templates import GEMMA

Checked = Callable[..., list[CheckResult]]
PATIENT = 20.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"BRIM_STATE": str(tmp_path / "state"), "HOME": str(tmp_path)}


def load_text(
    tmp_path: Path, text: str, environment: Mapping[str, str], *, project: str | None = None
) -> LoadedConfig | ConfigError:
    """Load a configuration from text; return the error if it is invalid."""
    user, overlay = tmp_path / "config.toml", tmp_path / ".brim.toml"
    user.write_text(text)
    if project is not None:
        overlay.write_text(project)
    try:
        return load(
            user=user,
            project=None if project is None else overlay,
            environment=environment,
            trusted=lambda *_: False,
        )
    except ConfigError as error:
        return error


@pytest.fixture
def checked(tmp_path: Path, environment: dict[str, str]) -> Checked:
    """Return a function that runs all checks for a configuration given as text."""

    def check(text: str = "", *, project: str | None = None, **more: str) -> list[CheckResult]:
        known = {**environment, **more}
        loaded = load_text(tmp_path, text, known, project=project)
        extra = [check_account_store]
        return list(run_checks(loaded, known, ports=[], patience=PATIENT, extra=extra))

    return check


def find_check(checks: list[CheckResult], name: str) -> CheckResult:
    (found,) = [check for check in checks if check.name == name]
    return found


def small(server: LocalServer, **settings: object) -> str:
    """Return the configuration of a model `small` at a server."""
    given = {"endpoint": server.url, "model": server.model, "key_env": "SMALL_KEY", **settings}
    rows = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    return "\n".join(["[models.small]", *rows])


def test_installed_extras_are_listed(checked: Checked) -> None:
    checks = checked()
    version = find_check(checks, "version")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in version.message
    assert find_check(checks, "extras").state == "ok"


def test_a_real_model_passes_all_checks(checked: Checked, llama: LocalServer) -> None:
    checks = checked(small(llama), SMALL_KEY=llama.key)
    assert is_healthy(checks)
    host = llama.url.removeprefix("http://").removesuffix("/v1")
    shown_text = {check.name: (check.state, check.message) for check in checks}
    assert shown_text["small: server"] == (
        "ok",
        f"{host} responds, llama.cpp, and offers {llama.model}",
    )
    assert shown_text["small: window"] == ("ok", "2,048 tokens, from the server (/props)")
    assert shown_text["small: counting"][1].endswith("and the server counts")
    assert shown_text["small: template"][1].endswith("(by trial)")
    assert shown_text["small: price"][0] == "ok"
    assert llama.key not in repr(checks)


def test_the_rules_of_a_strict_template_are_shown(checked: Checked, llama_with: LlamaWith) -> None:
    server = llama_with(window=1024, template=GEMMA)
    tried = find_check(checked(small(server), SMALL_KEY=server.key), "small: template")
    assert tried.message.startswith("roles alternate, one system message")
    assert tried.message.endswith("(by trial)")
    given = checked(small(server, template="mistral"), SMALL_KEY=server.key)
    assert find_check(given, "small: template").message.endswith("(given)")


def test_a_window_larger_than_the_servers_is_a_warning(
    checked: Checked, llama: LocalServer
) -> None:
    window = find_check(checked(small(llama, window=9_000), SMALL_KEY=llama.key), "small: window")
    assert window.state == "warn"
    assert "9,000" in window.message
    assert window.advice == "set models.small.window = 2048, or remove it"


def test_a_server_is_not_used_for_counting_if_disabled(
    checked: Checked, llama: LocalServer
) -> None:
    text = '[count]\nserver = "off"\n' + small(llama)
    counting = find_check(checked(text, SMALL_KEY=llama.key), "small: counting")
    assert counting.message.endswith("and the server is not used for counting (count.server)")


def test_a_key_that_is_missing_or_wrong_is_bad_and_never_shown(
    checked: Checked, llama: LocalServer
) -> None:
    missing = checked(small(llama))
    assert find_check(missing, "small: key") == CheckResult(
        "small: key", "warn", "SMALL_KEY is not set", "export SMALL_KEY=…"
    )
    assert find_check(missing, "small: server").state == "bad"
    wrong = checked(small(llama), SMALL_KEY="wrong-key-0815")
    assert find_check(wrong, "small: server").state == "bad"
    assert "wrong-key-0815" not in repr(wrong)


def test_a_key_that_a_server_repeats_is_masked(checked: Checked) -> None:
    body = {"error": {"message": "no such key: wrong-key-0815 or header-0815"}}
    with serve_models({"*": body}, status=401) as server:
        checks = checked(
            f'[models.x]\nendpoint = "{server.url}"\nkey_env = "X_KEY"\n'
            'headers = { X-Team = "header-0815" }\nwindow = 8192\n',
            X_KEY="wrong-key-0815",
        )
    assert server.keys == ["Bearer wrong-key-0815"]
    assert find_check(checks, "x: server").state == "bad"
    assert "0815" not in repr(checks)


def test_an_unreachable_server_is_bad(checked: Checked) -> None:
    checks = checked(
        f'[models.x]\nendpoint = "http://127.0.0.1:{free_port()}"\nmodel = "gpt-5-mini"'
    )
    assert find_check(checks, "x: server").state == "bad"
    assert find_check(checks, "x: window").message == "400,000 tokens, from the catalog"
    assert "exact, with o200k_base" in find_check(checks, "x: counting").message
    assert find_check(checks, "x: price").message.endswith("out, per million tokens")
    assert not is_healthy(checks)


def test_a_model_unknown_to_its_server_is_bad(checked: Checked) -> None:
    with serve_models(VLLM) as server:
        checks = checked(f'[models.x]\nendpoint = "{server.url}"\nmodel = "other"')
    assert find_check(checks, "x: server").state == "bad"
    assert find_check(checks, "x: server").advice == "it offers Qwen/Q-7B"


def test_a_missing_model_list_is_accepted_but_an_error_is_not(checked: Checked) -> None:
    text = '[models.x]\nendpoint = "{}"\nwindow = 8192'
    with serve_models({}) as server:
        listless = find_check(checked(text.format(server.url)), "x: server")
    with serve_models({"*": {"error": {"message": "out of order"}}}, status=500) as server:
        broken = find_check(checked(text.format(server.url)), "x: server")
    assert listless.state == "ok"
    assert listless.message.endswith("it does not list its models")
    assert broken.state == "bad"
    assert "out of order" in broken.message


def test_an_unknown_window_or_price_comes_with_advice(checked: Checked) -> None:
    answer = {"/v1/models": {"data": [{"id": "unheard-of"}]}}
    with serve_models(answer) as server:
        checks = checked(f'[models.unheard-of]\nendpoint = "{server.url}"')
    assert find_check(checks, "unheard-of: server").state == "ok"
    assert find_check(checks, "unheard-of: window").state == "bad"
    assert find_check(checks, "unheard-of: window").advice == "set models.unheard-of.window"
    assert find_check(checks, "unheard-of: counting").message.startswith(
        "an estimate with o200k_base"
    )
    assert find_check(checks, "unheard-of: price").state == "warn"


def test_a_model_without_a_server_is_bad_unless_it_is_the_embedded_one(checked: Checked) -> None:
    checks = checked("[models.x]\nwindow = 5\n[models.local]\nwindow = 2048\n")
    assert find_check(checks, "x: server").advice == "set models.x.endpoint to its URL"
    assert find_check(checks, "model local") == CheckResult(
        "model local", "ok", "is the embedded model"
    )


def test_every_configuration_error_is_listed_with_its_line(checked: Checked) -> None:
    checks = checked('[context]\npolicy = "stedy"\n[cots]\n')
    wrong = [check for check in checks if check.name == "configuration"]
    assert [check.state for check in wrong] == ["bad", "bad"]
    assert any("config.toml:2" in check.message and "steady" in check.message for check in wrong)
    assert any("config.toml:3" in check.message for check in wrong)


def test_an_untrusted_file_is_listed(checked: Checked) -> None:
    used, overlay = [
        check for check in checked("", project="[context]") if check.name == "configuration"
    ]
    assert (used.state, overlay.state) == ("ok", "warn")
    assert ".brim.toml is ignored" in overlay.message
    assert overlay.advice == "brim config trust"


def test_unconfigured_local_servers_are_found(tmp_path: Path, environment: dict[str, str]) -> None:
    with serve_models(VLLM) as one, serve_models(VLLM) as other:
        text = f'[models.x]\nendpoint = "http://localhost:{one.port}/v1"\nmodel = "Qwen/Q-7B"'
        loaded = load_text(tmp_path, text, environment)
        checks = list(
            run_checks(loaded, environment, ports=[one.port, other.port], patience=PATIENT)
        )
    found = find_check(checks, "found")
    assert found.message == f"vLLM at {other.url}, Qwen/Q-7B, 32,768 tokens"
    assert found.advice is not None
    assert f'endpoint = "{other.url}", model = "Qwen/Q-7B"' in found.advice


def test_the_embedded_model_is_suggested_if_there_is_no_other(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    monkeypatch.setenv("BRIM_DATA", str(tmp_path / "data"))
    missing = find_check(checked(), "embedded model")
    assert (missing.state, missing.advice) == ("warn", "get it with `brim local`")
    with_key = checked(OPENAI_API_KEY="sk-1")
    assert find_check(with_key, "embedded model").state == "ok"
    (tmp_path / "data/models").mkdir(parents=True)
    (tmp_path / "data/models" / weights.name).symlink_to(weights)
    assert find_check(checked(), "embedded model").state == "ok"


def test_the_state_folder_must_be_private(checked: Checked, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert "will be created" in find_check(checked(), "state folder").message
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    assert find_check(checked(), "state folder").state == "ok"
    folder.chmod(0o755)
    loose = find_check(checked(), "state folder")
    assert loose.state == "warn"
    assert (loose.advice or "").startswith("chmod 700 ")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert list(folder.iterdir()) == []


def test_a_state_folder_that_cannot_be_created_is_bad(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        state = find_check(checked(BRIM_STATE=str(place)), "state folder")
        assert state.state == "bad"
        assert state.advice == "set BRIM_STATE to another folder"


def test_the_account_store_is_checked_but_not_created(checked: Checked, tmp_path: Path) -> None:
    path = tmp_path / "state" / "accounts.sqlite3"
    later = find_check(checked(), "account store")
    assert (later.state, later.message) == ("ok", f"{path} will be created with the first key")
    assert not path.parent.exists()
    key, secret = create_key("anna")

    async def added() -> None:
        store = SqliteAccountStore(path)
        await store.add_key(key, hash_secret(secret))
        await store.close()

    asyncio.run(added())
    there = find_check(checked(), "account store")
    assert (there.state, there.message) == ("ok", f"{path} opens; active keys: 1")
    assert secret not in repr(there)


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        ("postgresql://brim:hush@127.0.0.1:1/brim", "127.0.0.1:1"),
        ("redis://:hush@127.0.0.1:1/0", "127.0.0.1:1"),
        ("redis://brim:hush[ss@host/0", "Invalid Redis URL"),
        ("broken.sqlite3", "broken.sqlite3: file is not a database"),
    ],
)
def test_an_account_store_that_does_not_open_is_bad(
    checked: Checked, tmp_path: Path, store: str, reason: str
) -> None:
    (tmp_path / "broken.sqlite3").write_text("no database, " * 1_000)
    place = store if "://" in store else str(tmp_path / store)
    check = find_check(checked(f"[gateway]\nstore = {json.dumps(place)}"), "account store")
    assert (check.state, check.advice) == ("bad", "set gateway.store to another address")
    assert reason in check.message
    assert "hush" not in repr(check)


def test_a_check_and_its_advice_take_one_line_each() -> None:
    assert list(format_check(CheckResult("extras", "warn", "none", "pip install"))) == [
        "warn  extras               none",
        "                           pip install",
    ]


@pytest.fixture
def doctor(
    tmp_path: Path, environment: dict[str, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `brim doctor` with its own configuration file."""

    def run(
        text: str, *arguments: str, first: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(first, *arguments),
            env=alone(tmp_path, text, {**environment, **variables}),
            cwd=tmp_path,
            capture_output=True,
            check=False,
            timeout=120,
            encoding="utf-8",
        )

    return run


def command(first: str, *arguments: str) -> list[str]:
    start = f"{first}\nimport brim.cli.doctor; from brim.cli import main; main()"
    return [sys.executable, "-c", start, "doctor", *arguments]


def alone(folder: Path, text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without this machine's keys, with this configuration."""
    config = folder / "config.toml"
    config.write_text(text)
    clean = {name: value for name, value in os.environ.items() if "_KEY" not in name}
    return {**clean, **environment, "BRIM_CONFIG": str(config), "PYTHONUTF8": "1"}


def test_the_command_ends_with_0_if_nothing_is_bad(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = doctor("")
    assert done.returncode == 0, done.stderr
    assert "configuration        ~/config.toml is used" in done.stdout
    assert "terminal             not a terminal" in done.stdout


def test_the_command_ends_with_1_if_something_is_bad(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = doctor('[models.x]\nmodel = "gpt-5-mini"\n', "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert {
        "name": "x: server",
        "state": "bad",
        "message": "has no endpoint",
        "advice": "set models.x.endpoint to its URL",
    } in report["checks"]
    wrong = doctor("nonsense")
    assert wrong.returncode == 1
    assert "bad   configuration" in wrong.stdout
    assert "Traceback" not in wrong.stderr


def test_it_works_without_any_extra_and_lists_missing_ones(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    without = "import sys; sys.modules.update(httptools=None, splintr=None, mcp=None)"
    done = doctor('[models.x]\nendpoint = "http://127.0.0.1:1"', first=without)
    assert done.returncode == 1, done.stderr
    assert (
        "warn  extras               client is not installed: connecting to servers" in done.stdout
    )
    assert "pip install 'brim[models]'" in done.stdout
    assert "pip install 'brim[shell]'" in done.stdout
    assert "bad   model x              Connecting to servers needs httptools" in done.stdout


def test_an_encoding_other_than_utf8_is_a_warning(
    doctor: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = doctor("", PYTHONIOENCODING="latin-1")
    assert "warn  terminal             its encoding is" in done.stdout
    assert "LC_ALL=C.UTF-8" in done.stdout


@pytest.mark.parametrize(
    ("variables", "columns", "shown_text"),
    [
        ({"TERM": "xterm-256color"}, 100, "ok    terminal             xterm-256color, 100 columns"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, 100, "no colors (NO_COLOR)"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, 100, "true color"),
        ({"TERM": "dumb"}, 100, "warn  terminal             dumb, 100 columns"),
        ({"TERM": "xterm"}, 50, "warn  terminal             xterm, 50 columns, 16 colors"),
    ],
)
def test_a_terminal_is_described(
    tmp_path: Path,
    environment: dict[str, str],
    variables: dict[str, str],
    columns: int,
    shown_text: str,
) -> None:
    known = alone(tmp_path, "", {**environment, "NO_COLOR": "", "COLORTERM": "", **variables})
    known = {name: value for name, value in known.items() if name not in ("COLUMNS", "LINES")}
    program, *arguments = command("")
    child = pexpect.spawn(
        program,
        arguments,
        env=known,
        cwd=str(tmp_path),
        dimensions=(40, columns),
        encoding="utf-8",
        timeout=60,
    )
    shown = child.read()
    child.close()
    assert shown_text in shown
