"""The project's tree, with real folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.shell import project_tree as trees
from brim.shell.project_tree import build_tree, find_root


def make_files(folder: Path, *names: str, **contents: str) -> Path:
    """Create files, and folders for names that end with a slash."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("")
    for name, content in contents.items():
        (folder / f".{name}").write_text(content)
    return folder


def lines(folder: Path, **options: int) -> list[str]:
    return build_tree(folder, **options).splitlines()


def test_folders_come_first_and_levels_are_indented(tmp_path: Path) -> None:
    make_files(tmp_path, "b.py", "A.py", "src/brim/api.py", "src/x.py", "docs/")
    assert build_tree(tmp_path) == "docs/\nsrc/\n brim/\n  api.py\n x.py\nA.py\nb.py"


def test_levels_below_the_depth_are_not_read(tmp_path: Path) -> None:
    make_files(tmp_path, "a/b/c/d.py", "a/e.py")
    assert lines(tmp_path, depth=1) == ["a/"]
    assert lines(tmp_path, depth=2) == ["a/", " b/", " e.py"]


@pytest.mark.parametrize(
    ("ignore", "shown"),
    [
        ("*.log\n", ["src/", " build/", "  out.o", " main.c", "keep.txt"]),
        ("build/\n", ["src/", " main.c", "a.log", "keep.txt"]),
        ("/src\n", ["a.log", "keep.txt"]),
        ("*\n!keep.txt\n", ["keep.txt"]),
        ("# *.txt\n\n*.log", ["src/", " build/", "  out.o", " main.c", "keep.txt"]),
        ("*.o\n!\n///\n*.log\n", ["src/", " build/", " main.c", "keep.txt"]),
    ],
)
def test_what_git_ignores_is_not_shown(tmp_path: Path, ignore: str, shown: list[str]) -> None:
    make_files(tmp_path, "a.log", "keep.txt", "src/main.c", "src/build/out.o", gitignore=ignore)
    assert [line for line in lines(tmp_path) if line != ".gitignore"] == shown


def test_a_deeper_ignore_file_takes_precedence(tmp_path: Path) -> None:
    make_files(tmp_path, "a/x.log", "a/y.log", "b/x.log", "b/z.py", gitignore="*.log\n")
    make_files(tmp_path / "a", gitignore="!x.log\n")
    make_files(tmp_path / "b", gitignore="/z.py\n")
    assert lines(tmp_path) == ["a/", " .gitignore", " x.log", "b/", " .gitignore", ".gitignore"]


def test_ignore_files_of_the_surrounding_repository_apply(tmp_path: Path) -> None:
    make_files(
        tmp_path, ".git/info/exclude", "sub/a.py", "sub/b.tmp", "sub/c.bak", gitignore="*.tmp\n"
    )
    (tmp_path / ".git/info/exclude").write_text("*.bak\n")
    assert lines(tmp_path / "sub") == ["a.py"]
    assert lines(tmp_path) == ["sub/", " a.py", ".gitignore"]


def test_an_ignored_root_is_shown(tmp_path: Path) -> None:
    make_files(tmp_path, ".git/", "out/a.py", "out/b.tmp", gitignore="out/\n*.tmp\n")
    assert lines(tmp_path / "out") == ["a.py", "b.tmp"]


