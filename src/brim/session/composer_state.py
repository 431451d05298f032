"""ComposerState: everything a composer has decided and knows, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from brim.fitting.calibration import Calibration
from brim.fitting.flow import Measurement
from brim.fitting.plan import Plan
from brim.fitting.policies import Policy
from brim.fitting.profile import ModelProfile
from brim.fitting.summarizer import MAX_SUMMARY_CHARS
from brim.fitting.trim import TrimRecord
from brim.session.recall import RECALL_HINT, RECALL_TOOL


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
    answered: Measurement | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "known": self.known.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlannerSnapshot:
        parsed = {
            "known": Calibration.from_dict(data["known"]),
            "trim": _parse_trim(data["trim"]),
            "reported": _parse_measurement(data["reported"]),
            "answered": _parse_measurement(data.get("answered")),
        }
        return cls(**{**data, **parsed})


@dataclass(frozen=True, slots=True)
class CompactionUndo:
    """The state before a requested trim, for undoing it."""

    length: int
    """Length of the history."""
    compacted: TrimRecord | None
    summary: str | None
    covered: tuple[int, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompactionUndo:
        compacted, covered = _parse_trim(data["compacted"]), tuple(data["covered"])
        return cls(**{**data, "compacted": compacted, "covered": covered})


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


@dataclass(frozen=True, slots=True)
class ComposerState:
    """The settings, decisions and measurements of a conversation; each change is a new state.

    A transition that invalidates earlier decisions ends with `restart`.
    """

    profile: ModelProfile
    policy: Policy
    tools: Sequence[Mapping[str, Any]] | None = None
    recalls: bool = False
    """Whether the tool `recall` is offered, if the model's template has tools."""
    summary_chars: int = MAX_SUMMARY_CHARS
    """The maximum length of a summary."""
    command_hint: str = ""
    """What notes say about a command with which the user sends trimmed turns again."""
    summarizes: bool = False
    """Whether summary jobs are answered."""
    is_trimming: bool = True
    """Whether messages may be dropped; if not, a request that is too long is an error."""
    pins: frozenset[int] = frozenset()
    """Indices of turns that are never dropped."""
    summary: str | None = None
    covered: frozenset[int] = frozenset()
    """Indices of the dropped turns that have been summarized."""
    covered_trim: int | None = None
    """The ID of a trim whose dropped turns are all covered."""
    compacted: TrimRecord | None = None
    """The last requested trim; its mark does not include the system text, which may change."""
    undo: tuple[CompactionUndo, ...] = ()
    """The state before each requested trim."""
    system: str = ""
    """The system text of the last request."""
    counted_with: Calibration = field(default_factory=Calibration)
    """The calibration of the current planner; newer ones wait for the next trim."""
    measurement: Measurement | None = None
    """The size of the last request by the server's count."""
    answered: Measurement | None = None
    """The last request whose size a reply reported, for the growth since."""
    snapshot: PlannerSnapshot | None = None
    """Where the next planner continues."""
    left: Mapping[str | None, PlannerSnapshot] = field(default_factory=dict)
    """Where the conversation continues with models that it was switched from."""

    @property
    def offers_recall(self) -> bool:
        """Whether requests offer the tool `recall`."""
        return self.recalls and self.profile.rules().tool_role

    @property
    def recall_hint(self) -> str:
        """What notes say about reading trimmed turns: only what is possible."""
        own = RECALL_HINT if self.offers_recall else ""
        return "; ".join(filter(None, (own, self.command_hint)))

    @property
    def offered_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools of a request: those of the caller, and brim's own."""
        own = (RECALL_TOOL,) if self.offers_recall else ()
        return (*(self.tools or ()), *own)

    def restart(self) -> ComposerState:
        """Decide again from all turns, without continuing from the last trim."""
        return replace(self, measurement=None, answered=None, snapshot=None, covered_trim=None)

    def set_profile(self, profile: ModelProfile, current: PlannerSnapshot | None) -> ComposerState:
        """Use another profile; `current` is kept in case its model is used again."""
        left, snapshot = dict(self.left), self.snapshot
        if profile.model != self.profile.model:
            if current is not None:
                left[self.profile.model] = current
            snapshot = left.pop(profile.model, snapshot)
        return replace(replace(self, profile=profile, left=left).restart(), snapshot=snapshot)

    def continue_from(self, snapshot: PlannerSnapshot) -> ComposerState:
        return replace(
            self,
            snapshot=None,
            counted_with=snapshot.known,
            measurement=snapshot.reported,
            answered=snapshot.answered,
            system=snapshot.system,
        )

    # Summaries

    @property
    def has_summary_note(self) -> bool:
        """Whether the summary is in the note at the gap."""
        return self.policy.has_summary_note

    @property
    def system_summary(self) -> str | None:
        """The summary as a part of the system text; None if there is none."""
        return None if self.has_summary_note else self.summary

    def list_uncovered(self, plan: Plan) -> list[int]:
        """Return the turns that a plan drops and that are in no summary yet."""
        dropped = (index for run in plan.dropped_runs for index in range(run.start, run.stop))
        new = (index for index in dropped if index not in self.covered)
        return [index for index in new if not plan.history.messages[index].skipped]

    # Requested trims

    def keep_undo(self, before: ComposerState, length: int) -> ComposerState:
        """Remember the state before a requested trim of this many turns."""
        covered = tuple(sorted(before.covered))
        undo = CompactionUndo(length, before.compacted, before.summary, covered)
        return replace(self, undo=(*self.undo, undo))

    def undo_compaction(self) -> ComposerState:
        """Restore the state before the last requested trim."""
        *earlier, last = self.undo
        return replace(
            self,
            undo=tuple(earlier),
            compacted=last.compacted,
            summary=last.summary,
            covered=frozenset(last.covered),
        ).restart()

    def rewind(self, length: int, current: PlannerSnapshot | None) -> ComposerState:
        """Keep only the first turns; a trim among them stays."""
        state = self
        while state.undo and state.undo[-1].length > length:
            state = state.undo_compaction()
        state = replace(
            state,
            pins=frozenset(index for index in state.pins if index < length),
            covered=frozenset(index for index in state.covered if index < length),
            left={},
        ).restart()
        if current is not None and current.trim is not None and current.trim.messages <= length:
            state = replace(state, snapshot=replace(current, reported=None, answered=None))
        return state

    def clear(self) -> ComposerState:
        """Forget the conversation; profile, tools and settings stay."""
        return replace(
            self,
            pins=frozenset(),
            summary=None,
            covered=frozenset(),
            compacted=None,
            undo=(),
            left={},
        ).restart()

    # Persistence

    def to_dict(self, current: PlannerSnapshot | None) -> dict[str, Any]:
        """Return the state as JSON; `current` is the snapshot to continue from."""
        return {
            "policy": self.policy.name,
            "pinned": sorted(self.pins),
            "summary": self.summary,
            "covered": sorted(self.covered),
            "compacted": self.compacted,
            "before": [asdict(undo) for undo in self.undo],
            "model": self.profile.model,
            "calibration": self.profile.calibration.to_dict(),
            "past": None if current is None else current.to_dict(),
        }

    def restore(self, data: Mapping[str, Any]) -> ComposerState:
        """Return the state that `to_dict` wrote; trims of another policy do not apply."""
        profile = self.profile
        if data.get("model", profile.model) == profile.model:
            profile = profile.with_calibration(Calibration.from_dict(data["calibration"]))
        snapshot = self.snapshot
        if data["past"] is not None and data["policy"] == self.policy.name:
            snapshot = PlannerSnapshot.from_dict(data["past"])
        return replace(
            self,
            profile=profile,
            pins=frozenset(data["pinned"]),
            summary=data["summary"],
            covered=frozenset(data["covered"]),
            compacted=_parse_trim(data.get("compacted")),
            undo=tuple(map(CompactionUndo.from_dict, data.get("before", ()))),
            snapshot=snapshot,
        )


def _parse_trim(data: Sequence[int] | None) -> TrimRecord | None:
    return None if data is None else TrimRecord(*data)


def _parse_measurement(data: Mapping[str, Any] | None) -> Measurement | None:
    return None if data is None else Measurement(**data)
