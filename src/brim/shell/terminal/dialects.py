"""How bash, zsh and a plain sh are started and spoken to: text in, text out.

To run a command three lines are sent. The first says "started", evaluates the command with the
terminal as its input and then settles: keeps the exit code, empties the prompts, switches tracing
off. The second and third are sent after "started". They settle too, because Ctrl-C, `${x?}` and
the like make a shell drop the rest of a line. The second runs the user's prompt commands, the
third reports. Nothing here prints on the terminal, also under `set -x` and with a DEBUG trap: the
machinery stands in groups whose output goes elsewhere, and tracing is only on within the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

OWN = "__brim_"
"""How the names begin that the machinery leaves in the shell."""

_SH_NAMES = """
. : [ alias bg break cd command continue echo eval exec exit export false fg getopts hash
jobs kill local printf pwd read readonly return set shift test times trap true type ulimit
umask unalias unset wait ! { } case do done elif else esac fi for if in then until while
"""
_ADDS_TO_PROMPT = re.compile(r"PROMPT_COMMAND|(?:^|[\s;&|({])(?:\.|source|eval)\s")


@dataclass(frozen=True, slots=True)
class ShellPaths:
    """Where a shell lives, as its lines name it."""

    reports: Path
    """The named pipe that it reports through."""
    tty: str
    """The path of its terminal."""
    home: Path
    """A folder of its own, for the files it starts from."""
    folder: Path
    """Where it is to stand at first."""

    @property
    def to_reports(self) -> str:
        return f">|{quote(str(self.reports))}"


@dataclass(frozen=True, slots=True)
class CarriedState:
    """What the last command left that must be put back for the next."""

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
    """A POSIX shell: jobs, aliases and variables, but its functions cannot be listed."""

    call = "\\"
    """Stands before a command of the machinery, against aliases and functions of that name."""
    jobs = "jobs"
    names = "\\alias"
    aliases = "\\alias"
    reading: tuple[str, ...] = ()
    """Keeps start files away from a shell that only reads."""
    variables = "\\set"
    is_unfinished = r"Unterminated quoted string|end of file unexpected|EOF in backquote|[Mm]issing"

    def arguments(self, home: Path) -> list[str]:  # noqa: ARG002
        return ["-i"]

    def environment(self, home: Path) -> dict[str, str]:
        return {"ENV": str(home / "rc")}

    def files(
        self, ground: ShellPaths, token: str, environment: Mapping[str, str], *, with_users: bool
    ) -> dict[str, str]:
        """What it reads when it starts: the user's own file, then "started"."""
        theirs = environment.get("ENV")
        users = f"ENV={quote(theirs)}\n{self._sourced(quote(theirs), ground)}" if theirs else ""
        return {"rc": (users if with_users else "") + self.begin(ground, token)}

    def begin(self, ground: ShellPaths, token: str) -> str:
        """Ends the start; sent as a line where the user's file did not come to its end."""
        settled = self._silent(self._settle(ground, token))
        folder = quote(str(ground.folder))
        there = self._silent(f'[ "$PWD" = {folder} ] || {self.call}cd {folder}')
        return f"{there}; {OWN}code=; {settled}; {self._started(ground, token)}\n"

    def run(
        self, command: str, ground: ShellPaths, token: str, carried: CarriedState, stdin: str
    ) -> str:
        call = self.call
        start = f"{self._started(ground, token)}; {OWN}code={self._before(command)}"
        code = f"({call}exit {carried.code}) && {call}:; " if carried.code else ""
        text = quote(carried.prefix + command)
        settled = self._silent(self._settle(ground, token))
        # The space before it keeps a line out of a history that passes such lines over.
        return f" {self._silent(start)}; {code}{call}eval {text} 0<>{quote(stdin)}; {settled}\n"

    def after(self, ground: ShellPaths, token: str) -> str:
        """The second and the third line."""
        settle = self._silent(self._settle(ground, token))
        return f" {settle}{self._prompting(ground)}\n {settle}; {self._report(ground, token)}\n"

    def rescue(self, ground: ShellPaths, token: str) -> str:
        """Reports without settling, where something stopped the third line."""
        return f" {OWN}code=$? {OWN}flags=$-\n {self._report(ground, token)}\n"

    def question(self, body: str, ground: ShellPaths, token: str) -> str:
        begin, end = f"printf '%s\\0' {token} answer", f"printf '\\0%s\\0%s\\0' {token} answered"
        asked = f"{self.call}{begin}; {body}; {self.call}{end}"
        return f" {{ {asked}; }} {ground.to_reports} 2>/dev/null\n"

    def read_names(self, answer: str) -> frozenset[str]:
        return frozenset(_SH_NAMES.split()) | frozenset(self.read_aliases(answer))

    def read_aliases(self, answer: str) -> dict[str, str]:
        """From `name='value'`, with the word `alias` before it or without."""
        pairs = (word.partition("=") for word in _split_words(answer) if "=" in word)
        return {name: value for name, _, value in pairs}

    def read_variables(self, answer: str) -> dict[str, str]:
        return self.read_aliases(answer)

    def _sourced(self, path: str, ground: ShellPaths) -> str:
        return f"[ -f {path} ] && {self.call}. {path} 0<>{quote(ground.tty)}\n"

    def _silent(self, text: str) -> str:
        return f"{{ {text}; }} >/dev/null 2>&1"

    def _started(self, ground: ShellPaths, token: str) -> str:
        return f"{self.call}printf '%s\\0' {token} started {ground.to_reports}"

    def _before(self, command: str) -> str:  # noqa: ARG002
        return ""

    def _settle(self, ground: ShellPaths, token: str) -> str:
        first = (
            f"{OWN}code=${OWN}last; {OWN}flags=$-; {self.call}set +xv"
            f"{self._set_aside(ground, token)}"
        )
        return (
            f'{OWN}last=$?; if [ -z "${{{OWN}code-}}" ]; then {first}; fi; '
            f"{self._still(ground, token)}"
        )

    def _set_aside(self, ground: ShellPaths, token: str) -> str:  # noqa: ARG002
        return ""

    def _still(self, ground: ShellPaths, token: str) -> str:  # noqa: ARG002
        """Keeps the shell from saying anything by itself."""
        return "PS1= PS2="

    def _prompting(self, ground: ShellPaths) -> str:  # noqa: ARG002
        return ""

    def _report(self, ground: ShellPaths, token: str) -> str:
        call = self.call
        parts = (
            f'{call}printf \'%s\\0\' {token} done "${OWN}code" "${OWN}flags"',
            f'case "${OWN}code" in 14[5-9]|150) {call}{self.jobs};; esac',
            f"{call}printf '\\0'; {call}pwd; {call}printf '\\0'",
        )
        return f"{{ {'; '.join(parts)}; }} {ground.to_reports} 2>/dev/null"


class BashDialect(PosixDialect):
    """bash, from 3.2 on."""

    call = "\\builtin "
    jobs = "jobs -s"
    names = "\\builtin compgen -abk -A function"
    aliases = "\\builtin alias -p"
    variables = (
        f"\\builtin compgen -v | while IFS= \\builtin read -r {OWN}each; do "
        f'\\builtin printf \'%s\\0%s\\0\' "${OWN}each" "${{!{OWN}each-}}"; done'
    )
    is_unfinished = (
        r"unexpected EOF|unexpected end of file|here-document .*delimited by end-of-file"
    )

    def arguments(self, home: Path) -> list[str]:
        return ["--noediting", "--rcfile", str(home / "rc"), "-i"]

    def environment(self, home: Path) -> dict[str, str]:  # noqa: ARG002
        return {}

    def files(
        self,
        ground: ShellPaths,
        token: str,
        environment: Mapping[str, str],  # noqa: ARG002
        *,
        with_users: bool,
    ) -> dict[str, str]:
        users = self._sourced("~/.bashrc", ground) if with_users else ""
        return {"rc": users + self.begin(ground, token)}

    def begin(self, ground: ShellPaths, token: str) -> str:
        # An empty name keeps both our lines and an empty list out of the user's history file.
        history = "\\builtin export -n HISTFILE; HISTFILE=; "
        return history + super().begin(ground, token)

    def read_names(self, answer: str) -> frozenset[str]:
        return frozenset(answer.split())

    def read_variables(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer)

    def _before(self, command: str) -> str:
        """Puts the prompt commands back for a command that may add to them.

        Not for others: after Ctrl-C bash would run them before the machinery has a say, and after
        a Ctrl-C against them once more, without end.
        """
        if not _ADDS_TO_PROMPT.search(command):
            return f"; {OWN}lent="
        return f"; {self._lend_prompt()}"

    def _lend_prompt(self) -> str:
        lend = f'{OWN}lent=1; PROMPT_COMMAND=("${{{OWN}prompt[@]-}}")'
        return f"if [[ -z ${{{OWN}fixed-}} ]]; then {lend}; fi"

    def _set_aside(self, ground: ShellPaths, token: str) -> str:  # noqa: ARG002
        return f"; {self._keep_prompt()}"

    def _keep_prompt(self) -> str:
        now = '"${PROMPT_COMMAND[@]-}"'
        changed = f"if [[ -n ${{{OWN}lent-}} ]]; then {OWN}prompt=({now}); "
        is_new = f'-n ${{PROMPT_COMMAND-}} && "${{{OWN}prompt[*]-}}" != *"$PROMPT_COMMAND"*'
        added = f"elif [[ {is_new} ]]; then {OWN}prompt+=({now}); fi"
        # One that is read-only stays where it is, and bash runs it by itself.
        unset = f"\\builtin unset -v PROMPT_COMMAND || {{ {OWN}prompt=(); {OWN}fixed=1; }}"
        return f"{changed}{added}; {OWN}lent=; {unset}"

    def _still(self, ground: ShellPaths, token: str) -> str:
        to = ground.to_reports
        trap = (
            f"\\builtin printf '%s\\0' {token} trap {to}; \\builtin trap -p DEBUG {to}; "
            f"\\builtin printf '\\0' {to}; \\builtin trap - DEBUG"
        )
        # Prompts that are not empty (start files stop at an empty one) and show nothing. Set in
        # this way, because an assignment to what is read-only would end the line.
        prompts = "; ".join(
            f"\\builtin printf -v {name} '\\[\\]'" for name in ("PS0", "PS1", "PS2")
        )
        return f"{prompts}; \\builtin set +o history +H; {trap}"

    def _prompting(self, ground: ShellPaths) -> str:
        """The user's prompt commands, as before a prompt; errors show, as there."""
        code = f"(\\builtin exit ${OWN}code) && \\builtin :"
        each = f'\\builtin eval "${OWN}each" 0<>{quote(ground.tty)} >/dev/null || \\builtin :'
        loop = (
            f'for {OWN}each in "${{{OWN}prompt[@]-}}"; do '
            f"if [[ -n ${OWN}each ]]; then {code}; {each}; fi; done"
        )
        return f"; {loop}; {self._silent(self._keep_prompt())}"


class ZshDialect(PosixDialect):
    """zsh; its hooks before and after a prompt are not run, as there is none of its own."""

    call = "\\builtin "
    jobs = "jobs -s"
    names = "\\builtin print -rl -- ${(k)aliases} ${(k)functions} ${(k)builtins} ${(k)reswords}"
    aliases = "\\builtin printf '%s\\0' \"${(@kv)aliases}\""
    # Tables, the history among them, are left out, and so are zero bytes (IFS has one).
    variables = (
        f"for {OWN}each in ${{(k)parameters}}; do "
        f"case ${{parameters[${OWN}each]}} in *association*) \\builtin continue;; esac; "
        f"\\builtin printf '%s\\0%s\\0' \"${OWN}each\" \"${{${{(P){OWN}each}}//$'\\0'/}}\"; done"
    )
    is_unfinished = r"unmatched |parse error near `(?:\\n'|\$\()|closing brace expected"

    def environment(self, home: Path) -> dict[str, str]:
        return {"ZDOTDIR": str(home)}

    def files(
        self, ground: ShellPaths, token: str, environment: Mapping[str, str], *, with_users: bool
    ) -> dict[str, str]:
        theirs = environment.get("ZDOTDIR")
        back = f"ZDOTDIR={quote(theirs)}" if theirs else "\\builtin unset ZDOTDIR"
        if not with_users:
            return {".zshrc": f"{back}\n{self.begin(ground, token)}"}
        path = "${ZDOTDIR:-$HOME}/"
        first = f"{back}\n{self._sourced(path + '.zshenv', ground)}"
        keep = f"{OWN}folder=${{ZDOTDIR-}}\nZDOTDIR={quote(str(ground.home))}\n"
        again = f'ZDOTDIR=${OWN}folder\n[ -n "$ZDOTDIR" ] || \\builtin unset ZDOTDIR\n'
        users = self._sourced(path + ".zshrc", ground)
        return {".zshenv": first + keep, ".zshrc": again + users + self.begin(ground, token)}

    def read_names(self, answer: str) -> frozenset[str]:
        return frozenset(answer.split())

    def read_aliases(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer)

    def read_variables(self, answer: str) -> dict[str, str]:
        return _parse_pairs(answer)

    def _still(self, ground: ShellPaths, token: str) -> str:
        to = ground.to_reports
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
    """From name, zero byte, value, zero byte, and so on."""
    fields = answer.split("\0")
    return dict(zip(fields[::2], fields[1::2], strict=False))
