"""Snapshots: values with which a composer restores or undoes a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from brim.fitting.calibration import Calibration
from brim.fitting.flow import Measurement
from brim.fitting.trim import TrimRecord

if TYPE_CHECKING:
    from brim.fitting.plan import Plan


@dataclass(frozen=True, slots=True)
class PlannerSnapshot:
    """The state of a planner: another planner continues from it with the same decisions."""

    model: str | None
    room: int
    """If the room has changed, the snapshot does not apply: trimmed turns may fit again."""
    known: Calibration
    system: str
    trim: TrimRecord | None
    """The last trim; None if nothing was trimmed."""
    reported: Measurement | None
    ratio: float | None = None
    """Actual tokens per counted token, if the server has counted the conversation."""

    def to_dict(self) -> dict[str, Any]:
        reported = None if self.reported is None else asdict(self.reported)
        return {
            "model": self.model,
            "room": self.room,
            "known": self.known.to_dict(),
            "system": self.system,
            "trim": self.trim,
            "reported": reported,
            "ratio": self.ratio,
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
            data["ratio"],
        )


@dataclass(frozen=True, slots=True)
class CompactionUndo:
    """The state before a requested trim, for undoing it."""

    length: int
    """Length of the history."""
    compacted: TrimRecord | None
    summary: str | None
    covered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compaction:
    """A planned trim that the user requested."""

    plan: Plan
    """The plan after the trim, without the summary."""
    mark: int
    """Tokens that it would trim to."""
    before: int
    """Tokens of the next request without it."""
    room: int = 0
    """Tokens reserved for a summary; 0 if none is wanted."""
