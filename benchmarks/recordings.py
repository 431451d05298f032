"""Real conversations, and the long sessions chained from them.

A folder contains `*.jsonl.gz` files. Each line is `{"id", "source", "messages", "tools"?}` with
messages in the OpenAI chat format. Without a folder, the recordings in the project are used.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

SHIPPED = Path(__file__).parent / "data"
_ISSUE = re.compile(r"([A-Za-z0-9.-]+__[A-Za-z0-9._-]+?)-(\d+)(?:\.\w+)?$")


@dataclass(frozen=True)
class Recording:
    """One recorded conversation."""

    id: str
    source: str
    """The public original: `owner/repository:path`."""
    file: str
    """The file it was read from, which contains one model and one kind of task."""
    messages: list[Message]
    tools: list[Message]
    starts: tuple[int, ...] = (0,)
    """The first message of each task."""

    @property
    def chat(self) -> bool:
        """Whether it is a support chat; all others are coding agents."""
        return "tau-bench" in self.source

    @property
    def issue(self) -> tuple[str, int] | None:
        """The repository and the issue, if its name contains them."""
        found = _ISSUE.search(self.source) or _ISSUE.search(self.id)
        return (found[1], int(found[2])) if found else None


def load(folder: Path | None = None, part: str = "all") -> list[Recording]:
    """Read all conversations in a folder, or a part of them, in the order of its files."""
    paths = sorted((folder or SHIPPED).glob("*.jsonl.gz"))
    if not paths:
        raise SystemExit(f"{folder} contains no *.jsonl.gz files")
    return select([recording for path in paths for recording in _read(path)], part)


def _read(path: Path) -> Iterator[Recording]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Recording(
                row["id"],
                row.get("source", ""),
                path.name.removesuffix(".jsonl.gz"),
                row["messages"],
                row.get("tools") or [],
            )


def select(recordings: Iterable[Recording], part: str) -> list[Recording]:
    """Return all recordings, or a part: the policies were chosen without the `held` third.

    Every third task of a repository, by issue number, or of a file without issues, is held aside.
    """
    groups: dict[tuple[str, str], list[Recording]] = defaultdict(list)
    for recording in recordings:
        groups[recording.file, recording.issue[0] if recording.issue else ""].append(recording)
    selected = []
    for group in groups.values():
        ordered = sorted(group, key=lambda task: (task.issue or ("", 0), task.id))
        for place, recording in enumerate(ordered):
            if part == "all" or (place % 3 == 2) == (part == "held"):
                selected.append(recording)
    return selected


def sessions(recordings: Iterable[Recording], most: int = 8, least: int = 4) -> list[Recording]:
    """Chain tasks that one model did in one repository, eight in a row, by issue number.

    A remainder of at least four is a session too. Each issue is used once.
    """
    groups: dict[tuple[str, str], list[Recording]] = defaultdict(list)
    for recording in recordings:
        if recording.issue:
            groups[recording.file, recording.issue[0]].append(recording)
    tasks = [sorted(group, key=lambda task: (task.issue, task.id)) for group in groups.values()]
    once = [list({task.issue: task for task in group}.values()) for group in tasks]
    return list(_chains(once, most, least))


def _chains(groups: Iterable[list[Recording]], most: int, least: int) -> Iterator[Recording]:
    for group in groups:
        for start in range(0, len(group), most):
            tasks = group[start : start + most]
            if len(tasks) >= least:
                yield _chain(tasks)


def _chain(tasks: list[Recording]) -> Recording:
    """Join several conversations; only the first keeps its system prompt."""
    first, *later = tasks
    messages = list(first.messages)
    starts = [0]
    for task in later:
        starts.append(len(messages))
        messages += [message for message in task.messages if message["role"] != "system"]
    name = f"{first.id} +{len(later)}"
    return Recording(name, first.source, first.file, messages, first.tools, tuple(starts))


def request_points(messages: list[Message]) -> list[int]:
    """Return the length of the history at each recorded request."""
    return [
        index
        for index in range(1, len(messages))
        if messages[index]["role"] == "assistant"
        and messages[index - 1]["role"] in {"user", "tool"}
    ]
