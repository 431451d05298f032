"""Tab completion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import to_formatted_text

from brim.shell.input.classification import Classification
from brim.shell.input.classify import classify
from brim.shell.input.completer import ShellCompleter, list_paths, quote_path, unquote
from brim.shell.input.program_names import ProgramNames
from brim.shell.input.simple_commands import KnownNames

NAMES = frozenset(
    (":", "cat", "cd", "git", "grep", "man", "sudo", "time", "make", "ls", "echo", "find")
)
MODELS = ("fast", "Flash large", "slow")
METAS = {
    "model": lambda _: MODELS,
    "models": lambda _: (),
    "memory": lambda _: ("add", "list", "forget"),
    "mcp": lambda typed: (f"{typed.split()[0]} files",) if " " in typed else ("connect", "list"),
    "help": lambda _: ("model",),
}
HELP = {"model": "Talk to another model."}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for place in ("src/deep", "my folder", ".hidden", "home/notes"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("notes.txt", "my file.txt", ".env", "src/main.py", "src/it's", "größe", "a$b"):
        (tmp_path / name).touch()
    (home / "notes.md").touch()
    monkeypatch.setenv("HOME", str(home))
    return tmp_path


@pytest.fixture
def completer(folder: Path) -> ShellCompleter:
    known = KnownNames(NAMES.__contains__, lambda path: (folder / path).exists(), METAS)

    def decide(line: str) -> Classification:
        return classify(line, known)

    return ShellCompleter(
        metas=METAS, help=HELP, names=lambda: NAMES, folder=lambda: folder, classify=decide
    )


def list_completions(completer: ShellCompleter, text: str, behind: str = "") -> list[str]:
    """Return the line up to the cursor for each completion."""
    document = Document(text + behind, cursor_position=len(text))
    return [
        text[: len(text) + completion.start_position] + completion.text
        for completion in completer.get_completions(document, CompleteEvent())
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":mo", [":model", ":models"]),
        ("/mo", ["/model", "/models"]),
        (":", [":help", ":mcp", ":memory", ":model", ":models"]),
        (":x", []),
        (":model f", [":model fast", ":model Flash large"]),
        (":model ", [":model fast", ":model Flash large", ":model slow"]),
        ("/model s", ["/model slow"]),
        (":model flash l", [":model Flash large"]),
        (":memory  a", [":memory  add"]),
        (":mcp connect f", [":mcp connect files"]),
        (":models x", []),
        (":nothing x", []),
        ("  :hel", ["  :help"]),
    ],
)
def test_meta_commands_are_completed(
    completer: ShellCompleter, text: str, expected: list[str]
) -> None:
    assert list_completions(completer, text) == expected


def test_meta_commands_are_completed_with_their_help(completer: ShellCompleter) -> None:
    found = completer.get_completions(Document(":model"), CompleteEvent())
    assert [one.display_meta_text for one in found] == ["Talk to another model.", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g", ["git", "grep"]),
        ("!g", ["!git", "!grep"]),
        ("! gi", ["! git"]),
        ("?g", []),
        ("", []),
        ("A=1 gi", ["A=1 git"]),
        ("ls | gr", ["ls | grep"]),
        ("ls|gr", ["ls|grep"]),
        ("ls && ma", ["ls && make", "ls && man"]),
        ("ls; gi", ["ls; git"]),
        ("(gi", ["(git"]),
        ("ls\ngi", ["ls\ngit"]),
        ("sudo gi", ["sudo git"]),
        ("time ma", ["time make", "time man"]),
        ("man gr", ["man grep"]),
        ("ls | ", []),
    ],
)
def test_commands(completer: ShellCompleter, text: str, expected: list[str]) -> None:
    assert list_completions(completer, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat no", ["cat notes.txt"]),
        ("cat notes.txt no", ["cat notes.txt notes.txt"]),
        ("cat my", ["cat my\\ file.txt", "cat my\\ folder/"]),
        ("cat my\\ fi", ["cat my\\ file.txt"]),
        ('cat "my fi', ['cat "my file.txt"']),
        ('cat "my fo', ['cat "my folder/']),
        ("cat 'my fi", ["cat 'my file.txt'"]),
        ("cat src/", ["cat src/deep/", "cat src/it\\'s", "cat src/main.py"]),
        ("cat 'src/it", ["cat 'src/it'\\''s'"]),
        ("cat ./src/m", ["cat ./src/main.py"]),
        ("cat .", ["cat .env", "cat .hidden/"]),
        ("cat grö", ["cat größe"]),
        ("cat a", ["cat a\\$b"]),
        ('cat "a', ['cat "a\\$b"']),
        ("cat ~", ["cat ~/"]),
        ("cat ~/n", ["cat ~/notes/", "cat ~/notes.md"]),
        ('cat "~/n', []),
        ("cat ~nosuchuser/n", []),
        ("cat missing/", []),
        ("cd s", ["cd src/"]),
        ("cd n", []),
        ("cat < no", ["cat < notes.txt"]),
        ("ls >no", ["ls >notes.txt"]),
        ("make --file=no", ["make --file=notes.txt"]),
        ("A=no", ["A=notes.txt"]),
        ("git add no", ["git add notes.txt"]),
        ("ls | grep x no", ["ls | grep x notes.txt"]),
        ("!nosuch no", ["!nosuch notes.txt"]),
        ("./sr", ["./src/"]),
        ("src/ma", ["src/main.py"]),
        (": > no", [": > notes.txt"]),
    ],
)
def test_files_of_commands(completer: ShellCompleter, text: str, expected: list[str]) -> None:
    assert list_completions(completer, text) == expected


def test_hidden_files_are_not_completed(completer: ShellCompleter) -> None:
    found = completer.get_completions(Document("ls "), CompleteEvent())
    shown = [one.display_text for one in found]
    assert shown == ["a$b", "größe", "home/", "my file.txt", "my folder/", "notes.txt", "src/"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what is in ./no", ["what is in ./notes.txt"]),
        ("what is in ./my", ["what is in ./my file.txt", "what is in ./my folder/"]),
        ("what is ~/notes.", ["what is ~/notes.md"]),
        ("find the bug in ./src/m", ["find the bug in ./src/main.py"]),
        ("what's in ./no", ["what's in ./notes.txt"]),
        ("find what's in ./no", ["find what's in ./notes.txt"]),
        ("?./no", ["?./notes.txt"]),
        ("? cat ./no", ["? cat ./notes.txt"]),
        ("what is in @no", ["what is in @notes.txt"]),
        ("@src/m", ["@src/main.py"]),
        ("?(see @src/m", ["?(see @src/main.py"]),
        ("curl -d @no", ["curl -d @notes.txt"]),
        ("mail me@no", []),
        ("what is no", []),
        ("this and/no", []),
        ("what is ./no ", []),
        ("find the no", []),
    ],
)
def test_files_of_sentences(completer: ShellCompleter, text: str, expected: list[str]) -> None:
    assert list_completions(completer, text) == expected


def test_a_slash_is_completed_as_root_and_as_prefix(
    completer: ShellCompleter, folder: Path
) -> None:
    top = "/" + folder.parts[1]
    assert f"{top}/" in list_completions(completer, top)
    assert {"/model", f"{top}/"} <= set(list_completions(completer, "/"))
    assert f"ls {folder}/notes.txt" in list_completions(completer, f"ls {folder}/n")


def test_text_after_the_cursor_changes_nothing(completer: ShellCompleter) -> None:
    assert list_completions(completer, "cat no", behind=" | sort") == ["cat notes.txt"]
    assert list_completions(completer, ":mo", behind=" fast") == [":model", ":models"]


def test_unprintable_names_are_not_completed(folder: Path) -> None:
    (folder / "no\nnewline").touch()
    assert list(list_paths("no", folder)) == ["notes.txt"]
    assert list(list_paths("n\0", folder)) == list(list_paths("n\0/x", folder)) == []


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_line_can_be_completed(text: str) -> None:
    known = KnownNames(NAMES.__contains__, lambda _: False, METAS)
    completer = ShellCompleter(
        metas=METAS,
        help=HELP,
        names=lambda: NAMES,
        folder=lambda: Path("/nowhere"),
        classify=lambda line: classify(line, known),
    )
    for completion in completer.get_completions(Document(text), CompleteEvent()):
        assert -len(text) <= completion.start_position <= 0


@given(st.text().filter(str.isprintable), st.sampled_from("\"' "))
def test_a_quoted_path_is_unquoted_to_itself(path: str, quote: str) -> None:
    assert unquote(quote_path(path, quote.strip()))[0] == path


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        program(folder / f"in-{folder.name}")
        (folder / "notes.txt").touch(mode=0o644)
        (folder / "folder").mkdir()
    return one, two


def program(path: Path) -> None:
    path.touch()
    path.chmod(0o755)


def test_programs_are_the_executables_on_path(folders: tuple[Path, Path]) -> None:
    path = os.pathsep.join([*map(str, folders), "", str(folders[0]), "/nowhere"])
    programs = ProgramNames(lambda: path)
    assert programs() == {"in-one", "in-two"}


def test_a_program_is_found_before_and_after_the_scan(folders: tuple[Path, Path]) -> None:
    programs = ProgramNames(lambda: str(folders[0]))
    for _ in range(2):
        names = ("in-one", "in-two", "notes.txt", "folder", "", str(folders[0] / "in-one"))
        assert [programs.is_command(name) for name in names] == [True, *[False] * 5]
        programs()


def test_a_changed_path_is_scanned_again(folders: tuple[Path, Path]) -> None:
    path = str(folders[0])
    programs = ProgramNames(lambda: path)
    assert programs() == {"in-one"}
    path = str(folders[1])
    assert programs.is_command("in-two")
    assert not programs.is_command("in-one")
    assert programs() == {"in-two"}


def test_a_refresh_finds_new_programs(folders: tuple[Path, Path]) -> None:
    programs = ProgramNames(lambda: str(folders[0]))
    programs.refresh().join()
    program(folders[0] / "new")
    os.utime(folders[0], ns=(1, 1))  # two changes within one clock tick look like one
    assert not programs.is_command("new")
    assert programs() == {"in-one"}
    programs.refresh().join()
    assert programs.is_command("new")
    assert programs() == {"in-one", "new"}


def complete_arguments(words: Sequence[str]) -> list[str]:
    offers = {"git": ["checkout", "--amend="], "ls": ["notes.txt", "src"], "cat": []}
    return [offer for offer in offers[words[0]] if offer.startswith(words[-1])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git che", ["git checkout "]),
        ("git commit --am", ["git commit --amend="]),
        ("ls no", ["ls notes.txt"]),
        ("ls s", ["ls src/"]),
        ("cat no", ["cat notes.txt"]),
        ("ls $NO", ["ls $NODE", "ls $NOISE"]),
        ('ls "${NOI', ['ls "${NOISE']),
        ("git > no", ["git > notes.txt"]),
    ],
)
def test_arguments_that_the_shell_offers(folder: Path, text: str, expected: list[str]) -> None:
    known = KnownNames(NAMES.__contains__, lambda path: (folder / path).exists(), METAS)
    completer = ShellCompleter(
        metas={}, help={}, names=lambda: NAMES, folder=lambda: folder,
        classify=lambda line: classify(line, known), programmed=complete_arguments,
        variables=lambda: ("NODE", "NOISE", "PATH"), has_colors=True,
    )  # fmt: skip
    assert list_completions(completer, text) == expected


def test_files_have_the_colors_of_ls(folder: Path) -> None:
    (folder / "run").touch(0o755)
    known = KnownNames(NAMES.__contains__, lambda path: (folder / path).exists(), METAS)
    completer = ShellCompleter(
        metas={}, help={}, names=lambda: NAMES, folder=lambda: folder,
        classify=lambda line: classify(line, known), has_colors=True,
    )  # fmt: skip
    found = completer.get_completions(Document("ls "), CompleteEvent())
    # A style of the completion itself would be lost once a common prefix is inserted.
    rest = [each.new_completion_from_position(0) for each in found]
    styles = {each.display_text: to_formatted_text(each.display)[0][0] for each in rest}
    assert (styles["src/"], styles["run"], styles["notes.txt"]) == (
        "fg:ansiblue",
        "fg:ansigreen",
        "",
    )
