"""The door: a shell for a terminal, or for the lines of a script."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError, StoreError
from brim.providers.from_config import session_settings
from brim.session.ledger import DailyCap
from brim.session.session import Session, get_driver
from brim.shell import commands
from brim.shell.approval.secret_masker import Masker
from brim.shell.context_blocks import attach_memory, connect_configured, read_tree
from brim.shell.conversation import INCOMPLETE, SavedConversation, resume_conversation
from brim.shell.input.completer import ShellCompleter
from brim.shell.input.prompt import LinePrompt
from brim.shell.loop import run_prompt, run_script
from brim.shell.mcp import McpServers
from brim.shell.model_clients import ModelClients
from brim.shell.preload import preload_model
from brim.shell.project_tree import find_root
from brim.shell.prompt_state import PromptState
from brim.shell.render.screen import Screen, answer_nothing
from brim.shell.state import FITTING_CHOICE, Shell, load_rules
from brim.shell.terminal import UserShell
from brim.storage import ConversationStore, Database, FactStore, SpendLog, state_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brim.config import LoadedConfig
    from brim.models.spending import SpendingTotal
    from brim.shell.render.screen import Screen
    from brim.shell.state import Shell


PLAIN: Final = {"TERM": "dumb", "NO_COLOR": "1"}
"""What tells programs that nobody looks, though they run on a terminal of their own."""
LAST: Final = ""
"""In the place of a name: the last conversation of the folder."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What was asked for on the command line."""

    model: str | None = None
    window: int | None = None
    resume: str | None = None
    """The name of a conversation to go on with, or `LAST`."""
    yes: bool = False
    is_script: bool = False


def build_shell(
    wanted: StartOptions,
    loaded: LoadedConfig,
    environment: Mapping[str, str],
    screen: Screen,
    ends: ExitStack,
) -> Shell:
    """A shell that can be talked to; `ends` closes what was opened for it.

    What takes time is left to `begin_work`.
    """
    folder = Path.cwd()
    database = Database(state_folder(environment))
    ends.callback(database.close)
    log, facts, spending = ConversationStore(database), FactStore(database), SpendLog(database)
    saved = _find_saved(log, wanted.resume, folder)
    model = log.find(saved).model if saved else None
    models, name = _models(wanted, loaded, environment, screen, model)
    ends.callback(models.close)
    conversation = _conversation(log, models, name, folder, saved)
    spill = log.outputs_folder(conversation.name)
    terminal = UserShell(
        program=loaded.config.shell.program,
        folder=folder,
        environment=environment if screen.console.is_terminal else {**environment, **PLAIN},
        spill=spill,
    )
    ends.callback(terminal.close)
    servers = McpServers(log=database.folder / "mcp.log")
    ends.callback(servers.close)
    shell = Shell(
        loaded=loaded,
        environment=environment,
        home=folder,
        screen=screen,
        models=models,
        conversation=conversation,
        log=log,
        spending=spending,
        facts=facts,
        terminal=terminal,
        servers=servers,
        masker=Masker(environment),
        name=name,
        resume=switch_conversation,
        project=find_root(folder),
        yes=wanted.yes,
        is_script=wanted.is_script,
        rules=load_rules(facts),
    )
    ends.callback(shell.background.close)
    _attach(shell)
    return shell


def _find_saved(log: ConversationStore, name: str | None, folder: Path) -> str | None:
    """The conversation to go on with."""
    if name is None:
        return None
    if name != LAST:
        return log.find(name).id
    here = log.list(folder, limit=1)
    if not here:
        raise InputError("there is no conversation in this folder; `brim sessions list` lists all")
    return here[0].id


def _models(
    wanted: StartOptions,
    loaded: LoadedConfig,
    environment: Mapping[str, str],
    screen: Screen,
    saved: str | None,
) -> tuple[ModelClients, str]:
    """All models, and the one to begin with; `saved` is that of a saved conversation."""
    config = loaded.config
    if wanted.model or config.models:
        asked, found = wanted.model or saved, {}
    else:
        from brim.shell.setup import first_start

        found = first_start.find_first_models(environment, screen)
        asked = saved or next(iter(found), None)
    models = ModelClients(config, environment, found)
    name = models.choice(asked if asked in models.names else wanted.model).name
    if wanted.window is not None:
        models.change(name, window=wanted.window)
    return models, name


def _conversation(
    log: ConversationStore, models: ModelClients, name: str, folder: Path, saved: str | None
) -> SavedConversation:
    if saved is None:
        return SavedConversation(_session(models, name), log, log.create(folder, name))
    found = resume_conversation(log, saved, lambda data: _session(models, name, data))
    found.note("model", name=name)
    return found


