"""What a story is made of: moments, parts of time, and what they add up to. Pure data."""

from dataclasses import dataclass, field
from typing import Literal

from schemas.decisions import CAUSES, Outcome, QueueBlocked, Reason
from schemas.facts import Usage
from schemas.policy import Tier

Stage = Literal["unknown", "routed", "waiting", "running", "backoff", "ended"]
# (cell, seq, index) of a decision.
DecisionId = tuple[int, int, int]

TO_AND_FROM_WORKER = "to and from the worker"


def counted(number: int, what: str) -> str:
    """Return the number with its word, in the plural unless it is one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def numbers(decision: QueueBlocked) -> str:
    """Return the numbers that were compared when the queue was held back."""
    waiting = f"{decision.waiting} waiting"
    match decision.cause:
        case "kv":
            return (
                f"{waiting}; {decision.head} needs {decision.blocks_needed} KV blocks, at most"
                f" {decision.blocks_free_max} are free on a replica"
            )
        case "slots":
            return f"{waiting}; {decision.replicas_ready} replicas ready, all of them full"
        case "no-replica":
            return f"{waiting}; no replica is ready"
        case "cold-start":
            return f"{waiting}; no replica is ready, one is loading"
        case _:
            return waiting


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a request's time, from `from_us` to before `to_us`.

    Attributes:
        kind: a wait has a cause of CAUSES as its label, a run what the worker did.
        attempt: the last one begun; 0 before the first.
        why: the numbers that were compared, or what happened.
        decision: which one says so, if one does.
    """

    kind: Literal["wait", "run"]
    label: str
    from_us: int
    to_us: int
    attempt: int
    why: str = ""
    decision: DecisionId | None = None

    @property
    def us(self) -> int:
        """How long it took."""
        return self.to_us - self.from_us


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of the story. `index` is of the decision in its entry; None for a fact."""

    at_us: int
    cell: int
    seq: int
    index: int | None
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class Present:
    """Where a request that has not ended stands now.

    Attributes:
        cause: what holds it back, of CAUSES or "not on record"; None when nothing does.
        why: the numbers that were compared when that cause came up; or how far a run has got.
        since_us: from when on it stands there.
        decision: which one says so, if one does.
    """

    stage: Stage
    cause: str | None
    why: str
    since_us: int
    decision: DecisionId | None = None


@dataclass(slots=True)
class Story:
    """All about one request, in order.

    Attributes:
        until_us: up to when it is told: its end; while it lives, now or the last entry if later.
        newest_entry_us: the stamp of the last entry of its cell that was read.
        present: where it stands at `until_us`; None once it is over.
        standing_fault: why it could not be read what holds this very request back, so that
            `present` tells what holds its queue back; None where it was read, or it does not wait.
        wait_us, run_us: as the segments add up.
        recorded_wait_us: as the core recorded it last, at a dispatch or at the end.
        unexplained_us: recorded_wait_us less the waits of the segments up to that record.
        passed_over: how often a younger request was placed before it because it did not fit.
        policies: (version, digest) under which its decisions were made.
    """

    id: str
    cell: int = -1
    model: str = ""
    tenant: str = ""
    tier: Tier | None = None
    stage: Stage = "unknown"
    arrived_us: int = 0
    until_us: int = 0
    newest_entry_us: int = 0
    present: Present | None = None
    standing_fault: str | None = None
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    attempts: int = 0
    replica: str | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    detail: str = ""
    usage: Usage | None = None
    ttft_us: int | None = None
    recorded_wait_us: int = 0
    unexplained_us: int = 0
    passed_over: int = 0
    events: list[Event] = field(default_factory=list[Event])
    segments: list[Segment] = field(default_factory=list[Segment])
    policies: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def over(self) -> bool:
        """Whether it has its outcome."""
        return self.stage == "ended"

    @property
    def wait_us(self) -> int:
        """All time in which no replica had it."""
        return sum(segment.us for segment in self.segments if segment.kind == "wait")

    @property
    def run_us(self) -> int:
        """All time in which a replica had it."""
        return sum(segment.us for segment in self.segments if segment.kind == "run")

    @property
    def e2e_us(self) -> int:
        """From its arrival at the broker to its end, or to where the story breaks off."""
        return max(0, self.until_us - self.arrived_us)

    def waits(self) -> list[tuple[str, int]]:
        """Return the waits by cause, in the order of CAUSES, without the causes at zero."""
        totals: dict[str, int] = {}
        for segment in self.segments:
            if segment.kind == "wait":
                totals[segment.label] = totals.get(segment.label, 0) + segment.us
        order = [*CAUSES, *sorted(set(totals) - set(CAUSES))]
        return [(cause, totals[cause]) for cause in order if totals.get(cause)]

    def runs(self) -> list[tuple[str, int]]:
        """Return the runs by what the worker did, in the order in which it first did it."""
        totals: dict[str, int] = {}
        for segment in self.segments:
            if segment.kind == "run":
                totals[segment.label] = totals.get(segment.label, 0) + segment.us
        return list(totals.items())
