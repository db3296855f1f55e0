"""What happened outside the core. Pure; every class here is one fact kind and version.

A fact is in the past tense and carries `at_us`, stamped once by the owner that records it. Workers
leave `at_us` at 0: their clock is not the owner's. Prompts and outputs are never in a fact: it
holds sizes, a digest, and the offset at which the shell finds the payload again. Request payloads
lie in headway.requests and outputs in headway.worker.events, in the partition of the cell.
"""

from typing import Annotated, Literal

from pydantic import Field

from schemas.batch_facts import JobFact
from schemas.ids import RoutedBy
from schemas.message import message
from schemas.policy import Policy, Tier
from schemas.profile import Profile
from schemas.sizes import EmbeddingSize, Number, Usage

# What a worker says is not trusted to be in range: a number outside is a dead letter, not a crash.
Positive = Annotated[int, Field(ge=1, le=2**53)]
Slot = Annotated[int, Field(ge=0, le=1023)]
Pairs = tuple[tuple[str, str], ...]


@message
class OwnerTookOver:
    """A process became the owner of this ledger partition; every owner's first record."""

    kind: Literal["owner-took-over.v1"] = "owner-took-over.v1"
    at_us: int
    cell: int
    cells: int
    epoch: int
    owner: str


@message
class PolicyActivated:
    """From this entry on, decisions are made under `policy`.

    `based_on` is the version that it was made from; null for the built-in one.
    """

    kind: Literal["policy-activated.v1"] = "policy-activated.v1"
    at_us: int
    policy: Policy
    who: str
    why: str
    based_on: int | None = None


@message
class ProfileSet:
    """The profile of a model became known or changed."""

    kind: Literal["profile-set.v1"] = "profile-set.v1"
    at_us: int
    profile: Profile


@message
class ClockTicked:
    """Time passed up to a moment at which time alone changes the answer."""

    kind: Literal["clock-ticked.v1"] = "clock-ticked.v1"
    at_us: int


@message
class RequestArrived:
    """A producer's request was read and is well formed.

    Attributes:
        arrived_us: the broker's stamp, never above `at_us`; deadlines and waits count from it.
        offset: where in headway.requests the payload lies.
        prompt_tokens: counted at the edge, by the tokenizer that the profile names.
        body_digest: 16 hex characters over the whole payload, to tell a resend from another body.
        embedding: of an embedding request; null when text is asked for.
    """

    kind: Literal["request-arrived.v1"] = "request-arrived.v1"
    at_us: int
    id: str
    model: str
    tenant: str | None = None
    tier: Tier | None = None
    arrived_us: int
    offset: int
    prompt_tokens: int
    max_output_tokens: int | None = None
    deadline_ms: int | None = None
    stream: bool = False
    body_digest: str
    body_bytes: int
    metadata: Pairs = ()
    routed_by: RoutedBy | None = None
    embedding: EmbeddingSize | None = None


@message
class RequestRefused:
    """A producer's request was read, names its id, but a field of it is not acceptable."""

    kind: Literal["request-refused.v1"] = "request-refused.v1"
    at_us: int
    id: str
    model: str
    tenant: str | None = None
    arrived_us: int
    offset: int
    body_digest: str
    detail: str
    routed_by: RoutedBy | None = None


@message
class MessageUnreadable:
    """A record could not be decoded into anything with an id; it goes to the dead-letter topic."""

    kind: Literal["message-unreadable.v1"] = "message-unreadable.v1"
    at_us: int
    topic: str
    partition: int
    offset: int
    reason: str
    body_bytes: int


@message
class CancelAsked:
    """A producer asked for a request to end."""

    kind: Literal["cancel-asked.v1"] = "cancel-asked.v1"
    at_us: int
    id: str
    model: str | None = None
    offset: int
    routed_by: RoutedBy | None = None


# What workers report. One report may speak of several requests of one iteration.


@message
class ReplicaStarting:
    """A worker began to load its model: a cold start is under way."""

    kind: Literal["replica-starting.v1"] = "replica-starting.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str


