"""A program with every public call, for the type checkers; it is never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import anthropic
import openai

import brim

MESSAGES = [{"role": "user", "content": "Hello."}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def use(*values: object) -> None:
    """Accept anything."""


def fit_and_count(client: openai.OpenAI) -> None:
    tokens: brim.Count = brim.count("Hello.", model="gpt-4o")
    use(tokens + brim.count(MESSAGES, model="gpt-4o", tools=TOOLS))
    request: brim.Request = brim.fit(MESSAGES, model="gpt-4o", window=8_192, policy="rolling")
    client.chat.completions.create(**request)
    explain(request.plan)


def explain(plan: brim.Plan) -> None:
    budget: brim.Budget = plan.budget
    for decision in plan.decisions:
        show(decision)
    use(plan.tokens, plan.limit, plan.is_trimmed, plan.dropped, plan.clipped, budget.window)
    use(plan.to_dict())


def show(decision: brim.Decision) -> None:
    use(decision.index, decision.outcome, decision.before, decision.after, decision.reason)


def summarize(previous: str | None, turns: Sequence[Mapping[str, object]] | None) -> str:
    return f"{previous or ''} {len(turns or ())} turns"


def create_session() -> brim.Session:
    summarizer: brim.Summarizer = summarize
    limits = brim.SpendingLimits(warn_at_dollars=1, warn_at_tokens=10_000, cap_at_dollars="2.50")
    return brim.Session(
        "gpt-4o",
        system="Be brief.",
        window=8_192,
        reply=500,
        policy="steady",
        tools=TOOLS,
        summarize=summarizer,
        summary_chars=1_000,
        format="openai",
        cache_marks=False,
        price=brim.Price(input=Decimal(1), output=Decimal(2)),
        limits=limits,
    )


def append_turns(session: brim.Session) -> None:
    session.user("Hello.")
    session.user([{"type": "text", "text": "Hello."}], _source="form")
    session.assistant("Hi.", tool_calls=[])
    session.tool("call_1", "result")
    session.append({"role": "user", "content": "More."})
    session.add_output("42 passed", path="/tmp/output.txt")
    session.recall(0)
    use(session.has_open_step)
    session.pin(0)
    session.unpin(0)
    use(session.pins, len(session), session.history[0]["role"])
    removed = session.rewind(2)
    use(len(removed))
    session.reset()


def change_settings(session: brim.Session, policy: brim.Policy) -> brim.Session:
    session.switch("gpt-4o-mini", window=4_096, reply=100, template=None, price=None)
    session.tools = TOOLS
    session.tools = None
    session.system = "Be thorough."
    session.trim = False
    session.summarize = summarize
    session.summary = "So far."
    use(session.model, session.tools, session.summary)
    return brim.Session(policy=policy)


def send_with_openai(session: brim.Session, client: openai.OpenAI) -> None:
    request = session.request(temperature=0.2, max_tokens=100)
    client.chat.completions.create(**request)
    completion = client.chat.completions.create(**request, stream=False)
    reply: brim.Reply = session.receive(completion)
    use(reply.text, reply.usage, reply.calls)
    streamed = client.chat.completions.create(**session.request(), stream=True)
    stream = session.receive(streamed)
    for chunk in stream:
        use(chunk.choices)
    for text in stream.texts():
        use(text)
    stream.close()
    short = session.request(short_view=brim.ShortView(keep_turns=4), category="main")
    use(session.receive({"choices": []}).text, short.plan.tokens)


async def send_with_async_openai(session: brim.Session, client: openai.AsyncOpenAI) -> None:
    streamed = await client.chat.completions.create(**session.request(), stream=True)
    stream = session.receive(streamed)
    async for chunk in stream:
        use(chunk.id)
    await stream.aclose()


def send_with_anthropic(session: brim.Session, client: anthropic.Anthropic) -> None:
    request = session.request(format="anthropic", system="Be brief.")
    message = client.messages.create(**request, stream=False)
    use(session.receive(message).text)


def inspect(session: brim.Session) -> None:
    explain(session.current_plan)
    explain(session.compact(share=0.4, summarize=summarize))
    session.undo_compaction()
    use(session.budget.limit, session.room, session.tokens)
    ledger: brim.Ledger = session.ledger
    usage: brim.Usage = session.usage
    use(ledger.format_table(), usage.input, session.cost + 1, session.warnings)
    use([entry.after for entry in session.log.entries], session.log.statistics().requests)


def save_and_restore(session: brim.Session) -> brim.Session:
    return brim.Session.from_dict(session.to_dict(), window=16_384, summarize=summarize)


def use_client(session: brim.Session) -> None:
    with brim.Client("http://localhost:8080/v1", key="key", timeout=30, count="near") as client:
        use(client.models())
        client.prepare(session)
        session.summarize = client.summarizer(session, focus="the parser", max_chars=500)
        use(client.request(session).plan)
        use(client.send(session, temperature=0.1).text)
        stream: brim.Stream = client.stream(session, category="goal")
        for text in stream.texts():
            use(text)
        for thinking, text in stream.pieces():
            use(thinking, text)
        use(stream.reply.text, stream.plan)
        stream.close()


async def use_async_client(session: brim.Session) -> None:
    async with brim.AsyncClient("http://localhost:8080/v1", format="openai") as client:
        use(await client.models(), await client.request(session))
        use((await client.send(session)).text)
        async for text in (await client.stream(session)).texts():
            use(text)


def handle_errors(session: brim.Session, client: brim.Client) -> None:
    try:
        client.send(session)
    except brim.ContextOverflowError as error:
        use(error.tokens, error.limit, error.parts)
    except brim.SpendingCapError as error:
        use(error.cap, error.spent, error.estimate)
    except brim.ContextLengthError as error:
        use(error.overflow, error.status)
    except brim.RateLimitError as error:
        use(error.retry_after)
    except brim.BrimError as error:
        use(error)
