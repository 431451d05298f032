"""Entry point: a shell on a terminal, or one that runs the lines of a script.

Modules that only a typed line needs are imported in the background while the user types it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from prompt_toolkit.completion import Completer, DynamicCompleter

from brim.config import LoadedConfig, open_private
from brim.errors import BrimError
from brim.shell.conversation import INCOMPLETE
from brim.shell.input.classification import Classification
from brim.shell.input.prompt import LinePrompt
from brim.shell.mcp.servers import McpServers, ToolOffers
from brim.shell.model_clients import ModelClients
from brim.shell.project_tree import ProjectFiles, find_root
from brim.shell.prompt_state import PromptState
from brim.shell.render.screen import Screen, answer_nothing
from brim.shell.session_setup import (
    attach_session,
    connect_configured,
    find_saved,
    open_conversation,
    preload_model,
    read_tree,
)
from brim.shell.state import Approvals, Secrets, Shell, ShellStorage, StartOptions
from brim.shell.terminal.user_shell import UserShell
from brim.storage import (
    ConversationStore,
    Database,
    FactStore,
    SpendLog,
    presume_abandoned,
    state_folder,
)

HISTORY: Final = "history"
ERROR_LOG: Final = "errors.log"
"""Tracebacks of unexpected errors, in the state folder."""
PLAIN_TERMINAL: Final = {"TERM": "dumb", "NO_COLOR": "1"}
"""Tells programs not to use colors when brim's own output is not a terminal."""


def open_shell(options: StartOptions, loaded: LoadedConfig, environment: Mapping[str, str]) -> bool:
    """Run a shell until the user leaves or the script ends; return whether it succeeded."""
    screen = Screen(ask=answer_nothing) if options.is_script else Screen()
    with ExitStack() as stack:
        shell = build_shell(options, loaded, environment, screen, stack)
        for notice in loaded.notices:
            screen.notice(notice)
        state = PromptState(shell)
        shell.classify = state.classify
        if options.is_script:
            start_background_work(shell)
            return run_script(shell)
        shell.suggest = state.suggest
        prompt = _build_prompt(shell, state)
        prompt.once_shown(partial(_start_work, shell, state))
        shell.background.on_done = prompt.redraw
        shell.terminal.on_output = prompt.show_output_soon
        screen.ask_with(prompt.ask)
        _greet(shell)
        run_prompt(shell, prompt, state.refresh_names)
        if len(shell.session):
            screen.notice(f"continue with `brim resume {shell.conversation.name}`")
    return True


# Opening


def build_shell(
    options: StartOptions,
    loaded: LoadedConfig,
    environment: Mapping[str, str],
    screen: Screen,
    stack: ExitStack,
) -> Shell:
    """Open everything a shell needs; `stack` closes it. Slow work is left to the background."""
    folder, config = Path.cwd(), loaded.config
    database = Database(state_folder(environment))
    stack.callback(database.close)
    storage = ShellStorage(ConversationStore(database), FactStore(database), SpendLog(database))
    log = storage.conversations
    presume_abandoned(storage.spending, log)
    saved = find_saved(log, options.resume, folder)
    models = _choose_models(
        options, loaded, environment, screen, log.find(saved).model if saved else None
    )
    stack.callback(models.close)
    conversation = open_conversation(log, models, folder, saved)
    terminal = UserShell(
        program=config.shell.program,
        folder=folder,
        environment=environment
        if screen.console.is_terminal
        else {**environment, **PLAIN_TERMINAL},
        spill=log.outputs_folder(conversation.name),
    )
    stack.callback(terminal.close)
    servers = McpServers(log=database.folder / "mcp.log")
    stack.callback(servers.close)
    project = config.project
    shell = Shell(
        options=options,
        loaded=loaded,
        environment=environment,
        home=folder,
        screen=screen,
        models=models,
        conversation=conversation,
        storage=storage,
        terminal=terminal,
        secrets=Secrets(environment, terminal),
        approvals=Approvals(storage.facts),
        project=ProjectFiles(find_root(folder), depth=project.depth, max_chars=project.max_chars),
        tools=ToolOffers(servers),
    )
    stack.callback(shell.background.close)
    shell.background.on_error = lambda error: screen.warn(str(error))
    attach_session(shell)
    return shell


def _choose_models(
    options: StartOptions,
    loaded: LoadedConfig,
    environment: Mapping[str, str],
    screen: Screen,
    saved: str | None,
) -> ModelClients:
    """Return the models and choose the current one; `saved` is that of a saved conversation."""
    if options.model or loaded.config.models:
        wanted, found = options.model or saved, {}
    else:
        from brim.shell.setup.discovery import find_first_models

        found = find_first_models(environment, screen)
        wanted = saved or next(iter(found), None)
    models = ModelClients(loaded.config, environment, found)
    models.current = models.choice(wanted if wanted in models.names else options.model).name
    if options.window is not None:
        models.override(models.current, window=options.window)
    return models


