"""Which waiting request fits on which replica, and what holds the others back. Pure; reads only.

First fit over the ready replicas in the order of their slots. When the first request does not fit,
the next few are tried (`look_ahead_requests`), so that one large request does not hold up small
ones that would fit beside what runs.
"""

from dataclasses import dataclass

from schemas.decisions import Cause, PassedOver
from schemas.policy import Policy
from services.scheduler.state import Model, Replica, Request, State


@dataclass(slots=True)
class Fit:
    """A request that fits: where, how many blocks, and which ones were tried before it."""

    request: Request
    replica: Replica
    blocks: int
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


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return the KV blocks that `tokens` tokens take: rounded up."""
    return -(-tokens // block_tokens)


def find(policy: Policy, state: State, model: Model) -> Fit | Blocked | Request:
    """Return the next placement of a model in which something waits.

    Returns:
        A Fit to dispatch, a Request that no replica of the model could ever hold, or Blocked.
    """
    ready = [r for r in model.replicas.values() if not r.draining]
    open_replicas = [r for r in ready if len(r.running) < r.max_batch]
    free_max = max((r.kv_blocks - r.blocks_used for r in open_replicas), default=0)
    passed: list[PassedOver] = []
    head: Request | None = None
    for request_id in model.queue.first(policy.look_ahead_requests):
        request = state.requests[request_id]
        if head is None:
            head = request
            if not open_replicas:
                break
        tokens = request.prompt_tokens + request.max_output_tokens
        if over_every_pool(model, tokens):
            return request
        for replica in open_replicas:
            blocks = blocks_for(tokens, replica.block_tokens)
            if blocks <= replica.kv_blocks - replica.blocks_used:
                return Fit(request, replica, blocks, tuple(passed))
        needed = blocks_for(tokens, open_replicas[0].block_tokens)
        passed.append(PassedOver(id=request_id, blocks_needed=needed, blocks_free_max=free_max))
    assert head is not None, "find is only asked about models in which something waits"  # noqa: S101 - a bound of the algorithm, not input
    return Blocked(
        cause=_cause(model, ready, open_replicas),
        head=head.id,
        blocks_needed=passed[0].blocks_needed if passed else 0,
        blocks_free_max=free_max,
        replicas_ready=len(ready),
        slots_free=sum(r.max_batch - len(r.running) for r in open_replicas),
    )


def over_every_pool(model: Model, tokens: int) -> bool:
    """Return whether no replica that ever was ready could hold `tokens` tokens of KV."""
    return bool(model.pool_tokens) and tokens > max(model.pool_tokens.values())


def _cause(model: Model, ready: list[Replica], open_replicas: list[Replica]) -> Cause:
    if open_replicas:
        return "kv"
    if ready:
        return "slots"
    return "cold-start" if model.starting else "no-replica"
