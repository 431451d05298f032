"""`brim ask` with the real embedded model."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from brim.providers.local import LocalServer
from brim.storage import Database, SpendLog
from brim.testing import ErrorReply, ScriptedServer
from tests.support.forked import run_forked
from tests.support.shell.driver import PROGRAM, Home
from tests.support.terminal import Terminal

Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ask(tmp_path: Path, llama: LocalServer) -> Ask:
    """Return a function that runs the command, isolated, with a model named `small`."""
    settings = tmp_path / "config.toml"
    settings.write_text(
        f'[models.small]\nendpoint = "{llama.url}"\nmodel = "{llama.model}"\n'
        'key_env = "SMALL_KEY"\nreply = 100\n'
    )
    clean = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    environment = {
        **clean,
        "BRIM_CONFIG": str(settings),
        "BRIM_STATE": str(tmp_path / "state"),
        "BRIM_DATA": str(tmp_path / "data"),
        "SMALL_KEY": llama.key,
    }

    def run(*arguments: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return run_forked(
            ["ask", *arguments],
            given=given,
            environment={**environment, **variables},
            folder=tmp_path,
            timeout=120,
        )

    return run


def test_the_reply_goes_to_standard_output(ask: Ask) -> None:
    done = ask("Say something.", "--max-tokens", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_piped_input_is_sent_and_clipped_to_fit(ask: Ask) -> None:
    lines = "\n".join(f"{n} drwxr-xr-x file-{n}.py" for n in range(900))
    done = ask("What is this?", "--max-tokens", "3", "--json", given=lines)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["usage"]["input"] <= 2_048 - 100
    assert answer["plan"]["before"] > 2_048
    assert "clipped 1" in done.stderr
    assert answer["cost"] == "0"


def test_piped_input_alone_is_the_question(ask: Ask) -> None:
    assert ask("--max-tokens", "2", given="Say something.").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "says"),
    [
        ((), {}, 2, "no question"),
        (("hi", "-m", "smal"), {}, 2, "Did you mean small"),
        (("hi",), {"BRIM_CONTEXT__POLICY": "stedy"}, 2, "steady"),
        (("hi " * 4_000,), {}, 3, "last user"),
        (("hi",), {"SMALL_KEY": "wrong"}, 4, "key"),
        (("hi",), {"BRIM_MODELS__SMALL__ENDPOINT": "http://127.0.0.1:9"}, 4, "cannot be reached"),
    ],
)
def test_failures_have_a_message_and_an_exit_code(
    ask: Ask, arguments: tuple[str, ...], variables: dict[str, str], code: int, says: str
) -> None:
    done = ask(*arguments, **variables)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_configuration_the_embedded_model_replies(
    ask: Ask, tmp_path: Path, weights: Path
) -> None:
    (tmp_path / "config.toml").write_text("")
    assert "brim local" in ask("hi").stderr
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / weights.name).symlink_to(weights)
    done = ask("hi", "--max-tokens", "2")
    assert done.returncode == 0, done.stderr


def test_the_cost_is_recorded_with_that_of_all_runs(ask: Ask, tmp_path: Path) -> None:
    assert ask("Say something.", "--max-tokens", "2").returncode == 0
    spending = SpendLog(Database(tmp_path / "state"))
    (spent,) = spending.by("model", "category", "project")
    assert spent.keys == ("small", "main", str(tmp_path))
    assert spent.total.usage.output > 0
    assert spent.total.format_cost() == "$0.00"


def test_a_daily_cap_rejects_before_sending(ask: Ask, tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    price = "price = { input = 1000.0, output = 1000.0 }\n"
    settings.write_text(settings.read_text() + price + "[cost]\ncap_per_day_dollars = 0.001\n")
    done = ask("Say something.")
    assert done.returncode == 3
    assert "cap_per_day_dollars" in done.stderr
    assert SpendLog(Database(tmp_path / "state")).by("model") == []


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[Hgone \x9b31m\x90q\x9c \x08\x08 \u202eback\r over"


@pytest.mark.parametrize("reply", [HOSTILE, ErrorReply(400, HOSTILE)])
def test_a_model_cannot_control_the_terminal(tmp_path: Path, reply: str | ErrorReply) -> None:
    home = Home(tmp_path)
    with ScriptedServer([reply]) as provider:
        home.configure(provider)
        command = [*PROGRAM, "ask", "hello"]
        with Terminal(
            command, environment=home.environment, folder=tmp_path, columns=150, rows=40
        ) as terminal:
            terminal.wait_for_end()
            terminal.wait_for("gone")
            written = terminal.written.decode()
    assert not re.search(
        r"[^\x20-\x7e\n\u00a0-\u200d\u2010-\u2027\u2030-\uffff]", written.replace("\r\n", "\n")
    )


def test_a_reply_in_a_pipe_is_unchanged(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with ScriptedServer([HOSTILE]) as provider:
        home.configure(provider)
        command = [*PROGRAM, "ask"]
        done = subprocess.run(
            command, env=home.environment, cwd=tmp_path, capture_output=True, check=True,
            input=b"hello",
        )  # fmt: skip
    assert done.stdout.decode() == f"{HOSTILE}\n"
