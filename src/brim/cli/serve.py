"""`brim serve`: run the gateway."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from brim.cli.main import main
from brim.cli.options import (
    load_config,
    number_option,
    print_result,
    require_packages,
    terminal_width,
)

if TYPE_CHECKING:
    from brim.config import Config, UpstreamConfig
    from brim.gateway.logs import Style

PACKAGES: Final = ("httptools", "orjson", "platformdirs", "prometheus_client", "starlette")
LOCAL_KEY: Final = "BRIM_LOCAL_KEY"
"""Environment variable with the key of a server that this command started."""


def _price(
    _: click.Context, option: click.Parameter, value: str | None
) -> Mapping[str, Decimal] | None:
    """Parse prices per million tokens of input and output: `0.25/2`."""
    if value is None:
        return None
    with suppress(InvalidOperation):
        rates = [Decimal(rate) for rate in value.split("/")]
        if len(rates) == 2 and all(rate.is_finite() and rate >= 0 for rate in rates):
            return dict(zip(("input", "output"), rates, strict=True))
    raise click.BadParameter(f"{value!r} is not two numbers such as 0.25/2", param=option)


@main.command()
@click.option("--upstream", "endpoint", metavar="URL", help="URL of the upstream server.")
@click.option(
    "--format",
    multiple=True,
    metavar="NAME",
    help="API format: openai, anthropic or responses; repeatable.",
)
@click.option(
    "--key-env",
    metavar="NAME",
    help="Environment variable with its API key.  [default: forward the client's key]",
)
@number_option("--window", help="Context window of its models in tokens.")
@number_option("--reply", least=0, help="Tokens reserved for the reply.")
@click.option(
    "--price",
    metavar="INPUT/OUTPUT",
    callback=_price,
    help="Dollars per million tokens, if the price list has none; 0/0 for free models.",
)
@click.option("--local", is_flag=True, help="Use the embedded model as the upstream.")
@click.option(
    "--policy",
    metavar="NAME",
    help="Fitting policy: steady, thrift, rolling, sliding or recall.  [default: steady]",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=int, metavar="N", help="Port to listen on (0 = any free port).  [default: 8484]"
)
@click.option(
    "--log",
    type=click.Choice(["json", "text"]),
    help="Log format.  [default: text on a terminal, otherwise json]",
)
@click.option("--check", is_flag=True, help="Check every upstream and exit.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object when the gateway is ready."
)
def serve(
    local: bool,
    policy: str | None,
    host: str | None,
    port: int | None,
    log: Style | None,
    check: bool,
    as_json: bool,
    **upstream: Any,
) -> None:
    """Run a gateway that fits every request into its model's context window.

    Clients of OpenAI and Anthropic only need another base URL. The gateway counts each request,
    trims it if it is too long, and forwards it; the response is returned unchanged, with `brim-`
    headers that describe what was done. The upstreams come from the configuration
    ([upstreams.NAME], see `brim config --example`), or from the options.

    As soon as a key exists (`brim keys add NAME`), or if gateway.require_keys is set, clients need
    a key. Without keys, the gateway listens on this machine only and accepts every request. SIGHUP
    reads the configuration again. SIGTERM or Ctrl-C stops it when the running requests have
    finished; a second Ctrl-C stops it immediately.

    \b
    brim serve --upstream https://api.openai.com/v1
    brim serve --upstream http://127.0.0.1:8080 --format openai --format anthropic
    brim serve --local                   try it with the embedded model
    brim serve                           use the upstreams of the configuration
    brim serve --check                   check the upstreams
    OPENAI_BASE_URL=http://127.0.0.1:8484/v1 python your_app.py
    ANTHROPIC_BASE_URL=http://127.0.0.1:8484 claude
    """
    require_packages("gateway", PACKAGES)
    flags = {"gateway.policy": policy, "gateway.host": host, "gateway.port": port}
    loaded = load_config(flags)
    described = {key: value for key, value in upstream.items() if value not in (None, ())}
    with _resolve_upstreams(loaded.config, described, local) as (chosen, environment):

        def load_again() -> Config:
            found = load_config(flags).config
            return replace(found, upstreams=chosen.upstreams) if described or local else found

        if not check:
            _run(chosen, environment, log, as_json, load_again)
        elif not _check(chosen, environment, as_json):
            click.get_current_context().exit(1)


@contextmanager
def _resolve_upstreams(
    configured: Config, described: Mapping[str, Any], is_local: bool
) -> Iterator[tuple[Config, Mapping[str, str]]]:
    """Yield the configuration with the chosen upstreams, and the environment with their keys."""
    from brim.gateway.preflight import parse_upstream
    from brim.gateway.upstreams import LOCAL_UPSTREAM

    if is_local:
        if described.keys() - {"window", "reply", "price"}:
            raise click.UsageError(
                "--local can only be combined with --window, --reply and --price."
            )
        with _start_embedded(**described) as (upstream, key):
            yield (
                replace(configured, upstreams={LOCAL_UPSTREAM: upstream}),
                {**os.environ, LOCAL_KEY: key},
            )
    elif described and "endpoint" not in described:
        raise click.UsageError(
            "--format, --key-env, --window, --reply and --price need --upstream."
        )
    elif described:
        yield replace(configured, upstreams=parse_upstream(described)), os.environ
    else:
        yield configured, os.environ


@contextmanager
def _start_embedded(
    window: int = 4096, reply: int | None = None, price: Mapping[str, Decimal] | None = None
) -> Iterator[tuple[UpstreamConfig, str]]:
    """Start the embedded model, download it if necessary, and yield its upstream and key."""
    from brim.cli.local import fetch_model
    from brim.config import UpstreamConfig
    from brim.models.pricing import Price
    from brim.providers.local import LocalServer, default_model, require_llama
    from brim.wire.formats import FormatName

    require_llama()
    path = default_model() or fetch_model()
    with LocalServer.start(path, window=window) as server:
        known = None if price is None else Price(**price)
        upstream = UpstreamConfig(
            server.url, get_args(FormatName), key_env=LOCAL_KEY, reply=reply, price=known
        )
        yield upstream, server.key


def _run(
    chosen: Config,
    environment: Mapping[str, str],
    log: Style | None,
    as_json: bool,
    load_again: Callable[[], Config],
) -> None:
    """Serve until a signal arrives."""
    import asyncio

    from brim.gateway import logs
    from brim.gateway.account_service import requires_keys
    from brim.gateway.asgi import create_app
    from brim.gateway.preflight import StartupMessage, require_upstreams
    from brim.gateway.server import HttpServer, open_listener

    def reload() -> Config:
        found = load_again()
        require_upstreams(found, environment)
        return found

    def stopping() -> None:
        app.gateway.is_stopping = True

    def announce(address: str) -> None:
        greeting = StartupMessage(address, chosen.upstreams, has_keys)
        if as_json:
            click.echo(json.dumps(greeting.to_dict()))
        elif style == "json":
            logging.getLogger("brim").info("serving", extra={"fields": greeting.to_dict()})
        else:
            click.echo("\n".join(greeting.lines(terminal_width(sys.stderr))), err=True)

    settings = chosen.gateway
    style: Style = log or ("text" if sys.stderr.isatty() else "json")
    require_upstreams(chosen, environment)
    app = create_app(chosen, environment)
    app.gateway.load_config = reload
    has_keys = asyncio.run(requires_keys(settings, environment))
    with open_listener(settings.host, settings.port, has_keys=has_keys) as listener:
        logs.configure_logging(style, sys.stderr)
        server = HttpServer(
            app,
            stop_seconds=settings.stop_seconds,
            drain_seconds=settings.drain_seconds,
            stopping=stopping,
            reload=app.gateway.reload,
        )
        server.serve(listener, announce)


def _check(chosen: Config, environment: Mapping[str, str], as_json: bool) -> bool:
    """Print the state of each upstream; return whether all can be used."""
    from brim.gateway.preflight import check_upstreams, format_check

    checks = check_upstreams(chosen, environment)
    is_healthy = all(check.state != "bad" for check in checks)
    facts = {"ok": is_healthy, "upstreams": list(map(asdict, checks))}
    text = "\n".join(line for check in checks for line in format_check(check))
    print_result(facts, text, as_json=as_json)
    return is_healthy
