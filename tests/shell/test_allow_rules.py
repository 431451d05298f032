"""What need not be asked again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.shell.approval.allow_rules import LONGEST, AllowRules, simple_commands, suggest_prefix

RULES = AllowRules(
    prefixes=(
        "git status",
        "git log",
        "ls",
        "npm test",
        "grep",
        "sort",
        "docker compose ps",
        "make test",
    )
)


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git status -s",
        "  git   status\t-s  ",
        "git 'status'",
        'git "sta"tus',
        "ls",
        "ls -la /tmp 'a b' \"c d\" *.py",
        "ls && git status",
        "git status || ls; ls",
        "git log --oneline -5 | grep fix | sort -u",
        "ls\ngit status",
        "grep 'a\\.b' x",
        "ls /nowhere 2>/dev/null",
        "ls > /dev/null 2>&1",
        "npm test -- --watch=false",
        "docker compose ps -a",
        "grep ';' file",
        "grep '$(rm -rf x)' file",
        "grep 'a && b' \"x | y\"",
        "grep ü ä",
    ],
)
def test_a_rule_allows_what_begins_with_its_words(command: str) -> None:
    assert RULES.allows_command(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "   ",
        "# git status",
        "git",
        "git push",
        "git -C /tmp status",
        "git statusx",
        "gits tatus",
        "'git status'",
        "git $(echo status)",
        "docker compose up",
        "/bin/ls",
        "./ls",
        "LS",
        "l\\s",
        "ls \\\n  -l",
        "ls \n\\rm x",
        "ls \"'\\'\"",
        # more than one command, and one of them is not allowed
        "ls; rm -rf /",
        "ls && rm x",
        "ls || rm x",
        "ls | sh",
        "ls\nrm x",
        "rm x; ls",
        "ls & rm x",
        "ls |& sh",
        # substitutions, and what the shell puts in
        "ls $(rm x)",
        "ls `rm x`",
        'ls "$(rm x)"',
        'ls "a`rm x`"',
        "ls <(rm x)",
        "ls >(rm x)",
        "ls ${X:-$(rm x)}",
        "ls $((a[$(rm x)]))",
        "ls $HOME",
        'ls "$HOME"',
        "ls $'\\x2d'",
        "$X ls",
        # what is around a command
        "PATH=/tmp ls",
        "X=1",
        "! ls",
        "(ls)",
        "{ ls; }",
        "if ls; then ls; fi",
        "for x in 1; do ls; done",
        "while ls; do ls; done",
        "case ls in ls) ls;; esac",
        "ls() { rm x; }",
        "function ls { rm x; }",
        "ls &",
        "sudo ls",
        "env ls",
        "time ls",
        "coproc ls",
        "exec ls",
        "[[ -f x ]] && ls",
        # files that are written or read
        "ls > file",
        "ls >> file",
        "ls &> file",
        "ls 2> file",
        "ls >| file",
        "> file ls",
        "ls < file",
        "ls <> file",
        "ls >& file",
        "ls > /dev/null > file",
        "ls > /dev/null file",
        "ls > /dev/null/../file",
        "grep x <<< y",
        "grep x << E\n$(rm x)\nE",
        # options of harmless programs that are not harmless
        "git log --output=file",
        "git log --outp file",
        "git log --ext-diff",
        "grep x --exec=rm",
        "make test -f file",
        "make test --eval=x",
        "sort -o file",
        "sort -uo file",
        "sort --compress-program=sh",
        # what cannot be read
        "ls 'a",
        'ls "a',
        "ls (",
        "ls; )",
        "ls && ",
        "ls\0rm",
        "ls\rrm x",
        "ls\u00a0-l",
        "ls \u202e",
        "ls \ud800",
        "ls # and more",
        "ls " + "x" * LONGEST,
    ],
)
def test_in_doubt_a_rule_allows_nothing(command: str) -> None:
    assert not RULES.allows_command(command)


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("ls -la", "ls"),
        ("git status -s", "git status"),
        ("git stash list", "git stash list"),
        ("git push origin main", "git push"),
        ("npm test", "npm test"),
        ("npm run build -- --fast", "npm run build"),
        ("make test", "make test"),
        ("docker compose ps", "docker compose ps"),
        ("cargo build --release", "cargo build"),
        ("kubectl get pods", "kubectl get"),
        ("pytest -q tests", "pytest"),
        ("cat 'a file'", "cat"),
        ("ls > /dev/null", "ls"),
        ("gcc-12 x.c", "gcc-12"),
    ],
)
def test_the_prefix_that_always_allows(command: str, prefix: str) -> None:
    assert suggest_prefix(command) == prefix
    assert AllowRules().with_command(prefix).allows_command(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "git",
        "git -C x status",
        "git --no-pager log",
        "git 'a b'",
        "git config alias.x '!rm y'",
        "git bisect run rm",
        "npm",
        "npm exec x",
        "npm run",
        "npx x",
        "docker run x",
        "docker compose exec x y",
        "uv run x",
        "uv pip install x",
        "pip install x",
        "sh -c ls",
        "bash x.sh",
        "python -c 1",
        "python3.12 x.py",
        "python",
        "node -e 1",
        "perl5.36 -e 1",
        "sudo ls",
        "doas ls",
        "env ls",
        "xargs rm",
        "find . -name x",
        "awk 1 x",
        "sed -n 1p x",
        "ssh host ls",
        "curl https://example.com",
        "eval ls",
        "exec ls",
        "command ls",
        "time ls",
        "timeout 1 ls",
        ". x",
        "source x",
        "rm x",
        "mkfs.ext4 /dev/x",
        "tee x",
        "./x",
        "/bin/ls",
        "~/x",
        "x*",
        "-x",
        "ls $(pwd)",
        "ls | wc",
        "ls; pwd",
        "ls > x",
        "X=1 ls",
        "ls 'x",
    ],
)
def test_where_always_is_not_offered(command: str) -> None:
    assert suggest_prefix(command) is None


def test_a_line_is_read_into_its_commands() -> None:
    assert simple_commands("a 'b c' && d\"e\" | f; g 1") == (
        ("a", "b c"),
        ("de",),
        ("f",),
        ("g", "1"),
    )


SAFE = st.sampled_from(["ls", "git status", "grep 'x y' z", "sort -u"])
OTHER = st.sampled_from(["rm x", "git push", "sh", "sudo ls", "lsx"])
JOINT = st.sampled_from([" && ", " || ", "; ", " | ", "\n"])


@given(st.lists(SAFE | OTHER, min_size=1, max_size=6), st.data())
def test_a_line_is_allowed_if_and_only_if_each_of_its_commands_is(
    commands: list[str], data: st.DataObject
) -> None:
    line = commands[0] + "".join(data.draw(JOINT) + command for command in commands[1:])
    assert RULES.allows_command(line) == all(map(RULES.allows_command, commands))


COMMANDS = ("ls", "git status", "rm", " ", " ", " ", "\n", "&&", "|", ";", "&")
SIGNS = ("$(", ")", "`", "'", '"', "<", ">", "> x", "/dev/null", "2>&1", "{", "}", "\\", "#", "=")
PIECES = st.sampled_from([*COMMANDS, *SIGNS, "!", "~", "*", "1", "$X"])
NOTING = 'command_not_found_handle() { printf "%s\\n" "$1" >> "$NOTES"; }\n'


def run_by_bash(line: str) -> set[str]:
    """The programs that bash would start for a line; there are none, so nothing happens."""
    with TemporaryDirectory() as folder:
        work, notes = Path(folder, "work"), Path(folder, "notes")
        work.mkdir()
        subprocess.run(
            [shutil.which("bash") or "bash", "-c", NOTING + line],
            cwd=work,
            env={"PATH": str(work), "NOTES": str(notes), "X": "y"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert not [*work.iterdir()]
        return set(notes.read_text().splitlines()) if notes.exists() else set()


@given(st.lists(PIECES, min_size=1, max_size=9).map("".join))
@example("ls")
@example("ls \n\\rm")
@example("ls 1|git status>/dev/null 2>&1;ls *")
def test_what_is_allowed_starts_nothing_else(line: str) -> None:
    if RULES.allows_command(line):
        assert run_by_bash(line) <= {"ls", "git"}


def test_bash_would_tell() -> None:
    assert run_by_bash("ls; $(rm x) | sh") == {"ls", "rm", "sh"}


@given(st.text(max_size=30))
def test_any_text_gets_an_answer(text: str) -> None:
    prefix = suggest_prefix(text)
    assert prefix is None or AllowRules((prefix,)).allows_command(prefix)


# Tools, and what is kept


def test_tools_are_allowed_one_by_one() -> None:
    rules = AllowRules().with_tool("files", "read")
    assert rules.allows_tool("files", "read")
    assert not rules.allows_tool("files", "write")
    assert not rules.allows_tool("other", "read")
    assert not AllowRules().allows_command("ls")


def test_rules_last() -> None:
    rules = AllowRules().with_command("git  status").with_tool("files", "read")
    again = rules.with_command("git status").with_tool("files", "read")
    assert again == rules
    assert AllowRules.from_dict(json.loads(json.dumps(rules.to_dict()))) == rules
    assert AllowRules.from_dict(AllowRules().to_dict()) == AllowRules() == AllowRules.from_dict({})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"commands": "ls", "tools": []},
        {"commands": None},
        {"tools": {}},
        {"commands": [""], "tools": []},
        {"commands": [" "], "tools": []},
        {"commands": [1], "tools": []},
        {"commands": [], "tools": ["ab"]},
        {"commands": [], "tools": [["a"]]},
        {"commands": [], "tools": [["a", 1]]},
    ],
)
def test_invalid_rules_are_rejected(data: object) -> None:
    with pytest.raises(InputError):
        AllowRules.from_dict(data)


@pytest.mark.parametrize("prefix", ["", "  ", "\n"])
def test_a_rule_for_everything_is_rejected(prefix: str) -> None:
    with pytest.raises(InputError, match="first words"):
        AllowRules().with_command(prefix)
