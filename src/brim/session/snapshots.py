"""Where a conversation stands: the values that a composer keeps, and writes down between runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from brim.fitting.calibration import Calibration
from brim.fitting.flow import Measurement
from brim.fitting.trim import TrimRecord
from brim.session.system_prompt import MAX_MEMORY_CHARS, Fact

if TYPE_CHECKING:
    from brim.fitting.plan import Plan


@dataclass(slots=True)
class SystemPrompt:
    """What the system text is made of."""

    base: str = ""
    role: str = "system"
    memory: list[Fact] | None = None
    memory_chars: int = MAX_MEMORY_CHARS
    project: str | None = None
    goal: str | None = None


@dataclass(frozen=True, slots=True)
class PlannerSnapshot:
    """Where a conversation stood: enough for a planner to go on as the one before would have."""

    model: str | None
    room: int
    """Another room is another beginning: what had to leave may come back."""
    known: Calibration
    system: str
    trim: TrimRecord | None
    """The last trim; None if nothing was trimmed."""
    reported: Measurement | None

    def to_dict(self) -> dict[str, Any]:
        reported = None if self.reported is None else asdict(self.reported)
        return {
            "model": self.model,
            "room": self.room,
            "known": self.known.to_dict(),
            "system": self.system,
            "trim": self.trim,
            "reported": reported,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlannerSnapshot:
        trim, reported = data["trim"], data["reported"]
        return cls(
            data["model"],
            data["room"],
            Calibration.from_dict(data["known"]),
            data["system"],
            None if trim is None else TrimRecord(*trim),
            None if reported is None else Measurement(**reported),
        )


@dataclass(frozen=True, slots=True)
class CompactionUndo:
    """What an edit that somebody asks for changes: enough to take it back."""

    length: int
    """How many turns there were."""
    compacted: TrimRecord | None
    summary: str | None
    covered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compaction:
    """An edit that somebody asks for."""

    plan: Plan
    """What it would leave, without the summary."""
    mark: int
    """What it would cut down to."""
    before: int
    """Tokens of what would be sent without it."""
    room: int = 0
    """Tokens that are left free for a summary; 0 where none is wanted."""
