"""How bash, zsh and POSIX sh are started and controlled, as text; no I/O here.

Three lines are sent to run a command. The first one reports "started", evaluates the command with
the terminal as its input, and then settles: it saves the exit code, empties the prompts and
switches tracing off. The second and third are sent after "started". They settle again, because
Ctrl-C, `${x?}` and similar make a shell drop the rest of a line. The second runs the user's prompt
commands, the third reports. None of this prints on the terminal, not even under `set -x` or with a
DEBUG trap: the control code runs in groups with redirected output, and tracing is on only during
the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

OWN = "__brim_"
"""Prefix of the variables that the control code sets in the shell."""

SH_NAMES = """
. : [ alias bg break cd command continue echo eval exec exit export false fg getopts hash
jobs kill local printf pwd read readonly return set shift test times trap true type ulimit
umask unalias unset wait ! { } case do done elif else esac fi for if in then until while
"""
"""Builtins and keywords of every POSIX shell."""
_ADDS_TO_PROMPT = re.compile(r"PROMPT_COMMAND|(?:^|[\s;&|({])(?:\.|source|eval)\s")


@dataclass(frozen=True, slots=True)
class ShellPaths:
    """The paths that the control code of a shell uses."""

    reports: Path
    """The named pipe for reports."""
    tty: str
    """The path of its terminal."""
    home: Path
    """A temporary folder for its start files."""
    folder: Path
    """Its first working directory."""

    @property
    def to_reports(self) -> str:
        return f">|{quote(str(self.reports))}"


@dataclass(frozen=True, slots=True)
class CarriedState:
    """State of the last command that must be restored for the next one."""

    code: int = 0
    flags: str = ""
    traps: str = ""

    @property
    def prefix(self) -> str:
        flags = "".join(flag for flag in "xv" if flag in self.flags)
        parts = [f"set -{flags}"] if flags else []
        if " DEBUG" in self.traps:
            parts.append(self.traps.strip())
        return "; ".join(parts) + "; " if parts else ""


class PosixDialect:
    """A POSIX shell: its functions cannot be listed."""

    call = "\\"
    """Prefix for commands of the control code, so that aliases and functions do not apply."""
    jobs = "jobs"
    names = "\\alias"
    aliases = "\\alias"
    functions = "\\:"
    parse_arguments: tuple[str, ...] = ()
    """Arguments to skip start files when a command is only parsed."""
    variables = "\\set"
    incomplete_errors = (
        r"Unterminated quoted string|end of file unexpected|EOF in backquote|[Mm]issing"
    )

    def arguments(self, home: Path) -> list[str]:  # noqa: ARG002
        return ["-i"]

    def environment(self, home: Path) -> dict[str, str]:
        return {"ENV": str(home / "rc")}

    def files(
        self, paths: ShellPaths, token: str, environment: Mapping[str, str], *, with_users: bool
    ) -> dict[str, str]:
        """Return its start files: the user's own file, then the report "started"."""
        theirs = environment.get("ENV")
        users = f"ENV={quote(theirs)}\n{self._source(quote(theirs), paths)}" if theirs else ""
        return {"rc": (users if with_users else "") + self.begin(paths, token)}

    def begin(self, paths: ShellPaths, token: str) -> str:
        """Return the end of the start; sent as a line if the user's start file did not finish."""
        settled = self._silent(self._settle(paths, token))
        folder = quote(str(paths.folder))
        there = self._silent(f'[ "$PWD" = {folder} ] || {self.call}cd {folder}')
        return f"{there}; {OWN}code=; {settled}; {self._report_start(paths, token)}\n"

    def run(
        self, command: str, paths: ShellPaths, token: str, carried: CarriedState, stdin: str
    ) -> str:
        call = self.call
        start = f"{self._report_start(paths, token)}; {OWN}code={self._before(command)}"
        code = f"({call}exit {carried.code}) && {call}:; " if carried.code else ""
        text = quote(carried.prefix + command)
        settled = self._silent(self._settle(paths, token))
        # The leading space keeps the line out of a history that ignores such lines.
        return f" {self._silent(start)}; {code}{call}eval {text} 0<>{quote(stdin)}; {settled}\n"

    def after(self, paths: ShellPaths, token: str) -> str:
        """Return the second and the third line."""
        settle = self._silent(self._settle(paths, token))
        return f" {settle}{self._prompting(paths)}\n {settle}; {self._report(paths, token)}\n"

    def rescue(self, paths: ShellPaths, token: str) -> str:
        """Return lines that report without settling, if the third line was lost."""
        return f" {OWN}code=$? {OWN}flags=$-\n {self._report(paths, token)}\n"

    def query(self, body: str, paths: ShellPaths, token: str) -> str:
        begin, end = f"printf '%s\\0' {token} answer", f"printf '\\0%s\\0%s\\0' {token} answered"
        asked = f"{self.call}{begin}; {body}; {self.call}{end}"
        return f" {{ {asked}; }} {paths.to_reports} 2>/dev/null\n"

    def read_names(self, answer: str) -> frozenset[str]:
        return frozenset(SH_NAMES.split()) | frozenset(self.read_aliases(answer))

    def read_aliases(self, answer: str) -> dict[str, str]:
        """Parse `name='value'`, with or without the word `alias` before it."""
        pairs = (word.partition("=") for word in _split_words(answer) if "=" in word)
        return {name: value for name, _, value in pairs}

    def read_variables(self, answer: str) -> dict[str, str]:
        return self.read_aliases(answer)

    def _source(self, path: str, paths: ShellPaths) -> str:
        return f"[ -f {path} ] && {self.call}. {path} 0<>{quote(paths.tty)}\n"

    def _silent(self, text: str) -> str:
        return f"{{ {text}; }} >/dev/null 2>&1"

    def _report_start(self, paths: ShellPaths, token: str) -> str:
        return f"{self.call}printf '%s\\0' {token} started {paths.to_reports}"

    def _before(self, command: str) -> str:  # noqa: ARG002
        return ""

    def _settle(self, paths: ShellPaths, token: str) -> str:
        first = (
            f"{OWN}code=${OWN}last; {OWN}flags=$-; {self.call}set +xv"
            f"{self._set_aside(paths, token)}"
        )
        return (
            f'{OWN}last=$?; if [ -z "${{{OWN}code-}}" ]; then {first}; fi; '
            f"{self._still(paths, token)}"
        )

    def _set_aside(self, paths: ShellPaths, token: str) -> str:  # noqa: ARG002
        return ""

    def _still(self, paths: ShellPaths, token: str) -> str:  # noqa: ARG002
        """Return code that keeps the shell silent."""
        return "PS1= PS2="

    def _prompting(self, paths: ShellPaths) -> str:  # noqa: ARG002
        return ""

    def _report(self, paths: ShellPaths, token: str) -> str:
        call = self.call
        parts = (
            f'{call}printf \'%s\\0\' {token} done "${OWN}code" "${OWN}flags"',
            f'case "${OWN}code" in 14[5-9]|150) {call}{self.jobs};; esac',
            f"{call}printf '\\0'; {call}pwd; {call}printf '\\0'",
        )
        return f"{{ {'; '.join(parts)}; }} {paths.to_reports} 2>/dev/null"


class BashDialect(PosixDialect):
    """bash, from 3.2 on."""

    call = "\\builtin "
    jobs = "jobs -s"
    names = "\\builtin compgen -abk -A function"
    aliases = "\\builtin alias -p"
    functions = "\\builtin compgen -A function"
    variables = (
        f"\\builtin compgen -v | while IFS= \\builtin read -r {OWN}each; do "
        f'\\builtin printf \'%s\\0%s\\0\' "${OWN}each" "${{!{OWN}each-}}"; done'
    )
    incomplete_errors = (
        r"unexpected EOF|unexpected end of file|here-document .*delimited by end-of-file"
    )

    def arguments(self, home: Path) -> list[str]:
        return ["--noediting", "--rcfile", str(home / "rc"), "-i"]

    def environment(self, home: Path) -> dict[str, str]:  # noqa: ARG002
        return {}

    def files(
        self,
        paths: ShellPaths,
        token: str,
        environment: Mapping[str, str],  # noqa: ARG002
        *,
        with_users: bool,
    ) -> dict[str, str]:
        users = self._source("~/.bashrc", paths) if with_users else ""
        return {"rc": users + self.begin(paths, token)}

    def begin(self, paths: ShellPaths, token: str) -> str:
        # An empty name keeps our lines, and an empty list, out of the user's history file.
        history = "\\builtin export -n HISTFILE; HISTFILE=; "
        return history + super().begin(paths, token)

    def read_names(self, answer: str) -> frozenset[str]:
        return frozenset(answer.split())

    def read_variables(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer)

    def _before(self, command: str) -> str:
        """Restore the prompt commands for a command that may extend them.

        Not for others: after Ctrl-C, bash would run them before the control code, and again after a
        Ctrl-C against them.
        """
        if not _ADDS_TO_PROMPT.search(command):
            return f"; {OWN}lent="
        return f"; {self._lend_prompt()}"

    def _lend_prompt(self) -> str:
        lend = f'{OWN}lent=1; PROMPT_COMMAND=("${{{OWN}prompt[@]-}}")'
        return f"if [[ -z ${{{OWN}fixed-}} ]]; then {lend}; fi"

    def _set_aside(self, paths: ShellPaths, token: str) -> str:  # noqa: ARG002
        return f"; {self._keep_prompt()}"

    def _keep_prompt(self) -> str:
        now = '"${PROMPT_COMMAND[@]-}"'
        changed = f"if [[ -n ${{{OWN}lent-}} ]]; then {OWN}prompt=({now}); "
        is_new = f'-n ${{PROMPT_COMMAND-}} && "${{{OWN}prompt[*]-}}" != *"$PROMPT_COMMAND"*'
        added = f"elif [[ {is_new} ]]; then {OWN}prompt+=({now}); fi"
        # A read-only PROMPT_COMMAND stays, and bash runs it itself.
        unset = f"\\builtin unset -v PROMPT_COMMAND || {{ {OWN}prompt=(); {OWN}fixed=1; }}"
        return f"{changed}{added}; {OWN}lent=; {unset}"

    def _still(self, paths: ShellPaths, token: str) -> str:
        to = paths.to_reports
        trap = (
            f"\\builtin printf '%s\\0' {token} trap {to}; \\builtin trap -p DEBUG {to}; "
            f"\\builtin printf '\\0' {to}; \\builtin trap - DEBUG"
        )
        # Prompts that are not empty (start files stop at an empty one) but show nothing. Set with
        # printf, because an assignment to a read-only variable would end the line.
        prompts = "; ".join(
            f"\\builtin printf -v {name} '\\[\\]'" for name in ("PS0", "PS1", "PS2")
        )
        return f"{prompts}; \\builtin set +o history +H; {trap}"

    def _prompting(self, paths: ShellPaths) -> str:
        """Return code that runs the user's prompt commands; their errors are shown."""
        code = f"(\\builtin exit ${OWN}code) && \\builtin :"
        each = f'\\builtin eval "${OWN}each" 0<>{quote(paths.tty)} >/dev/null || \\builtin :'
        loop = (
            f'for {OWN}each in "${{{OWN}prompt[@]-}}"; do '
            f"if [[ -n ${OWN}each ]]; then {code}; {each}; fi; done"
        )
        return f"; {loop}; {self._silent(self._keep_prompt())}"


class ZshDialect(PosixDialect):
    """zsh; its prompt hooks are not run, because it shows no prompt of its own."""

    call = "\\builtin "
    jobs = "jobs -s"
    names = "\\builtin print -rl -- ${(k)aliases} ${(k)functions} ${(k)builtins} ${(k)reswords}"
    aliases = "\\builtin printf '%s\\0' \"${(@kv)aliases}\""
    functions = "\\builtin print -rl -- ${(k)functions}"
    # Without associative arrays (the history is one) and zero bytes (IFS has one).
    variables = (
        f"for {OWN}each in ${{(k)parameters}}; do "
        f"case ${{parameters[${OWN}each]}} in *association*) \\builtin continue;; esac; "
        f"\\builtin printf '%s\\0%s\\0' \"${OWN}each\" \"${{${{(P){OWN}each}}//$'\\0'/}}\"; done"
    )
    incomplete_errors = r"unmatched |parse error near `(?:\\n'|\$\()|closing brace expected"

    def environment(self, home: Path) -> dict[str, str]:
        return {"ZDOTDIR": str(home)}

    def files(
        self, paths: ShellPaths, token: str, environment: Mapping[str, str], *, with_users: bool
    ) -> dict[str, str]:
        theirs = environment.get("ZDOTDIR")
        back = f"ZDOTDIR={quote(theirs)}" if theirs else "\\builtin unset ZDOTDIR"
        if not with_users:
            return {".zshrc": f"{back}\n{self.begin(paths, token)}"}
        path = "${ZDOTDIR:-$HOME}/"
        first = f"{back}\n{self._source(path + '.zshenv', paths)}"
        keep = f"{OWN}folder=${{ZDOTDIR-}}\nZDOTDIR={quote(str(paths.home))}\n"
        again = f'ZDOTDIR=${OWN}folder\n[ -n "$ZDOTDIR" ] || \\builtin unset ZDOTDIR\n'
        users = self._source(path + ".zshrc", paths)
        return {".zshenv": first + keep, ".zshrc": again + users + self.begin(paths, token)}

    def read_names(self, answer: str) -> frozenset[str]:
        return frozenset(answer.split())

    def read_aliases(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer)

    def read_variables(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer)

    def _still(self, paths: ShellPaths, token: str) -> str:
        to = paths.to_reports
        return (
            "PS1='%{%}' PS2='%{%}' RPS1= RPS2=; \\builtin unset HISTFILE; "
            "precmd_functions=() preexec_functions=(); "
            "\\builtin unfunction precmd preexec || \\builtin :; "
            "\\builtin unsetopt zle prompt_sp prompt_cr bang_hist; "
            "\\builtin setopt hist_ignore_space; "
            f"\\builtin printf '%s\\0' {token} trap {to}; \\builtin trap {to}; "
            f"\\builtin printf '\\0' {to}; \\builtin trap - DEBUG"
        )


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _parse_pairs(answer: str) -> dict[str, str]:
    """Parse name, zero byte, value, zero byte, and so on."""
    fields = answer.split("\0")
    return dict(zip(fields[::2], fields[1::2], strict=False))
