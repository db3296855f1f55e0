"""What a cell concluded. Pure; every class here is one decision kind and version.

A decision carries its reason as data: the numbers compared, and what was passed over. Its id is
(cell, seq, index): the entry it stands in and its place there. Everything that the shell needs to
derive the effect stands in the decision, so effects can be published again from the ledger alone.
"""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from schemas.batch_decisions import JobDecision
from schemas.batches import BatchFormed, BatchPlace, WindowOpened, WindowTuned
from schemas.facts import Pairs, Usage
from schemas.message import message, message_by_position
from schemas.outcomes import Outcome, Reason
from schemas.policy import Tier
from schemas.room import LeaveAsked, RequestPreempted, ReservationGrown, RoomKept

# Why requests of a model wait. `transit` is the way from the broker to the cell. `turn`: there is
# capacity, it is all taken, and requests of a higher tier wait for it too. `quota`: the tenant has
# as many running as it may.
Cause = Literal[
    "transit",
    "kv",
    "slots",
    "no-replica",
    "cold-start",
    "backoff",
    "turn",
    "window",
    "paused",
    "quota",
]
CAUSES: tuple[Cause, ...] = (
    "transit",
    "kv",
    "slots",
    "no-replica",
    "cold-start",
    "backoff",
    "turn",
    "window",
    "paused",
    "quota",
)

# (cause, µs), only those above zero, in the order of CAUSES; they add up to the wait.
Waits = tuple[tuple[Cause, int], ...]


@message_by_position
class RequestQueued:
    """A request was accepted and waits; `ahead` requests of the same model waited already.

    Attributes:
        preemptible: whether it may be asked to leave a replica, for one of a higher tier or when KV
            runs out.
        quota_us: how much of the tenant's minute its tokens take, or 0 where none are counted.
    """

    kind: Literal["request-queued.v1"] = field(default="request-queued.v1", kw_only=True)
    id: str
    model: str
    tenant: str
    tier: Tier
    prompt_tokens: int
    max_output_tokens: int
    deadline_us: int | None
    ahead: int
    preemptible: bool
    quota_us: int


@message
class RequestRouted:
    """A message belongs to another cell and is sent on to it, once.

    `offset` is where in headway.requests the payload lies; `to_cell` -1 means every other cell.
    """

    kind: Literal["request-routed.v1"] = "request-routed.v1"
    id: str
    model: str | None
    to_cell: int
    arrived_us: int
    offset: int


@message
class DuplicateIgnored:
    """The id is known: it runs, or it has ended within the dedupe window; nothing runs again.

    Attributes:
        answer: what its sender is told: that it is attached to the one that waits or runs, the
            recorded outcome of the one that has ended, or that the id has another body.
        outcome, reason, ended_us: as recorded, when it has ended and the body is the same.
        output_offset: of its output in headway.worker.events, or -1.
        offset: of the resend in headway.requests.
    """

    kind: Literal["duplicate-ignored.v1"] = "duplicate-ignored.v1"
    id: str
    model: str
    same_body: bool
    stage: Literal["waiting", "running", "ended"]
    answer: Literal["attached", "recalled", "refused"]
    outcome: Outcome | None
    reason: Reason | None
    ended_us: int | None
    output_offset: int
    offset: int


@message
class CancelIgnored:
    """A cancel names a request that is not known here, or has ended."""

    kind: Literal["cancel-ignored.v1"] = "cancel-ignored.v1"
    id: str
    why: Literal["unknown", "ended", "already-asked"]


@message
class MessageDeadLettered:
    """A record that cannot be decoded goes to the dead-letter topic, raw, with its reason."""

    kind: Literal["message-dead-lettered.v1"] = "message-dead-lettered.v1"
    topic: str
    partition: int
    offset: int
    reason: str


@message
class QueueBlocked:
    """What holds the waiting requests of a model back has changed.

    Attributes:
        head: the request that would run next.
        blocks_needed: of the head. blocks_free_max: of the ready replica with the most.
        replicas_ready, slots_free: summed over the model.
    """

    kind: Literal["queue-blocked.v1"] = "queue-blocked.v1"
    model: str
    cause: Cause
    head: str
    waiting: int
    blocks_needed: int
    blocks_free_max: int
    replicas_ready: int
    slots_free: int


@message
class TenantHeld:
    """A tenant has as many requests of the model running as it may: its others are held back.

    They join the turns again when one of them has ended.
    """

    kind: Literal["tenant-held.v1"] = "tenant-held.v1"
    model: str
    tenant: str
    running: int
    running_max: int
    head: str


@message
class PassedOver:
    """A candidate that was tried before the chosen one and did not fit."""

    id: str
    blocks_needed: int
    blocks_free_max: int


