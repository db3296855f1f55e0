"""What runs on which replica: dispatched, asked to leave, gone. Pure; changed only by evolve.

Everything that counts the running requests changes here, so that the counts agree: the blocks and
places of a replica, those of them that are about to come free, and how many could be asked for more
room. A request gives its room back at one place, `end`.
"""

from schemas import decisions as d
from schemas import facts as f
from services.scheduler import gathering
from services.scheduler.queue import LINES, RANKS
from services.scheduler.state import AttemptGone, Claim, Model, Request, State


def begin(state: State, model: Model, request: Request, decision: d.RequestDispatched) -> None:
    """Remember that a request runs, and where; its claim to room is met."""
    request.stage = "running"
    request.since_us = state.now_us
    request.attempt = decision.attempt
    request.slot = decision.slot
    request.incarnation = decision.incarnation
    request.blocks = decision.blocks
    request.blocks_full = decision.blocks_full
    request.number = decision.number
    request.starved = decision.starved
    request.leaving = None
    replica = model.replicas[decision.slot]
    replica.dispatches = decision.number
    replica.running[request.id] = decision.blocks
    replica.blocks_used += decision.blocks
    model.claims.pop(request.id, None)
    if request.of_job:
        model.offline.running += 1
    _note_yielding(state, model, request)


def policy_changed(state: State) -> None:
    """Note anew which of those that run may be asked to leave: how often one may has changed."""
    for model in state.models.values():
        model.yielding = [0] * len(LINES)
        for replica in model.replicas.values():
            for request_id in replica.running:
                _note_yielding(state, model, state.requests[request_id])


def _note_yielding(state: State, model: Model, request: Request) -> None:
    # Once it has left as often as it may, it stays; an item of a job has no such bound.
    request.yielding = (
        request.preemptible
        and not request.starved
        and request.leaving is None
        and (
            request.of_job
            or request.preemptions
            < state.settings.at(request.model, request.tier, request.tenant).preemptions_max
        )
    )
    if request.yielding:
        model.yielding[RANKS[request.line]] += 1


def leave(state: State, decision: d.LeaveAsked) -> None:
    """Remember that a running request was asked to leave, and whose its room is then."""
    request = state.requests[decision.id]
    model = state.models[request.model]
    if request.leaving is None:
        replica = model.replicas[request.slot]
        replica.leaving_blocks += request.blocks
        replica.leaving += 1
        _yield_no_more(model, request)
        _ask_no_more(model, request)
        if decision.cause == "cancelled":
            # What it gives up may be what was lacking for others to be worth asking.
            state.touched[request.model] = None
    request.leaving = decision.cause
    if (
        decision.preemption is not None
        and state.requests[decision.preemption.for_id].stage == "waiting"
    ):
        claim = Claim(decision.slot, decision.preemption.blocks_needed)
        model.claims[decision.preemption.for_id] = claim


def end(state: State, request: Request) -> None:
    """Remember that an attempt is over: its room is free, if its replica still is there."""
    request.run_us += state.now_us - request.since_us
    request.since_us = state.now_us
    model = state.models[request.model]
    if request.of_job:
        model.offline.running -= 1
    replica = model.replicas.get(request.slot)
    if replica is not None and replica.incarnation == request.incarnation:
        replica.blocks_used -= replica.running.pop(request.id)
        if request.batch in replica.batches:
            gathering.run_ended(replica, request.batch)
        if request.leaving is not None:
            replica.leaving_blocks -= request.blocks
            replica.leaving -= 1
        state.touched[request.model] = None
    _yield_no_more(model, request)
    _ask_no_more(model, request)


def ask_to_grow(state: State, fact: f.WorkGrows, items: list[f.WorkBlocks]) -> None:
    """Remember which requests ask for more blocks than they have; `items` are of what runs now.

    One that was given more meanwhile is not asking any longer, and one that leaves needs none.
    """
    model = state.models[fact.model]
    for item in items:
        request = state.requests[item.id]
        request.output_tokens = max(request.output_tokens, item.output_tokens)
        if (
            request.leaving is None
            and item.blocks == request.blocks
            and request.blocks < request.blocks_full
        ):
            request.growing = True
            model.growing[request.id] = None
            state.touched[fact.model] = None


def grown(state: State, decision: d.ReservationGrown) -> None:
    """Remember that a running request was given more blocks."""
    request = state.requests[decision.id]
    model = state.models[request.model]
    replica = model.replicas[request.slot]
    replica.blocks_used += decision.blocks - request.blocks
    request.blocks = replica.running[request.id] = decision.blocks
    _ask_no_more(model, request)


def _yield_no_more(model: Model, request: Request) -> None:
    if request.yielding:
        request.yielding = False
        model.yielding[RANKS[request.line]] -= 1


def _ask_no_more(model: Model, request: Request) -> None:
    if request.growing:
        request.growing = False
        del model.growing[request.id]


def drop_claims(model: Model, slot: int) -> None:
    """Forget the claims on a replica that takes nothing more."""
    model.claims = {key: claim for key, claim in model.claims.items() if claim.slot != slot}


def never_reached(state: State, fact: f.ReplicaHeartbeat) -> list[AttemptGone]:
    """Return the attempts that a replica has passed without having them.

    It read its work up to dispatch `read`, and reports go out in the order of what happened: so one
    up to there that is neither held nor reported was never taken in. Work on its way is above it.
    """
    if fact.held is None:
        return []
    replica = state.models[fact.model].replicas[fact.slot]
    held = frozenset(fact.held)
    why = f"replica {fact.model}/{fact.slot} read past it without taking it in"
    requests = [state.requests[request_id] for request_id in replica.running]
    return [
        AttemptGone(request.id, request.attempt, request.slot, why)
        for request in requests
        if request.number <= fact.read and request.number not in held
    ]
