"""`brim models`: context windows, tokenizers and prices."""

from __future__ import annotations

import sys
from typing import Any

import click

from brim.cli.main import main
from brim.cli.options import print_result, terminal_width
from brim.errors import InputError


@main.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(name: str | None, as_json: bool) -> None:
    """List the models in the catalog, or show one of them.

    Provider prefixes, dates, tags and file extensions are ignored: `openai/gpt-4o-2024-08-06` is
    `gpt-4o`. Prices are in dollars per million tokens: input, cached input, output.

    \b
    brim models
    brim models claude-sonnet-4-5
    brim models qwen2.5-7b-instruct-q4_k_m.gguf --json
    """
    from difflib import get_close_matches

    from brim.fitting import explain
    from brim.models import catalog

    if name is None:
        known = [_describe_model(model.name) for model in catalog.models()]
        table = explain.render_models(known, terminal_width(sys.stdout))
        print_result(known, table, as_json=as_json)
        return
    if catalog.model(name) is None:
        names = [model.name for model in catalog.models()]
        near = get_close_matches(name.lower(), names, n=5, cutoff=0.5)
        hint = f"Similar names: {', '.join(near)}" if near else "`brim models` lists all models"
        raise InputError(f"Unknown model: {name}. {hint}.")
    facts = _describe_model(name)
    print_result(facts, explain.render_model(name, facts), as_json=as_json)


def _describe_model(name: str) -> dict[str, Any]:
    """Return the facts about a model for JSON; None for unknown values."""
    from brim import tokens
    from brim.models import catalog, pricing

    model = catalog.model(name)
    assert model is not None
    vocabulary, own = tokens.vocabulary_of(name)
    price = pricing.price(model.name, model.provider) or pricing.Price()
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
