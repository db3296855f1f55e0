"""Remember one thing: a fact that happened, or a decision that was taken. Pure; never judges.

Live scheduling, recovery and replay all come through here, so what is remembered of a decision may
depend on the decision and the state only, never on what the policy says now.
"""

from collections.abc import Callable
from typing import Any

from schemas import decisions as d
from schemas import facts as f
from schemas.decisions import Decision
from schemas.facts import Fact
from schemas.ids import cell_of
from schemas.policy import policy_digest
from schemas.policy_scope import Settings
from services.scheduler import carried, due, offline_memory, running
from services.scheduler.hearing import current, hear, time_passed
from services.scheduler.state import (
    CAUSE_INDEX,
    AttemptGone,
    Ended,
    Model,
    Replica,
    Request,
    State,
)
from services.scheduler.waits import BACKOFF, TRANSIT


def evolve(state: State, event: Fact | Decision) -> None:
    """Remember `event`.

    Raises:
        KeyError: the event's kind is not known, or a decision names what the state does not hold;
            the ledger and this code do not belong together.
    """
    _EVOLVE[type(event)](state, event)
    state.step_bytes += _EVENT_BYTES


# About how long a decision is in the ledger, and a character of a producer's metadata at worst.
_EVENT_BYTES = 1024
_METADATA_CHAR_BYTES = 6


# Facts


def _took_over(state: State, fact: f.OwnerTookOver) -> None:
    time_passed(state, fact.at_us)
    state.cell, state.cells, state.epoch = fact.cell, fact.cells, fact.epoch
    for name, model in state.models.items():
        model.owner_cell = cell_of(name, fact.cells)
    state.blind_until_us = state.now_us


def _policy_activated(state: State, fact: f.PolicyActivated) -> None:
    time_passed(state, fact.at_us)
    state.policy = fact.policy
    state.settings = Settings(fact.policy)
    state.policy_digest = policy_digest(fact.policy)
    state.touched.update(dict.fromkeys(state.models))


def _profile_set(state: State, fact: f.ProfileSet) -> None:
    time_passed(state, fact.at_us)
    name = fact.profile.model
    model = state.models.get(name)
    if model is None:
        state.models[name] = Model(fact.profile, cell_of(name, state.cells))
    else:
        model.profile = fact.profile
        state.touched[name] = None


def _ticked(state: State, fact: f.ClockTicked) -> None:
    time_passed(state, fact.at_us)


Asking = f.RequestArrived | f.RequestRefused | f.CancelAsked | f.MessageUnreadable


def _asked(state: State, fact: Asking) -> None:
    time_passed(state, fact.at_us)
    state.pending.append(fact)


def _replica_starting(state: State, fact: f.ReplicaStarting) -> None:
    time_passed(state, fact.at_us)
    model = state.models.get(fact.model)
    if model is None or hear(state, fact):
        # One that is ready already says again that it began: its report came twice.
        return
    model.starting[fact.slot] = fact.incarnation
    state.touched[fact.model] = None


def _replica_ready(state: State, fact: f.ReplicaReady) -> None:
    time_passed(state, fact.at_us)
    if not hear(state, fact):
        state.pending.append(fact)


def _heartbeat(state: State, fact: f.ReplicaHeartbeat) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend(running.never_reached(state, fact))
    else:
        state.pending.append(fact)


def _replica_draining(state: State, fact: f.ReplicaDraining) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.models[fact.model].replicas[fact.slot].draining = True
        running.drop_claims(state.models[fact.model], fact.slot)
        state.touched[fact.model] = None


def _replica_stopped(state: State, fact: f.ReplicaStopped) -> None:
    time_passed(state, fact.at_us)
    model = state.models.get(fact.model)
    if model is not None and model.starting.get(fact.slot) == fact.incarnation:
        del model.starting[fact.slot]
        state.touched[fact.model] = None
    if hear(state, fact):
        state.pending.append(fact)


def _work_started(state: State, fact: f.WorkStarted) -> None:
    time_passed(state, fact.at_us)
    hear(state, fact)


def _work_progressed(state: State, fact: f.WorkProgressed) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        for item in current(state, fact):
            request = state.requests[item.id]
            request.output_tokens = max(request.output_tokens, item.output_tokens)


def _work_grows(state: State, fact: f.WorkGrows) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        running.ask_to_grow(state, fact, current(state, fact))


def _work_finished(state: State, fact: f.WorkFinished) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend((item, fact.offset) for item in current(state, fact))


