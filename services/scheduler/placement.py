"""Which waiting request fits on which replica, and what holds the others back. Pure; reads only.

First fit over the ready replicas in the order of their slots. When the first request does not fit,
others of a lower tier may have to leave for it (preemption.py), and the next few are tried
(`look_ahead_requests`), so that one large request does not hold up small ones that would fit beside
what runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from schemas.decisions import Cause, PassedOver, RoomKept, TenantHeld
from schemas.room import LeaveAsked
from services.scheduler import claims, order, preemption, quotas, reservation
from services.scheduler.state import Model, Replica, Request, State

# The causes under which a replica has a place in its batch.
_SOME_PLACE = ("kv", "quota")


@dataclass(slots=True)
class Fit:
    """A request that fits: where, with how many blocks, and which were tried before it.

    `starved` is whether it goes before requests of a higher tier.
    """

    request: Request
    replica: Replica
    reserved: reservation.Reservation
    passed_over: tuple[PassedOver, ...]
    starved: bool


@dataclass(slots=True)
class Blocked:
    """Nothing fits: the cause and the numbers compared."""

    cause: Cause
    head: str
    blocks_needed: int
    blocks_free_max: int
    replicas_ready: int
    slots_free: int


def changes_nothing(state: State, model: Model, joined: str) -> bool:
    """Return whether a request that joined a queue of which nothing fits cannot go either.

    It may where it is tried at all, if a replica has a place or others may leave for it.
    """
    if model.cause is None:
        return False
    if model.cause not in _SOME_PLACE and not preemption.possible(model, state.requests[joined]):
        return True
    return joined not in order.candidates(state, model)[0]


def find(
    state: State, model: Model, joined: str | None
) -> Fit | LeaveAsked | Blocked | Request | RoomKept | TenantHeld | None:
    """Return the next placement of a model in which something waits.

    Where no replica has a place, and all that happened since is that `joined` came, what was tried
    before is not tried again.

    Returns:
        A Fit to dispatch, the LeaveAsked by which room is made for a request of a higher tier, a
        Request that no replica of the model could ever hold, a decision that holds a tenant back or
        keeps room for the next request, Blocked, or None when nothing fits and the cause is on
        record already.
    """
    ready, open_replicas = _open(model)
    if not open_replicas:
        return _without_a_place(state, model, ready, joined)
    passed: list[Request] = []
    request_ids, starved = _tries(state, model)
    for request_id in request_ids:
        request = state.requests[request_id]
        held = quotas.to_hold(state, model, request)
        if held is not None:
            return held
        found = _first_fit(state, model, request, open_replicas, starved=request_id == starved)
        if found is not None:
            tried = _passed_over(state, model, passed, open_replicas) if passed else ()
            return Fit(request, *found, tried, request_id == starved)
        if request.prompt_tokens + request.max_output_tokens > model.pool_tokens_max:
            return request
        made = _ask(state, model, request)
        if made is None and not passed:
            made = order.keep_room(state, model, request)
        if made is not None:
            return made
        passed.append(request)
    cause: Cause = "kv" if passed else "quota"
    return None if cause == model.cause else _blocked(state, model, cause, ready, open_replicas)


def _without_a_place(
    state: State, model: Model, ready: int, joined: str | None
) -> LeaveAsked | Blocked | None:
    """Return how a place is made, where no replica has one, or what holds the queue back."""
    cause = cause_without_room(model, ready)
    request_ids: Iterable[str] = ()
    starved: str | None = None
    if joined is not None and cause == model.cause:
        request_ids = (joined,)
    elif ready and preemption.worthwhile(model):
        request_ids, starved = _tries(state, model)
    for request_id in request_ids:
        request = state.requests[request_id]
        if preemption.possible(model, request):
            if quotas.to_hold(state, model, request) is None:
                asked = preemption.ask(state, model, request, _offers(state, model, request))
                if asked is not None:
                    return asked
        elif request_id != starved:
            # Nobody leaves for those behind it either: they stand no higher.
            break
    return None if cause == model.cause else _blocked(state, model, cause, ready, [])


def _tries(state: State, model: Model) -> tuple[Iterator[str], str | None]:
    """Return the ids to try, in order, and the one of them that goes before a higher tier."""
    request_ids, starved = order.candidates(state, model)
    if model.claims or model.room is not None:
        request_ids = claims.in_order(state, model, request_ids, starved)
    return request_ids, starved


def _open(model: Model) -> tuple[int, list[Replica]]:
    """Return how many replicas take work, and those of them that have a place in their batch."""
    ready, open_replicas = 0, list[Replica]()
    for replica in model.replicas.values():
        if not replica.draining:
            ready += 1
            if len(replica.running) < replica.max_batch:
                open_replicas.append(replica)
    return ready, open_replicas


def _first_fit(
    state: State, model: Model, request: Request, open_replicas: list[Replica], *, starved: bool
) -> tuple[Replica, reservation.Reservation] | None:
    for replica in open_replicas:
        free_blocks = replica.kv_blocks - replica.blocks_used
        if request.prompt_tokens >= free_blocks * replica.block_tokens:
            continue
        if not order.is_open(state, model, request, replica):
            continue
        reserved = reservation.of(state, model, request, replica)
        if reserved.full > replica.kv_blocks or reserved.blocks > free_blocks:
            continue
        if not model.claims or claims.room(state, model, replica, request, starved=starved).holds(
            reserved.blocks
        ):
            return replica, reserved
    return None


def _ask(state: State, model: Model, request: Request) -> LeaveAsked | None:
    """Return who is to leave for a request that fits nowhere now, or None when nobody is."""
    if preemption.possible(model, request):
        return preemption.ask(state, model, request, _offers(state, model, request))
    return None


def over_every_pool(model: Model, tokens: int) -> bool:
    """Return whether no replica that ever was ready could hold `tokens` tokens of KV."""
    return bool(model.pool_tokens) and tokens > model.pool_tokens_max


def _offers(state: State, model: Model, request: Request) -> Iterator[tuple[Replica, int]]:
    """Yield the replicas that could hold the request if they were empty, and what it would get."""
    for replica in model.replicas.values():
        if not replica.draining and order.is_open(state, model, request, replica):
            reserved = reservation.of(state, model, request, replica)
            if reserved.full <= replica.kv_blocks:
                yield replica, reserved.blocks


def cause_without_room(model: Model, ready: int) -> Cause:
    """Return what holds a queue back when none of the ready replicas has a place."""
    if ready:
        return "slots"
    return "cold-start" if model.starting else "no-replica"


def _blocked(
    state: State, model: Model, cause: Cause, ready: int, open_replicas: list[Replica]
) -> Blocked:
    head = state.requests[model.queue.head()]
    compared = _passed_over(state, model, [head], open_replicas)
    return Blocked(
        cause=cause,
        head=head.id,
        blocks_needed=compared[0].blocks_needed if compared else 0,
        blocks_free_max=compared[0].blocks_free_max if compared else 0,
        replicas_ready=ready,
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
