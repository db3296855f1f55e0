"""Offline jobs as they stand on the bus: submitted, steered, and how far they are. Pure.

A job is a header (batch-job.v1) and its items in chunks (batch-items.v1) on headway.batch.jobs, in
the partition of the cell that owns the model; the record's key is the model. Everything may be
written again: a job is known by its id, an item by its number, so a submit that was cut off goes on
where it ended. How far each job is stands on headway.batch.status, compacted by the job's id.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, StringConstraints

from schemas.ids import ModelName, TenantName
from schemas.message import message
from schemas.policy import Tier

JOB_ITEMS_MAX = 10_000_000
CHUNK_ITEMS_MAX = 1_000
CUSTOM_ID_CHARS_MAX = 512
NOTE_CHARS_MAX = 500
ITEM_TIER: Tier = "batch"
_ID_PREFIX = "batch/"
_DIGITS_MAX = 8
_SUM_MODULUS = 1 << 64

JobId = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
]
Note = Annotated[str, StringConstraints(max_length=NOTE_CHARS_MAX)]
ItemNumber = Annotated[int, Field(ge=0, le=JOB_ITEMS_MAX - 1)]
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
Action = Literal["pause", "resume", "cancel"]
JobState = Literal[
    "receiving", "running", "paused", "cancelling", "completed", "cancelled", "rejected"
]
ENDED: tuple[JobState, ...] = ("completed", "cancelled", "rejected")

# Why items of a job do not leave: its submitter or an operator (the first two), its model, or that
# the next one would be refused at the door ("quota", see QuotaReason).
HoldCause = Literal[
    "receiving",
    "paused",
    "no-replica",
    "online-waits",
    "online-busy",
    "in-flight",
    "window",
    "quota",
]
HOLDS: tuple[HoldCause, ...] = (
    "receiving",
    "paused",
    "no-replica",
    "online-waits",
    "online-busy",
    "in-flight",
    "window",
    "quota",
)
# What an item would break at the door, so that it is not released: what its tenant may have of the
# model, or what the model's queue may hold. A wait for either counts as one for "quota".
QuotaReason = Literal[
    "queue-full",
    "quota-queued-requests",
    "quota-queued-tokens",
    "quota-running-requests",
    "quota-tokens-per-minute",
]
# (cause, µs), only those above zero, in the order of HOLDS.
Held = tuple[tuple[HoldCause, int], ...]


def _is_none(value: object) -> bool:
    return value is None


@message
class BatchJob:
    """An offline job begins: `items` items will follow in chunks. Submitters → cell.

    Nothing of it runs before all its items are there.

    Attributes:
        job: chosen by the submitter, unique in the deployment.
        tenant: who is charged; the policy's default tenant when null.
        endpoint: which of OpenAI's forms items and results have; of /v1/embeddings, the items are
            embedding requests.
        digest: 16 hex characters, or null for unchecked: the sum modulo 2^64 of the BLAKE2b digests
            (8 bytes, big-endian) of each item's number, custom_id and body as a JSON array with
            sorted keys and without white space. A job whose items give another sum is rejected.
        label: what people know it by, a file's name.
    """

    # Written outside: a misspelt name or a number in quotes is refused, not ignored.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["batch-job.v1"] = "batch-job.v1"
    job: JobId
    model: ModelName
    tenant: TenantName | None = None
    endpoint: Endpoint = "/v1/completions"
    items: Annotated[int, Field(ge=1, le=JOB_ITEMS_MAX)]
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")] | None = None
    label: Note = ""


@message
class BatchItem:
    """One item of a job.

    Attributes:
        custom_id: the submitter's name for it, unique in the job.
        body: the fields of an inference-request.v1, or of an embedding-request.v1 in a job of the
            endpoint /v1/embeddings, but kind, id, model, tenant, tier and metadata. It is judged
            as every request is; one that breaks a rule ends as rejected.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    custom_id: Annotated[str, StringConstraints(min_length=1, max_length=CUSTOM_ID_CHARS_MAX)]
    body: dict[str, JsonValue]


