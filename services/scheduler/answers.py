"""What a fact asks for, answered: one decision for each thing it brought. Pure; reads only.

Each answer takes the thing at the head of `state.pending`; evolving the decision removes it. The
one exception is a new life of a replica in a slot that another holds: the old one is lost first.
"""

from collections.abc import Callable
from typing import Any

from schemas import decisions as d
from schemas import facts as f
from schemas.batch_facts import JobControlAsked, JobItemsArrived, JobSubmitted
from schemas.decisions import Decision
from schemas.ids import cell_of
from schemas.policy import Policy
from services.scheduler import carried, door, ends, offline_door, offline_memory
from services.scheduler.state import AttemptGone, Model, Pending, Request, State


def answer(policy: Policy, state: State, pending: Pending) -> Decision:
    """Return the decision that answers `pending`."""
    if isinstance(pending, tuple):
        return _report(policy, state, *pending)
    return _ANSWERS[type(pending)](policy, state, pending)


def _arrived(policy: Policy, state: State, fact: f.RequestArrived) -> Decision:
    model = state.models.get(fact.model)
    not_here = _not_to_run(policy, state, fact, model)
    if not_here is not None:
        return not_here
    if model is None:
        known = ", ".join(sorted(state.models)) or "none"
        detail = f"no model is named {fact.model!r}; known models: {known}"
        return ends.at_the_door(
            policy, state, fact, outcome="rejected", reason="unknown-model", detail=detail
        )
    return door.answer(policy, state, model, fact)


def _refused(policy: Policy, state: State, fact: f.RequestRefused) -> Decision:
    not_here = _not_to_run(policy, state, fact, state.models.get(fact.model))
    if not_here is not None:
        return not_here
    return ends.at_the_door(
        policy, state, fact, outcome="rejected", reason="bad-field", detail=fact.detail
    )


def _elsewhere(
    state: State, fact: f.RequestArrived | f.RequestRefused, model: Model | None
) -> Decision | None:
    """Return the routing to the cell that owns the model, unless it is this one or was routed."""
    if fact.routed_by is not None or not fact.model:
        return None
    owner = model.owner_cell if model else cell_of(fact.model, state.cells)
    if owner == state.cell:
        return None
    return d.RequestRouted(
        id=fact.id,
        model=fact.model,
        to_cell=owner,
        arrived_us=fact.arrived_us,
        offset=fact.offset,
    )


def _not_to_run(
    policy: Policy, state: State, fact: f.RequestArrived | f.RequestRefused, model: Model | None
) -> Decision | None:
    """Return the answer to a request that is not this cell's to judge, or that it knows."""
    elsewhere = _elsewhere(state, fact, model)
    if elsewhere is not None:
        return elsewhere
    ignored = offline_door.answer_item(state, fact)
    if ignored is not None:
        return ignored
    if offline_door.is_cancelled_item(state, fact.id):
        detail = "its job was cancelled before it reached the cell"
        return ends.at_the_door(
            policy, state, fact, outcome="cancelled", reason="cancel-asked", detail=detail
        )
    ended = fact.id in state.ended and not offline_memory.of_job(state, fact.id)
    return _duplicate(state, fact) if ended or fact.id in state.requests else None


def _duplicate(state: State, fact: f.RequestArrived | f.RequestRefused) -> Decision:
    request = state.requests.get(fact.id)
    if request is None:
        ended = state.ended[fact.id]
        same_body = ended.body_digest == fact.body_digest
        return d.DuplicateIgnored(
            id=fact.id,
            model=fact.model,
            same_body=same_body,
            stage="ended",
            answer="recalled" if same_body else "refused",
            outcome=ended.outcome if same_body else None,
            reason=ended.reason if same_body else None,
            ended_us=ended.ended_us if same_body else None,
            output_offset=ended.output_offset if same_body else -1,
            offset=fact.offset,
        )
    same_body = request.body_digest == fact.body_digest
    return d.DuplicateIgnored(
        id=fact.id,
        model=fact.model,
        same_body=same_body,
        stage="running" if request.stage == "running" else "waiting",
        answer="attached" if same_body else "refused",
        outcome=None,
        reason=None,
        ended_us=None,
        output_offset=-1,
        offset=fact.offset,
    )


def _unreadable(_policy: Policy, _state: State, fact: f.MessageUnreadable) -> Decision:
    return d.MessageDeadLettered(
        topic=fact.topic, partition=fact.partition, offset=fact.offset, reason=fact.reason
    )


def _cancel(policy: Policy, state: State, fact: f.CancelAsked) -> Decision:
    request = state.requests.get(fact.id)
    if request is not None:
        if request.stage != "running":
            return ends.cancelled(policy, state, request)
        if request.leaving == "cancelled":
            return d.CancelIgnored(id=fact.id, why="already-asked")
        return d.LeaveAsked(
            id=request.id,
            model=request.model,
            slot=request.slot,
            incarnation=request.incarnation,
            attempt=request.attempt,
            cause="cancelled",
            preemption=None,
        )
    if fact.id in state.ended:
        return d.CancelIgnored(id=fact.id, why="ended")
    owner = -1 if fact.model is None else cell_of(fact.model, state.cells)
    if fact.routed_by is not None or owner == state.cell or state.cells == 1:
        return d.CancelIgnored(id=fact.id, why="unknown")
    return d.RequestRouted(
        id=fact.id, model=fact.model, to_cell=owner, arrived_us=fact.at_us, offset=fact.offset
    )