@message_by_position
class RequestDispatched:
    """A request goes to a replica; its blocks are reserved there from now on.

    Attributes:
        blocks: reserved on the replica. blocks_full: ceil((prompt + max output tokens) / the
            replica's block tokens); with fewer the request is given more as it grows.
        samples: outputs from which the likely length was taken; 0 where all is reserved.
        wait_us: all time since the arrival in which no replica had it; `waits` are its causes.
        blocks_free: on the replica, before this one.
        starved: whether it went before waiting requests of a higher tier, because its tier had
            waited past its starvation cap.
        cost: what it is expected to cost its tenant, prompt and all output, in the policy's units.
        weight, quantum: by which the cost counts in the tenant's turns.
        offset: where in headway.requests the payload lies.
        seed: of the sampling; the same in every attempt.
        number: counts the dispatches to this life of the replica, from 1.
        resume_tokens: tokens that an earlier attempt generated and this one goes on from.
        resume_offset: of the report in headway.worker.events that holds them, or -1.
        batch: of a one-shot model, the batch that it rides in; null otherwise.
    """

    kind: Literal["request-dispatched.v1"] = field(default="request-dispatched.v1", kw_only=True)
    id: str
    model: str
    tenant: str
    tier: Tier
    slot: int
    incarnation: str
    attempt: int
    blocks: int
    blocks_free: int
    running: int
    wait_us: int
    waits: Waits
    passed_over: tuple[PassedOver, ...]
    starved: bool
    cost: int
    weight: int
    quantum: int
    offset: int
    max_output_tokens: int
    prompt_tokens: int
    seed: int
    blocks_full: int
    samples: int
    number: int
    resume_tokens: int
    resume_offset: int
    batch: BatchPlace | None = None


@message
class AttemptLost:
    """The replica that ran an attempt is gone, or could not run it; the request is tried again.

    Attributes:
        losses: attempts lost so far, this one included.
        retry_at_us: when it joins the queue again, ahead of younger ones.
    """

    kind: Literal["attempt-lost.v1"] = "attempt-lost.v1"
    id: str
    model: str
    attempt: int
    slot: int
    why: str
    losses: int
    backoff_ms: int
    retry_at_us: int


@message
class RequestReturned:
    """The back-off of a request is over: it waits again, ahead of younger ones."""

    kind: Literal["request-returned.v1"] = "request-returned.v1"
    id: str
    model: str
    attempt: int


@message
class ReplicaAdmitted:
    """A replica takes part from now on."""

    kind: Literal["replica-admitted.v1"] = "replica-admitted.v1"
    model: str
    slot: int
    incarnation: str
    kv_blocks: int
    max_batch: int


@message
class ReplicaLost:
    """A replica was silent for too long, was replaced, or stopped with work in hand.

    One that is `never-ready` began to load its model and was not heard of since.
    """

    kind: Literal["replica-lost.v1"] = "replica-lost.v1"
    model: str
    slot: int
    incarnation: str
    why: Literal["silent", "replaced", "stopped", "never-ready"]
    silent_us: int
    running: int


@message
class ReplicaTurnedAway:
    """A life of a replica that is not known here reported; it is told so.

    `rejoin` means: drop what you run and say ready again; otherwise another life holds the slot,
    or the slot or model does not exist: stop.
    """

    kind: Literal["replica-turned-away.v1"] = "replica-turned-away.v1"
    model: str
    slot: int
    incarnation: str
    rejoin: bool
    why: str


@message_by_position
class RequestEnded:
    """The one outcome of a request.

    Attributes:
        detail: a sentence with the numbers compared.
        wait_us: all time in which no replica had it; `waits` are its causes and add up to it.
        run_us: all time in which a replica had it, lost and preempted attempts included.
        ttft_us: arrival to first token, or None if there was none: wait and lost runs, then the
            worker's own time to the first token. Tokens of a preempted attempt count, as they
            are kept.
        usage: of the last attempt, with those before it whose tokens were kept.
        e2e_us: arrival to this decision; wait_us + run_us.
        request_offset: of the payload in headway.requests. output_offset: of the output in
            headway.worker.events, or -1.
        cost: what it did cost its tenant, in the policy's units; 0 when no usage was reported.
        retry_after_ms: after a refusal that will pass, when to send the same request again.
        keep_until_us: until when the id is remembered; now, when it may be sent again.
    """

    kind: Literal["request-ended.v1"] = field(default="request-ended.v1", kw_only=True)
    id: str
    model: str
    tenant: str
    tier: Tier
    outcome: Outcome
    reason: Reason
    detail: str
    attempts: int
    slot: int | None
    arrived_us: int
    wait_us: int
    waits: Waits
    run_us: int
    e2e_us: int
    ttft_us: int | None
    usage: Usage | None
    prompt_tokens: int
    max_output_tokens: int
    blocks: int
    request_offset: int
    output_offset: int
    body_digest: str
    output_digest: str | None
    metadata: Pairs
    cost: int
    retry_after_ms: int | None
    keep_until_us: int


Decision = (
    RequestQueued
    | RequestRouted
    | DuplicateIgnored
    | CancelIgnored
    | MessageDeadLettered
    | QueueBlocked
    | TenantHeld
    | RoomKept
    | RequestDispatched
    | ReservationGrown
    | AttemptLost
    | RequestReturned
    | RequestPreempted
    | LeaveAsked
    | ReplicaAdmitted
    | ReplicaLost
    | ReplicaTurnedAway
    | RequestEnded
    | JobDecision
    | WindowTuned
    | WindowOpened
    | BatchFormed
)
AnyDecision = Annotated[Decision, Field(discriminator="kind")]
