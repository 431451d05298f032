"""Commands in a real shell on a real pseudo-terminal, with typed keys."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from brim.errors import BrimError, InputError
from brim.shell.terminal import output_text, user_shell
from brim.shell.terminal.dialects import ShellDialect
from brim.shell.terminal.output_text import MAX_HEAD, MAX_TAIL, OutputBuffer
from brim.shell.terminal.process import StatusReports
from brim.shell.terminal.user_shell import CommandResult, UserShell

PATIENCE = 60
"""Seconds; only a failure takes this long."""
SHELLS = os.environ.get("TEST_SHELLS", "/bin/bash /bin/sh").split()
"""`make test-services` runs these tests with zsh, too."""
RC = """
echo the start file speaks
alias greet='echo good day'
twice() { echo "$1 $1"; }
PS1='prompt> '
"""
ASK_PASSWORD = """
import getpass, os, sys
sys.stdin = open(os.devnull)  # as sudo and ssh, it asks the terminal, not its input
while getpass.getpass("password: ") != "right":
    print("sorry", flush=True)
print("welcome")
"""
SLEEP = "sh -c 'echo ready; exec sleep 1000'"
"""Reports that it is ready to read keys."""
FULL_SCREEN = """
import os, signal, sys, termios, tty
def paint(*_):
    size = os.get_terminal_size(0)
    sys.stdout.write(f"\\x1b[2J\\x1b[Hsize {size.lines}x{size.columns} ")
    sys.stdout.flush()
before = termios.tcgetattr(0)
tty.setraw(0)
sys.stdout.write("\\x1b[?1049h")
signal.signal(signal.SIGWINCH, paint)
paint()
while (key := os.read(0, 1)) != b"q":
    sys.stdout.write(f"key {key!r} ")
    sys.stdout.flush()
sys.stdout.write("\\x1b[?1049l")
termios.tcsetattr(0, termios.TCSADRAIN, before)
"""


class Outer:
    """The terminal of brim, and a thread that reads its output."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.resize(24, 80)
        self._seen = bytearray()
        self._is_open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    @property
    def seen(self) -> str:
        return self._seen.decode(errors="replace")

    def expect(self, text: str) -> None:
        wait_for(lambda: text in self.seen, lambda: f"{text!r} in {self.seen[-2000:]!r}")

    def close(self) -> None:
        self._is_open = False
        self._reader.join()
        os.close(self.master)
        os.close(self.slave)

    def _read(self) -> None:
        while self._is_open:
            if select.select([self.master], [], [], 0.05)[0]:
                self._seen += os.read(self.master, 65_536)


def wait_for(is_so: Callable[[], object], tell: Callable[[], str] = lambda: "it") -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {tell()}"
        time.sleep(0.01)


class Desk:
    """A shell in such a terminal; commands run in a thread, so that the test can type."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        for name in (".bashrc", ".zshrc", ".shrc"):
            (self.home / name).write_text(RC)
        self.environment = {
            "HOME": str(self.home),
            "ENV": str(self.home / ".shrc"),
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
        }
        self.outer = Outer()
        self.program = program
        self.shell = self.new_shell()
        self._pool = ThreadPoolExecutor(1)

    def new_shell(self) -> UserShell:
        return UserShell(
            program=self.program,
            folder=self.folder,
            environment=self.environment,
            spill=self.folder / "spill",
            keys=self.outer.slave,
            screen=self.outer.slave,
        )

    def begin(self, command: str) -> Future[CommandResult]:
        return self._pool.submit(self.shell.run, command)

    def run(self, command: str) -> CommandResult:
        return self.begin(command).result(PATIENCE)

    def out(self, command: str) -> str:
        return self.run(command).output

    def close(self) -> None:
        self.shell.close()
        self._pool.shutdown()
        self.outer.close()


@pytest.fixture(params=SHELLS, ids=lambda path: Path(path).name)
def each(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A desk with each installed shell."""
    desk = Desk(tmp_path, request.param)
    yield desk
    desk.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    bash = shutil.which("bash")
    assert bash is not None
    desk = Desk(tmp_path, bash)
    yield desk
    desk.close()