def _ready(_policy: Policy, state: State, fact: f.ReplicaReady) -> Decision:
    model = state.models.get(fact.model)
    if model is None:
        return _turned_away(fact, rejoin=True, why=f"no profile of {fact.model} is known yet")
    if fact.slot >= model.profile.work_slots:
        why = f"slot {fact.slot} does not exist: {fact.model} has {model.profile.work_slots}"
        return _turned_away(fact, rejoin=False, why=why)
    holder = model.replicas.get(fact.slot)
    if holder is not None:
        return d.ReplicaLost(
            model=fact.model,
            slot=fact.slot,
            incarnation=holder.incarnation,
            why="replaced",
            silent_us=state.now_us - state.heard[fact.model, fact.slot],
            running=len(holder.running),
        )
    return d.ReplicaAdmitted(
        model=fact.model,
        slot=fact.slot,
        incarnation=fact.incarnation,
        kv_blocks=fact.kv_blocks,
        max_batch=fact.max_batch,
    )


def _stranger(_policy: Policy, state: State, fact: f.ReplicaHeartbeat) -> Decision:
    model = state.models.get(fact.model)
    if model is not None and fact.slot in model.replicas:
        why = f"another life of {fact.model}/{fact.slot} holds the slot"
        return _turned_away(fact, rejoin=False, why=why)
    why = f"{fact.model}/{fact.slot} counts as lost; its work was given to others"
    return _turned_away(fact, rejoin=True, why=why)


def _turned_away(
    fact: f.ReplicaReady | f.ReplicaHeartbeat, *, rejoin: bool, why: str
) -> d.ReplicaTurnedAway:
    return d.ReplicaTurnedAway(
        model=fact.model, slot=fact.slot, incarnation=fact.incarnation, rejoin=rejoin, why=why
    )


def _stopped(_policy: Policy, state: State, fact: f.ReplicaStopped) -> Decision:
    replica = state.models[fact.model].replicas[fact.slot]
    return d.ReplicaLost(
        model=fact.model,
        slot=fact.slot,
        incarnation=fact.incarnation,
        why="stopped",
        silent_us=0,
        running=len(replica.running),
    )


def _report(
    policy: Policy, state: State, item: f.WorkDone | f.WorkDeparture, offset: int
) -> Decision:
    request = state.requests[item.id]
    if isinstance(item, f.WorkDone):
        return ends.completed(policy, state, request, item, offset)
    if request.leaving == "cancelled" or item.cause == "cancelled":
        return ends.cancelled(policy, state, request, item, offset)
    output_tokens, output_offset = carried.output_of(request, item.usage, offset)
    return d.RequestPreempted(
        id=request.id,
        model=request.model,
        attempt=request.attempt,
        slot=request.slot,
        output_tokens=output_tokens,
        output_offset=output_offset if output_tokens else -1,
        preemptions=request.preemptions + 1,
    )


def _fault(policy: Policy, state: State, item: f.WorkFault) -> Decision:
    request = state.requests[item.id]
    if not item.retryable:
        return ends.failed(policy, state, request, "worker-error", item.reason)
    return _lost(policy, state, request, item.reason)


def _gone(policy: Policy, state: State, gone: AttemptGone) -> Decision:
    request = state.requests[gone.id]
    return _lost(policy, state, request, gone.why)


def _lost(policy: Policy, state: State, request: Request, why: str) -> Decision:
    if request.leaving == "cancelled":
        return ends.cancelled(policy, state, request)
    losses = request.losses + 1
    settings = state.settings.at(request.model, request.tier, request.tenant)
    if losses >= settings.attempts_max:
        detail = f"lost all {losses} attempts; the last one: {why}"
        return ends.failed(policy, state, request, "attempts-exhausted", detail)
    steps = policy.retry_backoff_ms
    backoff_ms = steps[min(losses, len(steps)) - 1]
    return d.AttemptLost(
        id=request.id,
        model=request.model,
        attempt=request.attempt,
        slot=request.slot,
        why=why,
        losses=losses,
        backoff_ms=backoff_ms,
        retry_at_us=state.now_us + backoff_ms * 1000,
    )


_ANSWERS: dict[type, Callable[[Policy, State, Any], Decision]] = {
    f.RequestArrived: _arrived,
    f.RequestRefused: _refused,
    f.MessageUnreadable: _unreadable,
    f.CancelAsked: _cancel,
    JobSubmitted: offline_door.answer,
    JobItemsArrived: offline_door.answer,
    JobControlAsked: offline_door.answer,
    f.ReplicaReady: _ready,
    f.ReplicaHeartbeat: _stranger,
    f.ReplicaStopped: _stopped,
    f.WorkFault: _fault,
    AttemptGone: _gone,
}
