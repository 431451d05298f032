"""The sandbox of goal mode, on the real kernel: nothing outside the project changes."""

from __future__ import annotations

import errno
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from brim.shell import sandbox_child
from brim.shell.sandbox import Sandbox, SandboxKind, choose_sandbox, find_kind, probe

HAS_BUBBLEWRAP: Final = shutil.which("bwrap") is not None and probe("bubblewrap")
HAS_LANDLOCK: Final = (
    sys.platform == "linux"
    and sandbox_child.landlock_version() >= sandbox_child.OLDEST_LANDLOCK
    and probe("landlock")
)
needs_bubblewrap = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="bubblewrap is not installed, or user namespaces are disabled"
)
needs_landlock = pytest.mark.skipif(
    not HAS_LANDLOCK, reason="this kernel has no Landlock of version 3 or later"
)
KINDS: Final = [
    pytest.param("bubblewrap", marks=needs_bubblewrap),
    pytest.param("landlock", marks=needs_landlock),
    pytest.param("landlock without mounts", marks=needs_landlock),
]


class Field:
    """A project, something outside it, and a sandbox between them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.project = folder / "project"
        self.outside = folder / "outside"
        (self.project / ".git" / "hooks").mkdir(parents=True)
        (self.project / ".git" / "config").write_text("[core]\n")
        (self.outside / "folder").mkdir(parents=True)
        for name in ("notes.txt", "folder/more.txt", ".bashrc"):
            (self.outside / name).write_text("kept\n")

    def run(
        self,
        command: str,
        *,
        network: bool = False,
        secrets: tuple[str, ...] = (),
        stdin: int = subprocess.DEVNULL,
        keep: tuple[int, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        arguments = self.arguments(["bash", "-c", command], network=network, secrets=secrets)
        environment = {**os.environ, "OUT": str(self.outside), "MY_TOKEN": "s3cret"}
        return subprocess.run(
            arguments, cwd=self.project, env=environment, text=True, timeout=60, check=False,
            stdin=stdin, capture_output=True, pass_fds=keep,
        )  # fmt: skip

    def arguments(
        self, command: list[str], *, network: bool, secrets: tuple[str, ...]
    ) -> list[str]:
        kind: SandboxKind = "bubblewrap" if self.kind == "bubblewrap" else "landlock"
        inner = Sandbox(kind, self.project, network).wrap(command, self.project, secrets)
        if self.kind != "landlock without mounts":
            return inner
        # Mounts are not possible inside another sandbox, which allows changes to both folders.
        return Sandbox("landlock", self.folder, network).wrap(inner, self.project)

    def picture(self) -> dict[str, tuple[int, int, str]]:
        """Return all that is outside the project."""
        found = {}
        for path in (self.outside, *sorted(self.outside.rglob("*"))):
            state = path.lstat()
            text = path.read_text() if path.is_file() else ""
            found[str(path)] = (state.st_mode, state.st_mtime_ns, text)
        return found


@pytest.fixture(params=KINDS)
def field(request: pytest.FixtureRequest, tmp_path: Path) -> Field:
    return Field(request.param, tmp_path)


ATTACKS: Final = """
rm -rf "$OUT"
rm "$OUT/notes.txt"
unlink "$OUT/notes.txt"
rmdir "$OUT/folder"
echo x > "$OUT/notes.txt"
: > "$OUT/notes.txt"
echo x >> "$OUT/.bashrc"
truncate -s 0 "$OUT/notes.txt"
mv "$OUT/notes.txt" .
mv "$OUT" ./stolen
cp /dev/null "$OUT/notes.txt"
ln -sf /etc/passwd "$OUT/notes.txt"
ln "$OUT/notes.txt" here && echo x > here
ln -s "$OUT/notes.txt" here && echo x > here
mkdir "$OUT/new"
mkfifo "$OUT/pipe"
touch "$OUT/notes.txt"
touch "$OUT/new"
touch -d 2001-01-01 "$OUT/notes.txt"
chmod 000 "$OUT/notes.txt"
chmod -R 777 "$OUT"
sed -i s/kept/lost/ "$OUT/notes.txt"
tee "$OUT/notes.txt" < /dev/null
dd if=/dev/zero of="$OUT/notes.txt" count=1
tar cf "$OUT/notes.txt" .
cd "$OUT" && rm -rf *
cd .. && echo x > outside/notes.txt
find "$OUT" -type f -delete
python3 -c "import shutil, os; shutil.rmtree(os.environ['OUT'])"
python3 -c "import os; os.truncate(os.environ['OUT'] + '/notes.txt', 0)"
python3 -c "import os; os.utime(os.environ['OUT'] + '/notes.txt', (1, 1))"
python3 -c "import os; f = os.open(os.environ['OUT'] + '/notes.txt', 0); os.fchmod(f, 0)"
python3 -c "import os; os.setxattr(os.environ['OUT'] + '/notes.txt', 'user.x', b'y')"
perl -e 'unlink glob "$ENV{OUT}/*"'
(setsid sh -c 'sleep 0.1; rm -rf "$OUT"' &) ; sleep 0.4
unshare -rm sh -c 'mount -o remount,rw /; echo x > "$OUT/notes.txt"'
mount -o remount,rw / ; echo x > "$OUT/notes.txt"
printf 'rm -rf "$OUT"' > clean.sh; bash clean.sh
printf 'clean:\\n\\trm -rf "$$OUT"\\n' > Makefile; make clean
printf 'import os, shutil\\nshutil.rmtree(os.environ["OUT"])' > c.py; python3 c.py
""".strip().split("\n")  # fmt: skip


def test_no_attack_changes_anything_outside(field: Field) -> None:
    """The attacks share a sandbox, because starting one takes most of the time."""
    before = field.picture()
    done = field.run("\n".join(f"bash -c {shlex.quote(attack)}" for attack in ATTACKS) + "\ntrue")
    assert done.returncode == 0
    assert field.picture() == before


def test_the_project_can_be_changed(field: Field) -> None:
    script = "echo a > new && mkdir -p x/y && mv new x/y/z && rm -rf x && echo done > made"
    done = field.run(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert (field.project / "made").read_text() == "done\n"


def test_a_named_pipe_outside_cannot_be_written_to(field: Field) -> None:
    os.mkfifo(field.outside / "pipe")
    reader = os.open(field.outside / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert field.run('echo x > "$OUT/pipe"').returncode != 0
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_programs_have_shared_memory_of_their_own(kind: str, tmp_path: Path) -> None:
    code = "import multiprocessing; multiprocessing.Lock(); open('/dev/shm/brim-test', 'w')"
    assert Field(kind, tmp_path).run(f'python3 -c "{code}"').returncode == 0
    assert not Path("/dev/shm/brim-test").exists()


def test_programs_have_a_temporary_folder(field: Field) -> None:
    done = field.run('f=$(mktemp) && echo text > "$f" && cat "$f" && echo "$f"')
    text, name = done.stdout.split()
    assert text == "text"
    assert not Path(name).parent.exists()


@pytest.mark.parametrize("kind", KINDS[:2])
def test_what_git_runs_later_cannot_be_changed(kind: str, tmp_path: Path) -> None:
    """Without mounts, the classifier asks before git runs it."""
    field = Field(kind, tmp_path)
    field.run("echo evil > .git/hooks/pre-commit; echo evil >> .git/config; rm -rf .git/hooks")
    assert list((field.project / ".git" / "hooks").iterdir()) == []
    assert (field.project / ".git" / "config").read_text() == "[core]\n"


@pytest.mark.parametrize("kind", KINDS[:2])
def test_hooks_cannot_be_added(kind: str, tmp_path: Path) -> None:
    field = Field(kind, tmp_path)
    (field.project / ".git" / "hooks").rmdir()
    (field.project / ".git" / "modules").mkdir()
    field.run("mkdir -p .git/hooks .git/modules/x; echo evil | tee .git/hooks/a .git/modules/x/b")
    assert list((field.project / ".git" / "hooks").iterdir()) == []
    assert list((field.project / ".git" / "modules").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_git_folder_cannot_be_replaced(kind: str, tmp_path: Path) -> None:
    field = Field(kind, tmp_path)
    field.run("mv .git old && cp -r old .git && echo evil >> .git/config")
    field.run("mkdir other; echo evil > other/config; echo ../other > .git/commondir")
    assert (field.project / ".git" / "config").read_text() == "[core]\n"
    assert not (field.project / ".git" / "commondir").exists()


def test_no_process_outlives_the_command(field: Field) -> None:
    field.run("(setsid sh -c 'sleep 0.5; touch late' >/dev/null 2>&1 &)")
    time.sleep(1)
    assert not (field.project / "late").exists()


def test_limits_of_other_processes_and_the_kernel_cannot_be_changed(field: Field) -> None:
    code = f"import resource; resource.prlimit({os.getpid()}, resource.RLIMIT_CORE)"
    assert field.run(f"python3 -c '{code}'").returncode != 0
    assert field.run("[ -w /proc/sys/kernel/core_pattern ]").returncode != 0


SEND: Final = """
import socket, sys
family, kind, address = getattr(socket, sys.argv[1]), getattr(socket, sys.argv[2]), sys.argv[3]
with socket.socket(family, kind) as it:
    it.connect(address if family == socket.AF_UNIX else ("127.0.0.1", int(address)))
    it.send(b"secret")