def test_changes_of_a_command_persist(each: Desk) -> None:
    (each.folder / "a b").mkdir()
    assert each.run("cd 'a b'").folder == each.folder / "a b"
    assert each.out("pwd") == f"{each.folder}/a b\n"
    each.run("export A=1; B='x y'; alias say='echo said'; f() { echo f-$1; }")
    assert each.out("say it; f 2; echo \"$A $B\"; sh -c 'echo $A'") == "said it\nf-2\n1 x y\n1\n"
    assert each.run("(exit 7)").code == 7
    assert each.out("echo $?") == "7\n"
    assert each.shell.folder == each.folder / "a b"


def test_nothing_but_the_output_is_shown(each: Desk) -> None:
    assert each.out("greet; twice x") == "good day\nx x\n"
    each.run("cd /")
    each.run("false")
    each.shell.names()
    each.run("echo end")
    each.outer.expect("end\r\n")
    assert each.outer.seen.replace("\r", "") == "good day\nx x\nend\n"


def test_names_aliases_and_variables_of_the_shell(each: Desk) -> None:
    each.run("alias odd='a '\\''b'\\'''; X='two\nlines'; export Y=")
    assert each.shell.names() >= {"greet", "odd", "cd", "if", "while"}
    assert not any("brim" in name for name in each.shell.names())
    assert each.shell.aliases()["odd"] == "a 'b'"
    variables = each.shell.variables()
    assert (variables["X"], variables["Y"]) == ("two\nlines", "")
    assert variables["HOME"] == str(each.home)
    assert not any("brim" in name for name in variables)
    each.run("X=other")
    assert each.shell.variables()["X"] == "other"


def test_functions_are_among_the_names(desk: Desk) -> None:
    assert "twice" in desk.shell.names()


def test_an_interrupt_reaches_only_the_program(each: Desk) -> None:
    running = each.begin(f"{SLEEP}; echo not here")
    each.outer.expect("ready")
    each.outer.type("\x03")
    assert running.result(PATIENCE).code == 130
    running = each.begin("echo again; while :; do :; done")
    each.outer.expect("again")
    each.outer.type("\x03")
    assert running.result(PATIENCE).code not in (0, None)
    assert each.out("echo fine") == "fine\n"


def test_a_stopped_program_can_be_continued(each: Desk) -> None:
    running = each.begin(SLEEP)
    each.outer.expect("ready")
    each.outer.type("\x1a")
    ran = running.result(PATIENCE)
    assert ran.code is None
    assert re.search("stopped|suspended", ran.output, re.IGNORECASE)
    assert "sleep 1000" in each.out("jobs")
    running = each.begin("fg; echo after")
    each.outer.expect("sleep 1000")
    wait_for(lambda: foreground_is(each, "sleep"))
    each.outer.type("\x03")
    assert running.result(PATIENCE).code in (0, 130)
    assert "sleep" not in each.out("jobs")


def foreground_is(desk: Desk, name: str) -> bool:
    """Return whether a program of that name is in the foreground."""
    live = desk.shell._live
    assert live is not None
    group = os.tcgetpgrp(live.master)
    words = subprocess.run(
        ["ps", "-o", "args=", "-p", str(group)], capture_output=True, text=True, check=False
    )
    return name in words.stdout


def test_background_jobs(desk: Desk) -> None:
    assert re.fullmatch(r"\[1\] \d+\n", desk.out("sleep 1000 &"))
    assert "Running" in desk.out("jobs")
    assert "Terminated" in desk.out("kill %1; wait")


