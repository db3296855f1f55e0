"""What a cell remembers. Pure data with its ordered indexes; only evolve changes it.

The indexes (`deadlines`, `retries`, `heard`, the queues) and `settings` follow from the rest;
schemas of what is stored stand in services/scheduler/snapshot.py. Times are µs of the owner's
stamps.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Literal

from schemas.batch_facts import JobFact
from schemas.decisions import CAUSES, Cause, Outcome, Reason
from schemas.facts import (
    CancelAsked,
    MessageUnreadable,
    Pairs,
    ReplicaHeartbeat,
    ReplicaReady,
    ReplicaStopped,
    RequestArrived,
    RequestRefused,
    WorkDeparture,
    WorkDone,
    WorkFault,
)
from schemas.policy import Policy, Tier, policy_digest
from schemas.policy_scope import Settings
from schemas.profile import Profile
from services.scheduler.accounts import Account
from services.scheduler.batching import Batching, Forming
from services.scheduler.jobs import Jobs, Offline
from services.scheduler.lengths import Lengths
from services.scheduler.queue import LINES, Line, Queue

CAUSE_INDEX: dict[Cause, int] = {cause: index for index, cause in enumerate(CAUSES)}

# About as many bytes of decisions as one ledger entry holds; see State.step_bytes. The ledger's
# topic takes four times as much, because what a fact brought is answered in full.
STEP_BYTES_MAX = 4 * 1024 * 1024

Stage = Literal["waiting", "running", "backoff"]
LeaveCause = Literal["cancelled", "preempted"]


@dataclass(slots=True)
class Request:
    """One accepted request that has not ended.

    Attributes:
        order: grows with each acceptance; decides who is older.
        since_us: when the present stage began.
        mark: its lane's cause totals when this wait began; the wait's causes are the difference.
        waited_us: by cause (index in CAUSES), over the waits that are over; less what had passed
            of the cause at the mark.
        attempt: of the last dispatch; 0 before the first. losses: attempts lost.
        line: where it stands among the others: its tier, or below all of them if it is an item of
            an offline job.
        blocks: KV blocks that are reserved where it runs. blocks_full: the most it may need there.
        number: of the last dispatch, among those to the same life of a replica.
        starved: whether it was dispatched before a higher tier, past its cap: then it stays.
        yielding: whether it runs and may be asked to leave for another.
        growing: whether it runs and has asked for more blocks.
        leaving: why it was asked to leave, while it runs on.
        preemptions: how often it left with its tokens kept.
        output_tokens: generated so far, as far as is known; those of a lost attempt do not count.
        kept_tokens: those that the next attempt goes on from. kept_offset: of the report that
            holds them, or -1.
        used_us: queued, prefill and decode time of the attempts whose tokens are kept.
        first_token_us, ttft_us: of the first token, in its attempt and since the arrival, if an
            attempt whose tokens are kept generated it.
        texts, longest_tokens: of an embedding request; 1 and all of it otherwise.
        batch: of a one-shot model, in which it rode last. batch_texts: of all that rode in it.
        cost, weight, quantum: what its tenant was charged for the run, and how that counts.
        quota_us: what it took of its tenant's minute.
    """

    id: str
    order: int
    model: str
    tenant: str
    tier: Tier
    arrived_us: int
    offset: int
    prompt_tokens: int
    max_output_tokens: int
    deadline_us: int | None
    body_digest: str
    metadata: Pairs
    preemptible: bool
    stage: Stage
    since_us: int
    mark: tuple[int, ...]
    waited_us: list[int]
    line: Line
    quota_us: int = 0
    run_us: int = 0
    attempt: int = 0
    losses: int = 0
    slot: int = -1
    incarnation: str = ""
    blocks: int = 0
    blocks_full: int = 0
    yielding: bool = False
    growing: bool = False
    cost: int = 0
    weight: int = 1
    quantum: int = 1
    retry_at_us: int = 0
    leaving: LeaveCause | None = None
    number: int = 0
    starved: bool = False
    preemptions: int = 0
    output_tokens: int = 0
    kept_tokens: int = 0
    kept_offset: int = -1
    used_us: tuple[int, int, int] = (0, 0, 0)
    first_token_us: int | None = None
    ttft_us: int | None = None
    texts: int = 1
    longest_tokens: int = 0
    batch: int | None = None
    batch_texts: int = 0

    @property
    def of_job(self) -> bool:
        """Whether it is an item of an offline job."""
        return self.line == "offline"


@dataclass(slots=True)
class Replica:
    """One ready or draining replica; `running` maps request ids to their reserved blocks.

    Attributes:
        dispatches: to this life of it, so far.
        leaving_blocks, leaving: of those that run and were asked to leave.
        batches: those that it has, with how many of their members still run.
    """

    slot: int
    incarnation: str
    kv_blocks: int
    block_tokens: int
    max_batch: int
    draining: bool = False
    blocks_used: int = 0
    dispatches: int = 0
    leaving_blocks: int = 0
    leaving: int = 0
    running: dict[str, int] = field(default_factory=dict[str, int])
    batches: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(slots=True, frozen=True)
class Room:
    """KV that is kept for a waiting request: nothing that stands behind it goes to that replica."""

    id: str
    slot: int


@dataclass(slots=True)
class Service:
    """How fast a model's requests were served lately: integer moving averages.

    Attributes:
        interval_ns: between two dispatches while others waited. samples: how many were timed.
        backlog_since_us: the last dispatch that left some waiting, or -1 when none waited since.
        prefill_ns: of a prompt token. decode_ns: of an output token. 0 when not measured.
    """

    interval_ns: int = 0
    samples: int = 0
    backlog_since_us: int = -1
    prefill_ns: int = 0
    decode_ns: int = 0


@dataclass(slots=True)
class Claim:
    """Room on a replica, `blocks` and a place, that others were asked to leave for one request."""

    slot: int
    blocks: int


@dataclass(slots=True)
class Model:
    """One model: its profile, its replicas in the order of their slots, and its queue.

    Attributes:
        starting: incarnations by slot whose cold start is under way.
        pool_tokens: KV tokens by slot of every replica that ever was ready: a request larger than
            all of them can never run. pool_tokens_max: the largest of them.
        claims: by request id, of those that wait for room which others leave.
        growing: ids of those that run and have asked for more blocks, and do not leave.
        lengths: of the outputs so far.
        yielding: by rank of their line, how many run that may be asked to leave and were not.
        cause: what holds the queue back, or None when nothing waits.
        accounts: by tenant. idle: those of them without a request, the longest idle first.
        room: KV that is kept for one request, or None.
        batching: of a one-shot model.
    """

    profile: Profile
    owner_cell: int
    replicas: dict[int, Replica] = field(default_factory=dict[int, Replica])
    starting: dict[int, str] = field(default_factory=dict[int, str])
    pool_tokens: dict[int, int] = field(default_factory=dict[int, int])
    pool_tokens_max: int = 0
    queue: Queue = field(default_factory=Queue)
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    growing: dict[str, None] = field(default_factory=dict[str, None])
    lengths: Lengths = field(default_factory=Lengths)
    yielding: list[int] = field(default_factory=lambda: [0] * len(LINES))
    cause: Cause | None = None
    accounts: dict[str, Account] = field(default_factory=dict[str, Account])
    idle: "OrderedDict[str, None]" = field(default_factory=OrderedDict[str, None])
    room: Room | None = None
    service: Service = field(default_factory=Service)
    offline: Offline = field(default_factory=Offline)
    batching: Batching | None = None


@dataclass(slots=True)
class Ended:
    """What is remembered of a request that has ended, to recognise and to answer a resend."""

    keep_until_us: int
    body_digest: str
    outcome: Outcome
    reason: Reason
    ended_us: int
    output_offset: int


@dataclass(slots=True, frozen=True)
class AttemptGone:
    """A running attempt whose replica is gone."""

    id: str
    attempt: int
    slot: int
    why: str


# What the last fact brought that has not been answered by a decision yet, oldest first.
Pending = (
    RequestArrived
    | RequestRefused
    | CancelAsked
    | MessageUnreadable
    | JobFact
    | ReplicaReady
    | ReplicaHeartbeat
    | ReplicaStopped
    | tuple[WorkDone, int]
    | tuple[WorkDeparture, int]
    | WorkFault
    | AttemptGone
)


@dataclass(slots=True)
class State:
    """All that a cell decides from.

    Attributes:
        now_us: of the last fact; never goes back.
        policy, settings: the one in force, and what it says for a model, tier and tenant.
        blind_until_us: up to here the cell could not hear; silence before it is no sign of loss.
        deadlines, retries: heaps of (due µs, order, id); an item whose request no longer waits for
            it is dead, and is dropped when it comes to the top.
        heard: (model, slot) to when it was last heard, the longest silent first.
        windows: a heap of (due µs, model) of the batch windows that are open.
        forming: the batch whose members are being dispatched; None between two facts.
        starving: a heap of (due µs, model, rank of the tier): when a tier's longest waiting request
            reaches its starvation cap at the earliest. Of a tier whose oldest was held back until
            then an earlier item may come on top of one that there is.
        starts: (model, slot) to when its cold start began, the longest ago first.
        touched: models in which a dispatch may have become possible since the last fact. Where an
            id stands, all that happened is that this request joined the queue.
        pending: empty between two facts, unless the step was cut short.
        step_bytes: about how many bytes of decisions came since the last fact. At STEP_BYTES_MAX
            the step is cut short, and the next fact goes on where it ended.
    """

    cell: int = 0
    cells: int = 1
    epoch: int = 0
    now_us: int = 0
    blind_until_us: int = 0
    policy: Policy = field(default_factory=Policy)
    settings: Settings = field(default_factory=lambda: Settings(Policy()), compare=False)
    policy_digest: str = field(default_factory=lambda: policy_digest(Policy()))
    next_order: int = 0
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    ended: "OrderedDict[str, Ended]" = field(default_factory=OrderedDict[str, Ended])
    deadlines: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    retries: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    heard: "OrderedDict[tuple[str, int], int]" = field(
        default_factory=OrderedDict[tuple[str, int], int],
    )
    jobs: Jobs = field(default_factory=Jobs)
    windows: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    forming: Forming | None = None
    starving: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    starts: "OrderedDict[tuple[str, int], int]" = field(
        default_factory=OrderedDict[tuple[str, int], int],
    )
    touched: dict[str, str | None] = field(default_factory=dict[str, str | None])
    pending: deque[Pending] = field(default_factory=deque[Pending])
    step_bytes: int = 0


def cut_short(state: State) -> bool:
    """Return whether more was due than one entry may hold, so that the next fact must go on."""
    return state.step_bytes >= STEP_BYTES_MAX
