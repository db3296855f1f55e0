"""When the cell heard something, from which replica, and of which attempts. Pure; part of evolve.

Silence is judged elsewhere (decide); here stands what makes it silence: who spoke last, and since
when the cell itself could hear.
"""

from collections.abc import Iterable
from typing import Any

from schemas import facts as f
from services.scheduler import starvation
from services.scheduler.state import STEP_BYTES_MAX, AttemptGone, Pending, State


def time_passed(state: State, at_us: int) -> None:
    """Move the clock on: every fact does, before anything else is remembered of it."""
    if at_us - state.now_us > state.policy.replica_lost_ms * 500:
        # No fact for half the silence that counts as a loss: the cell could not hear (it was
        # frozen, or the broker was gone), so silence up to now says nothing about a replica.
        state.blind_until_us = at_us
    state.now_us = max(state.now_us, at_us)
    ended = state.ended
    while ended:
        request_id, first = next(iter(ended.items()))
        if first.keep_until_us > state.now_us and len(ended) <= state.policy.dedupe_ids_max:
            break
        del ended[request_id]
    if state.step_bytes < STEP_BYTES_MAX:
        state.touched.clear()
        state.jobs.moved.clear()
    state.step_bytes = 0
    if state.starving and state.starving[0][0] <= state.now_us:
        starvation.come_due(state)


def hear(state: State, fact: f.WorkerFact) -> bool:
    """Note that a replica spoke; return whether that life of it is the one known here."""
    model = state.models.get(fact.model)
    replica = model.replicas.get(fact.slot) if model else None
    if replica is None or replica.incarnation != fact.incarnation:
        return False
    key = (fact.model, fact.slot)
    state.heard[key] = state.now_us
    state.heard.move_to_end(key)
    return True


def current(
    state: State,
    fact: f.WorkProgressed | f.WorkGrows | f.WorkFinished | f.WorkFailed | f.WorkLeft,
) -> list[Any]:
    """Return the items that speak of an attempt that runs now, one per request.

    The replica must be known (see `hear`). A report of an older attempt is on record and changes
    nothing.
    """
    requests = state.requests
    running = state.models[fact.model].replicas[fact.slot].running
    items = [
        item
        for item in fact.items
        if item.id in running and requests[item.id].attempt == item.attempt
    ]
    if state.pending:
        # Of a step that was cut short: these reports are still to be answered.
        answering = _ids(state.pending)
        items = [item for item in items if item.id not in answering]
    first: dict[str, Any] = {}
    for item in items:
        first.setdefault(item.id, item)
    return list(first.values())


def _ids(pending: Iterable[Pending]) -> frozenset[str]:
    """Return the requests whose attempt's end is among what is pending; for membership only."""
    ends = [item[0] if isinstance(item, tuple) else item for item in pending]
    return frozenset(
        item.id
        for item in ends
        if isinstance(item, f.WorkDone | f.WorkDeparture | f.WorkFault | AttemptGone)
    )