def _work_left(state: State, fact: f.WorkLeft) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend((item, fact.offset) for item in current(state, fact))


def _work_failed(state: State, fact: f.WorkFailed) -> None:
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend(current(state, fact))


# Decisions


def _queued(state: State, decision: d.RequestQueued) -> None:
    fact = state.pending.popleft()
    assert isinstance(fact, f.RequestArrived), "only an arrival is queued"  # noqa: S101 - ledger and code belong together
    model = state.models[decision.model]
    waited = [0] * len(CAUSE_INDEX)
    waited[TRANSIT] = state.now_us - fact.arrived_us
    request = Request(
        id=decision.id,
        order=state.next_order,
        model=decision.model,
        tenant=decision.tenant,
        tier=decision.tier,
        arrived_us=fact.arrived_us,
        offset=fact.offset,
        prompt_tokens=decision.prompt_tokens,
        max_output_tokens=decision.max_output_tokens,
        deadline_us=decision.deadline_us,
        body_digest=fact.body_digest,
        metadata=fact.metadata,
        preemptible=decision.preemptible,
        stage="waiting",
        since_us=state.now_us,
        mark=(),
        waited_us=waited,
        of_job=offline_memory.of_job(state, decision.id),
    )
    state.next_order += 1
    state.requests[request.id] = request
    due.add_deadline(state, request)
    model.queue.add(request.tier, request.tenant, request.id, request.order)
    offline_memory.accepted(state, model, request)
    _begin_wait(state, model, request)


def _answered(state: State, _decision: Decision) -> None:
    state.pending.popleft()


def _blocked(state: State, decision: d.QueueBlocked) -> None:
    model = state.models[decision.model]
    _settle_cause(model, state.now_us)
    model.cause = decision.cause


def _dispatched(state: State, decision: d.RequestDispatched) -> None:
    request = state.requests[decision.id]
    model = state.models[request.model]
    _end_wait(state, model, request)
    request.waited_us = [0] * len(CAUSE_INDEX)
    for cause, cause_us in decision.waits:
        request.waited_us[CAUSE_INDEX[cause]] = cause_us
    model.queue.served(request.tier, request.tenant)
    running.begin(state, model, request, decision)
    due.drop_dead(state)


def _attempt_lost(state: State, decision: d.AttemptLost) -> None:
    state.pending.popleft()
    request = state.requests[decision.id]
    running.end(state, request)
    request.output_tokens = request.kept_tokens
    request.stage = "backoff"
    request.losses = decision.losses
    request.retry_at_us = decision.retry_at_us
    due.add_return(state, request)
    due.add_deadline(state, request)


def _returned(state: State, decision: d.RequestReturned) -> None:
    request = state.requests[decision.id]
    model = state.models[request.model]
    request.waited_us[BACKOFF] += state.now_us - request.since_us
    request.stage = "waiting"
    request.since_us = state.now_us
    model.queue.add_returned(request.tier, request.tenant, request.id, request.order)
    _begin_wait(state, model, request)
    due.drop_dead(state)


def _turned_away(state: State, decision: d.ReplicaTurnedAway) -> None:
    state.pending.popleft()
    model = state.models.get(decision.model)
    if model is not None and model.starting.get(decision.slot) == decision.incarnation:
        # Its cold start is over, and nothing came of it.
        del model.starting[decision.slot]
        state.touched[decision.model] = None


def _leave_asked(state: State, decision: d.LeaveAsked) -> None:
    if decision.cause == "cancelled":
        state.pending.popleft()
    running.leave(state, decision)


def _preempted(state: State, decision: d.RequestPreempted) -> None:
    item, _ = state.pending.popleft()  # pyright: ignore[reportGeneralTypeIssues] - only a departure is answered so
    request = state.requests[decision.id]
    carried.keep(request, item.usage, decision)
    running.end(state, request)
    model = state.models[request.model]
    request.stage = "waiting"
    model.queue.add_returned(request.tier, request.tenant, request.id, request.order)
    _begin_wait(state, model, request)


def _admitted(state: State, decision: d.ReplicaAdmitted) -> None:
    fact = state.pending.popleft()
    assert isinstance(fact, f.ReplicaReady), "only a ready replica is admitted"  # noqa: S101 - ledger and code belong together
    model = state.models[decision.model]
    model.starting.pop(decision.slot, None)
    replica = Replica(
        slot=fact.slot,
        incarnation=fact.incarnation,
        kv_blocks=fact.kv_blocks,
        block_tokens=fact.block_tokens,
        max_batch=fact.max_batch,
    )
    model.pool_tokens[fact.slot] = fact.kv_blocks * fact.block_tokens
    model.pool_tokens_max = max(model.pool_tokens.values())
    model.replicas[fact.slot] = replica
    model.replicas = dict(sorted(model.replicas.items()))
    key = (decision.model, fact.slot)
    state.heard[key] = state.now_us
    state.heard.move_to_end(key)
    state.touched[decision.model] = None


