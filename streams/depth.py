"""How deep the queues of one cell are, folded from its ledger; and whether that is known. Pure.

May touch schemas and, to begin from a snapshot, read a core State. Must not read a clock or the
bus: times and offsets are handed in. A request that backs off neither waits nor runs.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Literal, get_args

from schemas import decisions as d
from schemas import facts as f
from schemas.bus import ModelDepth
from schemas.facts import OwnerTookOver, ProfileSet
from schemas.ids import cell_of
from schemas.ledger import Entry
from services.scheduler.state import State

Stage = Literal["waiting", "running", "backoff"]

# The stage that a request is in after each decision that moves it.
_MOVING = (
    d.RequestQueued,
    d.RequestDispatched,
    d.AttemptLost,
    d.RequestReturned,
    d.RequestPreempted,
)
_STAGE_AFTER: dict[type, Stage] = {
    d.RequestQueued: "waiting",
    d.RequestDispatched: "running",
    d.AttemptLost: "backoff",
    d.RequestReturned: "waiting",
    d.RequestPreempted: "waiting",
}
_NONE: dict[Stage, int] = {"waiting": 0, "running": 0, "backoff": 0}

# One decision that moves a request: its stage from now on, or None for its end; its id and model.
Move = tuple[Stage | None, str, str]

# A quote inside a JSON string is escaped, so this stands only where an object with a kind begins.
_KIND = re.compile(rb'\{"kind":"([^"]*)"')
_MOVE = re.compile(rb'\{"kind":"([^"]*)","id":"([^"\\]*)","model":"([^"\\]*)"')


def _kinds(*classes: type) -> frozenset[bytes]:
    return frozenset(str(fields(one)[0].default).encode() for one in classes)


# Facts that tell a depth nothing by themselves and hold no other object with a kind.
_COMMON = _kinds(
    f.ClockTicked,
    f.RequestArrived,
    f.RequestRefused,
    f.CancelAsked,
    f.ReplicaHeartbeat,
    f.WorkStarted,
    f.WorkProgressed,
    f.WorkGrows,
    f.WorkFinished,
    f.WorkFailed,
    f.WorkLeft,
)
_STAGES_BY_CLASS: dict[type, Stage | None] = {**_STAGE_AFTER, d.RequestEnded: None}
_STAGES: dict[bytes, Stage | None] = {}
for _class, _stage in _STAGES_BY_CLASS.items():
    _STAGES.update(dict.fromkeys(_kinds(_class), _stage))
_DECISIONS = _kinds(*get_args(d.Decision))


# A line names its own kind and its fact's before those of its decisions.
_HEAD_KINDS = 2


def moves_of(line: bytes) -> list[Move] | None:
    """Return what the ledger line of an owner does to the depth, without decoding it.

    None where a look at its bytes does not tell: of rare facts, of kinds that are not known here,
    and of names that JSON writes with escapes. Such a line is decoded and given to `fold`.
    """
    kinds = _KIND.findall(line)
    if len(kinds) < _HEAD_KINDS or kinds[1] not in _COMMON:
        return None
    decisions = kinds[_HEAD_KINDS:]
    if not _DECISIONS.issuperset(decisions):
        return None
    found = [move for move in _MOVE.findall(line) if move[0] in _STAGES]
    if len(found) != sum(kind in _STAGES for kind in decisions):
        return None
    try:
        return [(_STAGES[kind], name.decode(), model.decode()) for kind, name, model in found]
    except UnicodeDecodeError:
        return None


class DepthFold:
    """Counts the waiting and running requests of each model, entry by entry.

    It holds one item for each live request, so a stage is left exactly once, however the request
    came there; memory is bounded by the requests that have not ended.
    """

    def __init__(self, cell: int, cells: int = 1) -> None:
        self._cell = cell
        self._cells = cells
        self._profiled: set[str] = set()
        self._live: dict[str, tuple[str, Stage]] = {}
        self._counts: dict[str, dict[Stage, int]] = {}

    @classmethod
    def of_state(cls, state: State) -> "DepthFold":
        """Return the fold as it stands where the core's `state` stands."""
        fold = cls(state.cell, state.cells)
        fold._profiled = set(state.models)
        for request in state.requests.values():
            fold._move(request.id, request.model, request.stage)
        return fold

    def fold(self, entry: Entry) -> None:
        """Take in one entry that counts (see schemas.continuity)."""
        fact = entry.fact
        if isinstance(fact, ProfileSet):
            self._profiled.add(fact.profile.model)
        elif isinstance(fact, OwnerTookOver):
            self._cells = fact.cells
        for decision in entry.decisions:
            if isinstance(decision, _MOVING):
                self._move(decision.id, decision.model, _STAGE_AFTER[type(decision)])
            elif isinstance(decision, d.RequestEnded):
                # One that was refused at the door was never in a stage.
                self._leave(decision.id)

    def move(self, moves: Iterable[Move]) -> None:
        """Take in what `moves_of` found in a line that counts."""
        for stage, request_id, model in moves:
            if stage is None:
                self._leave(request_id)
            else:
                self._move(request_id, model, stage)

    def models(self) -> tuple[ModelDepth, ...]:
        """Return the depth of each model that the cell serves or has requests of, by name.

        A model without requests stands there with zeros: of it, zero is known.
        """
        own = {name for name in self._profiled if cell_of(name, self._cells) == self._cell}
        return tuple(
            ModelDepth(model=name, waiting=counts["waiting"], running=counts["running"])
            for name in sorted(own | set(self._counts))
            for counts in [self._counts.get(name, _NONE)]
        )

    def live_requests(self) -> int:
        """Return how many requests have not ended."""
        return len(self._live)

    def _move(self, request_id: str, model: str, stage: Stage) -> None:
        self._leave(request_id)
        self._live[request_id] = (model, stage)
        self._counts.setdefault(model, dict(_NONE))[stage] += 1

    def _leave(self, request_id: str) -> None:
        left = self._live.pop(request_id, None)
        if left is None:
            return
        model, stage = left
        counts = self._counts[model]
        counts[stage] -= 1
        if not any(counts.values()):
            del self._counts[model]


class Freshness:
    """Whether what was read stands close enough to the ledger's end to be told as known.

    A reader is never at the end of a log that grows. So the end is noted, and what was read is
    fresh while each noted end is reached within `late_s`. The first end must be reached outright.

    Args:
        late_s: how long a reader may take to reach an end that was there.
    """

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s
        self._end: int | None = None
        self._noted_s = 0.0
        self._began = False
        self.known = False

    def note(self, end: int, read_to: int, now_s: float) -> None:
        """Note the ledger's end offset and the next offset to be read, at monotonic `now_s`."""
        if self._end is None:
            self._end, self._noted_s = end, now_s
        if read_to >= self._end:
            self._began = True
            if read_to >= end:
                self._end, self._noted_s = read_to, now_s
            else:
                self._end, self._noted_s = end, now_s
        self.known = self._began and not self.late(now_s)

    def late(self, now_s: float) -> bool:
        """Return whether an end that was noted longer than `late_s` ago is still not reached."""
        return now_s - self._noted_s > self._late_s
