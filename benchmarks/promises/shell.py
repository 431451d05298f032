"""The shell over many turns in a small window: with the embedded model, and with a scripted one."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.promises.material import PROSE
from benchmarks.promises.relay import Relay
from benchmarks.promises.shell_run import LONG_REPLY_REQUEST, MODEL, Figures, Price, ShellRun
from brim.providers.local import LocalServer
from brim.testing import ScriptedServer
from brim.testing.script import Body, TextReply
from brim.tokens import tokenizer

SMALL: Final = 512
LARGER: Final = 2_000
PRICE: Final = Price(prompt=100.0, reply=300.0)


def run_with_model(
    folder: Path, model: Path, *, turns: int, kills: int, seed: int = SMALL
) -> Figures:
    """Run with the embedded model in a window of 512 tokens."""
    with (
        LocalServer.start(model, window=SMALL, threads=1) as server,
        Relay(server.url, choose_reply_options) as relay,
    ):
        run = ShellRun(folder, relay, window=server.window, reply=64, key=server.key, seed=seed)
        return run.run(turns, kills)


def choose_reply_options(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options for short replies, or longer ones if the reply will be interrupted."""
    is_slow = str(body["messages"][-1]["content"]).endswith(LONG_REPLY_REQUEST)
    return {"max_tokens": 200 if is_slow else 40, "seed": 7}


def run_with_script(folder: Path, *, turns: int, kills: int, seed: int = LARGER) -> Figures:
    """Run with a scripted model in a window of 2,000 tokens."""
    with ScriptedServer(answer, window=LARGER, model=MODEL) as server, Relay(server.url) as relay:
        run = ShellRun(folder, relay, window=LARGER, reply=200, seed=seed, price=PRICE)
        figures = run.run(turns, kills)
        count = tokenizer("o200k_base").count
        prompts = sum(request.tokens for request in server.requests)
        replies = sum(count(exchange.text) for exchange in relay.exchanges)
        figures.actual = (prompts * PRICE.prompt + replies * PRICE.reply) / 1_000_000
        if not figures.actual <= figures.recorded <= figures.cap:
            figures.problems.append(
                f"charged {figures.actual}, recorded {figures.recorded}, cap {figures.cap}"
            )
        return figures


def answer(body: Body) -> TextReply:
    """Return a reply of random length, sometimes with a command, and slow if requested."""
    text = str(body["messages"][-1]["content"])
    if text.endswith(LONG_REPLY_REQUEST):
        return TextReply(" ".join(PROSE), pause=0.03)
    number = int(re.findall(r"number (\d+):", text)[-1])
    rng = random.Random(number)
    text = " ".join(rng.choices(" ".join(PROSE).split(), k=rng.choice((3, 20, 80))))
    return TextReply(text if number % 7 else f"{text}\nCMD: echo proposed-{number} | tee -a made")


def format_figures(name: str, figures: Figures, window: int, seed: int) -> str:
    """Return the figures of one conversation in two lines."""
    moments = ", ".join(f"{moment} {number}" for moment, number in figures.kills.items() if number)
    return (
        f"  {name}: {figures.turns:,} turns, {figures.commands:,} commands and "
        f"{figures.proposed:,} proposed; killed {sum(figures.kills.values())} times "
        f"({moments}; seed {seed}), resumed {figures.resumes}, "
        f"{figures.kept} interrupted answers kept in part\n"
        f"    {figures.requests:,} requests, rejected {figures.rejected}, "
        f"problems {len(figures.problems)}; largest prompt {figures.largest:,} of {window:,} "
        f"tokens; :context added up "
        f"{figures.context_checks} times; {figures.seconds:.0f} s"
        + (
            f"\n    charged ${figures.actual:.4f}, recorded ${figures.recorded:.4f}, "
            f"cap ${figures.cap:.4f}"
            if figures.cap
            else ""
        )
    )