def _replica_lost(state: State, decision: d.ReplicaLost) -> None:
    if decision.why == "stopped":
        state.pending.popleft()
    model = state.models[decision.model]
    replica = model.replicas.pop(decision.slot)
    running.drop_claims(model, decision.slot)
    del state.heard[decision.model, decision.slot]
    why = f"replica {decision.model}/{decision.slot} was lost: {decision.why}"
    state.pending.extend(
        AttemptGone(request_id, state.requests[request_id].attempt, replica.slot, why)
        for request_id in replica.running
    )
    state.touched[decision.model] = None


def _request_ended(state: State, decision: d.RequestEnded) -> None:
    if state.pending:
        # What the fact brought is answered before anything ends by itself (a deadline, say).
        state.pending.popleft()
    request = state.requests.pop(decision.id, None)
    if request is not None:
        model = state.models[request.model]
        if request.stage == "running":
            running.end(state, request)
        elif request.stage == "waiting":
            _end_wait(state, model, request)
        model.claims.pop(request.id, None)
        if decision.outcome == "completed" and decision.usage is not None:
            model.lengths.add(
                request.tenant,
                decision.usage.output_tokens,
                samples_max=state.policy.reservation_samples_max,
                tenants_max=state.policy.reservation_tenants_max,
            )
        state.touched[request.model] = None
        due.drop_dead(state)
    offline_memory.ended(state, decision.id, decision.outcome, request)
    state.ended[decision.id] = Ended(decision.keep_until_us, decision.body_digest)
    metadata_chars = sum(len(name) + len(value) for name, value in decision.metadata)
    state.step_bytes += _METADATA_CHAR_BYTES * metadata_chars


def _begin_wait(state: State, model: Model, request: Request) -> None:
    _settle_cause(model, state.now_us)
    request.mark = tuple(model.cause_totals_us)
    if request.of_job:
        model.offline.queued += 1
    state.touched[request.model] = None


def _end_wait(state: State, model: Model, request: Request) -> None:
    if request.of_job:
        model.offline.queued -= 1
    model.queue.remove(request.tier, request.tenant, request.id, request.order)
    if not model.queue.waiting:
        _settle_cause(model, state.now_us)
        model.cause = None


def _settle_cause(model: Model, now_us: int) -> None:
    if model.cause is not None:
        model.cause_totals_us[CAUSE_INDEX[model.cause]] += now_us - model.cause_since_us
    model.cause_since_us = now_us


_EVOLVE: dict[type, Callable[[State, Any], None]] = {
    f.OwnerTookOver: _took_over,
    f.PolicyActivated: _policy_activated,
    f.ProfileSet: _profile_set,
    f.ClockTicked: _ticked,
    f.RequestArrived: _asked,
    f.RequestRefused: _asked,
    f.MessageUnreadable: _asked,
    f.CancelAsked: _asked,
    f.ReplicaStarting: _replica_starting,
    f.ReplicaReady: _replica_ready,
    f.ReplicaHeartbeat: _heartbeat,
    f.ReplicaDraining: _replica_draining,
    f.ReplicaStopped: _replica_stopped,
    f.WorkStarted: _work_started,
    f.WorkProgressed: _work_progressed,
    f.WorkGrows: _work_grows,
    f.WorkFinished: _work_finished,
    f.WorkFailed: _work_failed,
    f.WorkLeft: _work_left,
    d.RequestQueued: _queued,
    d.RequestRouted: _answered,
    d.DuplicateIgnored: _answered,
    d.CancelIgnored: _answered,
    d.MessageDeadLettered: _answered,
    d.QueueBlocked: _blocked,
    d.RequestDispatched: _dispatched,
    d.ReservationGrown: running.grown,
    d.AttemptLost: _attempt_lost,
    d.RequestReturned: _returned,
    d.RequestPreempted: _preempted,
    d.LeaveAsked: _leave_asked,
    d.ReplicaAdmitted: _admitted,
    d.ReplicaLost: _replica_lost,
    d.ReplicaTurnedAway: _turned_away,
    d.RequestEnded: _request_ended,
    **offline_memory.REMEMBER,
}
