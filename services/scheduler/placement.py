"""Which waiting request fits on which replica, and what holds the others back. Pure; reads only.

First fit over the ready replicas in the order of their slots. When the first request does not fit,
others of a lower tier may have to leave for it (preemption.py), and the next few are tried
(`look_ahead_requests`), so that one large request does not hold up small ones that would fit beside
what runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.decisions import Cause, LeaveAsked, PassedOver
from services.scheduler import claims, preemption, reservation
from services.scheduler.state import Model, Replica, Request, State


@dataclass(slots=True)
class Fit:
    """A request that fits: where, with how many blocks, and which were tried before it."""

    request: Request
    replica: Replica
    reserved: reservation.Reservation
    passed_over: tuple[PassedOver, ...]


@dataclass(slots=True)
class Blocked:
    """Nothing fits: the cause and the numbers compared."""

    cause: Cause
    head: str
    blocks_needed: int
    blocks_free_max: int
    replicas_ready: int
    slots_free: int


def find(state: State, model: Model) -> Fit | LeaveAsked | Blocked | Request | None:
    """Return the next placement of a model in which something waits.

    Returns:
        A Fit to dispatch, the LeaveAsked by which room is made for a request of a higher tier, a
        Request that no replica of the model could ever hold, Blocked, or None when nothing fits
        and the cause is on record already.
    """
    ready = [replica for replica in model.replicas.values() if not replica.draining]
    open_replicas = [replica for replica in ready if len(replica.running) < replica.max_batch]
    if not open_replicas and not any(model.yielding):
        cause = _cause_without_room(model, ready)
        return None if cause == model.cause else _blocked(state, model, cause, ready, [])
    passed: list[Request] = []
    look_ahead = state.settings.at(model.profile.model).look_ahead_requests
    for request_id in claims.in_order(state, model, look_ahead):
        request = state.requests[request_id]
        tokens = request.prompt_tokens + request.max_output_tokens
        for replica in open_replicas:
            reserved = reservation.of(state, model, request, replica)
            room = claims.room(state, model, replica, request)
            if reserved.full <= replica.kv_blocks and room.holds(reserved.blocks):
                tried = _passed_over(state, model, passed, open_replicas)
                return Fit(request, replica, reserved, tried)
        if ready and tokens > model.pool_tokens_max:
            return request
        if preemption.possible(model, request):
            asked = preemption.ask(state, model, request, _offers(state, model, request, ready))
            if asked is not None:
                return asked
        passed.append(request)
    cause = "kv" if open_replicas else _cause_without_room(model, ready)
    return None if cause == model.cause else _blocked(state, model, cause, ready, open_replicas)


def over_every_pool(model: Model, tokens: int) -> bool:
    """Return whether no replica that ever was ready could hold `tokens` tokens of KV."""
    return bool(model.pool_tokens) and tokens > model.pool_tokens_max


def _offers(
    state: State, model: Model, request: Request, ready: list[Replica]
) -> Iterator[tuple[Replica, int]]:
    """Yield the replicas that could hold the request if they were empty, and what it would get."""
    for replica in ready:
        reserved = reservation.of(state, model, request, replica)
        if reserved.full <= replica.kv_blocks:
            yield replica, reserved.blocks


def _cause_without_room(model: Model, ready: list[Replica]) -> Cause:
    if ready:
        return "slots"
    return "cold-start" if model.starting else "no-replica"


def _blocked(
    state: State, model: Model, cause: Cause, ready: list[Replica], open_replicas: list[Replica]
) -> Blocked:
    head = state.requests[next(model.queue.first(1))]
    compared = _passed_over(state, model, [head], open_replicas)
    return Blocked(
        cause=cause,
        head=head.id,
        blocks_needed=compared[0].blocks_needed if compared else 0,
        blocks_free_max=compared[0].blocks_free_max if compared else 0,
        replicas_ready=len(ready),
        slots_free=sum(r.max_batch - len(r.running) for r in open_replicas),
    )


def _passed_over(
    state: State, model: Model, requests: list[Request], open_replicas: list[Replica]
) -> tuple[PassedOver, ...]:
    """Return what was compared for requests that did not fit, in blocks of the first replica."""
    if not requests or not open_replicas:
        return ()
    free_max = max(r.kv_blocks - r.blocks_used for r in open_replicas)
    return tuple(
        PassedOver(
            id=request.id,
            blocks_needed=reservation.of(state, model, request, open_replicas[0]).blocks,
            blocks_free_max=free_max,
        )
        for request in requests
    )
