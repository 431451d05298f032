"""What a shell offers for a command: the user's own bash or fish, or a new zsh or bash."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import join, quote
from typing import Final

TIMEOUT: Final = 5.0
"""Seconds that a completion may take; some ask a server."""
MAX_OFFERED: Final = 500
LIBRARY: Final = "/usr/share/bash-completion/bash_completion"
_SCRIPT: Final = """
( COMP_WORDS=(@words@); COMP_LINE=@line@; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_KEY=9;
COMP_CWORD=$((${#COMP_WORDS[@]}-1)); COMPREPLY=(); compopt() { :; };
__c=${COMP_WORDS[0]##*/}; __w=${COMP_WORDS[COMP_CWORD]}; __p=${COMP_WORDS[COMP_CWORD-1]};
if ! declare -F _completion_loader _comp_load >/dev/null && [ -r @library@ ]; then
. @library@; fi;
__s=$(complete -p -- "$__c") || { __s=$(complete -p -D); [[ $__s =~ -F\\ ([^\\ ]+) ]] &&
"${BASH_REMATCH[1]}" "$__c" "$__w" "$__p"; COMPREPLY=(); __s=$(complete -p -- "$__c"); };
if [[ $__s =~ -F\\ ([^\\ ]+) ]]; then "${BASH_REMATCH[1]}" "$__c" "$__w" "$__p";
else __s=${__s#complete }; eval "COMPREPLY=(\\$(compgen ${__s% *} -- \\"\\$__w\\"))"; fi;
printf '%s\\n' "${COMPREPLY[@]}" ) </dev/null
"""
"""A subshell, so that nothing of it stays in the user's shell."""

ASK_FISH: Final = r"complete -C {} | string replace -r '\t.*' ''"
"""What fish prints for a quoted line."""
_ZSH: Final = r"""
zmodload zsh/zpty || exit
zpty z zsh -i
zpty -w z ' eval "$BRIM_SETUP"'
zpty -r z answer $'*\x05' || exit
zpty -n -w z "$BRIM_LINE"$'\t'
while zpty -r z answer; do
  print -rn -- "$answer"
  [[ $answer == *$'\x04'* ]] && break
done
"""
"""Presses Tab in a zsh with the user's start files, on a terminal of its own."""
_ZSH_SETUP: Final = r"""
PROMPT= RPROMPT= LISTMAX=10000; precmd_functions=() preexec_functions=()
unset zle_bracketed_paste; unsetopt prompt_sp prompt_cr
(( $+functions[compdef] )) || { autoload -Uz compinit; compinit -u -D }
bindkey -d; bindkey -e; bindkey '^I' complete-word
bindkey '^M' undefined-key; bindkey '^J' undefined-key
zstyle ':completion:*' completer _complete
zstyle ':completion:*' insert-tab false
compadd() {
  [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }
  local -a found before
  zparseopts -E p:=before P:=before
  builtin compadd -A found "$@"
  (( $#found )) && print -rn -- $'\x02'${^before[2]:-}${^found}$'\x03'
  builtin compadd "$@"
}
__brim_end() { print -rn -- $'\x04'; exit }
comppostfuncs=(__brim_end)
print -rn -- $'\x05'
"""


def offer_in_zsh(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Return what the user's zsh offers for the last word of a command, one word per line."""
    line = " ".join(words)
    if not line.isprintable():  # it is typed, so a control character would be a key
        return ""
    values = {"BRIM_SETUP": _ZSH_SETUP, "BRIM_LINE": line}
    output = _run(["zsh", "-f", "-c", _ZSH], folder, {**environment, **values})
    return "\n".join(re.findall("\x02([^\x02\x03]*)\x03", output))


def build_script(words: Sequence[str]) -> str:
    """Return one line of bash that prints what can complete the last word of a command."""
    *before, last = words
    name, sign, value = last.partition("=")
    pieces = [name, sign, value] if last.startswith("-") and sign else [last]  # as bash splits it
    values = {"words": join((*before, *pieces)), "line": quote(" ".join(words)), "library": LIBRARY}
    script = " ".join(_SCRIPT.split("\n")).strip()
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    return script


def run_in_bash(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Return the output of a script in a new bash; empty if that fails."""
    return _run(["bash", "--norc", "--noprofile", "-c", script], folder, environment)


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, env=dict(environment), timeout=TIMEOUT, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def parse_offered(output: str, word: str) -> Iterable[str]:
    """Return the offered words, whole: after `=` or `:`, bash omits the start."""
    start = word[: max(word.rfind("="), word.rfind(":")) + 1]
    found = dict.fromkeys(line.rstrip() for line in output.split("\n")[:MAX_OFFERED])
    for line in found:
        whole = line if line.startswith(word) else start + line
        if line and line.isprintable() and whole.startswith(word):
            yield whole
