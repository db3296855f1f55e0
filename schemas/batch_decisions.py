"""What a cell concluded about offline jobs. Pure; one class a decision kind and version.

As with every decision, what the effect needs stands in it: the report that is published, and
which items of which record become requests.
"""

from typing import Literal

from schemas.batch import Action, HoldCause, JobReport, QuotaReason
from schemas.message import message

RejectReason = Literal["unknown-model", "too-many-items", "too-many-jobs"]
JobMessage = Literal["header", "items", "control", "item"]
IgnoredWhy = Literal[
    "repeated",
    "another-job",
    "another-model",
    "unknown-job",
    "out-of-order",
    "too-many-chunks",
    "not-released",
    "wrong-state",
]


@message
class JobAccepted:
    """A job was accepted; its items may come.

    `forgotten` are ended jobs of which nothing is remembered from now on, to make room for it.
    """

    kind: Literal["job-accepted.v1"] = "job-accepted.v1"
    job: str
    model: str
    report: JobReport
    forgotten: tuple[str, ...]


@message
class JobRejected:
    """A job cannot be accepted; `report.detail` says why, with the numbers compared."""

    kind: Literal["job-rejected.v1"] = "job-rejected.v1"
    job: str
    model: str
    reason: RejectReason
    report: JobReport


@message
class JobMessageIgnored:
    """A message about a job changes nothing.

    `what` is its header, its items, a control, or the request of one of its items; `why` the rule.
    """

    kind: Literal["job-message-ignored.v1"] = "job-message-ignored.v1"
    job: str
    model: str
    what: JobMessage
    why: IgnoredWhy
    detail: str


@message
class JobMessageRouted:
    """A message about a job belongs to another cell and is sent on to it, once.

    `offset` is where in headway.batch.jobs it lies.
    """

    kind: Literal["job-message-routed.v1"] = "job-message-routed.v1"
    job: str
    model: str
    to_cell: int
    offset: int


@message
class JobItemsTaken:
    """Items of a job are here; with the last of them the job is ready, or rejected for its sum.

    `digest_sum` is what all items up to these add up to, as the job's digest is written.
    """

    kind: Literal["job-items-taken.v1"] = "job-items-taken.v1"
    job: str
    model: str
    first: int
    count: int
    offset: int
    digest_sum: str
    report: JobReport


@message
class Room:
    """The numbers by which it was decided whether items leave.

    Attributes:
        online, online_waiting: requests of no job that have not ended, and those that wait.
        idle_us: for how long there has been none; 0 while there is one. idle_us_min: needed.
        in_flight: items that became requests and have not ended, before this decision.
        in_flight_max: how many there may be now.
        slots, slots_free, blocks, blocks_free: of the ready replicas.
        slots_kept, blocks_kept: of the free ones, those that stay free for online work.
        item_blocks: what an item of the job took on average so far; 0 when none is known.
    """

    online: int
    online_waiting: int
    idle_us: int
    idle_us_min: int
    in_flight: int
    in_flight_max: int
    slots: int
    slots_free: int
    slots_kept: int
    blocks: int
    blocks_free: int
    blocks_kept: int
    item_blocks: int


@message
class ItemsReleased:
    """Items of a job become requests now, because online work is idle or leaves room to spare.

    Attributes:
        first, count: which items. offset, skip: the record that holds them, and how many of its
            items stand before. held: what held the model's jobs back until now, or None.
    """

    kind: Literal["items-released.v1"] = "items-released.v1"
    job: str
    model: str
    first: int
    count: int
    offset: int
    skip: int
    why: Literal["idle", "spare"]
    held: HoldCause | None
    room: Room
    report: JobReport


@message
class ReleaseHeld:
    """What holds the jobs of a model back has changed; `jobs` of them have items to release."""

    kind: Literal["release-held.v1"] = "release-held.v1"
    model: str
    cause: HoldCause
    jobs: int
    room: Room


@message
class JobHeld:
    """A job waits until its tenant may have more of the model; jobs of other tenants go on.

    `reason` is the rule that no further item would pass at the door, and `report.detail` says it
    with the numbers compared.

    Attributes:
        item_tokens: what an item of the job asked for on average so far; 0 when none is known.
        until_us: when there is room by the passing of time alone, or null.
    """

    kind: Literal["job-held.v1"] = "job-held.v1"
    job: str
    model: str
    tenant: str
    reason: QuotaReason
    item_tokens: int
    until_us: int | None
    report: JobReport


@message
class JobFreed:
    """A job that waited for its tenant's quota takes turns again; `items` have room now."""

    kind: Literal["job-freed.v1"] = "job-freed.v1"
    job: str
    model: str
    tenant: str
    items: int
    report: JobReport


@message
class JobSteered:
    """A job was paused, resumed or cancelled, as somebody asked; `offset` is where that lies."""

    kind: Literal["job-steered.v1"] = "job-steered.v1"
    job: str
    model: str
    action: Action
    who: str
    why: str
    offset: int
    report: JobReport


@message
class JobProgressed:
    """Items of a job have ended since the last report, and none was released that would tell."""

    kind: Literal["job-progressed.v1"] = "job-progressed.v1"
    job: str
    model: str
    report: JobReport


@message
class JobFinished:
    """A job has ended: every released item has its outcome, and no other will be released."""

    kind: Literal["job-finished.v1"] = "job-finished.v1"
    job: str
    model: str
    e2e_us: int
    report: JobReport


JobDecision = (
    JobAccepted
    | JobRejected
    | JobMessageIgnored
    | JobMessageRouted
    | JobItemsTaken
    | ItemsReleased
    | ReleaseHeld
    | JobHeld
    | JobFreed
    | JobSteered
    | JobProgressed
    | JobFinished
)
