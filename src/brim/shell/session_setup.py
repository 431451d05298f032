"""Sessions of the shell, built, resumed and switched, and what is part of every request."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError, StoreError
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import CHARS_PER_TOKEN
from brim.providers.from_config import create_session
from brim.session.session import Session, get_driver
from brim.session.system_prompt import format_facts
from brim.shell.conversation import SavedConversation, resume_conversation
from brim.shell.model_clients import ModelClients
from brim.shell.prompt_texts import DEFAULT_PROMPT, FISH_RULE, RULE, TOOLS_RULE
from brim.shell.state import FITTING_CHOICE, Shell
from brim.storage import ConversationStore

if TYPE_CHECKING:
    from brim.shell.mcp.tools import ModelKey

BLOCK_SHARE: Final = 0.15
"""Share of the limit that the facts, and the project's files, may take."""
TOOLS_SHARE: Final = 0.5
"""Share of the limit that tool definitions may take."""
RECALL_COMMAND_HINT: Final = "the user can send message N again with `:recall N`"
"""What notes at gaps say."""
MEMORY_BLOCK: Final = "background"
PROJECT_BLOCK: Final = "project"
"""Names of blocks in the system prompt."""


def system_prompt(shell: Shell, base: str | None = None) -> str:
    """Return the system prompt; it always contains the rule for commands."""
    base = base or shell.config.shell.prompt or DEFAULT_PROMPT
    rule = RULE + FISH_RULE if shell.terminal.is_fish else RULE
    return "\n\n".join([base, rule, *([TOOLS_RULE] if shell.session.tools else [])])


def load_memory(shell: Shell) -> None:
    """Put the facts into the system prompt; `fit_blocks` limits them to their share."""
    shell.memory = tuple(shell.storage.facts.all().values())
    _write_memory(shell, shell.config.memory.inject_max_chars)


def _write_memory(shell: Shell, max_chars: int) -> None:
    shell.driver.prompt.blocks[MEMORY_BLOCK] = format_facts(shell.memory, max_chars)


# Project files


def show_tree(shell: Shell, text: str) -> None:
    """Show the project's files to the model from its next request on."""
    shell.project.show(text)
    fit_blocks(shell)


def hide_tree(shell: Shell) -> None:
    shell.project.hide()
    shell.driver.prompt.blocks[PROJECT_BLOCK] = ""


def read_tree(shell: Shell) -> None:
    """Start reading the project's files, which are shown to the model."""
    if shell.project.root is not None:
        shell.background.start(shell.project.scan, partial(show_tree, shell))


def fit_blocks(shell: Shell) -> None:
    """Limit facts, files and tools to their share of the window."""
    blocks, room = shell.driver.prompt.blocks, int(shell.limit * BLOCK_SHARE)
    max_chars = min(shell.config.memory.inject_max_chars, room * CHARS_PER_TOKEN)
    _write_memory(shell, max_chars)
    if not shell.project.is_shown and blocks.get(PROJECT_BLOCK) and shell.project.root:
        shell.project.show(blocks[PROJECT_BLOCK])  # of a resumed conversation
    if shell.project.is_shown:
        count = shell.driver.count_text
        blocks[PROJECT_BLOCK] = shell.project.text_for(_model_key(shell), count, room)
    if shell.tools.current is not None:
        offer_tools(shell)


def _model_key(shell: Shell) -> ModelKey:
    return shell.driver.profile.name, shell.budget.window if shell.budget else 0


# Tools


def connect_configured(shell: Shell) -> None:
    """Start connecting the MCP servers of the configuration."""
    for name, config in shell.config.mcp.items():

        def failed(error: Exception, name: str = name) -> None:
            message = f"MCP server {name} is not connected: {error}"
            shell.screen.warn(shell.secrets.mask(message).text)

        shell.background.start(
            partial(shell.tools.servers.connect, name, config),
            lambda _tools: offer_tools(shell),
            failed,
        )