def test_a_full_screen_program_uses_the_screen_and_leaves_nothing(desk: Desk) -> None:
    program = desk.folder / "full.py"
    program.write_text(FULL_SCREEN)
    desk.outer.resize(31, 97)
    running = desk.begin(f"{sys.executable} {program}")
    desk.outer.expect("size 31x97")
    desk.outer.type("k")
    desk.outer.expect("key b'k'")
    desk.outer.type("\x03")
    desk.outer.expect(r"key b'\x03'")
    desk.outer.resize(40, 120)
    desk.outer.expect("size 40x120")
    desk.outer.type("q")
    ran = running.result(PATIENCE)
    assert (ran.output, ran.code) == ("", 0)
    assert desk.out("stty size") == "40 120\n"


def test_a_program_can_read_input(each: Desk) -> None:
    running = each.begin("printf 'name? '; read x; echo \"you are $x\"")
    each.outer.expect("name? ")
    each.outer.type("ann\r")
    assert running.result(PATIENCE).output == "name? ann\nyou are ann\n"


def test_a_password_is_not_shown(each: Desk) -> None:
    running = each.begin("stty -echo; echo ready; read x; stty echo; echo ${#x}")
    each.outer.expect("ready")
    each.outer.type("secret\r")
    assert running.result(PATIENCE).output == "ready\n6\n"
    assert "secret" not in each.outer.seen


def test_unread_keys_do_not_reach_the_next_program(desk: Desk) -> None:
    running = desk.begin("echo ready; until [ -e go ]; do sleep 0.01; done")
    desk.outer.expect("ready")
    desk.outer.type("rm x\ry")
    desk.outer.expect("rm x\r\ny")
    (desk.folder / "go").touch()
    running.result(PATIENCE)
    assert desk.shell.typed == b"rm x\ny"
    running = desk.begin('echo next; read line; echo "got $line"')
    desk.outer.expect("next")
    desk.outer.type("mine\r")
    assert running.result(PATIENCE).output.endswith("got mine\n")


def test_a_huge_output_goes_to_a_file(desk: Desk) -> None:
    ran = desk.run("seq 1 300000; echo the end")
    assert ran.whole is not None
    assert ran.whole.stat().st_mode & 0o777 == 0o600
    whole = "".join(f"{number}\n" for number in range(1, 300_001)) + "the end\n"
    assert ran.whole.read_text() == whole
    assert ran.output.startswith(whole[:MAX_HEAD])
    assert ran.output.endswith(whole[-MAX_TAIL:])
    assert f"{len(whole) - MAX_HEAD - MAX_TAIL:,} characters omitted" in ran.output
    assert desk.run("echo small").whole is None


def test_binary_output_is_safe(desk: Desk) -> None:
    blob = desk.folder / "blob"
    blob.write_bytes(bytes(range(256)) * 50 + b"\x1b[?1049h\x1b[?25l\x0e\x1b]never ending")
    assert desk.run(f"cat {blob}").code == 0
    assert desk.out("echo fine") == "fine\n"
    desk.outer.expect("fine")
    assert "\x1b[?25h\x1b[?1049l\x0f\x1b(B" in desk.outer.seen


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo a\necho b", "a\nb\n"),
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n"),
        ("cat <<END\nx $((1 + 1))\nEND", "x 2\n"),
        ("cat <<'END'\n$HOME 'q\" \\\nEND", "$HOME 'q\" \\\n"),
        ("# a comment", ""),
        ("echo a # and a comment \\", "a\n"),
        ("echo a \\\n  b", "a b\n"),
        ("echo it\\'s", "it's\n"),
        ("echo 'a\n\nb'", "a\n\nb\n"),
        ("printf '%s' \"no newline\"", "no newline"),
        ("printf '10%%\\r100%%\\n'", "100%\n"),
        ("", ""),
        ("  ", ""),
        ("echo é中", "é中\n"),
        ("echo '!!' !x", "!! !x\n"),
        ("echo " + "x" * 100_000 + " | wc -c", "100001\n"),
    ],
)
def test_commands_of_any_shape(desk: Desk, command: str, output: str) -> None:
    ran = desk.run(command)
    assert (ran.output, ran.code) == (output, 0)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ('echo "abc', '" is missing'),
        ("echo 'abc", "' is missing"),
        ("echo one\necho $(ls", ") is missing"),
        ("if true; then", "more must follow"),
        ("ls |", "more must follow"),
        ("echo a \\", "a line must follow the backslash"),
        ("cat <<END\nx", "the here-document has no line END"),
    ],
)
def test_an_incomplete_command_is_rejected(desk: Desk, command: str, missing: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"is incomplete: {missing}")):
        desk.run(command)
    assert desk.outer.seen == ""


