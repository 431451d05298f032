"""Code of other languages on the command line: `python -c`, `perl -e`, piped scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from brim.shell.risk.invocation import Invocation
from brim.shell.risk.syntax import PIPE, is_known, plain


@dataclass(frozen=True, slots=True)
class Language:
    """The options that pass code to an interpreter, and a pattern of suspicious code."""

    code: tuple[str, ...]
    suspicious: str = ""
    reads: bool = True
    """Whether it runs standard input if no file is given."""
    valued: tuple[str, ...] = ()


_QUOTES: Final = "`"
LANGUAGES: Final = {
    "python": Language(("-c",), valued=("-W", "-X", "-m")),
    "pypy": Language(("-c",), valued=("-W", "-X", "-m")),
    "ipython": Language(("-c",), r"^\s*!|get_ipython"),
    "perl": Language(("-e", "-E"), _QUOTES + r"|open[^;]*>|\bqx\b", valued=("-I", "-M")),
    "ruby": Language(
        ("-e",), _QUOTES + r"|%x|File\.(new|open)\([^)]*['\"][wa]", valued=("-r", "-I")
    ),
    "node": Language(
        ("-e", "--eval", "-p", "--print"),
        r"\bfs\b(?!\.(read|exists|stat|access|lstat|realpath|createRead|readdir)\w*)"
        r"(?=\.|['\"]?\)\.(?!read|exists|stat))|\.rm\(|\bfs['\"]?\)?\s*\[|require\(\s*[^'\")\s]|process\.binding",
        valued=("-r", "--require"),
    ),
    "bun": Language(("-e", "--eval"), r"\$`|Bun\.(write|spawn)", reads=False),
    "deno": Language(("eval",), r"Deno\.(?!read|args|env|stat|cwd)\w+", reads=False),
    "php": Language(("-r",), _QUOTES + r"|shell_exec|passthru|proc_open|fopen|fwrite"),
    "lua": Language(("-e",), r"io\.open|\bload\b"),
    "luajit": Language(("-e",), r"io\.open|\bload\b"),
    "rscript": Language(("-e",), r"write\.|sink\("),
    "r": Language(("-e",), r"write\.|sink\("),
    "julia": Language(("-e", "-E"), _QUOTES + r"|\brm\("),
    "osascript": Language(("-e",), r"do shell script|empty|keystroke|shut down|restart"),
    "tclsh": Language((), r"\bfile\s+delete"),
    "groovy": Language(("-e",), r"\.execute"),
    "elixir": Language(("-e", "--eval"), r"File\.rm|System\.cmd"),
    "ghc": Language(("-e",), r"", reads=False),
    "scala": Language(("-e",), r"sys\.process"),
    "emacs": Language(("--eval", "-eval", "-f"), r"delete|shell-command|write", reads=False),
    "guile": Language(("-c",), r"delete-file"),
    "sbcl": Language(("--eval",), r"delete-file|run-program"),
    "swipl": Language(("-g",), r"shell|delete_file"),
    "jshell": Language((), r"Files\.|Runtime"),
    "powershell": Language(
        ("-c", "-Command", "-command"),
        r"(?i)remove-|del\b|\brm\b|\brd\b|clear-|format-|stop-|iex|invoke-|set-content|out-file"
        r"|encoded|move-item|\bri\b|\berase\b",
    ),
    "vim": Language(("-c", "--cmd", "-s"), r"!|\bwq?a?\b|\bx\b|system|:?\bup", reads=False),
}  # fmt: skip
_ALSO: Final = {
    "pwsh": "powershell", "nodejs": "node", "vi": "vim", "nvim": "vim", "ex": "vim", "view": "vim",
    "powershell.exe": "powershell", "irb": "ruby", "bpython": "python", "wish": "tclsh",
    "jruby": "ruby", "micropython": "python", "tsx": "node", "ts-node": "node",
}  # fmt: skip
_NAME: Final = re.compile(r"([a-z]+?)(?:[\d.]+\w?)?")
_WORDS: Final = re.compile(
    r"\b(?:rmtree|rmdir\w*|removedirs|remove|removeSync|unlink\w*|rm(?:Sync|_rf?|_f|dirSync)"
    r"|FileUtils|shutil|f?truncate\w*|system|popen\w*|Popen|subprocess|spawn\w*|posix|pty"
    r"|exec\w*|execute|eval|Eval|__import__|importlib|import_module|getattr|ctypes|cffi|__dict__"
    r"|vars|globals|attrgetter|methodcaller|builtins|__builtins__|runpy|pickle|marshal"
    r"|child_process|Kernel|Open3|chmod|chown|kill\w*|write_text|write_bytes|writeFile\w*"
    r"|file_put_contents|appendFile\w*|copyfile\w*|copytree|copyFile\w*|rename\w*|renames"
    r"|move|fork\w*|instance_eval|send|public_send|delete\w*|DELETE|constructor|Function"
    r"|to_csv|to_excel|to_parquet|savefig|extractall|urlretrieve|putenv|sendmail|reboot)\b"
    r"|os\.(?:replace|open|link|symlink|write|abort)|\.save\w*\("
    r"|open\s*\(?[^)\n]*,\s*(?:mode\s*=\s*)?['\"][^'\")]*[wax+]|\.open\(\s*['\"][wax]"
    r"|(?<!stdout)(?<!stderr)\.write\(|json\.dump\((?!.*sys\.std)"
    r"|(?i:\bdrop\s+(?:table|database|schema)\b)"
)
_PERL_IN_PLACE: Final = re.compile(r"-[a-zA-Z0]*i(?P<kept>[.~]\w+)?.*")


def language_of(name: str) -> str | None:
    """Return the language that a program interprets: python for python3.12."""
    if name in _ALSO:
        return _ALSO[name]
    match = _NAME.fullmatch(name)
    return match[1] if match and match[1] in LANGUAGES else None


def why_code(language: str, code: str) -> str | None:
    """Return why this code needs a yes; None if it does not."""
    if not is_known(code):
        return "runs code that is known only at run time"
    text = plain(code)
    extra = LANGUAGES[language].suspicious
    found = _WORDS.search(text) or (re.search(extra, text, re.MULTILINE) if extra else None)
    return (
        f"its {language} code can write, remove or run things ({found[0].strip()[:40]})"
        if found
        else None
    )


def why_inline(call: Invocation) -> str | None:
    """Return why the code passed to an interpreter needs a yes; None if there is none."""
    language = language_of(call.name)
    if language is None:
        return None
    spoken = LANGUAGES[language]
    if language in ("perl", "ruby") and (why := _in_place(call)):
        return why
    if language == "powershell" and any("enc" in option.lower() for option in call.options()):
        return "runs hidden code"
    if language == "vim":
        commands = [t[1:] for t in call.texts if t.startswith("+")] + call.values(*spoken.code)
        return next((why for c in commands if (why := why_code(language, c))), None)
    codes = _codes(call, spoken)
    if language == "powershell" and not codes:
        codes = call.operands()
    return next((why for code in codes if (why := why_code(language, code))), None)


def _codes(call: Invocation, spoken: Language) -> list[str]:
    codes = [code for name in spoken.code for code in _after(call, name)]
    if codes or not spoken.reads or call.stdin is None or "-m" in call.texts:
        return codes
    files = [text for text in call.operands(*spoken.valued) if text != "-"]
    return [] if files else [call.stdin]


def _after(call: Invocation, name: str) -> list[str]:
    if name.startswith("-"):
        return call.values(name)
    return call.texts[call.texts.index(name) + 1 :] if name in call.texts else []


def _in_place(call: Invocation) -> str | None:
    for option in call.options():
        match = _PERL_IN_PLACE.fullmatch(option)
        if match and not option.startswith(("-e", "-E", "-I", "-M", "--")) and not match["kept"]:
            return "edits files in place"
    return None


_AWK_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_AWK_CALM: Final = re.compile(r'>\s*"/dev/std(?:err|out)"|\|\s*"sort(?: -[\w ,.]+)?"')
"""Harmless outputs of an awk script."""
_AWK_RUNS: Final = re.compile(r'system\s*\(|\|\s*&?\s*"|\|\s*&?\s*getline|\|&|@load|-i\s*inplace')
_AWK_WRITES: Final = re.compile(r"\bprintf?\b[^;}\n]*?(?:>>?\s*(\S+)|\|)")


def why_awk(call: Invocation) -> str | None:
    """Return why an awk script needs a yes: it can run commands and write files."""
    if "inplace" in call.texts:
        return "edits files in place"
    scripts = [plain(text) for text in call.operands("-F", "-v", "-f")[:1]]
    scripts += [plain(text) for text in call.values("-e", "--source")]
    scripts += [text.strip(PIPE) for text in call.values("-f") if text.startswith(PIPE)]
    for script in scripts:
        if not is_known(script):
            return "runs a script that is known only at run time"
        calm = _AWK_CALM.sub("", script)
        if _AWK_RUNS.search(calm):
            return "its script runs commands"
        if _AWK_WRITES.search(_AWK_STRING.sub('""', calm)):
            return "its script writes files"
    return None
