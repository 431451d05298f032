"""Enters the sandbox and runs a command in it; started by `brim.shell.sandbox` as a program.

It uses only the standard library and starts fast (`python -I -S`). A seccomp filter blocks
connections and ways out. bubblewrap protects files, or Landlock with read-only mounts; if mounts
are not allowed, the filter blocks what Landlock does not cover: changes of modes, owners and times.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
FAILED = 125
"""Exit code if the sandbox cannot be entered; the command was not run."""
OLDEST_LANDLOCK = 3
"""The first version that covers truncation."""

SOCKET, IOCTL, PRLIMIT = (41, 198), (16, 29), (302, 261)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, with which a program can type on the terminal."""
IP_FAMILIES = (2, 10, 16)  # IPv4, IPv6 and netlink
SHARED_MEMORY = "/dev/shm"
LANDLOCK_WRITES = sum(1 << bit for bit in (1, *range(4, 15)))
LANDLOCK_WRITE_FILE = 1 << 1


def main() -> NoReturn:
    """Run the command in the sandbox that the argument describes."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # files that the user's shell has open
    options = json.loads(sys.argv[1])
    if options["kind"] == "inside":  # bubblewrap has started this process
        _enter(_run_landlock, {**options, "has_mounts": True})
    for name in options["unset"]:
        os.environ.pop(name, None)
    for signum in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, lambda *_: None)  # a handler, which the command does not inherit
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(FAILED))  # ends the command and cleans up
    LIBC.prctl(1, signal.SIGTERM, 0, 0, 0)  # when the parent ends, which may have been killed
    LIBC.prctl(36, 1, 0, 0, 0)  # processes that the command leaves behind become ours
    temporary = os.environ["TMPDIR"] = options["temporary"] = tempfile.mkdtemp(prefix="brim-run-")
    lock = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)  # a folder without a lock is removed later
    redirect = Path(options["project"], ".git", "commondir")  # git reads its settings from there
    had_redirect = redirect.exists()
    if redirect.parent.is_dir() and not redirect.parent.is_symlink():
        (redirect.parent / "hooks").mkdir(exist_ok=True)  # a missing folder cannot be protected
    try:
        code = _fork(options, has_mounts=True)
        if code is None:
            code = _fork(options, has_mounts=False)
    finally:
        _end_children()
        if not had_redirect and redirect.parent.resolve() == redirect.parent:
            redirect.unlink(missing_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
    os._exit(FAILED if code is None else code)


def _end_children() -> None:
    """End the processes that the command left behind."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while processes := children.read_text().split():
        for process in map(int, processes):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _fork(options: Mapping[str, Any], *, has_mounts: bool) -> int | None:
    """Return the exit code of the command; None if the kernel does not allow mounts."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
        if options["kind"] == "bubblewrap":
            _enter(_run_bubblewrap, options)
        if has_mounts and not _isolate(options):
            os.write(writing, b"x")
            os._exit(FAILED)
        _enter(_run_landlock, {**options, "has_mounts": has_mounts})
    os.close(writing)
    has_failed = os.read(reading, 1) == b"x"
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return None if has_failed else 128 - code if code < 0 else code


def _enter(run: Callable[[Mapping[str, Any]], None], options: Mapping[str, Any]) -> NoReturn:
    try:
        run(options)
    except OSError as error:
        sys.stderr.write(f"brim: the sandbox cannot be entered: {error}\n")
    os._exit(FAILED)


def build_filter(denied: Sequence[Sequence[int]], *, ip_allowed: bool) -> bytes:
    """Return a seccomp program that denies calls, given by their numbers on x86-64 and on ARM."""
    at = 0 if platform.machine() == "x86_64" else 1
    rows = [(0x20, 0, 0, 4), (0x15, 1, 0, AUDIT_ARCH[platform.machine()]), (0x06, 0, 0, 0x80000000)]
    rows += [(0x20, 0, 0, 0), (0x35, 0, 1, 0x40000000), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    for number in (numbers[at] for numbers in denied if numbers[at] >= 0):
        rows += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    rows += _check_argument(IOCTL[at], 24, TERMINAL_INPUT, are_allowed=False)
    rows += _check_argument(SOCKET[at], 16, IP_FAMILIES if ip_allowed else (), are_allowed=True)
    rows += _check_argument(PRLIMIT[at], 16, (0,), are_allowed=True)  # no other process
    rows.append((0x06, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("HBBI", *row) for row in rows)


def _check_argument(
    number: int, offset: int, values: Sequence[int], *, are_allowed: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the test of one argument of a system call: its low 32 bits decide."""
    allow, deny = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno.EACCES)
    yield (0x15, 0, 2 * len(values) + 2, number)
    yield (0x20, 0, 0, offset)
    for value in values:
        yield (0x15, 0, 1, value)
        yield allow if are_allowed else deny
    yield deny if are_allowed else allow