def offer_tools(shell: Shell) -> None:
    """Offer the model the tools that fit, and warn about the others."""
    session, tools = shell.session, shell.tools
    room, size = int(shell.limit * TOOLS_SHARE), shell.driver.profile.counter().tools
    is_new = tools.choose(_model_key(shell), room=room, size=size)
    offer = tools.current
    assert offer is not None
    if not is_new and bool(offer.offered) == bool(session.tools):
        return
    session.tools = offer.definitions
    session.system = system_prompt(shell)
    if shell.budget is not None:  # more may fit once the window is known
        for name in offer.left_out:
            warning = f"tool does not fit and is not offered: {name}"
            if shell.notices.is_new(warning):
                shell.screen.warn(warning)
    shell.save("tools", servers=list(offer.sizes), left_out=list(offer.left_out))


# Sessions

LAST: Final = ""
"""Instead of a name: the last conversation of the folder that is not open elsewhere."""


def find_saved(log: ConversationStore, name: str | None, folder: Path) -> str | None:
    """Return the ID of the conversation to resume; None for a new one."""
    if name is None:
        return None
    if name != LAST:
        return log.find(name).id
    here = log.list(folder)
    if not here:
        raise InputError(
            "There is no conversation in this folder. List all with `brim sessions list`."
        )
    for info in here:
        with suppress(StoreError):  # open in another shell
            log.lock(info.id)
            return info.id
    raise StoreError("All conversations of this folder are open in other shells.")


def open_conversation(
    log: ConversationStore, models: ModelClients, folder: Path, saved: str | None
) -> SavedConversation:
    """Resume a saved conversation with the current model, or start a new one."""
    name = models.current
    if saved is None:
        return SavedConversation(_build(models, name), log, log.create(folder, name))
    found = resume_conversation(log, saved, partial(_build, models, name))
    found.record("model", name=name)
    return found


def _build(models: ModelClients, name: str, data: dict[str, Any] | None = None) -> Session:
    session = create_session(models.choice(name), models.config, data)
    get_driver(session).composer.set_command_hint(RECALL_COMMAND_HINT)
    return session


def switch_conversation(shell: Shell, name: str) -> None:
    """Continue with a saved conversation; if that fails, nothing has changed."""
    old, log, models = shell.conversation, shell.storage.conversations, shell.models
    if name == old.name:
        raise InputError("This is already the current conversation.")
    saved = log.find(name).model
    model = saved if saved in models.names else models.current
    try:
        found = resume_conversation(log, name, partial(_build, models, model))
    except BaseException:
        log.unlock(name)
        raise
    shell.conversation, models.current = found, model
    log.unlock(old.name)
    attach_session(shell)


def attach_session(shell: Shell) -> None:
    """Give a session what is not saved with it: its account, facts, the system prompt."""
    session = shell.session
    for warning in session.warnings:  # of a resumed conversation: given in an earlier run
        shell.notices.is_new(warning)
    project = str(shell.project.root or shell.home)
    cap, name = shell.config.cost.cap_per_day_dollars, shell.conversation.name
    shell.conversation.charge_to(shell.storage.spending.follow(session, project, cap, name))
    session.trim = shell.storage.facts.setting(FITTING_CHOICE, True)
    # A shell that was killed in goal mode must not continue by itself.
    shell.goal = shell.driver.prompt.instructions = None
    session.system = system_prompt(shell)
    load_memory(shell)


def preload_model(shell: Shell) -> None:
    """Open the connection to the current model, and get its profile from the server."""
    name = shell.models.current

    def apply(profile: ModelProfile) -> None:
        driver = shell.driver
        if driver.profile.name == name and driver.profile.server_window is None:
            driver.profile = replace(profile, calibration=driver.profile.calibration)
            fit_blocks(shell)

    shell.background.start(lambda: shell.models.query_profile(name), apply)
