"""`brim fit` on data sets: formats, folders, shards, interruptions, reports."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
import zstandard
from click.testing import CliRunner, Result
from pyarrow import feather, parquet

from brim.batch import Fitter
from brim.cli import main
from tests.support.chats import CHAT, TOO_MUCH, make_chat, make_sharegpt

BRIM = [sys.executable, "-m", "brim.cli"]
WINDOW = ["--window", "400", "-m", "gpt-4o"]
ROWS: list[Any] = [{"id": i, "messages": make_chat(i, 1 + i % 4)} for i in range(20)]
ROWS[7]["messages"] = TOO_MUCH
EXPECTED: list[Any] = Fitter(model="gpt-4o", window=400)(ROWS)


def brim_command(*arguments: object, given: bytes | str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=given)


def to_lines(rows: Iterable[object]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def write(path: Path, rows: list[Any]) -> Path:
    """Write rows in the format of the file's extensions."""
    name = path.name
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif name.endswith(".arrow"):
        feather.write_feather(pyarrow.Table.from_pylist(rows), str(path))
    else:
        data = json.dumps(rows).encode() if ".json" in path.suffixes else to_lines(rows)
        pack: Callable[[bytes], bytes] = bytes
        if name.endswith(".gz"):
            pack = gzip.compress
        elif name.endswith(".zst"):
            pack = zstandard.compress
        path.write_bytes(pack(data))
    return path


def read(path: Path) -> list[Any]:
    name = path.name
    if name.endswith((".parquet", ".arrow")):
        format = parquet if name.endswith(".parquet") else feather
        rows: list[Any] = format.read_table(path).to_pylist()
        return rows
    data = path.read_bytes()
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    elif name.endswith(".zst"):
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            data = reader.read()
    return (
        json.loads(data) if ".json" in path.suffixes else list(map(json.loads, data.splitlines()))
    )


# Formats

KINDS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".parquet", ".arrow")
PAIRS = [(kind, KINDS[(place + step) % 7]) for place, kind in enumerate(KINDS) for step in (0, 2)]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_format_can_be_read_and_written(source: str, target: str, tmp_path: Path) -> None:
    given, out = write(tmp_path / f"in{source}", ROWS), tmp_path / f"out{target}"
    result = brim_command("fit", given, *WINDOW, "-o", out)
    assert read(out) == EXPECTED
    assert result.exit_code == 3
    assert "shape: messages" in result.stderr
    assert "errors: 1 ContextOverflowError" in result.stderr
    assert "input cost: $" in result.stderr


@pytest.mark.parametrize("source", [".jsonl", ".parquet", ".arrow"])
def test_no_rows_become_an_output_without_rows(source: str, tmp_path: Path) -> None:
    given = write(tmp_path / f"in{source}", ROWS[:2])
    for number, kind in enumerate((".jsonl", ".json", ".parquet")):
        out = tmp_path / f"out-{number}{kind}"
        result = brim_command("fit", given, *WINDOW, "--shard", "3/3", "-o", out)
        assert result.exit_code == 0, result.output
        assert read(out) == []
    names = parquet.read_schema(tmp_path / "out-2.parquet").names
    assert names[-5:] == [name for name in EXPECTED[0] if name.startswith("brim_")]


def test_formats_can_be_named(tmp_path: Path) -> None:
    given = write(tmp_path / "rows.parquet", ROWS).rename(tmp_path / "rows.data")
    out = tmp_path / "out.data"
    formats = ["--input-format", "parquet", "--output-format", "jsonl"]
    brim_command("fit", given, *WINDOW, *formats, "-o", out)
    assert list(map(json.loads, out.read_bytes().splitlines())) == EXPECTED


def test_the_columns_of_a_table_keep_their_types(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS).append_column(
        "day", pyarrow.array([None] * len(ROWS), pyarrow.date32())
    )
    given, out = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    parquet.write_table(table, given)
    brim_command("fit", given, *WINDOW, "-o", out)
    fitted = parquet.read_table(out)
    assert fitted.schema.names[:3] == ["id", "messages", "day"]
    assert [fitted.schema.field(i).type for i in range(3)] == table.schema.types
    assert fitted.column("brim_error").null_count == 0


