"""The decisions by which running requests are given room, or leave it to others. Pure.

A part of schemas/decisions.py, from where they are used; each carries the numbers compared.
"""

from typing import Literal

from schemas.message import message
from schemas.policy import Tier


@message
class ReservationGrown:
    """A running request is given more KV blocks: `blocks` in all, `blocks_before` until now.

    `blocks_free` are those of its replica, before.
    """

    kind: Literal["reservation-grown.v1"] = "reservation-grown.v1"
    id: str
    model: str
    slot: int
    incarnation: str
    attempt: int
    output_tokens: int
    blocks: int
    blocks_before: int
    blocks_full: int
    blocks_free: int


@message
class RequestPreempted:
    """An attempt left its replica with its tokens kept: the request waits again. It is no loss.

    It stands ahead of younger ones of its lane, and its next attempt goes on where this one ended.

    Attributes:
        output_tokens: generated so far, over all attempts.
        output_offset: of the report in headway.worker.events that holds them, or -1 if none.
        preemptions: how often it has left so far, this time included.
    """

    kind: Literal["request-preempted.v1"] = "request-preempted.v1"
    id: str
    model: str
    attempt: int
    slot: int
    output_tokens: int
    output_offset: int
    preemptions: int


@message
class Preemption:
    """For whom a request is asked to leave, and the numbers that were compared.

    Attributes:
        for_id, for_tier: the request that lacks room: one that waits, or one that runs and has
            filled its KV blocks. It may be the one that leaves, when no other may.
        lacks: what it lacks on the replica, `blocks_needed` of KV or a place in the batch, with
            `blocks_free` and `slots_free` there now.
        tier, blocks, tokens_lost: of the one that leaves; its prompt and its tokens so far must be
            computed again.
        preemptions: how often it has left before.
        candidates: how many could have been asked on that replica, this one included.
        leaving: how many must leave in all, this one included.
    """

    for_id: str
    for_tier: Tier
    lacks: Literal["kv", "slots"]
    blocks_needed: int
    blocks_free: int
    slots_free: int
    tier: Tier
    blocks: int
    tokens_lost: int
    preemptions: int
    candidates: int
    leaving: int


@message
class LeaveAsked:
    """A running attempt is asked to leave after its current iteration.

    `preemption` says for whom, when the cause is preempted; else it is None.
    """

    kind: Literal["leave-asked.v1"] = "leave-asked.v1"
    id: str
    model: str
    slot: int
    incarnation: str
    attempt: int
    cause: Literal["cancelled", "preempted"]
    preemption: Preemption | None


@message
class RoomKept:
    """The next request lacks KV and has waited long: nothing else goes to that replica until then.

    Attributes:
        waited_us: in the queue, since it joined it last. after_us: from this wait on room is kept.
        blocks_needed: of the request. blocks_free: on the replica, now.
    """

    kind: Literal["room-kept.v1"] = "room-kept.v1"
    id: str
    model: str
    slot: int
    waited_us: int
    after_us: int
    blocks_needed: int
    blocks_free: int
