from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from brim.storage.calibration_store import MIGRATIONS, CalibrationStore, default_path


def test_saved_data_is_there_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "calibration.sqlite3"
    one = CalibrationStore(path)
    assert one.load("http://h", "m") is None
    one.save("http://h", "m", {"ratio": 1.25})
    one.save("http://h", "m", {"ratio": 1.27, "limit": 8_192})
    one.save("http://h", "n", {})
    two = CalibrationStore(path)
    assert two.load("http://h", "m") == {"ratio": 1.27, "limit": 8_192}
    assert two.load("http://h/m", "") is None
    assert two.all() == {
        ("http://h", "m"): {"ratio": 1.27, "limit": 8_192},
        ("http://h", "n"): {},
    }
    assert (one.problem, two.problem) == (None, None)


def test_forgotten_data_is_deleted(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path / "l")
    for endpoint, model in (("a", "m"), ("a", "n"), ("b", "m")):
        store.save(endpoint, model, {"x": 1})
    store.forget("a", "m")
    assert set(store.all()) == {("a", "n"), ("b", "m")}
    store.forget("a")
    assert set(store.all()) == {("b", "m")}
    store.forget()
    assert store.all() == {}
    assert store.load("b", "m") is None


def test_other_users_cannot_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.sqlite3"
    CalibrationStore(path).save("a", "m", {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_file_is_created_before_the_first_use(tmp_path: Path) -> None:
    CalibrationStore(tmp_path / "x" / "l")
    assert list(tmp_path.iterdir()) == []


def broken(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 100)


def folder(path: Path) -> None:
    path.mkdir()


def under_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


def other_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE calibration (x)")


def no_json(path: Path) -> None:
    CalibrationStore(path).save("a", "m", {"x": 0})
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE calibration SET data = '{'")


@pytest.mark.parametrize("spoil", [broken, folder, under_a_file, other_table])
def test_an_unusable_file_does_not_fail(spoil: object, tmp_path: Path) -> None:
    path = tmp_path / "d" / "l"
    path.parent.mkdir()
    assert callable(spoil)
    spoil(path)
    store = CalibrationStore(path)
    assert store.load("a", "m") is None
    store.save("a", "m", {"x": 1})
    assert store.load("a", "m") == {"x": 1}
    assert store.all() == {("a", "m"): {"x": 1}}
    assert store.problem is not None
    assert str(path) in store.problem
    store.forget("a")
    assert store.all() == {}


def test_an_invalid_row_is_replaced(tmp_path: Path) -> None:
    no_json(tmp_path / "l")
    store = CalibrationStore(tmp_path / "l")
    assert store.load("a", "m") is None
    store.save("a", "m", {"x": 1})
    assert store.load("a", "m") == {"x": 1}
    assert store.problem is None


def test_a_file_of_a_newer_version_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "l"
    CalibrationStore(path).save("a", "m", {"x": 1})
    with closing(sqlite3.connect(path)) as base, base:
        base.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 5}")
    store = CalibrationStore(path)
    store.save("a", "m", {"x": 2})
    assert store.load("a", "m") == {"x": 2}
    assert "newer brim" in str(store.problem)
    with closing(sqlite3.connect(path)) as base:
        assert base.execute("SELECT data FROM calibration").fetchall() == [('{"x":1}',)]
        assert base.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 5,)


WRITER = """
import sys
from brim.storage.calibration_store import CalibrationStore
learned = CalibrationStore(sys.argv[1])
for number in range(25):
    learned.save("h", f"{sys.argv[2]}-{number}", {"n": number})
assert learned.problem is None, learned.problem
"""


def test_several_processes_write_concurrently(tmp_path: Path) -> None:
    path = tmp_path / "l"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(name)]) for name in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len(CalibrationStore(path).all()) == 100


def test_several_threads_write_concurrently(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path / "l")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.save("h", str(number), {"n": number}), range(60)))
    assert len(store.all()) == 60
    assert store.problem is None


def test_the_folder_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRIM_STATE", str(tmp_path))
    assert default_path() == tmp_path / "calibration.sqlite3"
    CalibrationStore().save("a", "m", {"x": [1, None, "ü"]})
    assert CalibrationStore().load("a", "m") == json.loads('{"x": [1, null, "ü"]}')
    monkeypatch.delenv("BRIM_STATE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path().name == "calibration.sqlite3"
