"""Session: a whole conversation, and the request for its next turn.

It talks to nobody: it hands out a request and takes in a reply. Nothing is ever removed from its
history; what is sent of it is a plan. Where the world has to be asked in the middle (what does
the server count, what is the summary of this) `planning` yields the question; `request` answers
what can be answered without a connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from brim.errors import BudgetError, InputError
from brim.fitting.calibration import Calibration
from brim.fitting.clip import clip
from brim.fitting.flow import SummaryJob, run_flow
from brim.fitting.plan import Request
from brim.fitting.policies import POLICIES, resolve_policy
from brim.fitting.profile import ModelProfile
from brim.session import validation
from brim.session.composer import Composer
from brim.session.ledger import Ledger, check_category
from brim.session.reply_stream import receive_response
from brim.session.request_builder import FORMATS
from brim.session.request_log import LoggedRequest, RequestLog
from brim.session.short_view import ShortView
from brim.session.snapshots import Compaction, SystemPrompt
from brim.session.summaries import MAX_SUMMARY_CHARS, call_summarizer
from brim.session.system_prompt import MAX_MEMORY_CHARS, Fact
from brim.session.transcript import EMPTY_REPLY, Transcript
from brim.wire import openai_chat, validate_tools
from brim.wire.json_copy import copy_json
from brim.wire.notes import entry_mark
from brim.wire.reply import Reply

if TYPE_CHECKING:
    from decimal import Decimal

    from brim.errors import Overflow
    from brim.fitting.budget import Budget
    from brim.fitting.flow import CountMode, Flow, Job
    from brim.fitting.passes import Pass
    from brim.fitting.plan import Plan
    from brim.fitting.policies import Policy
    from brim.models.pricing import Price, Usage
    from brim.session.request_builder import FormatName
    from brim.session.summaries import Summarizer
    from brim.tokens import Tokenizer

OUTPUT_SHARE: Final = 0.2
"""What one output of a command may take of the limit."""
RECALL_SHARE: Final = 0.5
COMPACT_SHARE: Final = 0.5
"""What is left of a conversation by an edit that was asked for."""
ASSUMED_WINDOW: Final = 4_096
"""What is reckoned with where no window is known yet."""
SESSION_FIELDS: Final = frozenset(("model", "messages", "input", "instructions", "system", "tools"))
"""What a session says itself in a request; as an option it would be sent without being counted."""
SAVED_VERSION: Final = 1
"""Of what `to_dict` writes."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The request that a reply is waited for."""

    plan: Plan
    target: ModelProfile
    category: str
    is_short: bool


