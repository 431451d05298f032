"""Sessions of the shell: built from the configuration, resumed, switched, prepared in advance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brim.errors import InputError, StoreError
from brim.providers.from_config import session_settings
from brim.session.ledger import DailyCap
from brim.session.session import Session, get_driver
from brim.shell.context_blocks import attach_memory, fit_blocks, system_prompt
from brim.shell.conversation import SavedConversation, resume_conversation
from brim.shell.state import FITTING_CHOICE

if TYPE_CHECKING:
    from brim.fitting.profile import ModelProfile
    from brim.models.pricing import SpendingTotal
    from brim.shell.model_clients import ModelClients
    from brim.shell.state import Shell
    from brim.storage import ConversationStore

LAST: Final = ""
"""Instead of a name: the last conversation of the folder."""


def find_saved(log: ConversationStore, name: str | None, folder: Path) -> str | None:
    """Return the ID of the conversation to resume; None for a new one."""
    if name is None:
        return None
    if name != LAST:
        return log.find(name).id
    here = log.list(folder, limit=1)
    if not here:
        raise InputError(
            "There is no conversation in this folder. List all with `brim sessions list`."
        )
    return here[0].id


def open_conversation(
    log: ConversationStore, models: ModelClients, folder: Path, saved: str | None
) -> SavedConversation:
    """Resume a saved conversation with the current model, or start a new one."""
    name = models.current
    if saved is None:
        return SavedConversation(_build_session(models, name), log, log.create(folder, name))
    found = resume_conversation(log, saved, lambda data: _build_session(models, name, data))
    found.record("model", name=name)
    return found


def _build_session(models: ModelClients, name: str, data: dict[str, Any] | None = None) -> Session:
    """Return a new session with a model, or one from saved data."""
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
    """Continue with a saved conversation; if that fails, nothing has changed."""
    old, log, models = shell.conversation, shell.storage.conversations, shell.models
    if name == old.name:
        raise InputError("This is already the current conversation.")
    saved = log.find(name).model
    model = saved if saved in models.names else models.current
    try:
        found = resume_conversation(log, name, lambda data: _build_session(models, model, data))
    except BaseException:
        log.unlock(name)
        raise
    shell.conversation, models.current = found, model
    log.unlock(old.name)
    attach_session(shell)


def attach_session(shell: Shell) -> None:
    """Give a session what is not saved with it: the ledger's store, facts, the system prompt."""
    session, spending = shell.session, shell.storage.spending
    project = str(shell.project.root or shell.home)

    def record(model: str, category: str, call: SpendingTotal) -> None:
        name = shell.conversation.name
        try:
            spending.add(call, session=name, project=project, model=model, category=category)
        except StoreError as error:  # the reply must not be lost because of this
            session.warnings.append(str(error))

    session.ledger.on_record = record
    if (cap := shell.config.cost.cap_per_day_dollars) is not None:
        session.ledger.daily_cap = DailyCap(cap, lambda: spending.today().cost)
    session.trim = shell.storage.facts.setting(FITTING_CHOICE, True)
    # A shell that was killed in goal mode must not continue by itself.
    shell.goal = shell.driver.prompt.instructions = None
    session.system = system_prompt(shell)
    attach_memory(shell)


def preload_model(shell: Shell) -> None:
    """Open the connection to the current model, and get its profile from the server."""
    name = shell.models.current

    def apply(profile: ModelProfile) -> None:
        driver = shell.driver
        if driver.profile.name == name and driver.profile.server_window is None:
            driver.profile = replace(profile, calibration=driver.profile.calibration)
            fit_blocks(shell)

    shell.background.start(lambda: shell.models.query_profile(name), apply)
