"""In which order the waiting requests of a model are tried, and for whom room is kept. Pure.

The seam between who is next (here) and where it fits (placement): placement asks for the candidates
in order, asks of each replica whether it is open to a candidate, and says when the first of them
does not fit, so that one that has waited long is not passed by for ever. Reads only.
"""

from collections.abc import Iterator
from itertools import chain

from schemas import decisions as d
from services.scheduler import starvation
from services.scheduler.queue import RANKS
from services.scheduler.state import Model, Replica, Request, State


def candidates(
    state: State, model: Model, count: int | None = None
) -> tuple[Iterator[str], str | None]:
    """Return the ids to try, in order, and the one of them that goes before a higher tier.

    They are at most `count`, or as many as the policy looks at for a dispatch.
    """
    if count is None:
        count = state.settings.at(model.profile.model).look_ahead_requests
    starved = starvation.starved(state, model)
    if starved is None:
        return model.queue.first(count), None
    first = next(starved.first(1))
    others = (request_id for request_id in model.queue.first(count) if request_id != first)
    return chain((first,), others), first


def is_open(state: State, model: Model, request: Request, replica: Replica) -> bool:
    """Return whether a replica's free room may go to the request: room kept for another may not.

    A higher tier still may, until the one that it is kept for has reached its starvation cap; and
    anybody while the tenant of that one is held back.
    """
    room = model.room
    if room is None or replica.slot != room.slot or request.id == room.id:
        return True
    kept_for = state.requests[room.id]
    if model.accounts[kept_for.tenant].held:
        return True
    if RANKS[request.line] >= RANKS[kept_for.line]:
        return False
    cap_us = starvation.cap_us(state, kept_for.model, kept_for.tier)
    return state.now_us - kept_for.since_us < cap_us


def keep_room(state: State, model: Model, request: Request) -> d.RoomKept | None:
    """Return that room is kept from now on for the next request, which fits nowhere, or None.

    The replica is the one with the most free KV of those whose pool is large enough: it will have
    room first, if all end alike. For an item of an offline job none is kept.
    """
    if model.room is not None or request.of_job:
        return None
    name = model.profile.model
    settings = state.settings.at(name, request.tier)
    after_us = settings.starvation_cap_ms * settings.room_kept_after_pct * 10
    waited_us = state.now_us - request.since_us
    if waited_us < after_us:
        return None
    tokens = request.prompt_tokens + request.max_output_tokens
    replicas = [
        replica
        for replica in model.replicas.values()
        if not replica.draining and tokens <= replica.kv_blocks * replica.block_tokens
    ]
    if not replicas:
        return None
    replica = max(replicas, key=_free_tokens)
    return d.RoomKept(
        id=request.id,
        model=name,
        slot=replica.slot,
        waited_us=waited_us,
        after_us=after_us,
        blocks_needed=-(-tokens // replica.block_tokens),
        blocks_free=replica.kv_blocks - replica.blocks_used,
    )


def _free_tokens(replica: Replica) -> int:
    return (replica.kv_blocks - replica.blocks_used) * replica.block_tokens
