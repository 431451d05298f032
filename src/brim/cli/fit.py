"""`brim count` and `brim fit`: one conversation, or files of them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from brim.cli.files import InputFile, decode_text, dump_json, is_blank, parse_json, write_file
from brim.cli.main import main
from brim.cli.options import FILE, FILE_PATH, number_option, terminal_width
from brim.errors import ContextOverflowError
from brim.fitting.plan import get_overflow_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brim.cli.batch import ChunkResult, Job, Tally
    from brim.fitting.plan import Plan

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_PROBLEMS: Final = 10
"""Number of problems that are reported one by one."""


def _count_options(command: Command) -> Command:
    """Add the options that choose how to count."""
    for option in (
        click.option("--tokenizer", metavar="NAME|PATH", help="Tokenizer to count with."),
        click.option(
            "--tools",
            type=click.File("rb"),
            metavar="FILE",
            help="JSON file with tool definitions.",
        ),
        click.option("-m", "--model", metavar="MODEL", help="Model (see `brim models`)."),
    ):
        command = option(command)
    return command


@main.command()
@click.argument("file", type=click.File("rb"), metavar="FILE")
@_count_options
@click.option("--text", "as_text", is_flag=True, help="Count as plain text, even if it is JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def count(
    file: IO[bytes],
    model: str | None,
    tools: IO[bytes] | None,
    tokenizer: str | None,
    as_text: bool,
    as_json: bool,
) -> None:
    """Count the tokens of a text, a conversation or a request body.

    A JSON list of messages, or an object with `messages` or `input`, is counted as a conversation,
    including the tokens of the model's chat template; anything else is counted as text. Each row
    of a JSONL file is counted on its own.

    \b
    brim count notes.md -m gpt-5-mini
    brim count chat.json -m claude-sonnet-4-5 --tools tools.json
    git diff | brim count - --json
    """
    import brim
    from brim import tokens

    definitions, source = _tools(tools), _source(file)
    holds_rows = not as_text and source.holds_rows()
    values = _rows(source) if holds_rows else [source.text()]
    rows, exact, parts = 0, True, Counter[str]()
    for text in values:
        value = text if as_text else _conversation(text)
        if model is None and isinstance(value, Mapping) and isinstance(value.get("model"), str):
            model = value["model"]
        found = brim.count(value, model=model, tools=definitions, tokenizer=tokenizer)
        rows, exact = rows + 1, exact and found.exact
        parts.update(found.parts)
    counted = brim.Count(parts, exact=exact)
    chosen = tokens.tokenizer(tokenizer) if tokenizer else tokens.tokenizer_for(model)[0]
    if as_json:
        facts = {"tokens": counted, "exact": counted.exact, "parts": counted.parts}
        facts |= {"rows": rows} if holds_rows else {}
        click.echo(json.dumps({**facts, "tokenizer": chosen.name, "model": model}))
        return
    where = f" in {rows:,} rows" if holds_rows else ""
    sure = f"{counted:,} tokens{where}, exact"
    click.echo(
        sure if counted.exact else f"about {counted:,} tokens{where} (estimated with {chosen.name})"
    )
    if set(counted.parts) != {"text"}:
        for name, size in counted.parts.items():
            if size:
                click.echo(f"  {name:10}{size:>12,}")


@main.command()
@click.argument("file", type=click.File("rb"), metavar="FILE")
@_count_options
@number_option("--window", help="Context window in tokens.")
@number_option("--reply", least=0, help="Tokens reserved for the reply.")
@click.option(
    "--policy",
    default="steady",
    metavar="NAME",
    show_default=True,
    help="steady: change the prefix rarely, for prompt caches. thrift: the same, but trim more. "
    "rolling: mask old outputs first. sliding: drop the oldest messages.",
)
@number_option("--keep-recent", least=0, help="Drop the last N units last.")
@number_option(
    "--pin",
    "pins",
    least=0,
    multiple=True,
    help="Never drop or clip message N (the first is 0); repeatable.",
)
@click.option(
    "--template",
    metavar="NAME_OR_FILE",
    help="Shape the messages for a strict chat template: mistral, gemma, strict, ..., or a file.",
)
@click.option("--explain", is_flag=True, help="Print a table with the outcome of each message.")
@click.option("--plan", "plans", type=FILE_PATH, metavar="FILE", help="Write the plan as JSON.")
@click.option(
    "--dry-run", is_flag=True, help="Print what would be done, without writing the conversation."
)
@click.option("-o", "--output", type=FILE_PATH, metavar="FILE", help="Write to a file.")
@click.option("--resume", is_flag=True, help="JSONL: continue after the rows in the output file.")
@number_option("-j", "--jobs", help="JSONL: number of processes.  [default: one per core]")
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
    """Fit a conversation into the context window, and keep its format.

    FILE is JSON: a list of messages or a request body (OpenAI chat, OpenAI responses, Anthropic
    messages); or JSONL with one of these per row, also as `body` or `params` of a batch request.
    The conversation is printed to standard output, and what was done to standard error.

    \b
    brim fit chat.json -m gpt-5-mini --reply 1000 --explain > fitted.json
    brim fit body.json --window 8192 --dry-run --explain
    zcat log.jsonl.gz | brim fit - --window 8192 -o fitted.jsonl

    In JSONL, a row that does not fit or cannot be read becomes {"error": ...}, and --plan writes
    one row for each row. After an interruption, run the same command with --resume.
    """
    from brim.cli.batch import Job
    from brim.fitting.policies import resolve_policy
    from brim.wire.template_source import find_rules

    resolve_policy(options["policy"])
    if options["template"] is not None:
        find_rules(options["template"])
    options["tools"] = _tools(tools)
    source = _source(file)
    holds_rows = source.holds_rows()
    _check(source, holds_rows, output, plans, explain=explain, dry_run=dry_run, resume=resume)
    out = None if dry_run else output or Path("-")
    if not holds_rows:
        _fit_one(source, options, out, plans, explain=explain)
        return
    job = Job(source.name, options, wants_plans=plans is not None)
    tally = _fit_rows(source, job, out, plans, jobs or _count_cores(), resume=resume)
    if tally.overflowed or tally.unreadable:
        click.get_current_context().exit(3 if tally.overflowed else 2)


def _check(
    source: InputFile,
    holds_rows: bool,
    output: Path | None,
    plans: Path | None,
    *,
    explain: bool,
    dry_run: bool,
    resume: bool,
) -> None:
    """Raise UsageError for contradictory options."""
    if resume and (output is None or not holds_rows or dry_run):
        raise click.UsageError("--resume needs JSONL input and -o FILE.")
    if explain and holds_rows:
        raise click.UsageError("--explain works for one conversation. Use --plan FILE for JSONL.")
    for path in (output, plans):
        if path is not None and path.suffix == ".gz":
            raise click.UsageError(
                f"{path}: compressed output is not supported. Pipe the output into gzip."
            )
        if path is not None and holds_rows and source.is_same(path):
            raise click.UsageError(f"{path} is the input file.")
    if output is not None and output == plans:
        raise click.UsageError("-o and --plan name the same file.")


def _source(file: IO[bytes]) -> InputFile:
    """Return the source of a file, and name the file in later errors."""
    source = InputFile(file)
    click.get_current_context().meta[FILE] = source.name
    return source


def _tools(file: IO[bytes] | None) -> Any:
    """Return tool definitions from a list, or from a request body."""
    if file is None:
        return None
    source = _source(file)
    value = parse_json(source.text(), source.name)
    return value.get("tools") if isinstance(value, Mapping) else value


def _rows(source: InputFile) -> Iterator[str]:
    """Yield the rows of JSONL."""
    for number, line in enumerate(source.lines(), 1):
        if not is_blank(line):
            yield decode_text(line, source.name, number)


def _conversation(text: str) -> Any:
    """A conversation where a text is the JSON of one; otherwise the text."""
    from brim.cli.batch import envelope_of

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
    source: InputFile,
    options: Mapping[str, Any],
    out: Path | None,
    plans: Path | None,
    explain: bool,
) -> None:
    from brim.cli.batch import fit_value

    text = source.text()
    indent = 2 if "\n" in text.strip() else None
    try:
        value, plan = fit_value(parse_json(text, source.name), options)
    except ContextOverflowError as error:
        _report(get_overflow_plan(error), plans, explain)
        raise
    if out is not None:
        write_file(out, dump_json(value, indent))
    _report(plan, plans, explain)


def _report(plan: Plan, plans: Path | None, explain: bool) -> None:
    """Print what was done to standard error, and write the plan to its file."""
    from brim.fitting.explain import render_plan

    if plans is not None:
        write_file(plans, dump_json(plan.to_dict(), indent=2))
    if explain:
        click.echo(render_plan(plan, terminal_width(sys.stderr)), err=True)
    elif plan.fits:
        click.echo(
            "\n".join([str(plan), *(f"warning: {text}" for text in plan.warnings)]), err=True
        )


def _fit_rows(
    source: InputFile, job: Job, out: Path | None, plans: Path | None, jobs: int, *, resume: bool
) -> Tally:
    """Fit JSONL row by row; return the tally of the whole output."""
    from brim.cli import batch

    earlier = batch.truncate_output(out, plans) if resume and out is not None else batch.Tally()
    tally = batch.Tally()
    progress = Progress(source.size)
    rows = batch.fit_chunks(batch.chunks(source, earlier.rows), job, jobs)
    try:
        first = next(
            rows, batch.ChunkResult()
        )  # invalid options fail here, before the output is touched
        with _rows_to(plans, resume) as explained, _rows_to(out, resume) as fitted, closing(rows):
            for done in chain([first], rows):
                with batch.block_interrupts():
                    explained(done.plans)
                    fitted(done.lines)
                    tally.add(done.tally)
                progress.show(tally.rows, done)
    except KeyboardInterrupt:
        hint = " Run the same command with --resume to continue." if out and str(out) != "-" else ""
        progress.say(f"brim: Stopped after {earlier.rows + tally.rows:,} rows.{hint}")
        raise
    progress.end()
    before = f" (after {earlier.rows:,} existing rows)" if earlier.rows else ""
    progress.say(f"{tally}{before}")
    tally.add(earlier)
    return tally


@contextmanager
def _rows_to(path: Path | None, resume: bool) -> Iterator[Callable[[bytearray], object]]:
    """Yield a function that writes rows to a file or standard output, and flushes them."""
    if path is None:
        yield len
        return
    with click.open_file(str(path), "ab" if resume else "wb") as stream:
        yield lambda data: (stream.write(data), stream.flush())


class Progress:
    """Output while rows are fitted: problems, and a progress line on a terminal."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._start = self._shown = monotonic()
        self._live = sys.stderr.isatty()
        self._problems = 0

    def show(self, rows: int, done: ChunkResult) -> None:
        for problem in done.problems:
            self._problems += 1
            if self._problems <= MAX_PROBLEMS:
                self.say(problem)
        now = monotonic()
        if self._live and now - self._shown > 0.1:
            self._shown = now
            speed = rows / (now - self._start)
            share = f", {done.position / self._size:.0%}" if self._size else ""
            click.echo(f"\r\x1b[K{rows:,} rows, {speed:,.0f} rows/s{share}", err=True, nl=False)

    def say(self, text: str) -> None:
        click.echo(f"\r\x1b[K{text}" if self._live else text, err=True)

    def end(self) -> None:
        if self._problems > MAX_PROBLEMS:
            self.say(f"... and {self._problems - MAX_PROBLEMS:,} more")


def _count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