def _apply_filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("rows", ctypes.c_char_p))

    pointer = ctypes.byref(Program(len(program) // 8, program))
    _call("seccomp", LIBC.prctl(22, 2, pointer, 0, 0))


def _call(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _run_bubblewrap(options: Mapping[str, Any]) -> None:
    """Replace this process by bubblewrap."""
    if landlock_version() >= OLDEST_LANDLOCK:  # a read-only mount does not protect named pipes
        inside = json.dumps({**options, "kind": "inside"})
        options = {**options, "command": [sys.executable, "-I", "-S", __file__, inside]}
    program = os.memfd_create("filter", 0)
    os.write(program, build_filter(options["escapes"], ip_allowed=True))
    os.lseek(program, 0, os.SEEK_SET)
    arguments = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += [] if options["network"] else ["--unshare-net"]
    arguments += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    arguments += ["--ro-bind", "/proc/sys", "/proc/sys"]  # which root could write to
    for path in _writable(options):
        arguments += ["--bind", path, path]
    for path in _git_programs(options["project"]):
        arguments += ["--ro-bind", path, path]
    arguments += ["--chdir", options["folder"], "--cap-drop", "ALL", "--seccomp", str(program)]
    os.execvp("bwrap", [*arguments, "--", *options["command"]])


def _writable(options: Mapping[str, Any]) -> list[str]:
    """Return the folders to mount as writable; `.git` too, because a mount cannot be replaced."""
    git = f"{options['project']}/.git"
    is_plain = Path(git).is_dir() and not Path(git).is_symlink()
    return [options["project"], options["temporary"], *([git] if is_plain else [])]


def _git_programs(project: str) -> list[str]:
    """Return the files with which git runs programs outside the sandbox later."""
    names = (".git/config", ".git/hooks", ".git/modules", ".envrc")
    return [path for name in names if Path(path := f"{project}/{name}").exists()]


def _run_landlock(options: Mapping[str, Any]) -> None:
    """Replace this process by the command."""
    _call("no_new_privs", LIBC.prctl(38, 1, 0, 0, 0))
    private = [SHARED_MEMORY] if options["has_mounts"] else []
    _restrict_files([options["project"], options["temporary"], *private])
    for capability in range(41):
        LIBC.prctl(24, capability, 0, 0, 0)
    has_mounts = options["has_mounts"]
    denied = options["escapes"] + options["metadata"] * (not has_mounts)
    _apply_filter(build_filter(denied, ip_allowed=options["network"] or has_mounts))
    os.execvp(options["command"][0], options["command"])


def _isolate(options: Mapping[str, Any]) -> bool:
    """Make all other files read-only and leave the network, if the kernel allows it."""
    user, group = os.geteuid(), os.getegid()
    flags = 0x10000000 | 0x00020000 | 0x08000000 | (0 if options["network"] else 0x40000000)
    if LIBC.unshare(flags) < 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return False
    writable = [path.encode() for path in _writable(options)]
    protected = [name.encode() for name in _git_programs(options["project"])]
    results = [LIBC.mount(b"none", b"/", None, 0x4000 | 0x40000, None)]
    results += [LIBC.mount(path, path, None, 0x1000, None) for path in (*writable, *protected)]
    results.append(_set_read_only(b"/", is_read_only=True))
    results += [_set_read_only(path, is_read_only=False) for path in writable]
    if Path(SHARED_MEMORY).is_dir():
        results.append(LIBC.mount(b"tmpfs", SHARED_MEMORY.encode(), b"tmpfs", 6, None))
    os.chdir(options["folder"])
    return not any(results)


def _set_read_only(path: bytes, *, is_read_only: bool) -> int:
    """Make a mount and all below it read-only, or one mount writable."""
    change = struct.pack("QQQQ", int(is_read_only), int(not is_read_only), 0, 0)
    depth = 0x8000 if is_read_only else 0
    return int(LIBC.syscall(442, -100, path, depth, change, len(change)))


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 without it."""
    return max(0, int(LIBC.syscall(444, None, 0, 1)))


def _restrict_files(writable: Sequence[str]) -> None:
    version = landlock_version()
    if version < OLDEST_LANDLOCK:
        raise OSError(errno.ENOSYS, "Landlock is not available")
    scopes = (0, 3) if version >= 6 else (0,) if version >= 4 else ()
    attributes = struct.pack(f"Q{len(scopes)}Q", LANDLOCK_WRITES, *scopes)
    ruleset = _call("landlock", LIBC.syscall(444, attributes, len(attributes), 0))
    devices = ["/dev/null", "/dev/zero", "/dev/full", "/dev/tty"]
    with suppress(OSError):  # bubblewrap has a /dev of its own, without the name of the terminal
        devices += [os.ttyname(number) for number in (0, 1, 2) if os.isatty(number)]
    for path in (*writable, *devices):
        if Path(path).exists():
            access = LANDLOCK_WRITES if path in writable else LANDLOCK_WRITE_FILE
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", access, file)
            _call("landlock", LIBC.syscall(445, ruleset, 1, rule, 0))
            os.close(file)
    _call("landlock", LIBC.syscall(446, ruleset, 0))
    os.close(ruleset)


if __name__ == "__main__":
    main()