print("sent")
"""


def send(field: Field, family: str, kind: str, address: str, *, network: bool = False) -> str:
    (field.project / "send.py").write_text(SEND)
    return field.run(f"python3 send.py {family} {kind} {address}", network=network).stdout


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_there_is_no_network_unless_it_is_allowed(field: Field, kind: str) -> None:
    with socket.socket(socket.AF_INET, getattr(socket, kind)) as receiver:
        receiver.bind(("127.0.0.1", 0))
        if kind == "SOCK_STREAM":
            receiver.listen()
        port = str(receiver.getsockname()[1])
        send(field, "AF_INET", kind, port)
        assert select.select([receiver], [], [], 0.2)[0] == []
        assert send(field, "AF_INET", kind, port, network=True) == "sent\n"
        assert select.select([receiver], [], [], 5)[0] == [receiver]


def test_services_of_the_machine_cannot_be_reached(field: Field) -> None:
    path = field.project / "service"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        service.listen()
        assert send(field, "AF_UNIX", "SOCK_STREAM", str(path), network=True) == ""


def test_secrets_are_removed_from_the_environment(field: Field) -> None:
    command = 'echo "${MY_TOKEN-none}"'
    assert field.run(command).stdout == "s3cret\n"
    assert field.run(command, secrets=("MY_TOKEN",)).stdout == "none\n"


def test_files_that_the_shell_has_open_cannot_be_used(field: Field) -> None:
    with (field.outside / "notes.txt").open("a") as opened:
        command = f"echo changed >&{opened.fileno()}"
        assert field.run(command, keep=(opened.fileno(),)).returncode != 0
    assert (field.outside / "notes.txt").read_text() == "kept\n"


def test_the_temporary_folder_is_locked_while_it_is_used(field: Field) -> None:
    script = (
        "import fcntl, os\n"
        "folder = os.open(os.environ['TMPDIR'], os.O_RDONLY)\n"
        "try:\n    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    print('free')\n"
        "except BlockingIOError:\n    print('in use')\n"
    )
    assert field.run(f"{sys.executable} -c {shlex.quote(script)}").stdout == "in use\n"


def test_nothing_can_be_typed_on_the_terminal(field: Field) -> None:
    script = (
        "import fcntl\n"
        "try:\n    fcntl.ioctl(0, 0x5412, b'x')\n    print('typed')\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    (field.project / "t.py").write_text(script)
    master, slave = os.openpty()
    try:
        assert field.run("python3 t.py", stdin=slave).stdout == f"{errno.EACCES}\n"
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("true", 0)])
def test_the_exit_code_is_that_of_the_command(field: Field, command: str, code: int) -> None:
    assert field.run(command).returncode == code


def test_a_sandbox_that_cannot_be_entered_runs_nothing(tmp_path: Path) -> None:
    options = {
        "kind": "bubblewrap", "project": str(tmp_path / "absent"), "folder": "/", "network": False,
        "unset": [], "escapes": [], "metadata": [], "command": ["touch", str(tmp_path / "made")],
    }  # fmt: skip
    arguments = [sys.executable, "-I", "-S", sandbox_child.__file__, json.dumps(options)]
    done = subprocess.run(arguments, capture_output=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "made").exists()


def test_the_home_folder_is_no_sandbox() -> None:
    sandbox, reason = choose_sandbox(None, Path("/state"))
    assert sandbox is None
    assert "home folder" in reason


def test_brim_itself_must_lie_outside_of_the_project(tmp_path: Path) -> None:
    package = Path(sandbox_child.__file__).parents[2]
    for project, state in ((package, tmp_path), (tmp_path, tmp_path / "state")):
        sandbox, reason = choose_sandbox(project, state)
        assert sandbox is None
        assert "inside the project" in reason


def test_the_kind_that_works_is_found() -> None:
    kind, reason = find_kind()
    if HAS_BUBBLEWRAP:
        assert (kind, reason) == ("bubblewrap", "bubblewrap")
    elif HAS_LANDLOCK:
        assert kind == "landlock"
        assert "Landlock" in reason
    else:
        assert kind is None
        assert reason


def test_a_command_ends_when_what_started_it_is_killed(field: Field) -> None:
    mark = f"86400.{os.getpid()}"
    command = ["bash", "-c", f"setsid sleep {mark} & exec sleep {mark}"]
    arguments = field.arguments(command, network=False, secrets=())
    start = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = subprocess.Popen([sys.executable, "-c", start, *arguments], cwd=field.project)
    wait_until(lambda: len(find_processes(mark)) == 2)
    parent.kill()
    parent.wait()
    wait_until(lambda: not find_processes(mark))


def find_processes(argument: str) -> list[str]:
    """Return the processes whose last argument is this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_text().split("\0")[-2:-1] == [argument]:
                found.append(path.parent.name)
    return found


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
