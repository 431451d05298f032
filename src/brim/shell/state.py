"""The state of a running shell.

`Shell` holds the parts; each part owns one piece of state and its transitions:

    options     how the shell was started
    storage     conversations, facts and spending on disk
    models      the models and which one is current
    secrets     values that must not reach a model or the screen
    approvals   what may run without a question
    project     the project's file tree as each model sees it
    tools       MCP servers and the tools offered to each model
    input       what the next prompt starts with
    notices     warnings that the user has already seen
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.config import Config, LoadedConfig
from brim.errors import BrimError, BudgetError, InputError
from brim.fitting.budget import Budget
from brim.session.driver import ASSUMED_WINDOW, SessionDriver
from brim.session.session import Session
from brim.session.system_prompt import Fact
from brim.shell.background import Background
from brim.shell.conversation import SavedConversation
from brim.shell.input.classification import Classification
from brim.shell.mcp.servers import ToolOffers
from brim.shell.model_clients import ModelClients, Route
from brim.shell.project_tree import ProjectFiles
from brim.shell.render.screen import Screen
from brim.shell.terminal.user_shell import UserShell
from brim.storage import ConversationEvent, ConversationStore, FactStore, SpendLog

if TYPE_CHECKING:
    from brim.shell.approval.allow_rules import AllowRules
    from brim.shell.approval.secret_masker import MaskedText, Masker
    from brim.shell.edits import AppliedEdit
    from brim.shell.sandbox import Sandbox
    from brim.shell.setup.doctor import ExtraCheck

FITTING_CHOICE = "fitting"
"""Name of the saved choice whether fitting is on."""
APPROVED_CHOICE = "approved"
"""Name of the saved choice that holds the "always" rules."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How the shell was started."""

    model: str | None = None
    window: int | None = None
    resume: str | None = None
    """Name of the conversation to resume; empty for the folder's last one, None for a new one."""
    yes: bool = False
    """Run proposed commands that are not destructive without asking."""
    is_script: bool = False
    """Lines come from a pipe: there is no user to ask."""
    extra_checks: tuple[ExtraCheck, ...] = ()
    """Checks of other packages for `:doctor`."""


@dataclass(frozen=True, slots=True)
class ShellStorage:
    """What the shell keeps on disk."""

    conversations: ConversationStore
    facts: FactStore
    spending: SpendLog


class Approvals:
    """What may run without a question, saved across runs."""

    def __init__(self, facts: FactStore) -> None:
        self._facts = facts
        self._rules: AllowRules | None = None

    @property
    def rules(self) -> AllowRules:
        """The rules, read when they are first needed."""
        self._rules = self._rules or self._load()
        return self._rules

    def allow(self, extend: Callable[[AllowRules], AllowRules]) -> None:
        """Extend the rules, in this run and later ones."""
        self._rules = extend(self._load())
        self._facts.save_setting(APPROVED_CHOICE, self.rules.to_dict())

    def _load(self) -> AllowRules:
        from brim.shell.approval.allow_rules import AllowRules

        try:
            return AllowRules.from_dict(self._facts.setting(APPROVED_CHOICE, {}))
        except InputError:  # saved by an incompatible version: ask again
            return AllowRules()


class Secrets:
    """Masks the secrets of the environment and of the user's shell."""

    def __init__(self, environment: Mapping[str, str], terminal: UserShell) -> None:
        self._environment = environment
        self._terminal = terminal
        self._masker: Masker | None = None

    def mask(self, text: str) -> MaskedText:
        from brim.shell.approval.secret_masker import Masker

        self._masker = self._masker or Masker(self._environment)
        return self._masker.mask(text)

    def variables(self) -> list[str]:
        """Return the names of the variables that hold a secret."""
        from brim.shell.approval.secret_masker import find_secret_variables

        return find_secret_variables({**self._environment, **self._terminal.variables()})

    def refresh(self) -> None:
        """Read the variables of the user's shell again; a command may have set new ones."""
        from brim.shell.approval.secret_masker import Masker

        with suppress(BrimError):  # read again after the next command
            self._masker = Masker({**self._environment, **self._terminal.variables()})