class Session:
    """A conversation with a model; one more turn costs work for that turn."""

    def __init__(
        self,
        model: str | None = None,
        *,
        system: str | None = None,
        window: int | None = None,
        reply: int | None = None,
        policy: str | Policy | Sequence[Pass] = "steady",
        keep_recent: int | None = None,
        max_turns: int | None = None,
        token_budget: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenizer: Tokenizer | str | None = None,
        summarize: Summarizer | None = None,
        format: FormatName = "chat",
        template: str | None = None,
        cache_marks: bool = False,
        price: Price | None = None,
        warn_at_dollars: Decimal | float | None = None,
        warn_at_tokens: int | None = None,
        cap_at_dollars: Decimal | float | None = None,
        memory_chars: int = MAX_MEMORY_CHARS,
        summary_chars: int = MAX_SUMMARY_CHARS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """All that is not said is found out: the window from the catalog or the server.

        `summarize` is called with (the summary so far, the turns that leave) and returns a text.
        `format` is that of the requests: chat, anthropic or responses. `template` names the rules
        of a strict chat template, where they do not follow from the model. `cache_marks` lets a
        request in Anthropic's format say what is worth caching. Facts and summary take at most
        `memory_chars` and `summary_chars` of a request.
        """
        _check_settings(format, system, memory_chars=memory_chars, summary_chars=summary_chars)
        chosen = resolve_policy(
            policy, keep_recent=keep_recent, max_turns=max_turns, token_budget=token_budget
        )
        target = ModelProfile(model, window, reply, tokenizer, template, price)
        offered = [copy_json(tool) for tool in validate_tools(tools) or ()] or None
        self._composer = Composer(target, chosen, offered, summary_chars)
        self.memory_chars = memory_chars
        """The most characters of facts in a request."""
        self._summarize: Summarizer | None = None
        self.summarize = summarize
        self.format: FormatName = format
        self.cache_marks = cache_marks
        self._clock = clock
        self.ledger = Ledger(
            warn_at_dollars=warn_at_dollars,
            warn_at_tokens=warn_at_tokens,
            cap_at_dollars=cap_at_dollars,
        )
        self.log = RequestLog()
        self.warnings: list[str] = []
        """What the spending limits had to say, each thing once."""
        self.system = system or ""
        """The base prompt; blocks are added to it when a request is made."""
        self._system_role = "system"
        self.memory: list[Fact] = []
        """Facts that go into every request."""
        self.project: str | None = None
        """The project's file tree."""
        self.goal: str | None = None
        """What the model works towards by itself; None outside of goal mode."""
        self._said = Transcript()
        self._sent: PendingRequest | None = None
        self._resets = 0

    # What was said

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """Every turn, whole, without the system prompt."""
        return tuple(self._said.since(0))

    def __len__(self) -> int:
        return len(self._said)

    def since(self, index: int) -> list[dict[str, Any]]:
        """The turns from an index on, whole."""
        return self._said.since(index)

    @property
    def open_calls(self) -> list[str]:
        """The ids of the calls that wait for a result."""
        return validation.find_open_calls(self._composer.turns)

    def user(self, content: str | Sequence[Mapping[str, Any]], **marks: Any) -> None:
        """The user's words, after what commands have printed since the last turn.

        `marks` are fields of the turn that begin with `_`: they are kept, and not sent.
        """
        if unknown := [name for name in marks if not name.startswith("_")]:
            raise InputError(f"{', '.join(unknown)}: a mark begins with _")
        message: dict[str, Any] = {"role": "user", "content": content, **marks}
        if self._said.waiting:
            message[openai_chat.OUTPUT_FIELD] = self.waiting
        self.append(message)
        self._said.waiting.clear()

    def assistant(
        self, content: str | None = None, tool_calls: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if tool_calls:
            message["tool_calls"] = tool_calls
        self.append(message)

    def tool(self, call_id: str, content: str) -> None:
        """The result of a call of the last assistant turn."""
        self.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def append(self, message: Mapping[str, Any]) -> None:
        """Take in one turn, as a copy. A first system turn becomes the system prompt."""
        index = len(self._said)
        view = openai_chat.read_message(message, index)
        validation.check_turn(message, index, validation.find_open_calls(self._composer.turns))
        if index == 0 and not self.system and validation.is_system_prompt(message, view):
            self.system = "\n\n".join(view.words)
            self._system_role = str(message["role"])
            return
        turn = copy_json(message)
        self._said.append(turn)
        self._composer.append(turn, view)

    def add_output(self, text: str, path: str | None = None) -> str:
        """What a command printed: it waits for the user's next words and goes out before them.

        What is too long is clipped here; `path` is where the whole of it can be read. Returns the
        text as it will be sent.
        """
        return self._wait(text, OUTPUT_SHARE, path)

    def recall(self, index: int) -> str:
        """Bring back a turn: its text waits for the user's next words, so nothing sent changes."""
        turn = self._said.turn(index)
        message = openai_chat.read_message(turn, index)
        text = "\n".join((*message.outputs, *message.words))
        if not text:
            raise InputError(f"turn {index} has no text to bring back")
        return self._wait(f"[turn {index}, {turn['role']}]\n{text}", RECALL_SHARE)

    def _wait(self, text: str, share: float, path: str | None = None) -> str:
        if not isinstance(text, str):
            raise InputError(f"an output is text, not {type(text).__name__}")
        if not text.strip():
            return ""
        self._said.waiting.append(self._in_share(text, share, path))
        return self._said.waiting[-1]

    def _in_share(self, text: str, share: float, path: str | None) -> str:
        """As much of a text as may wait, with a word on where the whole of it is."""
        count = self._composer.counter.text
        cap, size = int(self._limit_here() * share), count(text)
        if size > cap:
            whole = f"\n[the whole output: {path}]" if path else ""
            room = cap - count(whole)
            text = (clip(text, size, room, count, mark=entry_mark) + whole).strip()
        return text

    def _limit_here(self) -> int:
        """The limit, or a small one where no server has said yet what there is."""
        try:
            return self.budget.limit
        except BudgetError:
            return ASSUMED_WINDOW

    @property
    def waiting(self) -> str:
        """The outputs that wait for the user's next words."""
        return "\n\n".join(self._said.waiting)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The same, each by itself."""
        return tuple(self._said.waiting)

    @outputs.setter
    def outputs(self, outputs: Sequence[str]) -> None:
        self._said.waiting = list(outputs)

    def pin(self, index: int) -> None:
        """Never leave this turn out."""
        self._composer.pinned.add(self._said.place(index))
        self._composer.forget()

    def unpin(self, index: int) -> None:
        self._composer.pinned.discard(self._said.place(index))
        self._composer.forget()

    @property
    def pins(self) -> list[int]:
        return sorted(self._said.places[place] for place in self._composer.pinned)

    def rewind(self, length: int) -> list[dict[str, Any]]:
        """Go on as if only the first turns had been said; gives those that were taken back."""
        taken = self._said.take_back(length)
        self._composer.take_back(len(self._said.places))
        self._sent = None
        self._resets += 1
        return taken

    def reset(self) -> None:
        """Forget the conversation; prompt, memory, project, totals and given warnings stay."""
        self._said.clear()
        self.goal = self._sent = None
        self._resets += 1
        self._composer.clear()

    # Who it is said to

    @property
    def model(self) -> str | None:
        return self.target.model

    @property
    def target(self) -> ModelProfile:
        """The model with its window, template and price, as they are known here."""
        return self._composer.target

    @target.setter
    def target(self, target: ModelProfile) -> None:
        self._composer.target = target

    def switch(self, model: str | None, **known: Any) -> None:
        """Go on with another model: counts, window, template and price follow, nothing else.

        Takes what is known about it: window, reply, tokenizer, template, price.
        """
        self.target = ModelProfile(model, **known)

    @property
    def budget(self) -> Budget:
        return self._composer.budget

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The definitions of the tools on offer."""
        return [copy_json(tool) for tool in self._composer.tools or ()]

    @tools.setter
    def tools(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._composer.offer([copy_json(tool) for tool in validate_tools(tools) or ()])

    @property
    def trim(self) -> bool:
        """Whether what is too long is cut; without, it is an error."""
        return self._composer.fitting

    @trim.setter
    def trim(self, trim: bool) -> None:
        self._composer.fitting = trim

    # What is sent

    def request(
        self,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: str = "main",
        format: FormatName | None = None,
        **options: Any,
    ) -> Request:
        """What to send now, by what is known here; `options` go into the request as they are.

        Raises `ContextOverflowError` where it cannot fit, and `SpendingCapError` where it would
        cost more than may be spent.
        """
        asking = self.planning(
            system=system,
            short_view=short_view,
            category=category,
            format=format,
            options=options,
        )
        return run_flow(asking, self._answered)

    def _answered(self, job: Job) -> object:
        """What can be answered without a connection: a summary, but no server's count."""
        if isinstance(job, SummaryJob) and self._summarize is not None:
            return call_summarizer(self._summarize, job)
        return None

    def planning(
        self,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: str = "main",
        ask: CountMode = "off",
        format: FormatName | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Flow[Request]:
        """Make the request, and yield what has to be asked of others on the way."""
        check_category(category)
        if own := SESSION_FIELDS.intersection(options or ()):
            raise InputError(f"{', '.join(sorted(own))}: the session's own, and no options")
        composer = self._composer
        draw = partial(
            composer.drawing,
            self._prompt(system),
            format=format or self.format,
            cache_marks=self.cache_marks,
            options=options,
        )
        turns: Sequence[Mapping[str, Any]] = composer.turns
        is_short = bool(short_view) and not self.goal
        if is_short:
            view = short_view if isinstance(short_view, ShortView) else ShortView()
            turns, drawing = view.of(composer.turns), draw()
            plan = yield from composer.planning_of(turns, drawing, ask)
        else:
            plan, drawing = yield from composer.composing(draw, ask)
        body = drawing.body(turns, plan)
        if self.ledger.is_capped:
            self._check_cap(plan, drawing.reply_in(body) or plan.budget.reply)
        self._sent = PendingRequest(plan, self.target, category, is_short)
        self._log(self._sent)
        return Request(body, plan, drawing.messages_key)

    @property
    def current_plan(self) -> Plan:
        """What of the conversation goes out as it stands; nothing is decided."""
        return self._composer.outlook(self.system_text())

    def preview(self) -> Plan:
        """The same, with what would have to leave left out."""
        return self._composer.preview(self.system_text())

    @property
    def revision(self) -> object:
        """Another one whenever something has changed that may change what is sent."""
        return (
            self._composer.changes,
            self.outputs,
            len(self.memory),
            self.system,
            self.project,
            self.goal,
        )

    @property
    def places(self) -> tuple[int, ...]:
        """The turns that plans number from 0 on: all but empty replies."""
        return tuple(self._said.places)

    def compaction(self, share: float = COMPACT_SHARE, *, sums_up: bool = False) -> Compaction:
        """What an edit now would leave of the conversation; nothing is changed.

        With `sums_up` it leaves room for a summary.
        """
        return self._composer.compaction(self.system_text(), share, sums_up=sums_up)

    def compact(
        self, compaction: Compaction | None = None, *, summarize: Summarizer | None = None
    ) -> Plan:
        """Make an edit now; what leaves is summed up, where there is somebody to do it.

        `summarize` does it for this once.
        """
        writer = summarize or self._summarize

        def answered(job: Job) -> object:
            return call_summarizer(writer, job) if writer and isinstance(job, SummaryJob) else None

        making = self._composer.compacting(
            compaction or self.compaction(sums_up=writer is not None)
        )
        try:
            return run_flow(making, answered)
        except BaseException:
            making.close()  # at once, so that nothing of it stays
            raise

    def undo_compaction(self) -> None:
        """Take the last such edit back: what is sent is decided anew."""
        self._composer.uncompact()

    @property
    def is_compacted(self) -> bool:
        """Whether such an edit was made, and nothing was said since."""
        return self._composer.is_compacted

    def _check_cap(self, plan: Plan, reply: int) -> None:
        price = self.target.price_for(plan.size)
        self.ledger.check(self.target.name, tokens=plan.size, reply=reply, price=price)

    def _prompt(self, system: str | None = None) -> SystemPrompt:
        base = self.system if system is None else system
        if not isinstance(base, str):
            raise InputError(f"a system prompt is text, not {type(base).__name__}")
        return SystemPrompt(
            base, self._system_role, self.memory, self.memory_chars, self.project, self.goal
        )

    def _log(self, sent: PendingRequest) -> None:
        plan, now = sent.plan, self._clock()
        dropped = plan.length - len(plan.sent_indices)
        sizes = plan.before, plan.size, plan.limit
        self.log.add(
            LoggedRequest(now, sent.target.name, sent.category, *sizes, plan.is_trimmed, dropped)
        )

    def system_text(self) -> str:
        """The whole system text of the next request, with its blocks."""
        return self._composer.system_text(self._prompt())

    @property
    def summarize(self) -> Summarizer | None:
        """Called with (the summary so far, the turns that leave); returns a text."""
        return self._summarize

    @summarize.setter
    def summarize(self, summarize: Summarizer | None) -> None:
        self._summarize = summarize
        if self._composer.summarizes != (summarize is not None):
            self._composer.summarizes = summarize is not None
            self._composer.forget()

    @property
    def summary(self) -> str | None:
        """What is told of the turns that left."""
        return self._composer.summary

    @summary.setter
    def summary(self, text: str | None) -> None:
        self._composer.summary = text

    # What comes back

    def receive(self, response: Any, then: Callable[[Reply], None] | None = None) -> Any:
        """Take in an answer, and give the `Reply`; a stream passes through and is kept at its end.

        Takes what the client libraries of OpenAI and Anthropic return, or the JSON itself. `then`
        is called with the reply when it was taken in.
        """
        sent, resets = self._sent, self._resets

        def keep(reply: Reply, whole: bool) -> None:
            if resets == self._resets:
                self._take(reply, sent, whole=whole)
            elif sent is not None:  # what it answers is forgotten, but not what it cost
                self._book(reply, sent.target, sent.category, sent.plan.size)
            if then is not None:
                then(reply)

        return receive_response(response, keep, None if sent is None else sent.plan)

    def _take(self, reply: Reply, sent: PendingRequest | None, *, whole: bool) -> None:
        """Keep the turn, learn what its prompt really took, and book what it cost."""
        try:
            self._keep(reply, whole=whole)
        finally:
            if sent is not None:
                self._sent = None
                if reply.usage is not None and reply.usage.input and not sent.is_short:
                    self._composer.learn(sent.plan, reply.usage.input)
                self._book(reply, sent.target, sent.category, sent.plan.size)

    def _keep(self, reply: Reply, *, whole: bool) -> None:
        message = copy_json(reply.message)
        if not whole and message.get("tool_calls"):
            del message["tool_calls"]  # of a call that broke off nobody knows what it asks for
        for call in message.get("tool_calls") or ():
            validation.repair_arguments(call)
        if message.get("content") or message.get("tool_calls"):
            self.append(message)
        else:
            self._said.append({**message, EMPTY_REPLY: True})

    def book(self, reply: Reply, model: str, category: str, *, counted: int) -> None:
        """Put a call on the bill; `counted` is what its prompt was taken for before it was sent."""
        target = self.target
        if model != (self.model or ""):
            target = replace(target, model=model, price=None, called=None)
        self._book(reply, target, category, counted)

    def _book(self, reply: Reply, target: ModelProfile, category: str, counted: int) -> None:
        said = target.counter().message(openai_chat.read_message(reply.message, 0))
        self.warnings += self.ledger.book(
            target.name,
            category,
            usage=reply.usage,
            counted=counted,
            counted_output=said if reply.usage is None else 0,
            price=target.price_for(counted),
            cost=reply.cost,
        )

    def refused(self, overflow: Overflow) -> None:
        """Believe a server that says that the last request was too long: the next is smaller."""
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._composer.refused(sent.plan, overflow)

    def learn_text(self, text: str, tokens: int) -> None:
        """Take in what a server that only counts texts says of one."""
        self._composer.learn_text(text, tokens)

    @property
    def calibration(self) -> Calibration:
        """What was learned about the model's counts and window."""
        return self.target.calibration

    # What it took

    @property
    def usage(self) -> Usage:
        return self.ledger.usage

    @property
    def cost(self) -> Decimal:
        """Dollars, of all calls whose price is known."""
        return self.ledger.cost

    def reset_usage(self) -> None:
        """Begin the totals anew, and arm the warnings again."""
        self.ledger.reset()
        self.warnings.clear()

    def count(self, text: str) -> int:
        """Tokens of a text, as far as is known of the model."""
        return self._composer.counter.text(text)

    @property
    def tokens(self) -> int:
        """What the conversation takes as it stands, with the outputs that wait."""
        return self.current_plan.size + (self.count(self.waiting) if self._said.waiting else 0)

    @property
    def room(self) -> int:
        """What may still be said before something has to leave."""
        return max(0, self.current_plan.limit - self.tokens)

    # What is kept between runs

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON; `from_dict` goes on where it was."""
        return {**self.state(), **self._said.to_dict()}

    def state(self) -> dict[str, Any]:
        """The same without what was said: for those who keep each turn when it comes."""
        composer, target = self._composer, self.target
        if composer.policy.name not in POLICIES:
            raise InputError("a session with passes of its own cannot be written down")
        return {
            "version": SAVED_VERSION,
            "settings": {
                "model": target.model,
                "window": target.window,
                "reply": target.reply,
                "template": target.template,
                "policy": composer.policy.name,
                "keep_recent": composer.policy.keep_recent,
                "max_turns": composer.policy.max_turns,
                "token_budget": composer.policy.token_budget,
                "tools": copy_json(composer.tools),
                "format": self.format,
                "cache_marks": self.cache_marks,
                "memory_chars": self.memory_chars,
                "summary_chars": composer.summary_chars,
                "system": self.system,
            },
            "system_role": self._system_role,
            "memory": [list(fact) for fact in self.memory],
            "project": self.project,
            "goal": self.goal,
            "composer": composer.to_dict(),
            "ledger": self.ledger.to_dict(),
            "log": self.log.to_dict(),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **settings: Any) -> Session:
        """A session as `to_dict` wrote it down; `settings` go before what stands there.

        What is no data has to be given again: summarize, tokenizer, price, spending limits.
        """
        try:
            return cls._restored(data, settings)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the saved session cannot be read: {error!r}") from None

    @classmethod
    def _restored(cls, data: Mapping[str, Any], settings: Mapping[str, Any]) -> Session:
        if data["version"] != SAVED_VERSION:
            raise InputError(
                f"a saved session of version {data['version']}; known is {SAVED_VERSION}"
            )
        session = cls(**{**data["settings"], **settings})
        session._system_role = data["system_role"]
        session.memory = [Fact(*fact) for fact in data["memory"]]
        session.project, session.goal = data["project"], data["goal"]
        said = session._said = Transcript.from_dict(data)
        sent = [said.turns[place] for place in said.places]
        session._composer.restore(data["composer"], sent)
        ledger = session.ledger
        session.ledger = Ledger.from_dict(
            data["ledger"],
            warn_at_dollars=ledger.warn_at_dollars,
            warn_at_tokens=ledger.warn_at_tokens,
            cap_at_dollars=ledger.cap_at_dollars,
        )
        session.log = RequestLog.from_dict(data["log"])
        session.warnings = list(data["warnings"])
        return session


def _check_settings(format: str, system: object, **sizes: object) -> None:
    if format not in FORMATS:
        raise InputError(f"format is one of {', '.join(FORMATS)}, not {format!r}")
    if not isinstance(system, str | None):
        raise InputError(f"a system prompt is text, not {type(system).__name__}")
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InputError(f"{name} must be a whole number from 0 on, not {size!r}")
