"""Session: a whole conversation, and the request for its next turn.

It talks to nobody: it hands out a request and takes in a reply. Nothing is ever removed from its
history; what is sent of it is a plan. Where the world has to be asked in the middle (what does
the server count, what is the summary of this) `planning` yields the question; `request` answers
what can be answered without a connection.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from brim import intake
from brim.calibration import Calibration
from brim.clip import clip
from brim.drawing import Drawing, FormatName
from brim.errors import InputError
from brim.ledger import Entry, Ledger, RequestLog, check_category
from brim.memory import copied
from brim.messages import Message
from brim.planner import Planner
from brim.planning import Reported, SummaryJob, planning
from brim.policies import POLICIES, policy_of
from brim.receiving import AsyncReceivedStream, ReceivedStream
from brim.reply import Reply
from brim.request import Request
from brim.short_view import ShortView
from brim.summary import LARGEST, answer_of, cut_to, cut_to_room, is_summary, room_for
from brim.system import Fact, system_text
from brim.target import Target
from brim.tokens.calibrated import foreign_size
from brim.wire import openai_chat
from brim.wire.replies import reply_of

if TYPE_CHECKING:
    from decimal import Decimal

    from brim.budget import Budget
    from brim.overflow import Overflow
    from brim.passes import Pass
    from brim.plan import Plan
    from brim.planning import Ask, Planning
    from brim.policies import Policy
    from brim.summary import Summarizer
    from brim.tokens import Tokenizer
    from brim.usage import Price, Usage

OUTPUT_SHARE: Final = 0.2
"""What one output of a command may take of the limit."""
RECALL_SHARE: Final = 0.5
SHRINK: Final = 0.85
"""What is tried of a request that a server refused without giving numbers."""
VERSION: Final = 1
"""Of what `to_dict` writes."""
_SETTINGS: Final = (
    "model",
    "window",
    "reply",
    "template",
    "policy",
    "keep_recent",
    "max_turns",
    "token_budget",
    "tools",
    "format",
    "cache_marks",
    "system",
)


def _is_stream(response: Any) -> bool:
    """Whether it comes in pieces: not JSON, nor an object of a client library that holds it all."""
    whole = isinstance(response, Mapping | str | bytes) or hasattr(response, "model_dump")
    return not whole


@dataclass(frozen=True, slots=True)
class Sent:
    """The request that a reply is waited for."""

    plan: Plan
    model: str
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._target = Target(model, window, reply, tokenizer, template, price)
        self._policy = policy_of(
            policy, keep_recent=keep_recent, max_turns=max_turns, token_budget=token_budget
        )
        self._tools = None if tools is None else [copied(tool) for tool in tools]
        self.summarize = summarize
        """Called with (the summary so far, the turns that leave); returns a text."""
        self.format: FormatName = format
        self.cache_marks = cache_marks
        """Whether a request in Anthropic's format says what is worth caching."""
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
        self._turns: list[dict[str, Any]] = []
        self._live: list[dict[str, Any]] = []
        """The turns that are planned with: all but empty replies."""
        self._waiting: list[str] = []
        self._pins: set[int] = set()
        self._summary: str | None = None
        self._covered: set[int] = set()
        """Those of the planned turns that a summary was asked of."""
        self._planner: Planner | None = None
        self._reported: Reported | None = None
        self._last_system = ""
        self._last_edit: tuple[int, int] | None = None
        """Where the last edit fell before this session was written down, and its limit."""
        self._sent: Sent | None = None

    # What was said

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """Every turn, whole, without the system prompt."""
        return tuple(copied(turn) for turn in self._turns)

    def __len__(self) -> int:
        return len(self._turns)

    def user(self, content: str | Sequence[Mapping[str, Any]]) -> None:
        """The user's words, after what commands have printed since the last turn."""
        message: dict[str, Any] = {"role": "user", "content": content}
        if self._waiting:
            message[openai_chat.OUTPUT] = self.waiting
        self.append(message)
        self._waiting.clear()

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
        index = len(self._turns)
        view = openai_chat.read(message, index)
        intake.check(message, index, intake.open_calls(self._live))
        if index == 0 and view.role == "system" and not self.system:
            self.system = "\n\n".join(view.words)
            self._system_role = str(message["role"])
            return
        turn = copied(message)
        self._turns.append(turn)
        self._live.append(turn)
        if self._planner is not None:
            self._planner.extend([view])

    def exec_output(self, text: str, path: str | None = None) -> str:
        """What a command printed: it waits for the user's next words and goes out before them.

        What is too long is clipped here; `path` is where the whole of it can be read. Returns the
        text as it will be sent.
        """
        return self._wait(text, OUTPUT_SHARE, path)

    def recall(self, index: int) -> str:
        """Bring back a turn: its text waits for the user's next words, so nothing sent changes."""
        turn = self._turn(index)
        message = openai_chat.read(turn, index)
        text = "\n".join((*message.outputs, *message.words))
        if not text:
            raise InputError(f"turn {index} has no text to bring back")
        return self._wait(f"[turn {index}, {turn['role']}]\n{text}", RECALL_SHARE)

    def _wait(self, text: str, share: float, path: str | None = None) -> str:
        if not isinstance(text, str):
            raise InputError(f"an output is text, not {type(text).__name__}")
        if not text.strip():
            return ""
        count = self.planner.counter.text
        cap, size = int(self.budget.limit * share), count(text)
        if size > cap:
            whole = f"\n[the whole output: {path}]" if path else ""
            text = clip(text, size, cap - count(whole), count) + whole
        self._waiting.append(text)
        return text

    @property
    def waiting(self) -> str:
        """The outputs that wait for the user's next words."""
        return "\n\n".join(self._waiting)

    def pin(self, index: int) -> None:
        """Never leave this turn out."""
        self._turn(index)
        self._pins.add(index)
        self._forget_plan()

    def unpin(self, index: int) -> None:
        self._turn(index)
        self._pins.discard(index)
        self._forget_plan()

    @property
    def pins(self) -> list[int]:
        return sorted(self._pins)

    def _turn(self, index: int) -> dict[str, Any]:
        if not isinstance(index, int) or not 0 <= index < len(self._turns):
            raise InputError(f"there is no turn {index!r}; there are 0 to {len(self._turns) - 1}")
        return self._turns[index]

    def reset(self) -> None:
        """Forget the conversation; prompt, memory, project, totals and given warnings stay."""
        for held in (self._turns, self._live, self._waiting, self._pins, self._covered):
            held.clear()
        self._summary = self.goal = self._sent = self._last_edit = None
        self._forget_plan()

    # Who it is said to

    @property
    def model(self) -> str | None:
        return self._target.model

    @property
    def target(self) -> Target:
        """The model with its window, template and price, as they are known here."""
        return self._target

    @target.setter
    def target(self, target: Target) -> None:
        if target != self._target:
            self._target = target
            self._forget_plan()

    def switch(self, model: str | None, **known: Any) -> None:
        """Go on with another model: counts, window, template and price follow, nothing else.

        Takes what is known about it: window, reply, tokenizer, template, price.
        """
        self.target = Target(model, **known)

    @property
    def calibration(self) -> Calibration:
        """What was learned about the model's counts and window."""
        return self._target.calibration

    @property
    def planner(self) -> Planner:
        """What decides about this conversation, fed with all of it."""
        if self._planner is None:
            self._planner = self._new_planner()
        return self._planner

    @property
    def budget(self) -> Budget:
        return self.planner.budget

    def _new_planner(self) -> Planner:
        counter = self._target.counter()
        budget = self._target.budget(counter)
        pinned = {id(self._turns[index]) for index in self._pins}
        planner = Planner(
            counter,
            budget,
            self._policy,
            self._tools or (),
            pins=[place for place, turn in enumerate(self._live) if id(turn) in pinned],
            summary_room=self._summary_room(budget) if self._tells_in_note else 0,
        )
        planner.summary = self._summary or ""
        views = [openai_chat.read(turn, place) for place, turn in enumerate(self._live)]
        if self._last_edit is not None:
            edited, limit = self._last_edit
            self._last_edit = None
            planner.extend(views[:edited])
            planner.edited(limit)
            views = views[edited:]
        planner.extend(views)
        return planner

    def _renewed(self) -> Planner:
        """The planner for an edit: it counts with what was learned since the last one."""
        if self._target.counter().name != self.planner.counter.name:
            system = self.planner.system
            self._planner = self._new_planner()
            self._planner.system = system
            self._reported = None
        return self.planner

    def _forget_plan(self) -> None:
        self._planner = self._reported = None

    # What is sent

    def request(
        self,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: str = "main",
        **options: Any,
    ) -> Request:
        """What to send now, by what is known here; `options` go into the request as they are.

        Raises `ContextOverflowError` where it cannot fit, and `SpendingCapError` where it would
        cost more than may be spent.
        """
        asking = self.planning(
            system=system, short_view=short_view, category=category, options=options
        )
        answer: object = None
        while True:
            try:
                job = asking.send(answer)
            except StopIteration as done:
                request: Request = done.value
                return request
            answer = self._summarized_here(job) if isinstance(job, SummaryJob) else None

    def _summarized_here(self, job: SummaryJob) -> object:
        if self.summarize is None:
            return None
        return answer_of(self.summarize, job.previous, job.evicted)

    def planning(
        self,
        *,
        system: str | None = None,
        short_view: ShortView | bool | None = None,
        category: str = "main",
        ask: Ask = "off",
        format: FormatName | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Planning[Request]:
        """Make the request, and yield what has to be asked of others on the way."""
        check_category(category)
        drawing = self._drawing(system, options or {}, format)
        turns: Sequence[Mapping[str, Any]] = self._live
        is_short = bool(short_view) and self.goal is None
        if is_short:
            view = short_view if isinstance(short_view, ShortView) else ShortView()
            turns = view.of(self._live)
            plan = yield from self._plan_shortly(turns, drawing, ask)
        else:
            plan = yield from self._plan_whole(drawing, ask)
            if evicted := self._evicted(plan):
                yield from self._summed_up(evicted)
                drawing = self._drawing(system, options or {}, format)
                self._base_on(plan)
                plan = yield from self._plan_whole(drawing, ask)
        model, price = self.model or "", self._target.price_for(plan.size)
        self.ledger.check(model, tokens=plan.size, reply=plan.budget.reply, price=price)
        request = Request(drawing.body(turns, plan), plan, drawing.messages_key)
        self._sent = Sent(plan, model, category, is_short)
        self._log(plan, model, category)
        return request

    def _plan_whole(self, drawing: Drawing, ask: Ask) -> Planning[Plan]:
        self._measure(drawing)
        draw = partial(drawing.body, self._live)
        reported, renew = self._reported, self._renewed
        return (yield from planning(self.planner, draw, ask=ask, reported=reported, renew=renew))

    def _plan_shortly(
        self, turns: Sequence[Mapping[str, Any]], drawing: Drawing, ask: Ask
    ) -> Planning[Plan]:
        """Plan the short view, which is a conversation of its own."""
        full = self.planner
        planner = Planner(full.counter, full.budget, self._policy, self._tools or ())
        planner.system = self._system_size(drawing.system)
        planner.extend([openai_chat.read(turn, place) for place, turn in enumerate(turns)])
        return (yield from planning(planner, partial(drawing.body, turns), ask=ask))

    def _drawing(
        self,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        format: FormatName | None = None,
    ) -> Drawing:
        return Drawing(
            self.model,
            self.system_text(system),
            self._system_role,
            format or self.format,
            self._target.rules(),
            self._tools,
            self.cache_marks,
            options or {},
        )

    def system_text(self, base: str | None = None) -> str:
        """The whole system text, with its blocks; `base` in place of the base prompt."""
        return system_text(
            self.system if base is None else base,
            memory=self.memory,
            project=self.project,
            summary=None if self._tells_in_note else self._summary,
            goal=self.goal,
        )

    def _measure(self, drawing: Drawing) -> None:
        """Tell the planner what the system text takes; a changed one is a new beginning."""
        tokens = self._system_size(drawing.system)
        if self.summarize is not None and not self._tells_in_note and self.goal is None:
            written = self.planner.counter.text(self._summary) if self._summary else 0
            tokens += max(0, self._summary_room(self.budget) - written)
        self.planner.system = tokens
        if drawing.system != self._last_system:
            self._last_system, self._reported = drawing.system, None

    def _system_size(self, text: str) -> int:
        return self.planner.counter.message(Message("system", words=(text,))) if text else 0

    # Summaries

    @property
    def summary(self) -> str | None:
        """What is told of the turns that left."""
        return self._summary

    @summary.setter
    def summary(self, text: str | None) -> None:
        self._summary = text or None
        if self._tells_in_note:
            self._forget_plan()

    @property
    def _tells_in_note(self) -> bool:
        """Under a policy with a low mark the summary stands in the note at the gap."""
        return self._policy.share is not None

    def _summary_room(self, budget: Budget) -> int:
        return room_for(budget.limit) if self.summarize is not None or self._summary else 0

    def _evicted(self, plan: Plan) -> list[int]:
        """The turns that leave and were in no summary yet."""
        if self.summarize is None:
            return []
        dropped = (index for drop in plan.drops for index in range(drop.start, drop.stop))
        return [index for index in dropped if index not in self._covered]

    def _summed_up(self, evicted: Sequence[int]) -> Planning[None]:
        """Ask for one summary of what leaves now; whatever is wrong with it, the turns leave."""
        self._covered.update(evicted)
        count, history = self.planner.counter.text, self.planner.history
        replaced = sum(map(history.tokens, evicted)) + count(self._summary or "")
        turns = [copied(self._live[index]) for index in evicted]
        text = yield SummaryJob(self._summary, turns)
        if not is_summary(text, replaced, count):
            return
        if len(text) > LARGEST:
            shorter = yield SummaryJob(text, None)
            if is_summary(shorter, count(text), count):
                text = shorter
            text = cut_to(text, LARGEST)
        self._summary = cut_to_room(text, self._summary_room(self.budget), count) or None
        if self._tells_in_note:
            self.planner.summary = self._summary or ""

    def _base_on(self, plan: Plan) -> None:
        """Go on from what the server counted of a plan that was not sent."""
        if plan.counted is not None:
            self._reported = Reported.of(plan, plan.counted)

    # What comes back

    def receive(self, response: Any, then: Callable[[Reply], None] | None = None) -> Any:
        """Take in an answer, and give the `Reply`; a stream passes through and is kept at its end.

        Takes what the client libraries of OpenAI and Anthropic return, or the JSON itself. `then`
        is called with the reply when it was taken in.
        """
        sent = self._sent

        def keep(reply: Reply, whole: bool) -> None:
            self._take(reply, sent, whole=whole)
            if then is not None:
                then(reply)

        if isinstance(response, AsyncIterable):
            return AsyncReceivedStream(response, keep)
        if isinstance(response, Iterable) and _is_stream(response):
            return ReceivedStream(response, keep)
        reply = response if isinstance(response, Reply) else reply_of(response)
        keep(reply, True)
        return reply

    def _take(self, reply: Reply, sent: Sent | None, *, whole: bool) -> None:
        """Keep the turn, book what it cost, and learn what its prompt really took."""
        if sent is not None:
            self._sent = None
            self.book(reply, sent.model, sent.category, counted=sent.plan.size)
            if reply.usage is not None:
                self._learn(sent, reply.usage)
        message = copied(reply.message)
        if not whole and message.get("tool_calls"):
            del message["tool_calls"]  # of a call that broke off nobody knows what it asks for
        if message.get("content") or message.get("tool_calls"):
            self.append(message)
        else:
            self._turns.append({**message, "_empty": True})

    def book(self, reply: Reply, model: str, category: str, *, counted: int) -> None:
        """Put a call on the bill; `counted` is what its prompt was taken for before it was sent."""
        said = self.planner.counter.message(Message("assistant", words=(reply.text,)))
        target = self._target if model == self.model else replace(self._target, model=model)
        self.warnings += self.ledger.book(
            model,
            category,
            usage=reply.usage,
            counted=counted,
            counted_output=said,
            price=target.price_for(counted),
            cost=reply.cost,
        )

    def _learn(self, sent: Sent, usage: Usage) -> None:
        """Let what was reported be the base of what comes."""
        if not usage.input or sent.is_short:
            return
        plan = sent.plan
        if self._planner is not None and plan.history is self._planner.history:
            self._reported = Reported.of(plan, usage.input)
        if self.planner.counter.density:
            foreign = foreign_size(plan.sent)
            learned = self.calibration.learn(plan.tokens, foreign, usage.input)
            self._target = self._target.learned(learned)

    def learn_text(self, text: str, true: int) -> None:
        """Take in what a server that only counts texts says of one."""
        counter = self.planner.counter
        if counter.density:
            foreign = foreign_size([Message("user", words=(text,))])
            learned = self.calibration.learn(counter.text(text), foreign, true)
            self._target = self._target.learned(learned)

    def refused(self, overflow: Overflow) -> None:
        """Believe a server that says that the last request was too long: the next is smaller."""
        if self._sent is None:
            return
        plan, self._sent = self._sent.plan, None
        if overflow.limit and overflow.limit < plan.budget.window:
            self.target = self._target.learned(self.calibration.with_window(overflow.limit))
        tokens = overflow.sent or 0
        if not tokens or overflow.at_least:
            tokens = max(tokens, int(max(plan.tokens, self.budget.room) / SHRINK))
        self._reported = Reported(plan.edition, plan.tokens, tokens)

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

    @property
    def tokens(self) -> int:
        """What the conversation takes as it stands, with the outputs that wait."""
        self._measure(self._drawing())
        held = self.planner.held() or self.planner.plan()
        tokens = held.tokens
        if self._reported is not None and self._reported.edition == held.edition is not None:
            tokens += self._reported.tokens - self._reported.estimate
        return tokens + (self.planner.counter.text(self.waiting) if self._waiting else 0)

    @property
    def room(self) -> int:
        """What may still be said before something has to leave."""
        return max(0, self.budget.limit - self.tokens)

    def _log(self, plan: Plan, model: str, category: str) -> None:
        dropped = plan.tally().get("dropped", 0)
        now = self._clock()
        self.log.add(
            Entry(now, model, category, plan.before, plan.size, plan.limit, plan.cut, dropped)
        )

    # What is kept between runs

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON; `from_dict` goes on where it was."""
        if self._policy.name not in POLICIES:
            raise InputError("a session with passes of its own cannot be written down")
        target, policy = self._target, self._policy
        return {
            "version": VERSION,
            "model": target.model,
            "window": target.window,
            "reply": target.reply,
            "template": target.template,
            "calibration": target.calibration.to_dict(),
            "policy": policy.name,
            "keep_recent": policy.keep_recent,
            "max_turns": policy.max_turns,
            "token_budget": policy.token_budget,
            "tools": copied(self._tools),
            "format": self.format,
            "cache_marks": self.cache_marks,
            "system": self.system,
            "system_role": self._system_role,
            "memory": [list(fact) for fact in self.memory],
            "project": self.project,
            "goal": self.goal,
            "turns": copied(self._turns),
            "pins": self.pins,
            "waiting": list(self._waiting),
            "summary": self._summary,
            "covered": sorted(self._covered),
            "edit": None if self._planner is None else self._planner.last_edit,
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
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the saved session cannot be read: {error!r}") from None

    @classmethod
    def _restored(cls, data: Mapping[str, Any], settings: Mapping[str, Any]) -> Session:
        if data["version"] != VERSION:
            raise InputError(f"a saved session of version {data['version']}; known is {VERSION}")
        session = cls(**{**{name: data[name] for name in _SETTINGS}, **settings})
        session._system_role = data["system_role"]
        session.memory = [Fact(*fact) for fact in data["memory"]]
        session.project, session.goal = data["project"], data["goal"]
        session._turns = copied(data["turns"])
        session._live = [turn for turn in session._turns if not turn.get("_empty")]
        session._pins = set(data["pins"])
        session._waiting = list(data["waiting"])
        session._summary = data["summary"]
        session._covered = set(data["covered"])
        session.ledger = Ledger.from_dict(
            data["ledger"],
            warn_at_dollars=session.ledger.warn_at_dollars,
            warn_at_tokens=session.ledger.warn_at_tokens,
            cap_at_dollars=session.ledger.cap_at_dollars,
        )
        session.log = RequestLog.from_dict(data["log"])
        session.warnings = list(data["warnings"])
        calibration = Calibration.from_dict(data["calibration"])
        session._target = session._target.learned(calibration)
        if data["edit"] is not None and session._policy.name == data["policy"]:
            session._last_edit = tuple(data["edit"])
        return session
