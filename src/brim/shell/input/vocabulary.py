"""Words that distinguish a sentence from a command, and the arguments of common commands.

Tables only; `classify` has the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


SENTENCE_WORDS: Final = _words(
    "the an this that these those my your our their his her its it me you we they he she him",
    "them i'm please what why how when where who whom whose which while because is isn are was",
    "were am be been being does did doesn didn don has have had can could should would will shall",
    "might must not than there here something anything everything someone two three four five six",
    "seven eight nine ten one ones many much most some every each both",
    "fails failed crashes crashed hangs works worked says said shows showed gives gave returns",
    "returned prints printed means keeps explained meaning tutorial sure vs versus faster slower",
    "better shorter longer yourself myself itself really again instead properly correctly ahead",
    "der das den dem ein eine einen einem einer eines ist sind wie warum wieso weshalb wer welche",
    "welcher welches bitte mir mich dir dich ich wir ihr nicht kein keine kann kannst soll wird",
    "mein meine diese dieser dieses diesen dass zwei drei größte kleinste",
    "les une est sont pourquoi quel quelle dans cette mon mes nous vous toutes",
    "los las una unos qué cómo cuál dónde porqué este estos estas gli perché cosa questo questa",
    "não você uma isso esse essa het een waarom hoe deze mijn",
)
"""One of these among plain words indicates a sentence."""

LINK_WORDS: Final = _words(
    "a and or of in on to from for with without by at as if into onto about like between after",
    "before during all any per via over under no but so then using only such another other",
    "die des und oder mit für auf von vom zu zum zur im am bei nach aus alle alles wo was",
    "le la un de du et ou que qui pour avec sur au el con del por para lo il che com van voor met",
)
"""One of these indicates a sentence if a plain word follows: `make all` is a command."""

INNER_KEYWORDS: Final = _words("do done then else elif fi esac in")
"""Shell keywords that cannot start a line."""

OPENING_KEYWORDS: Final = _words("if for while until case select function")
"""Keywords that start a command only if their complete form follows."""

PREFIXES: Final = _words(
    "time env nohup nice exec command builtin xargs watch coproc stdbuf setsid eval noglob"
)
"""Commands that run the command after them."""

RUNS_FOR_OTHERS: Final = _words("sudo doas")
"""The same, as another user who may have other programs."""

TAKES_TEXT: Final = _words("echo printf say figlet cowsay espeak notify-send wall logger banner")
"""Their arguments may be a sentence."""

TAKES_A_NAME: Final = _words(
    "grep egrep fgrep zgrep rg ag ack pgrep pkill killall mkdir touch vi vim nvim nano emacs tee",
    "cd pushd export unset alias su ssh chown chgrp useradd adduser userdel id apropos",
)
"""Their first argument may be any word: a pattern, a new name, a user."""

TAKES_COMMANDS: Final = _words("which type man whereis whatis help info where tldr hash unalias")
"""Their arguments are names of commands."""

SCRIPTED: Final = _words(
    "python python3 node ruby perl bash sh zsh fish dash ksh php lua Rscript source ."
)
"""After the file that they run, anything may follow."""

TAKES_VARIABLES: Final = _words("read")
"""Their arguments are names of variables, never files."""

NEEDS_SYNTAX: Final = _words("test set look write install")
"""With only files as arguments they are language: "test main.py" is meant for the model."""

ANSWERS: Final = frozenset(
    ("yes", "continue", "more", "go on", "go back", "install", "write", "look", "return", "break")
)
"""Lines that answer a model, although the shell has such commands."""

COMMANDS_LIKE_SENTENCES: Final = frozenset(("who am i",))
"""Lines that are commands, although they read like a sentence."""

_FILES_ONLY: Final = _words(
    "cat tac head tail less more sort uniq cut paste join split fold expand fmt comm last file",
    "stat strings tree size sum wc nl od rev column shuf factor seq sleep test find kill sed awk",
    "rm rmdir unlink shred truncate link install open display import convert compare identify code",
    "top who users free date cal clear reset exit logout return break continue shift true false",
    "yes at batch write history jobs bg fg wait set let eval read exec time watch nice env",
    "script patch apply reboot halt poweroff diff cmp view see print start bc dc",
    "edit compose show pr dir talk groups news calendar units stream animate montage spell update",
    *SCRIPTED,
)
_MANY_WORDS: Final = _words(
    "git gh hg svn docker docker-compose podman kubectl helm terraform ansible vagrant apt apt-get",
    "aptitude dnf yum pacman zypper brew port snap flatpak nix apk npm npx yarn pnpm pip pip3 pipx",
    "uv poetry conda mamba cargo rustup go gem bundle composer mvn gradle dotnet systemctl service",
    "journalctl launchctl ip nmcli ufw nft iptables tmux screen aws gcloud az heroku flyctl",
    "flutter dart bun deno rails rake mix sbt lein stack cabal opam swift xcodebuild adb fastboot",
    "mkdir touch unset export type hash ssh brim pkill killall expr useradd vim vi nvim nano",
)


def _plain_words() -> dict[str, int]:
    allowed = dict.fromkeys(_FILES_ONLY, 0)
    allowed |= dict.fromkeys(_words("cp mv ln scp rsync shutdown passwd su zip w locate"), 1)
    allowed |= dict.fromkeys(TAKES_COMMANDS, 1)
    allowed |= {"make": 3, "just": 3, "help": 0}
    return allowed | dict.fromkeys(_MANY_WORDS, sys.maxsize)


PLAIN_WORDS: Final[Mapping[str, int]] = _plain_words()
"""The number of plain words that are not files a command takes; else `PLAIN_WORDS_ELSE`."""
PLAIN_WORDS_ELSE: Final = 2