@message
class BatchItems:
    """Items `first`, `first` + 1, … of a job. Submitters → cell, in the order of their numbers."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["batch-items.v1"] = "batch-items.v1"
    job: JobId
    model: ModelName
    first: ItemNumber
    # It fails fast: an account of thousands of wrong items would take gigabytes.
    items: Annotated[
        tuple[BatchItem, ...],
        Field(min_length=1, max_length=CHUNK_ITEMS_MAX, strict=False, fail_fast=True),
    ]


@message
class BatchControl:
    """Pause, resume or cancel a job. Operators → cell.

    A paused job lets what it has released run to its end; a cancelled one ends that too.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["batch-control.v1"] = "batch-control.v1"
    job: JobId
    model: ModelName
    action: Action
    who: Note = ""
    why: Note = ""


@message
class JobReport:
    """How far a job is.

    Attributes:
        offset: of its header in headway.batch.jobs. digest: as submitted.
        arrived: items that are here. released: items that became requests.
        completed, rejected, expired, failed, cancelled: released items by their outcome.
        not_run: items of an ended job that were never released.
        held: for how long nothing more could be released, by cause; without the present cause.
        ended_us: when it ended, or null.
        detail: why it was rejected, or, while it runs, by what its next item would be refused at
            the door now; else empty.
        waits_for: the rule that `detail` tells of while it runs; null where none holds it back,
            and in a report of before this was told.
    """

    tenant: str
    endpoint: Endpoint
    label: str
    digest: str | None
    offset: int
    submitted_us: int
    state: JobState
    items: int
    arrived: int
    released: int
    completed: int
    rejected: int
    expired: int
    failed: int
    cancelled: int
    not_run: int
    held: Held
    ended_us: int | None
    detail: str
    # It came after reports had been recorded, which keep their bytes.
    waits_for: Annotated[QuotaReason | None, Field(exclude_if=_is_none)] = None


@message
class BatchStatus:
    """How far a job is after the entry (cell, seq). Cell → submitters, the last one counts."""

    kind: Literal["batch-status.v1"] = "batch-status.v1"
    job: str
    model: str
    cell: int
    seq: int
    at_us: int
    report: JobReport


@message
class BatchHold:
    """What holds the jobs of a model back since `at_us`, null when nothing does. Cell → people.

    Attributes:
        online, online_waiting: requests of no job that have not ended, and those that wait.
        idle_us: for how long there has been none. slots, blocks: of the ready replicas, and how
            many of them are free.
    """

    kind: Literal["batch-hold.v1"] = "batch-hold.v1"
    model: str
    cell: int
    seq: int
    at_us: int
    cause: HoldCause | None
    online: int
    online_waiting: int
    idle_us: int
    slots: int
    slots_free: int
    blocks: int
    blocks_free: int


def request_id(job: str, number: int) -> str:
    """Return the id of the request that item `number` of the job becomes."""
    return f"{items_prefix(job)}{number}"


def items_prefix(job: str) -> str:
    """Return what the ids of all requests begin with that items of the job become, and no other."""
    return f"{_ID_PREFIX}{job}/"


def item_of(request: str) -> tuple[str, int] | None:
    """Return the (job, item number) whose request has this id, or None if no item's has."""
    if not request.startswith(_ID_PREFIX):
        return None
    job, slash, digits = request[len(_ID_PREFIX) :].rpartition("/")
    canonical = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
    if not slash or not canonical or str(int(digits)) != digits:
        return None
    return job, int(digits)


def item_sum(number: int, custom_id: str, body: dict[str, Any]) -> int:
    """Return what one item adds to its job's digest."""
    text = json.dumps(
        [number, custom_id, body], ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def add_sums(one: int, other: int) -> int:
    """Return the sum of two parts of a job's digest."""
    return (one + other) % _SUM_MODULUS


def sum_text(total: int) -> str:
    """Return the 16 hex characters by which a job's digest is written."""
    return f"{total:016x}"
