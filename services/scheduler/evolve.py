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
from services.scheduler import (
    accepted,
    carried,
    due,
    gathering,
    offline_memory,
    outcomes,
    reported,
    running,
    service_times,
    starvation,
    waiting,
    waits,
)
from services.scheduler.hearing import hear, time_passed
from services.scheduler.state import (
    CAUSE_INDEX,
    AttemptGone,
    Model,
    Replica,
    Room,
    State,
)
from services.scheduler.waits import BACKOFF


def evolve(state: State, event: Fact | Decision) -> None:
    """Remember `event`.

    Raises:
        KeyError: the event's kind is not known, or a decision names what the state does not hold;
            the ledger and this code do not belong together.
    """
    _EVOLVE[type(event)](state, event)
    state.step_bytes += _EVENT_BYTES


# About how long a decision is in the ledger.
_EVENT_BYTES = 1024


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
    for model in state.models.values():
        # A quota may have grown; whom the new one holds back is decided as his turn comes.
        for tenant, account in model.accounts.items():
            if account.held:
                waiting.release(state, model, tenant)
    starvation.rebuild(state)
    running.policy_changed(state)
    state.touched.update(dict.fromkeys(state.models))


def _profile_set(state: State, fact: f.ProfileSet) -> None:
    time_passed(state, fact.at_us)
    name = fact.profile.model
    model = state.models.get(name)
    if model is None:
        model = state.models[name] = Model(fact.profile, cell_of(name, state.cells))
    else:
        model.profile = fact.profile
        state.touched[name] = None
    gathering.serve(state, model)


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
    state.starts[fact.model, fact.slot] = state.now_us
    state.starts.move_to_end((fact.model, fact.slot))
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
        model = state.models[fact.model]
        model.replicas[fact.slot].draining = True
        _give_room_up(model, fact.slot)
        state.touched[fact.model] = None


def _replica_stopped(state: State, fact: f.ReplicaStopped) -> None:
    time_passed(state, fact.at_us)
    model = state.models.get(fact.model)
    if model is not None and model.starting.get(fact.slot) == fact.incarnation:
        _start_is_over(state, model, fact.slot)
    if hear(state, fact):
        state.pending.append(fact)


# Decisions


def _queued(state: State, decision: d.RequestQueued) -> None:
    fact = state.pending.popleft()
    assert isinstance(fact, f.RequestArrived), "only an arrival is queued"  # noqa: S101 - ledger and code belong together
    request = accepted.request_of(state, fact, decision)
    state.next_order += 1
    state.requests[request.id] = request
    if request.deadline_us is not None:
        due.add_deadline(state, request)
    model = state.models[request.model]
    gathering.arrived(model, request.texts, state.now_us)
    waiting.join(state, request)
    offline_memory.accepted(state, model, request)
    account = model.accounts[request.tenant]
    account.refusals = 0
    if decision.quota_us:
        account.take_minute(decision.quota_us, state.now_us)


def _answered(state: State, _decision: Decision) -> None:
    state.pending.popleft()


def _blocked(state: State, decision: d.QueueBlocked) -> None:
    model = state.models[decision.model]
    model.cause = decision.cause
    gathering.blocked(state, model, decision.cause)
    waits.tell_tiers(model, state.now_us)


def _tenant_held(state: State, decision: d.TenantHeld) -> None:
    waiting.hold(state, state.models[decision.model], decision.tenant)


def _room_kept(state: State, decision: d.RoomKept) -> None:
    state.models[decision.model].room = Room(decision.id, decision.slot)


def _dispatched(state: State, decision: d.RequestDispatched) -> None:
    request = state.requests[decision.id]
    waiting.run(state, request, decision)
    request.waited_us = [0] * len(CAUSE_INDEX)
    for cause, cause_us in decision.waits:
        request.waited_us[CAUSE_INDEX[cause]] = cause_us
    model = state.models[request.model]
    gathering.dispatched(state, model, request, decision.batch)
    service_times.note_dispatch(model.service, model.queue.waiting, state.now_us)
    due.drop_dead(state)