@dataclass(slots=True)
class NextInput:
    """What the next prompt starts with, and which turns the next message replaces."""

    _text: str = ""
    _replaced: int | None = None

    def prefill(self, text: str) -> None:
        """Put this text into the next prompt."""
        self._text = text

    def replace_from(self, index: int, text: str) -> None:
        """Let the user edit a message; when sent, it replaces the turns from `index` on."""
        self._text, self._replaced = text, index

    def take_text(self) -> str:
        text, self._text = self._text, ""
        return text

    def take_replaced(self) -> int | None:
        """Return the first turn to replace, once; None if nothing is replaced."""
        index, self._replaced = self._replaced, None
        return index


@dataclass(slots=True)
class ShownNotices:
    """Warnings and trims that the user has seen, so that each is shown once."""

    _warnings: set[str] = field(default_factory=set)
    _trim: object = None

    def is_new(self, warning: str) -> bool:
        """Return whether this warning has not been shown yet, and remember it."""
        is_new = warning not in self._warnings
        self._warnings.add(warning)
        return is_new

    def is_new_trim(self, trim: object) -> bool:
        """Return whether this trim differs from the last one shown, and remember it."""
        is_new = trim != self._trim
        self._trim = trim
        return is_new

    def clear(self) -> None:
        self._warnings.clear()


def _suggest_nothing(_line: str) -> None:
    """A script is run as it is."""


@dataclass(slots=True)
class Shell:
    """A running shell."""

    options: StartOptions
    loaded: LoadedConfig
    environment: Mapping[str, str]
    home: Path
    """The folder in which it was started."""
    screen: Screen
    models: ModelClients
    conversation: SavedConversation
    storage: ShellStorage
    terminal: UserShell
    secrets: Secrets
    approvals: Approvals
    project: ProjectFiles
    tools: ToolOffers
    input: NextInput = field(default_factory=NextInput)
    notices: ShownNotices = field(default_factory=ShownNotices)
    background: Background = field(default_factory=Background)
    classify: Callable[[str], Classification] = lambda line: Classification("language", line, "")
    suggest: Callable[[str], str | None] = _suggest_nothing
    """Returns the command that was probably meant by a line that is no command."""
    route: Route = field(default_factory=Route)
    """The route of the last message."""
    memory: tuple[Fact, ...] = ()
    """The facts in the system prompt."""
    goal: str | None = None
    """The goal that the model works towards; None outside goal mode."""
    sandbox: Sandbox | None = None
    """Where commands of goal mode run without a question; None if there is no such place."""
    edits: list[AppliedEdit] = field(default_factory=list)
    """The changes of files in this run, for `:undo`."""
    ended: bool = False

    @property
    def config(self) -> Config:
        return self.models.config

    @property
    def session(self) -> Session:
        return self.conversation.session

    @property
    def driver(self) -> SessionDriver:
        """The internal interface of the session."""
        return self.conversation.driver

    @property
    def folder(self) -> Path:
        """The working directory of the user's shell."""
        return self.terminal.folder

    @property
    def budget(self) -> Budget | None:
        """The budget of the next request; None while the window is unknown."""
        try:
            return self.session.budget
        except BudgetError:
            return None

    @property
    def limit(self) -> int:
        return self.budget.limit if self.budget else ASSUMED_WINDOW

    def wait_for_window(self) -> None:
        """Wait until the server has reported the window, if it is still unknown."""
        if self.budget is None:
            with self.screen.waiting(f"{self.models.current} …"):
                self.background.settle()

    def as_language(self, message: str) -> str:
        """Return the line to type so that a message is classified as language."""
        return message if self.classify(message).kind == "language" else f"?{message}"

    def use_model(self, name: str) -> None:
        """Send the next request to this model."""
        if self.driver.profile.name != name:
            self.driver.profile = self.models.profile(name)

    def show_error(self, error: Exception) -> None:
        """Show an error without secrets: servers repeat keys in their messages."""
        self.screen.error(self.secrets.mask(str(error)).text)

    def record(self, kind: str, **data: Any) -> None:
        """Record an event that does not change the session."""
        self.conversation.record(kind, **data)

    def save(self, kind: str, **data: Any) -> None:
        """Save the session together with the event that changed it."""
        self.conversation.save(ConversationEvent(kind, data))
