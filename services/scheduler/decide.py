"""The next thing to do now, or None. Pure; reads the state and the policy, changes neither.

The order is a rule: first what the last fact asks for, then what time makes due (returns, then
deadlines, then silent replicas, then batch windows), then dispatch in the models that were touched,
the cause that holds a queue back, if it has changed, and last offline jobs, which take what is
left. So a request never dispatches past its deadline, and a blocked queue has its cause on record
before the step ends.

A step ends early when its decisions fill an entry (see State.step_bytes): thousands of deadlines
may pass at once, or a replica may take thousands of requests with it, and an entry that no ledger
record can hold would end the cell. The next fact, a tick at the latest, goes on where it ended.
"""

from schemas import decisions as d
from schemas.batches import BatchPlace
from schemas.decisions import Decision
from schemas.policy import Policy
from services.scheduler import answers, ends, offline, placement, reservation, windows
from services.scheduler.state import STEP_BYTES_MAX, Model, Request, State, cut_short
from services.scheduler.waits import as_waits, waited_us

# A cell that hears nothing for half of replica_lost_ms cannot tell its own deafness from a
# replica's silence (see evolve.time_passed). So when nothing else happens it asks for a tick
# after 0.4 of it: that leaves the tick a tenth to be late.
_LISTENING_US_PER_MS = 400


def decide(policy: Policy, state: State) -> Decision | None:
    """Return the next decision, or None when everything that can be decided now is decided."""
    if state.forming is not None:
        # A batch leaves whole, or its worker would wait for the rest of it.
        return _dispatch(state, *windows.next_member(state, state.forming))
    if state.step_bytes >= STEP_BYTES_MAX:
        return None
    if state.pending:
        return answers.answer(policy, state, state.pending[0])
    overdue = _overdue(policy, state)
    if overdue is not None:
        return overdue
    for name, joined in state.touched.items():
        model = state.models[name]
        decision: Decision | None = None
        if model.growing:
            decision = reservation.grow(state, model)
        if decision is None and model.queue.waiting:
            decision = _place(policy, state, model, joined)
        if decision is not None:
            return decision
    return offline.decide(state)


def _overdue(policy: Policy, state: State) -> Decision | None:
    """Return the next decision that time alone asks for."""
    now_us = state.now_us
    if state.retries and state.retries[0][0] <= now_us:
        request = state.requests[state.retries[0][2]]
        return d.RequestReturned(id=request.id, model=request.model, attempt=request.attempt)
    if state.deadlines and state.deadlines[0][0] <= now_us:
        return ends.expired(policy, state, state.requests[state.deadlines[0][2]])
    if state.heard and _loss_due_us(policy, state) <= now_us:
        return _silent_replica(state)
    if state.starts and _start_due_us(policy, state) <= now_us:
        return _never_ready(state)
    if state.windows and state.windows[0][0] <= now_us:
        return _place(policy, state, state.models[state.windows[0][1]])
    return None


def next_due_us(policy: Policy, state: State) -> int | None:
    """Return when time alone would change the answer, or None if it never would.

    While a replica is known, that is never far away: the cell must go on listening, or the
    silence of its only replica would be taken for its own. What a step left over is due at once.
    """
    if cut_short(state):
        return state.now_us
    due: list[int] = []
    if state.retries:
        due.append(state.retries[0][0])
    if state.deadlines:
        due.append(state.deadlines[0][0])
    if state.windows:
        due.append(state.windows[0][0])
    if state.starving:
        due.append(state.starving[0][0])
    if state.starts:
        due.append(_start_due_us(policy, state))
    if state.heard:
        due.append(_loss_due_us(policy, state))
        due.append(state.now_us + policy.replica_lost_ms * _LISTENING_US_PER_MS)
    idle_us = offline.due_us(state)
    if idle_us is not None:
        due.append(idle_us)
    return min(due, default=None)


def _loss_due_us(policy: Policy, state: State) -> int:
    heard_us = next(iter(state.heard.values()))
    return max(heard_us, state.blind_until_us) + policy.replica_lost_ms * 1000


def _silent_replica(state: State) -> Decision:
    (name, slot), heard_us = next(iter(state.heard.items()))
    replica = state.models[name].replicas[slot]
    return d.ReplicaLost(
        model=name,
        slot=slot,
        incarnation=replica.incarnation,
        why="silent",
        silent_us=state.now_us - heard_us,
        running=len(replica.running),
    )


def _start_due_us(policy: Policy, state: State) -> int:
    return next(iter(state.starts.values())) + policy.cold_start_max_ms * 1000


def _never_ready(state: State) -> Decision:
    (name, slot), since_us = next(iter(state.starts.items()))
    return d.ReplicaLost(
        model=name,
        slot=slot,
        incarnation=state.models[name].starting[slot],
        why="never-ready",
        silent_us=state.now_us - since_us,
        running=0,
    )


def _place(
    policy: Policy, state: State, model: Model, joined: str | None = None
) -> Decision | None:
    if model.batching is not None:
        found = windows.find(state, model, model.batching)
    elif joined is not None and placement.changes_nothing(state, model, joined):
        return None
    else:
        found = placement.find(state, model, joined)
    if isinstance(found, placement.Fit):
        return _dispatch(state, model, found)
    if isinstance(found, Request):
        return ends.over_pool(policy, state, found)
    if not isinstance(found, placement.Blocked):
        return found
    return d.QueueBlocked(
        model=model.profile.model,
        cause=found.cause,
        head=found.head,
        waiting=model.queue.waiting,
        blocks_needed=found.blocks_needed,
        blocks_free_max=found.blocks_free_max,
        replicas_ready=found.replicas_ready,
        slots_free=found.slots_free,
    )


def _dispatch(
    state: State, model: Model, fit: placement.Fit, batch: BatchPlace | None = None
) -> d.RequestDispatched:
    request, replica = fit.request, fit.replica
    waited = waited_us(request, model, state.now_us)
    settings = state.settings.at(request.model, request.tier, request.tenant)
    return d.RequestDispatched(
        request.id,
        request.model,
        request.tenant,
        request.tier,
        replica.slot,
        replica.incarnation,
        request.attempt + 1,
        fit.reserved.blocks,
        replica.kv_blocks - replica.blocks_used,
        len(replica.running),
        sum(waited),
        as_waits(waited),
        fit.passed_over,
        fit.starved,
        request.prompt_tokens * settings.fair_prompt_token_cost
        + request.max_output_tokens * settings.fair_output_token_cost,
        settings.fair_weight,
        settings.fair_quantum,
        request.offset,
        request.max_output_tokens,
        request.prompt_tokens,
        ends.seed_of(request.id),
        fit.reserved.full,
        fit.reserved.samples,
        replica.dispatches + 1,
        request.kept_tokens,
        request.kept_offset,
        batch,
    )
