"""How many KV blocks a request gets when it starts, and how it gets more. Pure; reads only.

`full` reserves the prompt and all the output that a request may have, so it never needs more.
`quantile` reserves the output that is likely by what was seen (lengths.py), and more is given a few
blocks at a time when the worker says that they are nearly full. All of it is decided here: a worker
takes no block that was not reserved for it, and one whose blocks are full pauses. So what is
reserved is never less than what is used, and never more than the pool, at every decision.

No two wait for each other's blocks. A request starts only where all it may ever need would fit.
When none is left, the youngest of the lowest tier on that replica leaves, the one that asks itself
if no younger or lower one may; it goes on later from its tokens. So the oldest of the highest tier
always gets on, ends, and gives its room to the next. Once it has left as often as it may, all is
reserved for it, so it never asks again.
"""

from typing import NamedTuple

from schemas.room import LeaveAsked, Preemption, ReservationGrown
from services.scheduler.claims import blocks_for, room_for_growth
from services.scheduler.preemption import tokens_lost
from services.scheduler.queue import RANKS
from services.scheduler.state import Model, Replica, Request, State


class Reservation(NamedTuple):
    """KV blocks for a request on a replica: to start with, and in full; from how many samples."""

    blocks: int
    full: int
    samples: int


def of(state: State, model: Model, request: Request, replica: Replica) -> Reservation:
    """Return what `request` gets when it starts on `replica`."""
    full = blocks_for(request.prompt_tokens + request.max_output_tokens, replica.block_tokens)
    policy = state.settings.at(request.model, request.tier, request.tenant)
    if (
        policy.reservation == "full"
        or not request.preemptible
        or request.preemptions >= policy.preemptions_max
    ):
        return Reservation(full, full, 0)
    expected = model.lengths.expected(
        request.tenant,
        policy.reservation_quantile_pct,
        beyond=request.kept_tokens,
        samples_min=policy.reservation_samples_min,
    )
    if expected is None:
        return Reservation(full, full, 0)
    output_tokens = -(-expected.tokens * (100 + policy.reservation_margin_pct) // 100)
    # One more than it has already, or it could not even begin.
    output_tokens = max(output_tokens, request.kept_tokens + 1)
    likely = blocks_for(request.prompt_tokens + output_tokens, replica.block_tokens)
    return Reservation(min(likely, full), full, expected.samples)


def grow(state: State, model: Model) -> ReservationGrown | LeaveAsked | None:
    """Return what is done next for those of the model's running requests that ask for blocks."""
    asking = [state.requests[request_id] for request_id in model.growing]
    asking.sort(key=_order)
    for request in asking:
        replica = model.replicas[request.slot]
        policy = state.settings.at(request.model, request.tier, request.tenant)
        wanted = min(policy.reservation_growth_blocks, request.blocks_full - request.blocks)
        free = room_for_growth(state, model, replica, request)
        if free > 0:
            return _grown(request, replica, request.blocks + min(wanted, free))
        if not replica.leaving:
            return _make_room(state, request, replica, wanted)
    return None


def _order(request: Request) -> tuple[int, int]:
    """Return the key by which requests are given more: the oldest of the highest tier first."""
    return RANKS[request.line], request.order


def _grown(request: Request, replica: Replica, blocks: int) -> ReservationGrown:
    return ReservationGrown(
        id=request.id,
        model=request.model,
        slot=request.slot,
        incarnation=request.incarnation,
        attempt=request.attempt,
        output_tokens=request.output_tokens,
        blocks=blocks,
        blocks_before=request.blocks,
        blocks_full=request.blocks_full,
        blocks_free=replica.kv_blocks - replica.blocks_used,
    )


def _make_room(state: State, request: Request, replica: Replica, wanted: int) -> LeaveAsked:
    """Return who leaves so that a running request can go on: the last in the order of growth."""
    running = [state.requests[request_id] for request_id in replica.running]
    candidates = [
        other
        for other in running
        if other is request or (_order(other) > _order(request) and other.yielding)
    ]
    victim = max(candidates, key=_order)
    return LeaveAsked(
        id=victim.id,
        model=victim.model,
        slot=victim.slot,
        incarnation=victim.incarnation,
        attempt=victim.attempt,
        cause="preempted",
        preemption=Preemption(
            for_id=request.id,
            for_tier=request.tier,
            lacks="kv",
            blocks_needed=wanted,
            blocks_free=replica.kv_blocks - replica.blocks_used,
            slots_free=replica.max_batch - len(replica.running),
            tier=victim.tier,
            blocks=victim.blocks,
            tokens_lost=tokens_lost(victim),
            preemptions=victim.preemptions,
            candidates=len(candidates),
            leaving=1,
        ),
    )