def test_a_table_has_all_fields_of_its_rows(tmp_path: Path) -> None:
    named = [{"role": "user", "content": "hi", "name": "Bob"}]
    rows = [*ROWS[:5], *[{"id": i, "messages": CHAT} for i in range(300)]]
    rows[1] = ROWS[1] | {"score": 0.5}
    rows += [{"id": -1, "messages": named, "score": 1, "late": {"a": 1}}]
    given, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.parquet"
    result = brim_command("fit", given, *WINDOW, "-j", 1, "-o", out)
    assert result.exit_code == 0, result.output
    fitted = read(out)
    assert [row["id"] for row in fitted] == [row["id"] for row in rows]
    assert [row["score"] for row in fitted[:3]] == [None, 0.5, None]
    assert (fitted[-1]["messages"], fitted[-1]["score"]) == (named, 1)
    assert fitted[-1]["late"] == {"a": 1}
    assert fitted[0]["messages"][0]["name"] is None


def test_files_with_other_fields_are_joined_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.batch.outputs.SEGMENT_BYTES", 1)
    folder, out = tmp_path / "in", tmp_path / "out.parquet"
    folder.mkdir()
    for name, row in (("a", {"none": None}), ("b", {"source": "x"}), ("c", {"source": None})):
        write(folder / f"{name}.parquet", [{"id": name, "messages": CHAT} | row])
    result = brim_command("fit", folder, *WINDOW, "-j", 1, "-o", out)
    assert result.exit_code == 0, result.output
    assert [row["id"] for row in read(out)] == ["a", "b", "c"]
    assert [row["source"] for row in read(out)] == [None, "x", None]
    assert parquet.read_schema(out).field("none").type == pyarrow.string()
    write(folder / "d.parquet", [{"id": 4, "messages": CHAT}])
    result = brim_command("fit", folder, *WINDOW, "-j", 1, "-o", out)
    assert result.exit_code == 2
    assert "out.parquet: the rows cannot be stored together" in result.stderr