def test_a_command_with_a_zero_byte_is_rejected(desk: Desk) -> None:
    with pytest.raises(InputError, match="zero byte"):
        desk.run("echo a\0b")


def test_syntax_errors_are_reported_by_the_shell(desk: Desk) -> None:
    ran = desk.run("echo a; ls )")
    assert ran.code not in (0, None)
    assert "syntax error" in ran.output
    assert desk.out("echo fine") == "fine\n"


@pytest.mark.parametrize(
    ("end", "code"), [("exit 3", 3), ("exec true", 0), ("kill -9 $$", 137), ("set -e; false", 1)]
)
def test_a_shell_that_ended_is_started_again(each: Desk, end: str, code: int) -> None:
    (each.folder / "in").mkdir()
    each.run("cd in; x=1")
    ran = each.run(end)
    assert (ran.code, ran.ended_with) == (None, code)
    ran = each.run('echo "$x."; pwd; greet')
    assert (ran.output, ran.code) == (f".\n{each.folder}/in\ngood day\n", 0)


def test_a_deleted_folder_is_replaced_by_its_parent(desk: Desk) -> None:
    desk.run("mkdir -p in/it; cd in/it; rm -r ../../in")
    desk.run("exit")
    assert desk.out("pwd") == f"{desk.folder}\n"


@pytest.mark.parametrize(
    "trouble",
    [
        "PS1='> '; PS2='>> '; PS0=started",
        "set -x",
        "set -v",
        "set -eu",
        "set -fC; set -o posix",
        "set -b -k -T -E",
        "trap 'true' DEBUG",
        "trap 'echo leaving' EXIT",
        "exec 0</dev/null",
        "exec 5>&1 9>/dev/null",
        "IFS=/0123456789abcdef",
        "shopt -u expand_aliases; shopt -s extglob nullglob",
        "unset PATH PWD; PATH=/usr/bin:/bin",
        "alias printf=false eval=false builtin=false pwd=false",
        "printf() { :; }; eval() { :; }; pwd() { :; }",
        "suspend",
        "kill -STOP $$",
        "stty -echo -icanon; stty sane",
        "cd /; umask 777; ulimit -f 0",
        "readonly PS1=' '",
        "readonly PROMPT_COMMAND='true'",
        "readonly __brim_flags",
        "echo ${unset?is unset}",
        "exec 2>/dev/null",
    ],
)
def test_brim_survives(desk: Desk, trouble: str) -> None:
    desk.run(trouble)
    for _ in range(2):
        ran = desk.run("echo fine")
        assert "fine\n" in ran.output
        assert ran.code == 0
    assert desk.shell.variables()["HOME"] == str(desk.home)


def test_a_password_that_a_program_reads_from_the_terminal_is_not_shown(each: Desk) -> None:
    (each.folder / "ask.py").write_text(ASK_PASSWORD)
    command = f"{sys.executable} ask.py </dev/null 2>/dev/null | cat"
    stopped = each.begin(command)
    each.outer.expect("password: ")
    each.outer.type("half\x03")
    assert "welcome" not in stopped.result(PATIENCE).output
    seen = len(each.outer.seen)
    asked = each.begin(command)
    wait_for(lambda: "password: " in each.outer.seen[seen:])
    each.outer.type("wrong\r")
    wait_for(lambda: each.outer.seen[seen:].count("password: ") == 2)
    each.outer.type("right\r")
    ran = asked.result(PATIENCE)
    assert ran.output.replace("\r", "").splitlines()[-1] == "welcome"
    assert not any(word in each.outer.seen + ran.output for word in ("half", "wrong", "right"))
    assert each.out("echo fine") == "fine\n"


