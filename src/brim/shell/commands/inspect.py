"""Meta commands that show something and change nothing."""

from __future__ import annotations

import json

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brim.config import DEFAULT, format_value, home_as_tilde, redact
from brim.errors import BrimError, BudgetError
from brim.fitting.profile import ModelProfile
from brim.models.pricing import FREE
from brim.providers.from_config import NO_MODEL, create_short_view, request_options
from brim.session.session import Session, get_driver
from brim.shell.commands.meta_command import TOUR, Overview, command, find, parse_number
from brim.shell.commands.meta_command import names as all_names
from brim.shell.conversation import FROM_BRIM, INCOMPLETE
from brim.shell.model_clients import choose_route
from brim.shell.render import money
from brim.shell.render.context import build_report, to_json
from brim.shell.render.context_view import ContextView
from brim.shell.render.sanitize import sanitize
from brim.shell.session_setup import system_prompt
from brim.shell.state import Shell

SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}
NO_MESSAGE = "…"
"""Stands for a message that is not typed yet."""


@command("[COMMAND]", name="help", arguments=lambda _shell: all_names())
def help_(_shell: Shell, name: str) -> RenderableType:
    """Show all commands and keys, or the help of one command."""
    if not name:
        return Overview()
    found = find(name.removeprefix(":"))
    paragraphs = [" ".join(part.split()) for part in found.help.split("\n\n")]
    also = [f"Also: {', '.join(f':{name}' for name in found.aliases)}"] if found.aliases else []
    return Text("\n\n".join([found.signature, *paragraphs, *also]))


@command()
def tour(_shell: Shell, _argument: str) -> RenderableType:
    """Show on one screen what the shell does."""
    return Text(TOUR)


@command("[json]")
def context(shell: Shell, argument: str) -> RenderableType:
    """Show what fills the window, and the command that frees each part.

    The rows add up to the window. `:context json` prints the same as JSON.
    """
    shell.wait_for_window()
    offer = shell.tools.current
    report = build_report(shell.session, tool_servers=offer.by_server if offer else {})
    if argument == "json":
        return json.dumps(to_json(report), indent=2)
    return ContextView(report)


@command("[MESSAGE]")
def request(shell: Shell, message: str) -> RenderableType:
    """Show the exact request that would be sent now, with this message, without sending it.

    It is already trimmed.
    """
    from brim.providers.client import build_stream_fields

    shell.wait_for_window()
    shell.background.settle()
    route = choose_route(message, shell.config.routing)
    choice = shell.models.choice(route.model or shell.models.current)
    trial, profile = Session.from_dict(shell.session.to_dict()), shell.driver.profile
    driver = get_driver(trial)
    is_current = profile.name == choice.name
    driver.profile = profile if is_current else shell.models.profile(choice.name)
    trial.trim = shell.session.trim
    if message or driver.outputs or not trial.history or trial.history[-1]["role"] == "assistant":
        trial.user(message or NO_MESSAGE)
    options = request_options(choice)
    made = trial.request(
        system=system_prompt(shell, route.system) if route.system else None,
        short_view=create_short_view(choice, shell.config),
        format=choice.model.format,
        **options,
        **build_stream_fields(choice.model.format, options),
    )
    return json.dumps(dict(made), indent=2, ensure_ascii=False)


@command("[detail|reset]")
def cost(shell: Shell, argument: str) -> RenderableType:
    """Show the cost of this conversation; `detail` lists it by model and purpose.

    `reset` sets the totals of this conversation to zero; `brim cost` still has all runs.
    """
    session = shell.session
    if argument == "reset":
        session.ledger.reset()
        session.warnings.clear()
        shell.notices.clear()
        shell.save("cost_reset")
        return "totals reset; warnings will be shown again"
    if argument == "detail":
        shell.wait_for_window()
        return money.cost_detail(session.ledger, session.tokens)
    today = shell.storage.spending.today()
    spent = today.format_cost() if today.calls else "nothing"
    return Group(money.cost(session.ledger), Text(f"today, all runs: {spent}", "dim"))


@command()
def usage(shell: Shell, _argument: str) -> RenderableType:
    """Show the last requests: how full they were, and what was trimmed."""
    return money.usage(shell.session.log)


@command(
    "TEXT",
    aliases=("tokenize",),
    missing="The text is missing. Example: :tokens to be or not to be",
)
def tokens(shell: Shell, text: str) -> RenderableType:
    """Count the tokens of a text, with the server of the current model if it counts."""
    client = shell.models.client(shell.models.current)
    counted = client.count(text, model=shell.driver.profile.model)
    if "server" in counted.parts:
        return f"{counted:,} tokens (counted by the server)"
    counter = shell.driver.profile.counter()
    size = f"{shell.driver.count_text(text):,} tokens"
    tokenizer = counter.name.partition("*")[0].rpartition("/")[0] or counter.name
    if counter.uncertainty:
        return f"about {size} (estimated with {tokenizer})"
    return f"{size} (counted with {tokenizer})"


