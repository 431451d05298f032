"""Commands that show something and change nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from brim.config import DEFAULT, format_value, home_as_tilde, redact
from brim.errors import BrimError, BudgetError
from brim.providers.from_config import NO_MODEL, create_short_view, request_options
from brim.session.session import Session, get_driver
from brim.shell import routing
from brim.shell.commands.help import Overview
from brim.shell.commands.meta_command import command, find, number
from brim.shell.commands.meta_command import names as all_names
from brim.shell.conversation import FROM_BRIM, INCOMPLETE
from brim.shell.render import context as contexts
from brim.shell.render import money
from brim.shell.render.context_view import render_context
from brim.shell.render.sanitize import sanitize

if TYPE_CHECKING:
    from rich.console import RenderableType

    from brim.fitting.plan import Plan
    from brim.fitting.profile import ModelProfile
    from brim.shell.state import Shell

SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}
LENGTH = "length of the list"
WORDS = "…"
"""What stands for words that are not typed yet."""


@command("[COMMAND]", name="help", arguments=lambda _shell: all_names())
def help_(_shell: Shell, words: str) -> RenderableType:
    """Show what can be done here, or all about one command."""
    if words:
        found = find(words.removeprefix(":"))
        paragraphs = [" ".join(part.split()) for part in found.help.split("\n\n")]
        also = [f"Also: {', '.join(f':{name}' for name in found.aliases)}"] if found.aliases else []
        return Text("\n\n".join([found.head, *paragraphs, *also]))
    return Overview()


@command("[json]", arguments=("json",))
def context(shell: Shell, words: str) -> RenderableType:
    """Show what fills the window, part by part, and what would free it.

    The rows add up to the window. `:context json` gives the same for programs.
    """
    shell.learn_window()
    picture = contexts.build_report(shell.session, tool_servers=shell.schemas())
    if words == "json":
        return json.dumps(contexts.to_json(picture), indent=2)
    return render_context(picture)


@command("[WORDS]")
def request(shell: Shell, words: str) -> RenderableType:
    """Show the very request that would be sent now, with these words; it is not sent.

    What would be left out of it is already left out.
    """
    shell.learn_window()
    shell.background.settle()
    route = routing.choose_route(words, shell.config.routing)
    chosen = shell.models.choice(route.model or shell.name)
    trial, target = Session.from_dict(shell.session.to_dict()), shell.driver.profile
    driver = get_driver(trial)
    driver.profile = target if target.name == chosen.name else shell.models.target(chosen.name)
    trial.trim = shell.session.trim
    if words or driver.outputs or not trial.history or trial.history[-1]["role"] == "assistant":
        trial.user(words or WORDS)
    spoken = chosen.model.format
    made = trial.request(
        system=shell.base_prompt(route.system) if route.system else None,
        short_view=create_short_view(chosen, shell.config),
        format="chat" if spoken == "openai" else spoken,
        **request_options(chosen),
    )
    return json.dumps(dict(made), indent=2, ensure_ascii=False)


@command("[detail|reset]", arguments=("detail", "reset"))
def cost(shell: Shell, words: str) -> RenderableType:
    """Show what this conversation has cost; `detail` by model and purpose.

    `reset` begins the totals of this conversation anew; the books of all runs (`brim cost`) stay.
    """
    session = shell.session
    if words == "reset":
        session.ledger.reset()
        session.warnings.clear()
        shell.told.clear()
        shell.keep("cost_reset")
        return "the totals begin anew, and the warnings are armed again"
    if words == "detail":
        shell.learn_window()
        return money.cost_detail(session.ledger, session.tokens)
    today = shell.spending.today()
    said = today.format_cost() if today.calls else "nothing"
    return Group(money.cost(session.ledger), Text(f"today, all runs: {said}", "dim"))


@command()
def usage(shell: Shell, _words: str) -> RenderableType:
    """Show the last requests: how full they were, and what was left out of them."""
    return money.usage(shell.session.log)


@command(
    "TEXT",
    aliases=("tokenize",),
    asks_for="say which text, as in :tokens to be or not to be",
)
def tokens(shell: Shell, words: str) -> RenderableType:
    """Count the tokens of a text, as the present model would."""
    counter = shell.driver.profile.counter()
    tokens = f"{shell.driver.count_text(words):,} tokens"
    tokenizer = counter.name.partition("*")[0].rpartition("/")[0] or counter.name
    if counter.uncertainty:
        return f"about {tokens} (estimated with {tokenizer})"
    return f"{tokens} (counted with {tokenizer})"


@command()
def models(shell: Shell, _words: str) -> RenderableType:
    """List the models that can be talked to."""
    table = Table.grid(padding=(0, 2))
    for name in shell.models.names:
        mark = Text("→" if name == shell.name else " ", style="bold")
        table.add_row(mark, Text(name, style="bold"), *_about(shell, name))
    return table


def _about(shell: Shell, name: str) -> tuple[str, str, str]:
    try:
        target = shell.driver.profile if name == shell.name else shell.models.target(name)
        is_embedded = shell.models.choice(name).is_embedded
        return (
            _window(target, is_embedded),
            _price(target, is_embedded),
            shell.models.endpoint(name),
        )
    except BrimError as error:
        if str(error) == NO_MODEL:
            return "not on this machine yet", "free", "`brim local` gets it"
        return "", "", sanitize(str(error).split(";")[0])


def _window(target: ModelProfile, is_embedded: bool) -> str:
    try:
        return f"{target.budget(target.counter()).window:,} tokens"
    except BudgetError:
        if target.window is not None:  # it is known, and wrong
            raise
    return f"window known once it is {'loaded' if is_embedded else 'talked to'}"


def _price(target: ModelProfile, is_embedded: bool) -> str:
    price = target.price_for(0)
    if price:
        return f"${price.input}/${price.output} a million"
    return "free" if is_embedded or target.is_local else "no price"


@command("[N]")
def history(shell: Shell, words: str) -> RenderableType:
    """List the last N turns (20), and what of them is sent.

    The numbers are those that :pin and :recall take. What brim itself said on the way to a goal
    is marked as brim's.
    """
    most = number(words, LENGTH, example=":history 20", least=1) if words else 20
    turns, outcomes = shell.session.history, _outcomes(shell)
    table = Table.grid(padding=(0, 2))
    pins = shell.session.pins
    for index in range(max(0, len(turns) - most), len(turns)):
        outcome = "pinned" if index in pins else outcomes.get(index, "")
        style = "dim" if outcome == "dropped" else ""
        said = " ".join(_describe_turn(turns[index]).split())
        row = (str(index), _author(turns[index]), outcome, said[:120])
        cells = (Text(sanitize(cell), style, no_wrap=True, overflow="ellipsis") for cell in row)
        table.add_row(*cells)
    return table if turns else "nothing was said yet"


def _outcomes(shell: Shell) -> dict[int, str]:
    """What becomes of each turn that is not sent as it is."""
    if shell.budget is None:
        return {}
    plan: Plan = shell.driver.preview()
    return {
        decision.index: decision.outcome
        for decision in plan.decisions
        if decision.outcome not in ("kept", "skipped")
    }


def _author(turn: dict[str, object]) -> str:
    return "brim" if turn.get(FROM_BRIM) else str(turn["role"])


def _describe_turn(turn: dict[str, object]) -> str:
    calls = turn.get("tool_calls")
    names = [call["function"]["name"] for call in calls] if isinstance(calls, list) else []
    called = f"calls {', '.join(names)}" if names else "(empty)"
    said = str(turn.get("content") or called)
    return f"(broke off) {said}" if turn.get(INCOMPLETE) else said


@command("[WORDS]")
def route(shell: Shell, words: str) -> RenderableType:
    """Show the routing rules, and which one these words would take."""
    rules = shell.config.routing.rules
    if not rules:
        return "there are no routing rules; `brim config --example` shows how to write some"
    taken = routing.choose_route(words, shell.config.routing).rule if words else shell.route.rule
    table = Table.grid(padding=(0, 2))
    for index, rule in enumerate(rules):
        mark = Text("→" if index == taken else " ", style="bold")
        table.add_row(mark, sanitize(rule.match), rule.class_ or "", rule.model or "")
    if words and taken is None:
        return Group(table, f"none matches: it goes to {shell.name}")
    return table


@command("[all]", arguments=("all",))
def config(shell: Shell, words: str) -> RenderableType:
    """Show what is set, and where; `all` shows the defaults, too."""
    table = Table.grid(padding=(0, 2))
    files = [f"{home_as_tilde(file.path)}: {file.state}" for file in shell.loaded.files]
    for key, setting in shell.loaded.settings.items():
        if words == "all" or setting.source != DEFAULT:
            value = format_value(redact(key, setting.value))
            table.add_row(sanitize(f"{key} = {value}"), Text(setting.source, style="dim"))
    empty = [] if table.row_count else ["nothing is set; :config all shows the defaults"]
    return Group(*files, table, *empty)


@command()
def doctor(shell: Shell, _words: str) -> RenderableType | None:
    """Look for what is wrong with the set-up, and say what to do about it."""
    from brim.shell.setup.doctor import run_checks as examine

    for check in examine(shell.loaded, shell.environment):
        sign, style = SIGNS[check.state]
        line = Text.assemble((sign, style), f" {check.name}: {sanitize(check.said)}")
        shell.screen.show(line)
        if check.advice:
            shell.screen.show(Text(f"    {sanitize(check.advice)}", style="dim"))
    return None
