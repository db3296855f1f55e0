"""What a cell decides about the batches of a one-shot model. Pure; part of schemas/decisions.

Each carries the numbers that were compared. Which request rides in which batch stands in its own
request-dispatched decision, so that nothing else of a request depends on how it is batched.
"""

from typing import Literal

from schemas.message import message
from schemas.policy import Tier


@message
class WindowTuned:
    """The batch window of a model follows its load: shorter at peaks, longer when it is quiet.

    Attributes:
        old_ms, new_ms: of the window. base_ms: what the policy sets, from which it started.
        gap_us: between two texts, averaged over the last arrivals: the arrival rate's inverse.
        service_us: of the batches measured last, or 0 while none is.
        batch_texts_max: texts of a full batch. fill_us: gap_us × batch_texts_max.
        replicas_ready: that share the load.
        min_ms, max_ms: the policy's bounds.
    """

    kind: Literal["window-tuned.v1"] = "window-tuned.v1"
    model: str
    base_ms: int
    old_ms: int
    new_ms: int
    gap_us: int
    fill_us: int
    service_us: int
    batch_texts_max: int
    replicas_ready: int
    min_ms: int
    max_ms: int


@message
class WindowOpened:
    """Requests of a one-shot model are held back for others to join them, until `due_us`.

    A second one before the batch is formed moves the due time: a request of a higher tier, or one
    with a nearer deadline, joined.

    Attributes:
        opened_us: since when the request waits that sets the due time.
        due_us: opened_us + allowed_us, or the deadline less the service time if that is sooner; a
            deadline ends the window at once while the service time is not known.
        window_ms: the policy's, as it was tuned.
        allowed_us: the window, but at most share_pct of the tier's latency target.
        tier: of the request that sets the due time. target_ms: what its tier aims at.
        deadline_us: the nearest of those that wait, or null. service_us: measured, 0 if not yet.
    """

    kind: Literal["window-opened.v1"] = "window-opened.v1"
    model: str
    opened_us: int
    due_us: int
    window_ms: int
    allowed_us: int
    tier: Tier
    target_ms: int
    share_pct: int
    deadline_us: int | None
    service_us: int
    waiting: int


ClosedBy = Literal["full", "due", "backlog", "deadline", "free"]


@message
class BatchFormed:
    """A batch of waiting requests goes to a replica; a dispatch of each member follows.

    Attributes:
        batch: counts the batches of the model.
        why: full (as many texts wait as a batch holds), due (the window is over), backlog (more
            requests wait than the policy holds back), deadline (the nearest one demands it), or
            free (no window is kept: the replica became free, or was).
        members: in the order in which the queue gave them. starved: whether the first of them goes
            before requests of a higher tier, because its tier reached its starvation cap.
        passed_over: left for a later batch,
            because their length would have cost too much padding, or memory or places.
        texts: of all members. texts_max: what fits. longest_tokens: every text is padded to it.
        padding_pct: the padding's share of what the pass computes.
        blocks: that the members reserve. blocks_allowed: the replica's less the safety margin and
            what is reserved. ahead: batches that the replica has not finished.
        opened_us, due_us: of the window, or null when none was open.
        waiting: requests before this one was formed. backlog_closes: the policy's number, or null.
        deadline_us: the nearest of those that wait, or null. service_us: measured, 0 if not yet.
    """

    kind: Literal["batch-formed.v1"] = "batch-formed.v1"
    model: str
    batch: int
    slot: int
    incarnation: str
    why: ClosedBy
    members: tuple[str, ...]
    starved: bool
    passed_over: int
    texts: int
    texts_max: int
    longest_tokens: int
    padding_pct: int
    blocks: int
    blocks_allowed: int
    ahead: int
    opened_us: int | None
    due_us: int | None
    waiting: int
    backlog_closes: int | None
    deadline_us: int | None
    service_us: int


@message
class BatchPlace:
    """Which batch a request rides in; `size` requests ride in it."""

    batch: int
    size: int