@command()
def models(shell: Shell, _argument: str) -> RenderableType:
    """List the available models."""
    table = Table.grid(padding=(0, 2))
    for name in shell.models.names:
        mark = Text("→" if name == shell.models.current else " ", style="bold")
        table.add_row(mark, Text(name, style="bold"), *_describe_model(shell, name))
    return table


def _describe_model(shell: Shell, name: str) -> tuple[str, str, str]:
    """Return window, price and endpoint."""
    models = shell.models
    try:
        profile = shell.driver.profile if name == models.current else models.profile(name)
        is_embedded = models.choice(name).is_embedded
        price, window = profile.price_for(0), _format_window(profile, is_embedded)
        rates = f"${price.input}/${price.output} per million tokens" if price else "no price"
        return window, "$0" if price == FREE else rates, models.describe_endpoint(name)
    except BrimError as error:
        if str(error) == NO_MODEL:
            return "not downloaded", "$0", "get it with `brim local`"
        return "", "", sanitize(str(error).split(";")[0])


def _format_window(profile: ModelProfile, is_embedded: bool) -> str:
    try:
        return f"{profile.budget(profile.counter()).window:,} tokens"
    except BudgetError:
        if profile.window is not None:  # it is known, and invalid
            raise
    return f"window unknown until it is {'loaded' if is_embedded else 'used'}"


@command("[N]")
def history(shell: Shell, argument: str) -> RenderableType:
    """List the last N turns (default 20), and what happens to them in the next request.

    :pin and :recall take these numbers. Instructions written by brim in goal mode are marked so.
    """
    example = ":history 20"
    most = parse_number(argument, "number of turns", example=example, least=1) if argument else 20
    turns, outcomes = shell.session.history, list_outcomes(shell)
    table = Table.grid(padding=(0, 2))
    pins = shell.session.pins
    for index in range(max(0, len(turns) - most), len(turns)):
        outcome = "pinned" if index in pins else outcomes.get(index, "")
        style = "dim" if outcome == "dropped" else ""
        text = " ".join(_describe_turn(turns[index]).split())
        row = (str(index), _author(turns[index]), outcome, text[:120])
        cells = (Text(sanitize(cell), style, no_wrap=True, overflow="ellipsis") for cell in row)
        table.add_row(*cells)
    return table if turns else "no messages yet"


def list_outcomes(shell: Shell) -> dict[int, str]:
    """Return the outcome of each turn that is not sent unchanged."""
    if shell.budget is None:
        return {}
    return {
        decision.index: decision.outcome
        for decision in shell.driver.preview().decisions
        if decision.outcome not in ("kept", "skipped")
    }


def _author(turn: dict[str, object]) -> str:
    return "brim" if turn.get(FROM_BRIM) else str(turn["role"])


def _describe_turn(turn: dict[str, object]) -> str:
    calls = turn.get("tool_calls")
    names = [call["function"]["name"] for call in calls] if isinstance(calls, list) else []
    empty = f"calls {', '.join(names)}" if names else "(empty)"
    text = str(turn.get("content") or empty)
    return f"(incomplete) {text}" if turn.get(INCOMPLETE) else text


@command("[MESSAGE]")
def route(shell: Shell, message: str) -> RenderableType:
    """Show the routing rules, and which one matches this message."""
    config = shell.config.routing
    if not config.rules:
        return "There are no routing rules. See `brim config --example`."
    matched = choose_route(message, config).rule if message else shell.route.rule
    table = Table.grid(padding=(0, 2))
    for index, rule in enumerate(config.rules):
        mark = Text("→" if index == matched else " ", style="bold")
        table.add_row(mark, sanitize(rule.match), rule.class_ or "", rule.model or "")
    if message and matched is None:
        return Group(table, f"no rule matches: it goes to {shell.models.current}")
    return table


@command("[all]")
def config(shell: Shell, argument: str) -> RenderableType:
    """Show the settings and their sources; `all` includes defaults."""
    table = Table.grid(padding=(0, 2))
    files = [f"{home_as_tilde(file.path)}: {file.state}" for file in shell.loaded.files]
    for key, setting in shell.loaded.settings.items():
        if argument == "all" or setting.source != DEFAULT:
            value = format_value(redact(key, setting.value))
            table.add_row(sanitize(f"{key} = {value}"), Text(setting.source, style="dim"))
    empty = [] if table.row_count else ["nothing is set; :config all shows the defaults"]
    return Group(*files, table, *empty)


@command()
def doctor(shell: Shell, _argument: str) -> None:
    """Check the setup, and show how to fix what is wrong."""
    from brim.shell.setup.doctor import run_checks

    extra = shell.options.extra_checks
    for check in run_checks(shell.loaded, shell.environment, extra=extra):
        sign, style = SIGNS[check.state]
        shell.screen.show(Text.assemble((sign, style), f" {check.name}: {sanitize(check.message)}"))
        if check.advice:
            shell.screen.show(Text(f"    {sanitize(check.advice)}", style="dim"))