def _build_prompt(shell: Shell, state: PromptState) -> LinePrompt:
    return LinePrompt(
        history=shell.storage.conversations.folder / HISTORY,
        completer=DynamicCompleter(cache(partial(_build_completer, shell, state))),
        classify=state.classify,
        status=state.status,
        colors=shell.screen.has_colors,
        has_secret=lambda line: bool(shell.secrets.mask(line).found),
        missing=shell.terminal.missing,
        show_output=shell.terminal.show_lines,
    )


def _build_completer(shell: Shell, state: PromptState) -> Completer:
    from brim.shell import commands
    from brim.shell.input.completer import ShellCompleter

    return ShellCompleter(
        metas=commands.completions(shell),
        help={name: command.summary for name, command in commands.names().items()},
        names=state.names,
        folder=lambda: shell.folder,
        classify=state.classify,
        programmed=shell.terminal.complete,
        variables=shell.terminal.variables,
        has_colors=shell.screen.has_colors,
    )


# Background work


def _start_work(shell: Shell, state: PromptState) -> None:
    shell.background.start(_import_rest, lambda _nothing: None, needed=False)
    start_background_work(shell)
    state.count_ahead()
    state.refresh_names()


def _import_rest() -> None:
    """Import what lines need, so that the first one does not wait for it."""
    import_module("brim.shell.commands")
    import_module("brim.shell.chat")
    import_module("brim.shell.input.completer")


def start_background_work(shell: Shell) -> None:
    """Start slow work while the user already types."""
    shell.background.start(shell.terminal.start, lambda _nothing: None, needed=False)
    preload_model(shell)
    if shell.config.project.auto_tree:
        read_tree(shell)
    connect_configured(shell)
    log, days = shell.storage.conversations, shell.config.shell.keep_days
    shell.background.start(lambda: log.prune(days), lambda _removed: None, needed=False)


# Greeting


def _greet(shell: Shell) -> None:
    turns = len(shell.session)
    if not turns:
        current = shell.models.current
        shell.screen.notice(f"{current} · :tour · :help · Shift-Tab switches command and language")
        return
    last = shell.driver.copy_turns(turns - 1)[0]
    problem = "; the last reply is incomplete" if last.get(INCOMPLETE) else ""
    if last["role"] != "assistant":
        problem = "; the last message has no reply"
    retry = ": :retry asks again" if problem else ""
    shell.screen.notice(f"{shell.conversation.name}: {turns} turns{problem}{retry}")


# Lines


def run_prompt(shell: Shell, prompt: LinePrompt, refresh_names: Callable[[], None]) -> None:
    """Run lines typed at the prompt until the user leaves."""
    while not shell.ended:
        with shell.screen.typing(prompt.above):
            line = prompt.read(shell.input.take_text())
        if line is None:
            break
        if line.kind == "language":
            shell.screen.gap()
        with shell.screen.typeahead.quiet():
            run_line(shell, line)
        prompt.type_early(*shell.screen.typeahead.take_keys())
        if line.kind in ("language", "meta"):
            shell.screen.gap()
        if line.kind == "command":
            refresh_names()


def run_script(shell: Shell) -> bool:
    """Run the lines of standard input; stop at the first that fails, and return whether none did.

    Invalid UTF-8 is replaced.
    """
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    for line in sys.stdin:
        if shell.ended:
            break
        if not run_line(shell, shell.classify(line.rstrip("\n"))):
            return False
    return True


def run_line(shell: Shell, line: Classification) -> bool:
    """Run a line and return whether it succeeded; errors are shown and never end the shell."""
    try:
        return _dispatch(shell, line)
    except KeyboardInterrupt:
        shell.screen.notice("stopped")
    except (BrimError, OSError) as error:
        shell.show_error(error)
    except Exception as error:
        shell.screen.error(f"Unexpected error: {error!r}. See {_write_traceback(shell)}.")
    return False


def _dispatch(shell: Shell, line: Classification) -> bool:
    from brim.shell import commands
    from brim.shell.chat import ask
    from brim.shell.run_command import run

    replaced = shell.input.take_replaced()
    match line.kind:
        case "command":
            return not run(shell, line.text).code
        case "language" if (meant := _correct_typo(shell, line)) is not None:
            return not run(shell, meant).code
        case "language":
            if replaced is not None:
                shell.conversation.rewind(replaced)
            return ask(shell, line.text)
        case "meta":
            shell.screen.show(commands.run(shell, line.text))
        case "nothing":
            pass
    return True


def _correct_typo(shell: Shell, line: Classification) -> str | None:
    """Return the command that the user meant, if they say so; asking a model would cost money."""
    meant = shell.suggest(line.text) if line.reason.endswith("not a command") else None
    while meant is not None:
        answer = shell.screen.ask(f"did you mean `{meant}`? [y]es, run it, [n]o, ask the model: ")
        if answer.lower() in ("", "y", "yes", "n", "no"):
            return meant if answer[:1].lower() == "y" else None
        shell.screen.notice("type y or n")
    return None


def _write_traceback(shell: Shell) -> str:
    path = shell.storage.conversations.folder / ERROR_LOG
    try:
        with open(path, "a", opener=open_private) as file:
            traceback.print_exc(file=file)
    except OSError:
        return "no log: it cannot be written"
    return str(path)
