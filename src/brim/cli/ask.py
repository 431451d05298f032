"""`brim ask`: one question."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from brim.cli.main import main


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
    from brim import config
    from brim.cli import ask_once

    loaded = config.discover(folder=Path.cwd(), environment=os.environ)
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)
    given = None if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
    asked = ask_once.Question(question, given, system, window, max_tokens)
    with ask_once.open_answer(asked, loaded.config, model, os.environ) as answer:
        for piece in answer:
            if not as_json:
                click.echo(piece, nl=False)
        if not as_json:
            click.echo()
        for notice in answer.notices:
            click.echo(f"brim: {notice}", err=True)
        if as_json:
            click.echo(json.dumps(answer.to_dict(), ensure_ascii=False))
