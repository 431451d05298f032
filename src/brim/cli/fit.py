"""`brim count` and `brim fit`: one conversation, or files of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from brim.batch.byte_streams import (
    InputFile,
    decode_text,
    dump_json,
    is_blank,
    parse_json,
)
from brim.batch.input_files import find_text_format
from brim.batch.shapes import MESSAGES, detect_shape
from brim.cli.dataset import DatasetOptions, dataset_options, fit_dataset, open_document
from brim.cli.main import main
from brim.cli.options import FILE, json_option, number_option, terminal_width
from brim.errors import ContextOverflowError, InputError
from brim.fitting.api import fit as fit_body
from brim.fitting.plan import get_overflow_plan
from brim.fitting.text_tables import format_count

if TYPE_CHECKING:
    from brim.fitting.plan import Plan

Command = TypeVar("Command", bound=Callable[..., Any])


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
@json_option
def count(
    file: IO[bytes],
    model: str | None,
    tools: IO[bytes] | None,
    tokenizer: str | None,
    as_text: bool,
    as_json: bool,
) -> None:
    """Count the tokens of a text, a conversation or a request body.

    A JSON list of messages, or an object of a shape that `brim fit` knows, is counted as a
    conversation, including the tokens of the model's chat template; anything else is counted as
    text. Each row of a JSONL file is counted on its own.

    \b
    brim count notes.md -m gpt-5-mini
    brim count chat.json -m claude-sonnet-4-5 --tools tools.json
    git diff | brim count - --json
    """
    import brim
    from brim import tokens

    definitions, source = _tools(tools), _source(file)
    holds_rows = not as_text and find_text_format(source) == "jsonl"
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
    where = f" in {format_count(rows, 'row')}" if holds_rows else ""
    sure = f"{counted:,} tokens{where}, exact"
    click.echo(
        sure if counted.exact else f"about {counted:,} tokens{where} (estimated with {chosen.name})"
    )
    if set(counted.parts) != {"text"}:
        for name, size in counted.parts.items():
            if size:
                click.echo(f"  {name:10}{size:>12,}")


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
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
@click.option("--plan", "plans", metavar="FILE", help="Write the plan as JSON.")
@click.option(
    "--dry-run", is_flag=True, help="Print what would be done, without writing the conversation."
)
@click.option("-o", "--output", metavar="PATH", help="Write to a file, a folder or an address.")
@dataset_options
def fit(
    files: Sequence[str],
    tools: IO[bytes] | None,
    plans: str | None,
    output: str | None,
    explain: bool,
    dry_run: bool,
    dataset: DatasetOptions,
    **options: Any,
) -> None:
    """Fit a conversation into the context window, and keep its format; or a whole data set.

    FILE is JSON: a list of messages or a request body (OpenAI chat, OpenAI responses, Anthropic
    messages). The conversation is printed to standard output, and what was done to standard error.

    \b
    brim fit chat.json -m gpt-5-mini --reply 1000 --explain > fitted.json
    brim fit body.json --window 8192 --dry-run --explain

    A data set has one conversation per row: JSONL, a JSON array, Parquet or Arrow, also compressed
    (.gz, .zst), a folder of such files, or an address such as s3://bucket/rows.parquet. Its rows
    have `messages`, are request bodies (also as `body` or `params` of a batch request), or have
    the `conversations` of ShareGPT or the `conversation` of LMSYS.

    \b
    brim fit rows.parquet -m gpt-5-mini --window 8192 -o fitted.parquet
    brim fit logs/ --window 8192 -o fitted/ --report fitted.html
    zcat log.jsonl.gz | brim fit - --window 8192 -o fitted.jsonl

    Rows get the columns brim_tokens_before, brim_tokens, brim_dropped, brim_clipped and brim_error.
    A row that cannot be fitted stays as it is, with the reason in brim_error. After an
    interruption, run the same command with --resume.
    """
    from brim.fitting.policies import resolve_policy
    from brim.wire.template_source import find_rules

    resolve_policy(options["policy"])
    if options["template"] is not None:
        find_rules(options["template"])
    options["tools"] = _tools(tools)
    document = open_document(files, dataset)
    is_set = document is None or dataset.input_format or find_text_format(document)
    if document is None or is_set:
        if explain:
            raise click.UsageError(
                "--explain works for one conversation. Use --plan FILE for a data set."
            )
        rows = None if dry_run else output or "-"
        fit_dataset(files, options, dataset, rows, plans, document)
        return
    if dataset.resume:
        raise click.UsageError("--resume needs a data set and -o FILE.")
    if dataset.report is not None or dataset.shard is not None:
        raise click.UsageError("--report and --shard need a data set.")
    out = None if dry_run else output or "-"
    _check(out, plans)
    _fit_one(document, options, out, plans, explain=explain)


def _check(output: str | None, plans: str | None) -> None:
    """Raise UsageError for contradictory outputs of one conversation."""
    for path in (output, plans):
        if path is not None and path.endswith(".gz"):
            raise click.UsageError(
                f"{path}: compressed output is not supported. Pipe the output into gzip."
            )
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
    """Return the conversation of a row of any known shape; the text if it is none."""
    try:
        value = json.loads(text)
        body = None if isinstance(value, list) else detect_shape([value]).read(value)
    except (ValueError, RecursionError, InputError):
        return text
    if body is not None:
        return body if isinstance(body.get("messages", []), list) else text
    first = value[0] if value else None
    return value if isinstance(first, dict) and "role" in first else text


def _fit_one(
    source: InputFile,
    options: Mapping[str, Any],
    out: str | None,
    plans: str | None,
    explain: bool,
) -> None:
    from brim.batch.outputs import write_output

    text = source.text()
    indent = 2 if "\n" in text.strip() else None
    try:
        value, plan = _fit_value(parse_json(text, source.name), options)
    except ContextOverflowError as error:
        _report(get_overflow_plan(error), plans, explain)
        raise
    click.get_current_context().meta.pop(FILE, None)  # later errors name an output
    if out is not None:
        write_output(out, dump_json(value, indent))
    _report(plan, plans, explain)


def _fit_value(value: Any, options: Mapping[str, Any]) -> tuple[Any, Plan]:
    """Return a fitted conversation in its original format, and the plan."""
    try:
        body = MESSAGES.read(value)
        request = fit_body(body, **options)
        return MESSAGES.write(value, body, request), request.plan
    except RecursionError:
        raise InputError("The JSON is nested too deeply.") from None


def _report(plan: Plan, plans: str | None, explain: bool) -> None:
    """Print what was done to standard error, and write the plan to its file."""
    from brim.batch.outputs import write_output
    from brim.fitting.explain import render_plan

    if plans is not None:
        write_output(plans, dump_json(plan.to_dict(), indent=2))
    if explain:
        click.echo(render_plan(plan, terminal_width(sys.stderr)), err=True)
    elif plan.fits:
        click.echo(
            "\n".join([str(plan), *(f"warning: {text}" for text in plan.warnings)]), err=True
        )