def _attempt_lost(state: State, decision: d.AttemptLost) -> None:
    state.pending.popleft()
    request = state.requests[decision.id]
    waiting.stop(state, request, cost=0)
    request.output_tokens = request.kept_tokens
    request.stage = "backoff"
    request.losses = decision.losses
    request.retry_at_us = decision.retry_at_us
    due.add_return(state, request)
    due.add_deadline(state, request)


def _returned(state: State, decision: d.RequestReturned) -> None:
    request = state.requests[decision.id]
    request.waited_us[BACKOFF] += state.now_us - request.since_us
    waiting.join(state, request)
    due.drop_dead(state)


def _turned_away(state: State, decision: d.ReplicaTurnedAway) -> None:
    state.pending.popleft()
    model = state.models.get(decision.model)
    if model is not None and model.starting.get(decision.slot) == decision.incarnation:
        # Its cold start is over, and nothing came of it.
        _start_is_over(state, model, decision.slot)


def _leave_asked(state: State, decision: d.LeaveAsked) -> None:
    if decision.cause == "cancelled":
        state.pending.popleft()
    running.leave(state, decision)


def _preempted(state: State, decision: d.RequestPreempted) -> None:
    item, _ = state.pending.popleft()  # pyright: ignore[reportGeneralTypeIssues] - only a departure is answered so
    request = state.requests[decision.id]
    carried.keep(request, item.usage, decision)
    waiting.stop(state, request, cost=0)
    waiting.join(state, request)


def _admitted(state: State, decision: d.ReplicaAdmitted) -> None:
    fact = state.pending.popleft()
    assert isinstance(fact, f.ReplicaReady), "only a ready replica is admitted"  # noqa: S101 - ledger and code belong together
    model = state.models[decision.model]
    if decision.slot in model.starting:
        _start_is_over(state, model, decision.slot)
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
    model = state.models[decision.model]
    if decision.why == "never-ready":
        _start_is_over(state, model, decision.slot)
        return
    if decision.why == "stopped":
        state.pending.popleft()
    replica = model.replicas.pop(decision.slot)
    _give_room_up(model, decision.slot)
    del state.heard[decision.model, decision.slot]
    why = f"replica {decision.model}/{decision.slot} was lost: {decision.why}"
    state.pending.extend(
        AttemptGone(request_id, state.requests[request_id].attempt, replica.slot, why)
        for request_id in replica.running
    )
    state.touched[decision.model] = None


def _start_is_over(state: State, model: Model, slot: int) -> None:
    del model.starting[slot]
    del state.starts[model.profile.model, slot]
    state.touched[model.profile.model] = None


def _give_room_up(model: Model, slot: int) -> None:
    running.drop_claims(model, slot)
    if model.room is not None and model.room.slot == slot:
        model.room = None


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
    f.WorkStarted: reported.started,
    f.WorkProgressed: reported.progressed,
    f.WorkGrows: reported.grows,
    f.WorkFinished: reported.finished,
    f.WorkFailed: reported.failed,
    f.WorkLeft: reported.left,
    d.RequestQueued: _queued,
    d.RequestRouted: _answered,
    d.DuplicateIgnored: _answered,
    d.CancelIgnored: _answered,
    d.MessageDeadLettered: _answered,
    d.QueueBlocked: _blocked,
    d.TenantHeld: _tenant_held,
    d.RoomKept: _room_kept,
    d.RequestDispatched: _dispatched,
    d.ReservationGrown: running.grown,
    d.AttemptLost: _attempt_lost,
    d.RequestReturned: _returned,
    d.RequestPreempted: _preempted,
    d.LeaveAsked: _leave_asked,
    d.ReplicaAdmitted: _admitted,
    d.ReplicaLost: _replica_lost,
    d.ReplicaTurnedAway: _turned_away,
    d.RequestEnded: outcomes.request_ended,
    **offline_memory.REMEMBER,
    **gathering.EVOLVE,
}
