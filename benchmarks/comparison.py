"""Whether brim and its peers return requests that fit and are valid, on the same conversations.

    python -m benchmarks.comparison [FOLDER] [--no-peers] [--json]

Every conversation is fitted at each of its request points to 2k, 4k and 8k tokens if it is longer
than that. Only feasible cases count: system text, last user turn and open step fit. *Over budget*
is counted by `ruler.py`. *Good* means within the budget, every tool result after its call and every
call answered, and system text, last user turn and last message unchanged. An error is not good.
Each tool runs in its own process; peers run in their own environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import environment, recordings, report, ruler, subjects, validity
from benchmarks.recordings import Message, request_points

BUDGETS = (2_000, 4_000, 8_000)
TOOLS = {"brim steady": "brim (`steady`)", "brim sliding": "brim (`sliding`)"}
TIMEOUT = 1_800
_WORKER = "worker"


def cases(folder: Path | None) -> Iterator[tuple[list[Message], int]]:
    """Yield each feasible history with a budget that it exceeds."""
    for recording in recordings.load(folder):
        whole = [_without_empty_result(message) for message in recording.messages]
        for end in request_points(whole):
            messages = whole[:end]
            size = ruler.request_tokens(messages)
            needed = ruler.request_tokens(validity.hard_parts(messages))
            yield from ((messages, limit) for limit in BUDGETS if needed <= limit < size)


def _without_empty_result(message: Message) -> Message:
    """Return a message that every tool accepts: some reject a tool result without text."""
    is_empty = message["role"] == "tool" and not message.get("content")
    return {**message, "content": "(no output)"} if is_empty else message


def measure(name: str, folder: Path | None) -> dict[str, float]:
    """Return the shares of one tool over all cases, in percent."""
    subject = {**subjects.BRIM, **subjects.PEERS}[name]()
    to_chat = _reader_for(name)
    total = over = good = 0
    for messages, limit in cases(folder):
        total += 1
        found = _fit(subject, messages, limit)
        if found is None:
            continue
        chat, original = to_chat(found), [_normalize(message) for message in messages]
        fitted = [_normalize(message) for message in chat]
        fits = _count(chat, messages) <= limit
        over += not fits
        faults = [*validity.call_faults(fitted), *validity.kept_faults(fitted, original)]
        good += fits and not faults
    return {"cases": total, "over": 100 * over / total, "good": 100 * good / total}


def _count(fitted: list[Message], messages: list[Message]) -> int:
    """Return the tokens of a request; an unchanged message counts as it was before conversion."""
    originals = {json.dumps(_normalize(message)): message for message in messages}
    return ruler.request_tokens(
        originals.get(json.dumps(_normalize(message)), message) for message in fitted
    )


def _fit(subject: subjects.Subject, messages: list[Message], limit: int) -> list[Any] | None:
    """Return the fitted messages in the tool's own types; None if it raised an error."""
    try:
        native = subject.convert(json.loads(json.dumps(messages)))
        fitted = subject.fit(list(native), limit)
    except Exception:
        return None
    return native if fitted is None else fitted


def _reader_for(name: str) -> Callable[[Sequence[Any]], list[Message]]:
    """Return the conversion from a tool's own types to chat messages."""
    if name.startswith("langchain"):
        convert = import_module("langchain_core.messages.utils").convert_to_openai_messages
        return lambda messages: [dict(message) for message in convert(list(messages))]
    if name == "haystack":
        return lambda messages: [message.to_openai_dict_format() for message in messages]
    return list


def _normalize(message: Message) -> Message:
    """Return the facts that a conversion preserves, so that unchanged messages compare equal."""
    found: Message = {"role": message["role"], "content": "\n".join(_texts(message))}
    if message.get("tool_calls"):
        found["tool_calls"] = [_normalize_call(call) for call in message["tool_calls"]]
    if message["role"] == "tool":
        found["tool_call_id"] = message.get("tool_call_id")
    return found


def _normalize_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.dumps(json.loads(function["arguments"]), sort_keys=True)
    except (TypeError, ValueError):
        arguments = str(function["arguments"])
    name = function["name"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content] if content else []
    return [part["text"] for part in content or () if part.get("text")]


def tables(options: report.Options) -> Iterator[report.Table]:
    missing = environment.ready() if options.peers else "peers skipped (--no-peers)"
    names = [*TOOLS, *([] if missing else subjects.PEERS)]
    rows: list[dict[str, report.Cell]] = []
    for name in names:
        found = _run(name, options.folder)
        row: dict[str, report.Cell] = {"tool": TOOLS.get(name, name), "cases": int(found["cases"])}
        rows.append({**row, "over budget %": found["over"], "good %": found["good"]})
    formats = {"over budget %": ".0f", "good %": ".0f"}
    notes = [missing] if missing else []
    yield report.Table("Comparison: fitted to 2k, 4k and 8k tokens", rows, formats, notes)


def _run(name: str, folder: Path | None) -> dict[str, float]:
    python = str(environment.PYTHON) if name in subjects.PEERS else sys.executable
    command = [
        python,
        "-m",
        "benchmarks.comparison",
        _WORKER,
        name,
        *map(str, filter(None, [folder])),
    ]
    paths = os.pathsep.join([str(environment.ROOT), str(environment.ROOT / "src")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": paths},
        cwd=environment.ROOT,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == [_WORKER]:
        own, *rest = sys.argv[2:]
        print(json.dumps(measure(own, Path(rest[0]) if rest else None)))
    else:
        report.run(__doc__, tables)
