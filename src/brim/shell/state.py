"""Shell: all that a running shell has; what it does with it stands in the modules beside.

line ─▶ classify ─▶ running    a command, in the user's own shell
                 ─▶ asking     words, to a model; its commands and calls are offered
                 ─▶ commands   `:context` and so on
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import BrimError, BudgetError, InputError
from brim.session.driver import ASSUMED_WINDOW
from brim.shell.approval.allow_rules import AllowRules
from brim.shell.approval.secret_masker import Masker
from brim.shell.background import Background
from brim.shell.input.classify import Classification
from brim.shell.proposals import DEFAULT_PROMPT, RULE, TOOLS_RULE
from brim.shell.routing import Route
from brim.storage import ConversationEvent

if TYPE_CHECKING:
    from brim.config import Config, LoadedConfig
    from brim.fitting.budget import Budget
    from brim.session.driver import SessionDriver
    from brim.session.session import Session
    from brim.session.system_prompt import Fact
    from brim.shell.conversation import SavedConversation
    from brim.shell.mcp import McpServers
    from brim.shell.mcp.offer import ToolOffer
    from brim.shell.mcp.tools import Tool
    from brim.shell.model_clients import ModelClients
    from brim.shell.render.screen import Screen
    from brim.shell.terminal import UserShell
    from brim.storage import ConversationStore, FactStore, SpendLog

FITTING_CHOICE = "fitting"
"""The choice whether anything is left out."""
APPROVED_CHOICE = "approved"
"""The choice that holds what the user has said "always" to."""


def load_rules(facts: FactStore) -> AllowRules:
    """What the user has said "always" to, in this shell and others."""
    try:
        return AllowRules.from_dict(facts.setting(APPROVED_CHOICE, {}))
    except InputError:  # written by another brim: then it is asked again
        return AllowRules()


def _classify_as_language(line: str) -> Classification:
    return Classification("language", line, "nobody says otherwise")


@dataclass(slots=True)
class Shell:
    """A shell that runs."""

    loaded: LoadedConfig
    environment: Mapping[str, str]
    home: Path
    """The folder that it was started in."""
    screen: Screen
    models: ModelClients
    conversation: SavedConversation
    log: ConversationStore
    spending: SpendLog
    facts: FactStore
    terminal: UserShell
    servers: McpServers
    masker: Masker
    name: str
    """The user's name for the model that is talked to."""
    resume: Callable[[Shell, str], None]
    """Goes on with a saved conversation, by its name."""
    project: Path | None = None
    """The root of the project that the folder is in."""
    depth: int = 3
    """How many levels of its files the model is shown."""
    files: dict[tuple[str, int], str] | None = None
    """Those files as they were read, and as each model is shown them; None where they are not."""
    yes: bool = False
    """Run what is not destructive without asking."""
    is_script: bool = False
    """Nobody sits there who could be asked."""
    ended: bool = False
    decide: Callable[[str], Classification] = _classify_as_language
    """What a typed line is."""
    goal: str | None = None
    """The goal that the model works towards; None outside of goal mode."""
    memory: Sequence[Fact] = ()
    """The facts in the system text."""
    replaces: int | None = None
    """The turn from which on the next words take the place of what was said."""
    next_text: str = ""
    """What stands in the next prompt, to be edited."""
    route: Route = field(default_factory=Route)
    """The way that the last words took."""
    offer: ToolOffer | None = None
    offers: dict[tuple[str, int], ToolOffer] = field(default_factory=dict)
    """What each model can be offered of the tools that there are."""
    offered_from: tuple[Tool, ...] = ()
    """Those tools."""
    rules: AllowRules = field(default_factory=AllowRules)
    background: Background = field(default_factory=Background)
    told: set[str] = field(default_factory=set)
    """Warnings that were given."""
    told_cut: object = None
    """The last cut that was told of."""

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
        """Where the user's shell stands."""
        return self.terminal.folder

    @property
    def budget(self) -> Budget | None:
        """None where no window is known yet."""
        try:
            return self.session.budget
        except BudgetError:
            return None

    @property
    def limit(self) -> int:
        return self.budget.limit if self.budget else ASSUMED_WINDOW

    def learn_window(self) -> None:
        """Wait for what the server says of the window, where nobody has said it yet."""
        if self.budget is None:
            with self.screen.waiting(f"{self.name} …"):
                self.background.settle()

    def base_prompt(self, prompt: str | None = None) -> str:
        """What a model is told first; the rule for commands is always in it."""
        base = prompt or self.config.shell.prompt or DEFAULT_PROMPT
        return "\n\n".join([base, RULE, *([TOOLS_RULE] if self.session.tools else [])])

    def schemas(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        """The definitions of the tools on offer, by server."""
        by_server: dict[str, list[Mapping[str, Any]]] = {}
        for tool in self.offer.offered if self.offer else ():
            by_server.setdefault(tool.server, []).append(tool.definition)
        return {**by_server}

    def as_language(self, words: str) -> str:
        """Words as they have to be typed to be taken for such."""
        return words if self.decide(words).kind == "language" else f"?{words}"

    def turn_to(self, name: str) -> None:
        """Let the next request go to this model."""
        if self.driver.profile.name != name:
            self.driver.profile = self.models.target(name)

    def fail(self, error: Exception) -> None:
        """Say what went wrong; servers put keys into their words, too."""
        self.screen.error(self.masker.mask(str(error)).text)

    def learn_secrets(self) -> None:
        """Know the secrets that the user's shell has learned meanwhile."""
        with suppress(BrimError):  # they are asked for again after the next command
            self.masker = Masker({**self.environment, **self.terminal.variables()})

    def allow(self, more: Callable[[AllowRules], AllowRules]) -> None:
        """Ask no more about something, in this run and later ones."""
        self.rules = more(load_rules(self.facts))
        self.facts.save_setting(APPROVED_CHOICE, self.rules.to_dict())

    def note(self, kind: str, **data: Any) -> None:
        """Write down something that happened."""
        self.conversation.note(kind, **data)

    def keep(self, kind: str, **data: Any) -> None:
        """Write down something that changed the session."""
        self.conversation.keep(ConversationEvent(kind, data))
