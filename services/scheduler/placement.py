"""Which waiting request fits on which replica, and what holds the others back. Pure; reads only.

First fit over the ready replicas in the order of their slots. When the first request does not fit,
the next few are tried (`look_ahead_requests`), so that one large request does not hold up small
ones that would fit beside what runs.
"""

from dataclasses import dataclass

from schemas.decisions import Cause, PassedOver, RoomKept, TenantHeld
from services.scheduler import order, quotas
from services.scheduler.state import Model, Replica, Request, State


@dataclass(slots=True)
class Fit:
    """A request that fits: where, how many blocks, and which ones were tried before it.

    `starved` is whether it goes before requests of a higher tier.
    """

    request: Request
    replica: Replica
    blocks: int
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


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return the KV blocks that `tokens` tokens take: rounded up."""
    return -(-tokens // block_tokens)


def find(state: State, model: Model) -> Fit | Blocked | Request | RoomKept | TenantHeld | None:
    """Return the next placement of a model in which something waits.

    Returns:
        A Fit to dispatch, a Request that no replica of the model could ever hold, a decision that
        holds a tenant back or keeps room for the next request, Blocked, or None when nothing fits
        and the cause is on record already.
    """
    ready, open_replicas = _open(model)
    if not open_replicas:
        cause = cause_without_room(model, ready)
        return None if cause == model.cause else _blocked(state, model, cause, ready, [])
    free_tokens_max = max([_free_tokens(replica) for replica in open_replicas])
    passed: list[Request] = []
    request_ids, starved = order.candidates(state, model)
    for request_id in request_ids:
        request = state.requests[request_id]
        held = quotas.to_hold(state, model, request)
        if held is not None:
            return held
        tokens = request.prompt_tokens + request.max_output_tokens
        if tokens <= free_tokens_max:
            replica = _first_fit(state, model, request, open_replicas)
            if replica is not None:
                blocks = blocks_for(tokens, replica.block_tokens)
                tried = _passed_over(passed, open_replicas)
                return Fit(request, replica, blocks, tried, request_id == starved)
        elif tokens > model.pool_tokens_max:
            return request
        if not passed:
            kept = order.keep_room(state, model, request)
            if kept is not None:
                return kept
        passed.append(request)
    cause = "kv" if passed else "quota"
    return None if model.cause == cause else _blocked(state, model, cause, ready, open_replicas)


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
    state: State, model: Model, request: Request, open_replicas: list[Replica]
) -> Replica | None:
    tokens = request.prompt_tokens + request.max_output_tokens
    for replica in open_replicas:
        if tokens <= _free_tokens(replica) and order.is_open(state, model, request, replica):
            return replica
    return None


def over_every_pool(model: Model, tokens: int) -> bool:
    """Return whether no replica that ever was ready could hold `tokens` tokens of KV."""
    return bool(model.pool_tokens) and tokens > model.pool_tokens_max


def _free_tokens(replica: Replica) -> int:
    return (replica.kv_blocks - replica.blocks_used) * replica.block_tokens


def cause_without_room(model: Model, ready: int) -> Cause:
    """Return what holds a queue back when none of the ready replicas has a place."""
    if ready:
        return "slots"
    return "cold-start" if model.starting else "no-replica"


def _blocked(
    state: State, model: Model, cause: Cause, ready: int, open_replicas: list[Replica]
) -> Blocked:
    head = state.requests[model.queue.head()]
    compared = _passed_over([head], open_replicas)
    return Blocked(
        cause=cause,
        head=head.id,
        blocks_needed=compared[0].blocks_needed if compared else 0,
        blocks_free_max=compared[0].blocks_free_max if compared else 0,
        replicas_ready=ready,
        slots_free=sum(r.max_batch - len(r.running) for r in open_replicas),
    )


def _passed_over(requests: list[Request], open_replicas: list[Replica]) -> tuple[PassedOver, ...]:
    """Return what was compared for requests that did not fit, in blocks of the first replica."""
    if not requests or not open_replicas:
        return ()
    free_max = max(r.kv_blocks - r.blocks_used for r in open_replicas)
    return tuple(
        PassedOver(
            id=request.id,
            blocks_needed=blocks_for(
                request.prompt_tokens + request.max_output_tokens, open_replicas[0].block_tokens
            ),
            blocks_free_max=free_max,
        )
        for request in requests
    )