@pytest.mark.parametrize("row", [{"id": "text"}, {"id": 1, "meta": {}}])
def test_rows_that_a_table_cannot_store_are_an_error(row: Any, tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", [*ROWS * 11, {**row, "messages": CHAT}])
    result = brim_command("fit", given, *WINDOW, "-j", 1, "-o", tmp_path / "out.parquet")
    assert result.exit_code == 2
    assert "rite JSONL" in result.stderr
    assert not (tmp_path / "out.parquet").exists()


def test_rows_without_columns_have_only_errors(tmp_path: Path) -> None:
    for kind in (".jsonl", ".parquet"):
        given, out = write(tmp_path / f"rows{kind}", ROWS), tmp_path / f"out{kind}"
        brim_command("fit", given, *WINDOW, "--no-columns", "-o", out)
        assert [row["messages"] for row in read(out)] == [row["messages"] for row in EXPECTED]
        assert all(row.keys() <= {"id", "messages", "brim_error"} for row in read(out))


def test_other_shapes_are_reported_and_kept(tmp_path: Path) -> None:
    rows = [{"conversations": make_sharegpt(i)} for i in range(3)]
    given, out = write(tmp_path / "rows.parquet", rows), tmp_path / "out.jsonl"
    result = brim_command("fit", given, *WINDOW, "-o", out)
    assert "shape: sharegpt (conversations: from, value)" in result.stderr
    assert read(out) == Fitter(model="gpt-4o", window=400)(rows)
    unknown = brim_command("fit", write(tmp_path / "a.jsonl", [{"text": 1}] * 2), *WINDOW)
    assert unknown.exit_code == 2
    assert "shape of the rows is unknown. Columns: text." in unknown.stderr


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.parquet", b"not Parquet", "a.parquet: not a readable parquet file"),
        ("a.arrow", b"not Arrow", "a.arrow: not a readable arrow file"),
        ("a.jsonl", b"text\n", "a.jsonl: line 1, column 1: not JSON"),
        ("a.json", b'[{"messages": [', "a.json: not a JSON array"),
    ],
)
def test_damaged_files_are_named(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    result = brim_command("fit", tmp_path / name, *WINDOW, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.output


# Several files


@pytest.mark.parametrize("kind", [".json", ".parquet"])
def test_files_without_rows_do_not_matter(kind: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / f"out{kind}"
    folder.mkdir()
    (folder / "a.jsonl").touch()
    table = pyarrow.Table.from_pylist(ROWS[:1])
    parquet.write_table(table.slice(0, 0), folder / "b.parquet")
    write(folder / "c.jsonl", ROWS)
    result = brim_command("fit", folder, *WINDOW, "-o", out)
    assert read(out) == EXPECTED, result.output


def test_several_files_become_one_file_or_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    write(folder / "a.jsonl", ROWS[:8])
    write(folder / "b.parquet", ROWS[8:9])
    write(folder / "deep" / "c.json", ROWS[9:])
    (folder / "notes.txt").write_text("no data set")
    (folder / ".hidden.jsonl").write_text("{}")
    one, many = tmp_path / "out.jsonl", tmp_path / "out"
    brim_command("fit", folder, *WINDOW, "-o", one)
    assert read(one) == EXPECTED
    brim_command("fit", folder, *WINDOW, "-o", many)
    assert read(many / "a.jsonl") == EXPECTED[:8]
    assert read(many / "b.parquet") == EXPECTED[8:9]
    assert read(many / "deep" / "c.json") == EXPECTED[9:]
    brim_command("fit", folder, *WINDOW, "--output-format", "parquet", "-o", tmp_path / "tables")
    names = sorted(path.name for path in (tmp_path / "tables").rglob("*.parquet"))
    assert names == ["a.parquet", "b.parquet", "c.parquet"]


def test_files_with_the_same_name_cannot_share_a_folder(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        write(folder / "rows.jsonl", ROWS[:1])
    files = [folder / "rows.jsonl" for folder in folders]
    result = brim_command("fit", *files, *WINDOW, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "the same name" in result.stderr


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_shards_have_every_row_once(kind: str, tmp_path: Path) -> None:
    given = write(tmp_path / f"rows{kind}", ROWS)
    shards = []
    for number in (1, 2, 3):
        out = tmp_path / f"out-{number}{kind}"
        brim_command("fit", given, *WINDOW, "--shard", f"{number}/3", "-o", out)
        shards.append(read(out))
    assert shards == [EXPECTED[start::3] for start in range(3)]


def test_shards_of_a_folder_have_every_file_once(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(5):
        write(folder / f"{number}.jsonl", ROWS[number : number + 1])
    for number in (1, 2):
        brim_command("fit", folder, *WINDOW, "--shard", f"{number}/2", "-o", out)
        assert len(list(out.glob("*.jsonl"))) == (3 if number == 1 else 5)
    assert [read(path)[0] for path in sorted(out.glob("*.jsonl"))] == EXPECTED[:5]


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b"])
def test_an_invalid_shard_is_rejected(shard: str, tmp_path: Path) -> None:
    result = brim_command("fit", write(tmp_path / "a.jsonl", ROWS), *WINDOW, "--shard", shard)
    assert result.exit_code == 2
    assert "is not I/N" in result.stderr


@pytest.mark.parametrize("kind", [".jsonl.gz", ".parquet"])
def test_addresses_of_fsspec_are_read_and_written(kind: str, tmp_path: Path) -> None:
    given = write(tmp_path / f"rows{kind}", ROWS)
    memory = fsspec.filesystem("memory")
    memory.put_file(str(given), f"/in/rows{kind}")
    result = brim_command("fit", f"memory://in/rows{kind}", *WINDOW, "-o", f"memory://out/a{kind}")
    assert result.exit_code == 3, result.output
    memory.get_file(f"/out/a{kind}", str(tmp_path / f"out{kind}"))
    assert read(tmp_path / f"out{kind}") == EXPECTED
    folder = brim_command("fit", "memory://in", *WINDOW, "-o", tmp_path / "all.jsonl")
    assert folder.exit_code == 3, folder.output
    assert len(read(tmp_path / "all.jsonl")) >= len(EXPECTED)
    for remote in ("-o", "--plan"):
        options = {"-o": tmp_path / "a.jsonl", remote: f"memory://out/a{kind}"}
        rejected = brim_command("fit", given, *WINDOW, "--resume", *chain(*options.items()))
        assert "--resume needs" in rejected.stderr


def test_plans_and_reports_are_written_to_addresses(tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", ROWS)
    memory = fsspec.filesystem("memory")
    names = ("rows.jsonl", "plans.jsonl", "report.html")
    addresses = [f"memory://all/{name}" for name in names]
    extra = chain(*zip(("-o", "--plan", "--report"), addresses, strict=True))
    result = brim_command("fit", given, *WINDOW, *extra)
    assert result.exit_code == 3, result.output
    rows, plans, report = (memory.cat(f"/all/{name}") for name in names)
    assert len(rows.splitlines()) == len(plans.splitlines()) == len(ROWS)
    assert b"<html" in report


def test_one_conversation_and_its_plan_are_written_to_addresses(tmp_path: Path) -> None:
    given = tmp_path / "chat.json"
    given.write_text(json.dumps(make_chat(1)))
    memory = fsspec.filesystem("memory")
    addresses = ("-o", "memory://one/chat.json", "--plan", "memory://one/plan.json")
    result = brim_command("fit", given, *WINDOW, *addresses)
    assert result.exit_code == 0, result.output
    assert len(json.loads(memory.cat("/one/chat.json"))) < len(make_chat(1))
    assert json.loads(memory.cat("/one/plan.json"))["fits"]
    rejected = brim_command("fit", given, *WINDOW, "-o", "nosuch://one/chat.json")
    assert rejected.stderr.startswith("brim: nosuch://one/chat.json: ")


@pytest.mark.parametrize("address", ["nosuch://a/rows.jsonl", "memory://nosuch/rows.jsonl"])
def test_an_address_that_cannot_be_opened_is_named(address: str, tmp_path: Path) -> None:
    result = brim_command("fit", address, *WINDOW, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert f"brim: {address}: " in result.stderr


def test_an_interrupted_run_writes_nothing_to_an_address(tmp_path: Path) -> None:
    given = tmp_path / "cut.jsonl.gz"
    given.write_bytes(gzip.compress(to_lines(ROWS * 40), 0)[:-1000])
    result = brim_command("fit", given, *WINDOW, "-j", 1, "-o", "memory://cut/out.jsonl")
    assert result.exit_code == 2, result.output
    assert not fsspec.filesystem("memory").exists("/cut/out.jsonl")


# Interruptions

MANY = [{"id": i, "messages": make_chat(i, 2)} for i in range(1_500)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for kind in (".jsonl", ".parquet"):
        write(folder / f"in{kind}", MANY)
        brim_command("fit", folder / f"in{kind}", *WINDOW, "-j", 1, "-o", folder / f"out{kind}")
    return folder


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [*BRIM, "fit", *map(str, arguments), *WINDOW, "-j", "2"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)


def wait_for(path: Path, run: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert run.poll() is None
        time.sleep(0.005)


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "victim"),
    [(".jsonl.zst", "job"), (".json", "job"), (".parquet", "job"), (".jsonl", "worker")],
)
def test_a_killed_run_is_resumed_without_a_difference(
    kind: str, victim: str, many: Path, tmp_path: Path
) -> None:
    given = many / f"in{'.parquet' if kind == '.parquet' else '.jsonl'}"
    out = tmp_path / f"out{kind}"
    run = start(given, "-o", out)
    state = tmp_path / f".{out.name}.{'segments' if kind == '.parquet' else 'checkpoint'}"
    wait_for(state, run)
    if victim == "job":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        (worker, *_) = find_workers(run.pid)
        os.kill(worker, signal.SIGKILL)
    _, errors = run.communicate()
    assert (b"A worker process was killed" in errors) == (victim == "worker")
    resumed = brim_command("fit", given, *WINDOW, "-j", 1, "--resume", "-o", out)
    assert resumed.exit_code == 0, resumed.output
    assert read(out) == read(many / "out.jsonl")
    assert "1,500 rows: 1,500 fitted" in resumed.stderr
    if kind == ".parquet":
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f".{out.name}.checkpoint",
            out.name,
        ]


def find_workers(parent: int) -> list[int]:
    """Return the processes that fit rows: the children of the fork server."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if (
            int(fields[3]) == parent
            and int(fields[1]) != parent
            and int(path.parent.name) != parent
        ):
            found.append(int(path.parent.name))
    return found


def test_segments_of_an_interrupted_table_are_used_again(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.batch.outputs.SEGMENT_BYTES", 500_000)
    out = tmp_path / "out.parquet"
    chunks = iter([True] * 5)

    def stop(*_: object) -> bool:
        if next(chunks, None) is None:
            raise KeyboardInterrupt
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("brim.cli.dataset.Display._show", stop)
        stopped = brim_command("fit", many / "in.parquet", *WINDOW, "-j", 1, "-o", out)
    assert "Run the same command with --resume" in stopped.stderr
    segments = list((tmp_path / ".out.parquet.segments").iterdir())
    assert segments
    resumed = brim_command("fit", many / "in.parquet", *WINDOW, "-j", 1, "--resume", "-o", out)
    assert "existing rows" in resumed.stderr
    assert read(out) == read(many / "out.parquet")
    assert parquet.ParquetFile(out).metadata.num_row_groups > 1


def test_a_folder_is_resumed_at_the_file_that_was_not_finished(many: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.jsonl", MANY[number * 300 : number * 300 + 300])
    state = {"files": 0}

    def stop(*_: object) -> None:
        state["files"] += 1
        if state["files"] == 4:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("brim.cli.dataset.Display._show", stop)
        brim_command("fit", folder, *WINDOW, "-j", 1, "-o", out)
    first = (out / "0.jsonl").stat().st_mtime_ns
    brim_command("fit", folder, *WINDOW, "-j", 1, "--resume", "-o", out)
    assert (out / "0.jsonl").stat().st_mtime_ns == first
    fitted = [row for number in range(3) for row in read(out / f"{number}.jsonl")]
    assert fitted == read(many / "out.jsonl")[:900]


def test_the_number_of_processes_is_for_this_machine(tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", ROWS)
    engine = ["--engine", "ray", "--address", "other:6379", "-j", 2]
    result = brim_command("fit", given, *WINDOW, *engine, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert "-j is for this machine" in result.stderr


# Summary


def find_bars(page: str, label: str) -> list[str]:
    """Return the bars of a class of sizes, before and after fitting."""
    return page.partition(f"<th>{label}</th>")[2].split("</tr>")[:2]


def test_the_report_is_a_page_with_a_histogram(tmp_path: Path) -> None:
    given, page = write(tmp_path / "<rows>.jsonl", ROWS), tmp_path / "report.html"
    brim_command("fit", given, *WINDOW, "-o", tmp_path / "out.jsonl", "--report", page)
    text = page.read_text()
    assert "20 conversations" in text
    assert text.count('class="bar"') >= 4
    sizes = [row["brim_tokens"] for row in EXPECTED if not row["brim_error"]]
    assert f"{sum(256 <= size < 320 for size in sizes)}</td>" in find_bars(text, "256 – 319")[1]
    assert "errors" in text
    assert "&lt;rows&gt;.jsonl: line 8" in text
    assert "<script" not in text
    assert "<rows>" not in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nosuch://a/report.html", "brim: nosuch://a/report.html: "),
        ("{tmp}/rows.jsonl/report.html", "rows.jsonl: File exists"),
        ("{tmp}", "is a folder"),
    ],
)
def test_an_unusable_report_is_rejected_before_the_run(
    name: str, reason: str, tmp_path: Path
) -> None:
    given, out = write(tmp_path / "rows.jsonl", ROWS), tmp_path / "out.jsonl"
    report = name.format(tmp=tmp_path)
    result = brim_command("fit", given, *WINDOW, "-o", out, "--report", report)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert not out.exists()


def test_a_report_is_not_written_in_place_of_another_file(tmp_path: Path) -> None:
    given, out = write(tmp_path / "rows.jsonl", ROWS), tmp_path / "out.jsonl"
    for report, reason in ((given, "is the input file"), (out, "name the same file")):
        result = brim_command("fit", given, *WINDOW, "-o", out, "--report", report)
        assert result.exit_code == 2
        assert reason in result.stderr


def test_the_folder_of_a_report_is_created(tmp_path: Path) -> None:
    given, page = write(tmp_path / "rows.jsonl", ROWS), tmp_path / "new" / "report.html"
    brim_command("fit", given, *WINDOW, "-o", tmp_path / "out.jsonl", "--report", page)
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_a_missing_engine_is_named_with_its_extra(tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", ROWS)
    result = brim_command("fit", given, *WINDOW, "--engine", "ray")
    assert result.exit_code == 2
    assert "ray is missing. Run: pip install 'brim[ray]'" in result.stderr