def test_a_password_that_is_typed_between_two_prompts_is_not_recorded(each: Desk) -> None:
    (each.folder / "ask.py").write_text(
        "import getpass, os, time\n"
        "getpass.getpass('first: ')\n"
        "print('checking', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "print('welcome')\n"
        "print('not early-word')\n"
    )
    running = each.begin(f"{sys.executable} ask.py")
    each.outer.expect("first: ")
    each.outer.type("wrong\r")
    each.outer.expect("checking")
    each.outer.type("early-word\r")
    each.outer.expect("early-word")
    (each.folder / "go").touch()
    output = running.result(PATIENCE).output.replace("\r", "")
    assert output.endswith("checking\n[hidden]\nwelcome\nnot early-word\n")


def test_a_shell_that_lost_its_lines_is_queried_again(
    each: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    each.shell.start()
    monkeypatch.setattr(ShellDialect, "after", lambda *_: ": lost\n")
    ran = each.run("echo fine; cd /; false")
    assert (ran.output, ran.folder) == ("fine\n", Path("/"))


def test_tracing_shows_the_command_and_nothing_else(desk: Desk) -> None:
    assert desk.out("set -x") == ""
    assert re.fullmatch(r"\++ echo a\na\n", desk.out("echo a"))
    desk.run("set +x")
    assert desk.out("trap 'echo before' DEBUG") == ""
    assert desk.out("echo a") == "before\na\n"


def test_the_shells_own_output_can_be_redirected(desk: Desk) -> None:
    assert desk.out("exec >out.txt") == ""
    assert desk.run("echo in the file").output == ""
    assert desk.out("exec >/dev/tty; echo back") == "back\n"
    assert (desk.folder / "out.txt").read_text() == "in the file\n"


def test_prompt_commands_run_and_can_be_extended(desk: Desk) -> None:
    (desk.home / ".bashrc").write_text("PROMPT_COMMAND='n=$((n+1)); echo hidden'\n")
    desk.run("n=0")
    assert desk.out("echo $n") == "1\n"
    desk.run('PROMPT_COMMAND="$PROMPT_COMMAND; m=$?"')
    desk.run("(exit 4)")
    assert desk.out("echo $n") == "4\n"
    assert "hidden" not in desk.outer.seen


def test_the_history_file_is_unchanged(desk: Desk) -> None:
    history = desk.home / "history"
    history.write_text("an old line\n")
    (desk.home / ".bashrc").write_text(
        "export HISTFILE=~/history; HISTCONTROL=; shopt -s histappend; set -o history\n"
        "PROMPT_COMMAND='history -a; history -w'\n"
    )
    desk.run("echo one")
    desk.run("set -o history")
    desk.run("echo two")
    desk.shell.close()
    assert history.read_text() == "an old line\n"


def test_the_terminal_is_restored(desk: Desk) -> None:
    before = termios.tcgetattr(desk.outer.slave)
    running = desk.begin("stty raw -echo; echo ready; read -n 1 x; stty sane")
    desk.outer.expect("ready")
    assert termios.tcgetattr(desk.outer.slave) != before
    desk.outer.type("k")
    running.result(PATIENCE)
    assert termios.tcgetattr(desk.outer.slave) == before


def test_the_terminal_is_restored_after_an_error(desk: Desk) -> None:
    before = termios.tcgetattr(desk.outer.slave)
    closed, screen = os.pipe()
    os.close(closed)
    shell = UserShell(
        program=desk.program,
        folder=desk.folder,
        environment=desk.environment,
        spill=desk.folder,
        keys=desk.outer.slave,
        screen=screen,
    )
    with pytest.raises(BrokenPipeError):
        shell.run("echo a")
    assert termios.tcgetattr(desk.outer.slave) == before
    os.close(screen)
    shell.close()


def test_output_without_a_last_newline_leaves_the_cursor_at_a_new_line(desk: Desk) -> None:
    desk.run("printf abc")
    desk.outer.expect("abc\r\n")
    assert desk.outer.seen == "abc\r\n"


def test_without_a_terminal(each: Desk) -> None:
    log = each.folder / "log"
    with Path(os.devnull).open() as nothing, log.open("wb") as screen:
        shell = UserShell(
            program=each.program,
            folder=each.folder,
            environment=each.environment,
            spill=each.folder,
            keys=nothing.fileno(),
            screen=screen.fileno(),
        )
        assert shell.run("echo a; cat; read x; greet").output == "a\ngood day\n"
        shell.close()
    assert log.read_bytes() == b"a\ngood day\n"


def test_an_interrupt_of_brim_is_forwarded_to_the_command(desk: Desk) -> None:
    script = (
        "from pathlib import Path; from brim.shell.terminal.user_shell import UserShell\n"
        f"shell = UserShell(program={desk.program!r}, folder=Path(), spill=Path(),"
        f" environment={desk.environment!r})\n"
        f"print(shell.run({SLEEP!r}).code); shell.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=desk.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as brim:
        assert brim.stdout is not None
        assert brim.stdout.readline() == b"ready\n"
        brim.send_signal(signal.SIGINT)
        assert brim.stdout.read().endswith(b"130\n")


def test_jobs_continue_while_no_command_runs(desk: Desk) -> None:
    desk.run("(seq 1 200000; touch finished) &")
    wait_for((desk.folder / "finished").exists)
    ran = desk.run("true")
    assert "199999" not in ran.output
    desk.outer.expect("199999")


def test_closing_hangs_up_the_jobs(desk: Desk) -> None:
    desk.run("sh -c 'trap \"touch told; exit\" HUP; touch up; while :; do sleep 0.01; done' &")
    wait_for((desk.folder / "up").exists)
    desk.shell.close()
    wait_for((desk.folder / "told").exists)


@pytest.mark.parametrize("before", ["", "trap '' HUP; "])
def test_closing_ends_a_command(desk: Desk, before: str) -> None:
    running = desk.begin(f"{before}echo ready; while :; do sleep 0.01; done")
    desk.outer.expect("ready")
    desk.shell.close()
    assert running.result(PATIENCE).code is None


def test_a_closed_shell_stays_closed(desk: Desk) -> None:
    (desk.home / ".bashrc").write_text("touch starting; sleep 1000\n")
    starting = threading.Thread(target=desk.shell.start)
    starting.start()
    wait_for((desk.folder / "starting").exists)
    desk.shell.close()
    starting.join()
    with pytest.raises(BrimError, match="closed"):
        desk.run("echo a")


@pytest.mark.parametrize("start_file", ["read x", "sleep 1000", "exit 1", "exec true", "kill $$"])
def test_a_start_file_that_does_not_end(
    desk: Desk, start_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_shell, "_START_TIMEOUT", 0.5)
    (desk.home / ".bashrc").write_text(f"alias first='echo 1'\n{start_file}\n")
    assert desk.run("echo fine").output == "fine\n"


def test_a_prompt_command_that_does_not_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_shell, "_START_TIMEOUT", 0.5)
    (desk.home / ".bashrc").write_text(f'PROMPT_COMMAND="{SLEEP} >&2"; x=read\n')
    running = desk.begin("echo $x; false")
    desk.outer.expect("ready")
    desk.outer.type("\x03")
    ran = running.result(PATIENCE)
    assert (ran.output, ran.code) == ("read\nready\n^C\n", 1)


def test_the_first_command_waits_for_the_start(desk: Desk) -> None:
    (desk.home / ".bashrc").write_text("sleep 0.3; x=ready\n")
    starting = threading.Thread(target=desk.shell.start)
    starting.start()
    assert desk.out("echo $x") == "ready\n"
    starting.join()


def test_a_start_file_does_not_change_the_folder(each: Desk) -> None:
    for name in (".bashrc", ".zshrc", ".shrc"):
        (each.home / name).write_text("cd /\n")
    assert each.out("pwd") == f"{each.folder}\n"


def test_a_shell_that_cannot_be_started_is_an_error(desk: Desk) -> None:
    desk.shell.close()
    desk.program = str(desk.folder / "no" / "bash")
    desk.shell = desk.new_shell()
    desk.shell.start()
    with pytest.raises(BrimError, match="cannot be started"):
        desk.run("echo a")


def test_the_default_is_the_users_shell_if_supported(desk: Desk) -> None:
    bash = shutil.which("bash")
    path = os.environ["PATH"]
    assert user_shell._default_program({"SHELL": desk.program, "PATH": ""}) == desk.program
    assert user_shell._default_program({"SHELL": "/usr/bin/tcsh", "PATH": path}) == bash
    assert user_shell._default_program({"PATH": "/nowhere"}) == "/bin/sh"


def test_no_files_are_left_behind(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = desk.folder / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    desk.run("echo a; exit")
    desk.run("echo b")
    assert len(list(folder.iterdir())) == 1
    desk.shell.close()
    assert list(folder.iterdir()) == []


def test_folders_of_killed_shells_are_removed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = desk.folder / "temporary"
    names = (
        "brim-shell-killed",
        "brim-run-killed",
        "brim-shell-open",
        "brim-shell-just-made",
        "other",
    )
    for name in names:
        (folder / name).mkdir(parents=True)
        if name != "brim-shell-just-made":
            os.utime(folder / name, (0, 0))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    lock = os.open(folder / "brim-shell-open", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    desk.run("echo a")
    os.close(lock)
    assert {name for name in names if (folder / name).exists()} == {*names[2:]}


def test_a_full_disk_loses_only_the_middle_of_a_long_output(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = OutputBuffer(tmp_path / "spill")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, hard))
        for number in range(3):
            kept.add(f"{number}" * (MAX_HEAD + MAX_TAIL))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    text, path = kept.close()
    assert "the beginning is in" in text
    assert (text[0], text[-1]) == ("0", "2")
    assert path is not None


def test_reports_with_another_token_are_ignored() -> None:
    reports = StatusReports("right")
    reports.feed(b"wrong\0started\0wrong\0done\0" + b"0\0h\0\0/\n\0")
    assert (reports.is_started, reports.done) == (False, None)
    data = b"right\0started\0right\0trap\0right\0trap\0trap -- x DEBUG\n\0right\0done\0"
    for byte in data + b"1\0hx\0\0/a\nb\n\0":
        reports.feed(bytes([byte]))
    assert reports.done is not None
    assert (reports.done.code, reports.done.folder) == (1, "/a\nb")
    assert reports.traps == "trap -- x DEBUG\n"


@pytest.mark.parametrize("piece", [1, 999, 10_000, 1_000_000])
@pytest.mark.parametrize("size", [MAX_HEAD + MAX_TAIL, MAX_HEAD + MAX_TAIL + 1, 200_000])
def test_head_tail_and_file_do_not_depend_on_the_pieces(
    tmp_path: Path, piece: int, size: int
) -> None:
    text = "".join(chr(97 + number % 26) for number in range(size))
    taken = OutputBuffer(tmp_path)
    for start in range(0, size, piece):
        taken.add(text[start : start + piece])
    output, whole = taken.close()
    if size <= MAX_HEAD + MAX_TAIL:
        assert (output, whole) == (text, None)
    else:
        assert whole is not None
        assert whole.read_text() == text
        assert output.startswith(text[:MAX_HEAD] + "\n[…")
        assert output.endswith("…]\n" + text[-MAX_TAIL:])


def test_an_unwritable_file_loses_only_the_middle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    taken = OutputBuffer(tmp_path / "file")
    taken.add("a" * 200_000)
    output, whole = taken.close()
    assert whole is None
    assert "not saved:" in output


def test_endless_output_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_text, "MAX_FILE", 100_000)
    taken = OutputBuffer(tmp_path)
    for _ in range(100):
        taken.add("b" * 10_000)
    output, whole = taken.close()
    assert whole is not None
    assert whole.stat().st_size <= 110_000
    assert "the beginning is in" in output