def test_caches_and_environments_are_omitted_without_being_ignored(tmp_path: Path) -> None:
    make_files(
        tmp_path, ".git/HEAD", ".venv/x", "__pycache__/x", ".mypy_cache/x", "a/__pycache__/b.pyc"
    )
    make_files(
        tmp_path, "node_modules/react/index.js", "env/pyvenv.cfg", "env/bin/python", "target/x"
    )
    make_files(tmp_path, "target/CACHEDIR.TAG")
    assert lines(tmp_path) == ["a/", "env/", "node_modules/", "target/"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    make_files(tmp_path, "project/a.py", "elsewhere/secret.txt")
    (tmp_path / "project/loop").symlink_to(tmp_path / "project")
    (tmp_path / "project/out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "project/gone").symlink_to(tmp_path / "nowhere")
    assert lines(tmp_path / "project") == ["a.py", "gone", "loop", "out"]


def test_a_name_cannot_add_lines(tmp_path: Path) -> None:
    make_files(tmp_path, "a\nb\x1b[31m.py", "ok")
    with (tmp_path / os.fsdecode(b"\xff.txt")).open("w"):
        assert lines(tmp_path) == ["a?b?[31m.py", "ok", "?.txt"]


def test_unreadable_folders_are_skipped(tmp_path: Path) -> None:
    make_files(tmp_path, "file.py")
    assert build_tree(tmp_path / "nowhere") == ""
    assert build_tree(tmp_path / "file.py") == ""


def test_a_listed_only_folder_is_shown_without_contents(tmp_path: Path) -> None:
    make_files(tmp_path, "closed/a.py", "b.py")
    closed = tmp_path / "closed"
    closed.chmod(0)
    inside = [" a.py"] if os.access(closed, os.R_OK | os.X_OK) else []  # root can read everything
    try:
        assert lines(tmp_path) == ["closed/", *inside, "b.py"]
    finally:
        closed.chmod(0o700)


def test_the_longest_lists_are_shortened_first(tmp_path: Path) -> None:
    make_files(
        tmp_path, *(f"many/file-{n:03}.py" for n in range(100)), "few/a.py", "few/b.py", "c.py"
    )
    shown = build_tree(tmp_path, max_chars=300)
    assert shown.splitlines()[:4] == ["few/", " a.py", " b.py", "many/"]
    assert shown.splitlines()[-1] == "c.py"
    left = 103 - sum(1 for line in shown.splitlines() if line.endswith(".py"))
    assert shown.splitlines()[-2] == f" … {left} more"


def test_a_level_is_dropped_before_lists_become_too_short(tmp_path: Path) -> None:
    folders = [f"folder-{n}" for n in range(9)]
    make_files(tmp_path, *(f"{name}/file-{n:03}.py" for name in folders for n in range(9)))
    make_files(tmp_path, "small/one.py")
    shown = build_tree(tmp_path, max_chars=260)
    assert shown.splitlines()[0] == "folder-0/ … 9 inside"
    assert shown.endswith("small/\n one.py")


def test_unread_entries_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_ENTRIES", 15)
    monkeypatch.setattr(trees, "MAX_IN_FOLDER", 10)
    make_files(tmp_path, *(f"a/{n:02}" for n in range(40)), *(f"b/{n:02}" for n in range(40)))
    shown = lines(tmp_path)
    assert [line for line in shown if "…" in line] == [" … more", " … more"]
    assert sum(line.startswith(" ") and "…" not in line for line in shown) == 13
    assert lines(tmp_path, max_chars=40) == ["a/ … over 10 inside", "b/ … over 3 inside"]
    assert lines(tmp_path, max_chars=20) == ["… 2 more"]


@given(
    paths=st.lists(
        st.lists(
            st.sampled_from(["a", "bb", "c.py", "długi-plik-nazwa.txt", "z" * 60]), min_size=1
        ),
        max_size=40,
    ),
    depth=st.integers(1, 5),
    room=st.integers(0, 400),
)
def test_the_text_fits_and_everything_is_shown_or_counted(
    paths: list[list[str]], depth: int, room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for path in paths:
        folder.joinpath(*(f"{name}-" for name in path)).mkdir(parents=True, exist_ok=True)
        folder.joinpath(*(f"{name}-" for name in path[:-1]), path[-1]).touch()
    found = build_tree(folder, depth=depth, max_chars=room)
    assert len(found) <= room
    assert build_tree(folder, depth=depth, max_chars=room) == found
    for shown, number in count_entries(found, folder).items():
        is_read = found and len(shown.relative_to(folder).parts) < depth
        assert number == (len(list(shown.iterdir())) if is_read else 0)


def count_entries(tree: str, root: Path) -> dict[Path, int]:
    """Return how many entries of each folder are listed or counted in a note."""
    path, counts = [root], {root: 0}
    for line in tree.splitlines():
        level = len(line) - len(line.lstrip(" "))
        del path[level + 1 :]
        name, _, note = line.strip().partition("… ")
        number = int(note.split()[0]) if note else 0
        counts[path[-1]] += 1 if name else number
        if name.strip().endswith("/"):
            path.append(path[-1] / name.strip())
            counts[path[-1]] = number
    return counts


def test_the_root_is_the_nearest_folder_of_a_project(tmp_path: Path) -> None:
    home = make_files(
        tmp_path, "home/", "home/.git/", "home/work/.git/", "home/work/a/package.json"
    )
    make_files(tmp_path, "home/work/a/src/", "home/work/b/c/", "home/notes/old/", "elsewhere/x/")
    home = tmp_path / "home"

    def root(path: str) -> Path | None:
        return find_root(tmp_path / path, home=home)

    assert root("home/work/a/src") == home / "work/a"
    assert root("home/work/b/c") == home / "work"
    assert root("home/notes/old") == home / "notes/old"
    assert root("elsewhere/x") == tmp_path / "elsewhere/x"


def test_the_home_folder_and_its_parents_have_no_tree(tmp_path: Path) -> None:
    home = make_files(tmp_path, "home/.git/", "home/me/.git/") / "home/me"
    link = tmp_path / "link"
    link.symlink_to(home)
    for folder in (home, home.parent, tmp_path, Path("/"), link):
        assert find_root(folder, home=home) is None
    assert find_root(home, home=link) is None