@message
class ReplicaReady:
    """A replica has warmed up and takes work.

    Attributes:
        incarnation: names this life of the replica; work is addressed to it.
        kv_blocks: blocks of `block_tokens` tokens in its KV pool of `kv_pool_bytes` bytes.
        max_batch: sequences that it runs at once.
    """

    kind: Literal["replica-ready.v1"] = "replica-ready.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    engine: str
    dtype: str
    device: str
    kv_pool_bytes: Number
    kv_blocks: Positive
    block_tokens: Positive
    max_batch: Positive
    max_sequence_tokens: Positive
    weights_bytes: Number


@message
class ReplicaHeartbeat:
    """A replica lives. Counts are its own, for people; the ledger's are the truth.

    `read` is the last dispatch number that it has read, `held` are those of the work that it has:
    what is up to `read`, not held and not reported, never reached it. None if it does not tell.
    """

    kind: Literal["replica-heartbeat.v1"] = "replica-heartbeat.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    running: Number
    kv_blocks_used: Number
    output_tokens: Number
    read: Number = 0
    held: tuple[Number, ...] | None = None


@message
class ReplicaDraining:
    """A replica finishes what it has and takes nothing more."""

    kind: Literal["replica-draining.v1"] = "replica-draining.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str


@message
class ReplicaStopped:
    """A replica went away in an orderly way."""

    kind: Literal["replica-stopped.v1"] = "replica-stopped.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    reason: str


@message
class WorkRef:
    """One attempt at one request."""

    id: str
    attempt: Number


@message
class WorkStarted:
    """Requests joined the running batch."""

    kind: Literal["work-started.v1"] = "work-started.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    items: tuple[WorkRef, ...]


@message
class WorkTokens:
    """How far one attempt has got."""

    id: str
    attempt: Number
    output_tokens: Number


@message
class WorkProgressed:
    """How far the running requests have got; at most a few times a second."""

    kind: Literal["work-progressed.v1"] = "work-progressed.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    items: tuple[WorkTokens, ...]


@message
class WorkBlocks:
    """An attempt that has filled its KV blocks, or nearly."""

    id: str
    attempt: Number
    output_tokens: Number
    blocks: Number


@message
class WorkGrows:
    """Requests need more KV blocks, now or within one; one whose blocks are full pauses."""

    kind: Literal["work-grows.v1"] = "work-grows.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    items: tuple[WorkBlocks, ...]


@message
class WorkDone:
    """One attempt that ran to its end; `output_digest` is 16 hex characters over the output.

    That is its text in UTF-8, or its vectors in base64, one behind the other.
    """

    id: str
    attempt: Number
    finish_reason: Literal["stop", "length", "embedded"]
    usage: Usage
    output_digest: str


@message
class WorkFinished:
    """Requests ran to their end. `offset` is where the outputs lie; the worker leaves it at -1."""

    kind: Literal["work-finished.v1"] = "work-finished.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    offset: int = -1
    items: tuple[WorkDone, ...]


@message
class WorkFault:
    """One attempt that could not run; retryable when another replica might do it."""

    id: str
    attempt: Number
    reason: str
    retryable: bool


@message
class WorkFailed:
    """Requests could not be run."""

    kind: Literal["work-failed.v1"] = "work-failed.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    items: tuple[WorkFault, ...]


@message
class WorkDeparture:
    """One attempt that left at an iteration boundary because it was asked to."""

    id: str
    attempt: Number
    cause: Literal["cancelled", "preempted"]
    usage: Usage


@message
class WorkLeft:
    """Requests left the batch at an iteration boundary; `offset` as in work-finished."""

    kind: Literal["work-left.v1"] = "work-left.v1"
    at_us: int = 0
    model: str
    slot: Slot
    incarnation: str
    offset: int = -1
    items: tuple[WorkDeparture, ...]


WorkerFact = (
    ReplicaStarting
    | ReplicaReady
    | ReplicaHeartbeat
    | ReplicaDraining
    | ReplicaStopped
    | WorkStarted
    | WorkProgressed
    | WorkGrows
    | WorkFinished
    | WorkFailed
    | WorkLeft
)
Fact = (
    OwnerTookOver
    | PolicyActivated
    | ProfileSet
    | ClockTicked
    | RequestArrived
    | RequestRefused
    | MessageUnreadable
    | CancelAsked
    | JobFact
    | WorkerFact
)
AnyFact = Annotated[Fact, Field(discriminator="kind")]
AnyWorkerFact = Annotated[WorkerFact, Field(discriminator="kind")]
