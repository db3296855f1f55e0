"""What a cell remembers of offline jobs. Pure data and its form in a snapshot; no rule is here.

Of a job there are counts, the places of the items that were not released yet, and the numbers of
the few that are requests now: never an item itself, and never one entry for each item of the job.
Only services/scheduler/offline_memory.py changes any of it.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from schemas.batch import HOLDS, Endpoint, HoldCause, JobState, QuotaReason
from schemas.decisions import Outcome

HOLD_INDEX: dict[HoldCause, int] = {cause: index for index, cause in enumerate(HOLDS)}
# States in which a job is held back by nothing else; index in HOLDS.
STATE_HOLDS: dict[JobState, int] = {
    "receiving": HOLD_INDEX["receiving"],
    "paused": HOLD_INDEX["paused"],
}
_QUOTA = HOLD_INDEX["quota"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "rejected", "expired", "failed", "cancelled")
OUTCOME_INDEX: dict[Outcome, int] = {outcome: index for index, outcome in enumerate(OUTCOMES)}

# (first item, items, offset of the record that holds them).
Chunk = tuple[int, int, int]


def _zeros() -> list[int]:
    return [0] * len(HOLDS)


@dataclass(slots=True)
class Job:
    """One job.

    Attributes:
        since_us: when the present state began.
        mark: the model's hold totals when the job began to take turns; see Offline.
        held_us: by cause (index in HOLDS), over what is past.
        digest_sum: what the items that arrived add up to.
        chunks: where the items lie that were not released yet, in their order.
        open: numbers of the items that are requests and have not ended, lowest first.
        ended: released items by outcome (index in OUTCOMES). unreported: ended since the last
            report of the job.
        by_quota: whether it waits for its tenant's quota, since `since_us`.
        tokens, sized: prompt and output tokens that items asked for, and how many items these are.
    """

    id: str
    model: str
    tenant: str
    endpoint: Endpoint
    label: str
    digest: str | None
    offset: int
    submitted_us: int
    items: int
    state: JobState = "receiving"
    since_us: int = 0
    mark: tuple[int, ...] = ()
    arrived: int = 0
    digest_sum: str = "0" * 16
    released: int = 0
    unreported: int = 0
    tokens: int = 0
    sized: int = 0
    by_quota: bool = False
    ended_us: int | None = None
    detail: str = ""
    waits_for: QuotaReason | None = None
    held_us: list[int] = field(default_factory=_zeros)
    ended: list[int] = field(default_factory=lambda: [0] * len(OUTCOMES))
    chunks: deque[Chunk] = field(default_factory=deque[Chunk])
    open: "OrderedDict[int, None]" = field(default_factory=OrderedDict[int, None])

    @property
    def own_hold(self) -> int | None:
        """Return what holds this job alone back since `since_us` (index in HOLDS), or None."""
        return _QUOTA if self.by_quota else STATE_HOLDS.get(self.state)

    @property
    def item_tokens(self) -> int:
        """Return what an item asked for on average, rounded up; 0 while none is known."""
        return -(-self.tokens // self.sized) if self.sized else 0


@dataclass(slots=True)
class Offline:
    """Offline work of one model, beside its online work: every request that is no item of a job.

    Attributes:
        online: online requests that have not ended. online_until_us: when the last of them ended.
        in_flight: items that were released and have not ended; of these, `accepted` are known as
            requests here, and `running` are on a replica.
        turns: jobs that have items to release, the next one first.
        held: by tenant, such jobs that wait for its quota instead, the longest waiting first.
        cause: what holds them back since `cause_since_us`, or None when nothing does.
        totals_us: by cause (index in HOLDS), up to `cause_since_us`.
    """

    online: int = 0
    online_until_us: int = 0
    in_flight: int = 0
    accepted: int = 0
    running: int = 0
    cause: HoldCause | None = None
    cause_since_us: int = 0
    turns: "OrderedDict[str, None]" = field(default_factory=OrderedDict[str, None])
    held: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    totals_us: list[int] = field(default_factory=_zeros)


@dataclass(slots=True)
class Jobs:
    """All jobs of a cell.

    Attributes:
        ended: ids of those that ended, the oldest end first.
        settled: ids of those of which nothing is under way or to come, but their end.
        moved: ids of those of which an item ended by the last fact.
        waiting: models with jobs that have items to release.
    """

    by_id: dict[str, Job] = field(default_factory=dict[str, Job])
    ended: "OrderedDict[str, None]" = field(default_factory=OrderedDict[str, None])
    settled: dict[str, None] = field(default_factory=dict[str, None])
    moved: dict[str, None] = field(default_factory=dict[str, None])
    waiting: dict[str, None] = field(default_factory=dict[str, None])


_LISTS = ("held_us", "ended", "chunks", "open")
_PLAIN = tuple(item.name for item in fields(Job) if item.name not in _LISTS)
_plain_values = attrgetter(*_PLAIN)
_OFFLINE_LISTS = ("turns", "held", "totals_us")
_OFFLINE_PLAIN = tuple(item.name for item in fields(Offline) if item.name not in _OFFLINE_LISTS)


def freeze_jobs(jobs: Jobs) -> list[Any]:
    """Return the jobs as plain values that no later step changes."""
    return [
        [
            [
                *_plain_values(job),
                list(job.held_us),
                list(job.ended),
                list(job.chunks),
                list(job.open),
            ]
            for job in jobs.by_id.values()
        ],
        list(jobs.ended),
        list(jobs.settled),
        list(jobs.moved),
        list(jobs.waiting),
    ]


def thaw_jobs(stored: list[Any]) -> Jobs:
    """Return what `freeze_jobs` was given."""
    items, ended, settled, moved, waiting = stored
    jobs = Jobs(
        ended=OrderedDict.fromkeys(ended),
        settled=dict.fromkeys(settled),
        moved=dict.fromkeys(moved),
        waiting=dict.fromkeys(waiting),
    )
    for *values, held_us, outcomes, chunks, numbers in items:
        named = dict(zip(_PLAIN, values, strict=True))
        named["mark"] = tuple(named["mark"])
        job = Job(
            **named,
            held_us=held_us,
            ended=outcomes,
            chunks=deque((first, count, offset) for first, count, offset in chunks),
            open=OrderedDict.fromkeys(numbers),
        )
        jobs.by_id[job.id] = job
    return jobs


def freeze_offline(offline: Offline) -> list[Any]:
    """Return a model's offline work as plain values that no later step changes."""
    plain = [getattr(offline, name) for name in _OFFLINE_PLAIN]
    held = [[tenant, list(jobs)] for tenant, jobs in offline.held.items()]
    return [*plain, list(offline.turns), held, list(offline.totals_us)]


def thaw_offline(stored: list[Any]) -> Offline:
    """Return what `freeze_offline` was given."""
    *values, turns, held, totals_us = stored
    named = dict(zip(_OFFLINE_PLAIN, values, strict=True))
    return Offline(
        **named,
        turns=OrderedDict.fromkeys(turns),
        held={tenant: dict.fromkeys(jobs) for tenant, jobs in held},
        totals_us=totals_us,
    )