def _session(models: ModelClients, name: str, data: dict[str, Any] | None = None) -> Session:
    """A new session with a model, or one as it was written down."""
    settings = session_settings(models.choice(name), models.config)
    if data is None:
        session = Session(**settings)
    else:
        settings["tools"] = None
        session = Session.from_dict(data, **settings)
    driver = get_driver(session)
    driver.profile = replace(driver.profile, called=name)
    return session


def switch_conversation(shell: Shell, name: str) -> None:
    """Leave the conversation for a saved one; where that fails, nothing has changed."""
    old = shell.conversation
    if name == old.name:
        raise InputError("that is this conversation")
    saved = shell.log.find(name).model
    model = saved if saved in shell.models.names else shell.name
    try:
        found = resume_conversation(
            shell.log, name, lambda data: _session(shell.models, model, data)
        )
    except BaseException:
        shell.log.unlock(name)
        raise
    shell.conversation, shell.name = found, model
    shell.log.unlock(old.name)
    _attach(shell)


def _attach(shell: Shell) -> None:
    """Give a session what it does not carry itself: the books, the facts, the prompt."""
    session, spending = shell.session, shell.spending
    project = str(shell.project or shell.home)

    def book(model: str, category: str, call: SpendingTotal) -> None:
        name = shell.conversation.name
        try:
            spending.add(call, session=name, project=project, model=model, category=category)
        except StoreError as error:  # the answer is there, and is not lost for that
            session.warnings.append(str(error))

    session.ledger.on_record = book
    if (cap := shell.config.cost.cap_per_day_dollars) is not None:
        session.ledger.daily_cap = DailyCap(cap, lambda: spending.today().cost)
    session.trim = shell.facts.setting(FITTING_CHOICE, True)
    shell.goal = shell.driver.prompt.instructions = None  # goal mode does not survive a restart
    session.system = shell.base_prompt()
    attach_memory(shell)
    shell.background.on_fault = lambda error: shell.screen.warn(str(error))


def start_background_work(shell: Shell) -> None:
    """Begin what takes time while the user already types."""
    shell.background.start(shell.terminal.start, lambda _nothing: None, needed=False)
    preload_model(shell)
    if shell.project is not None and shell.config.project.auto_tree:
        read_tree(shell)
    connect_configured(shell)
    days = shell.config.shell.keep_days
    shell.background.start(lambda: shell.log.prune(days), lambda _removed: None, needed=False)


HISTORY: Final = "history"


def open_shell(wanted: StartOptions, loaded: LoadedConfig, environment: Mapping[str, str]) -> bool:
    """Talk until the user leaves, or to the end of a script; says whether all of it worked."""
    screen = Screen(ask=answer_nothing) if wanted.is_script else Screen()
    with ExitStack() as ends:
        shell = build_shell(wanted, loaded, environment, screen, ends)
        for notice in loaded.notices:
            screen.notice(notice)
        reader = PromptState(shell)
        shell.decide = reader.decide
        if wanted.is_script:
            start_background_work(shell)
            return run_script(shell, _read_script(), reader.decide)
        prompt = _build_prompt(shell, reader)
        prompt.once_shown(partial(_start_work, shell, reader))
        shell.background.on_done = prompt.redraw
        shell.terminal.on_output = prompt.news
        screen.ask_with(prompt.ask)
        _greet(shell)
        run_prompt(shell, prompt, reader.learn_names)
        _say_goodbye(shell)
    return True


def _read_script() -> Iterator[str]:
    """The lines of a script; what is no text in them is shown as such."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    yield from sys.stdin


def _start_work(shell: Shell, reader: PromptState) -> None:
    start_background_work(shell)
    reader.count_ahead()
    reader.learn_names()


def _build_prompt(shell: Shell, reader: PromptState) -> LinePrompt:
    known = commands.names()
    completer = ShellCompleter(
        metas=commands.completions(shell),
        help={name: command.summary for name, command in known.items()},
        names=reader.names,
        folder=lambda: shell.folder,
        decide=reader.decide,
    )
    return LinePrompt(
        history=shell.log.folder / HISTORY,
        completer=completer,
        decide=reader.decide,
        status=reader.status,
        colors=shell.screen.has_colors,
        missing=shell.terminal.missing,
        show_others=shell.terminal.show_lines,
    )


def _greet(shell: Shell) -> None:
    turns = len(shell.session)
    if turns:
        last = shell.driver.copy_turns(turns - 1)[0]
        state = "; the last answer broke off" if last.get(INCOMPLETE) else ""
        if last["role"] != "assistant":
            state = "; the last words have no answer"
        retry = ": :retry asks again" if state else ""
        shell.screen.notice(f"{shell.conversation.name}: {turns} turns{state}{retry}")
    else:
        shell.screen.notice(f"{shell.name} · :help · shift-tab flips command and language")


def _say_goodbye(shell: Shell) -> None:
    if len(shell.session):
        shell.screen.notice(f"brim resume {shell.conversation.name} goes on with this")
