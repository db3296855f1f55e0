"""How one-shot models' batches are remembered. Pure; part of evolve, and never judges.

Called for each beginning and end of a wait and a run of a request whose model serves one-shot, and
for the decisions on windows and batches. Reads no policy.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from schemas import batches as b
from schemas import decisions as d
from services.scheduler.batching import Batching, Forming, size_class
from services.scheduler.state import Model, Replica, Request, State

# An average moves by this part of what is new.
_GAP_SHARE = 32
_SERVICE_SHARE = 8
# A longer silence counts as this long, or the first texts after a night would seem hours apart.
_GAP_US_MAX = 1_000_000
# Below this many items a heap is not worth sweeping.
_SWEEP_ITEMS_MIN = 64


def serve(state: State, model: Model) -> None:
    """Begin or end to batch, as the model's profile says; what waits already is taken in."""
    if model.profile.serves == "one-shot" and model.batching is None:
        model.batching = Batching()
        take_in(state, model, model.batching)
    elif model.profile.serves != "one-shot" and model.batching is not None:
        model.batching = None
        for replica in model.replicas.values():
            replica.batches.clear()
        drop_closed(state)


def take_in(state: State, model: Model, batching: Batching) -> None:
    """Derive from the requests who waits, and which batches run."""
    for request in state.requests.values():
        if request.model != model.profile.model:
            continue
        if request.stage == "waiting":
            wait_began(batching, request, held=model.accounts[request.tenant].held)
        elif request.stage == "running" and request.batch is not None:
            run_began(model, request, request.batch)


def arrived(model: Model, texts: int, now_us: int) -> None:
    """Note the arrival of a request of `texts` texts: they count as spread over the gap."""
    batching = model.batching
    if batching is None:
        return
    if batching.last_arrival_us >= 0:
        gap_us = min(now_us - batching.last_arrival_us, _GAP_US_MAX)
        for _ in range(texts):
            before = batching.gap_us_x32
            more_us = gap_us // texts - before // _GAP_SHARE
            batching.gap_us_x32 = before + more_us if before else _GAP_SHARE * more_us
    batching.last_arrival_us = now_us


def wait_began(batching: Batching, request: Request, *, held: bool) -> None:
    """Note that a request waits from now on; of a tenant that is held back it counts later."""
    requests, texts = batching.of_tenant.get(request.tenant, (0, 0))
    batching.of_tenant[request.tenant] = requests + 1, texts + request.texts
    if not held:
        batching.requests_waiting += 1
        batching.texts_waiting += request.texts
    if request.deadline_us is not None:
        heappush(batching.deadlines, (request.deadline_us, request.order, request.id))


def wait_ended(
    state: State, model: Model, batching: Batching, request: Request, *, held: bool
) -> None:
    """Note that a request waits no longer; its stage still says that it does."""
    requests, texts = batching.of_tenant.pop(request.tenant)
    if requests > 1:
        batching.of_tenant[request.tenant] = requests - 1, texts - request.texts
    if not held:
        batching.requests_waiting -= 1
        batching.texts_waiting -= request.texts
    _drop_dead(state, model, request)
    if not model.queue.waiting:
        close(state, batching)


def tenant_held(batching: Batching, tenant: str) -> None:
    """Note that what a tenant has waiting can join no batch for now."""
    requests, texts = batching.of_tenant.get(tenant, (0, 0))
    batching.requests_waiting -= requests
    batching.texts_waiting -= texts


def tenant_released(batching: Batching, tenant: str) -> None:
    """Note that what a tenant has waiting can join a batch again."""
    requests, texts = batching.of_tenant.get(tenant, (0, 0))
    batching.requests_waiting += requests
    batching.texts_waiting += texts


def run_began(model: Model, request: Request, batch: int) -> None:
    """Note that a request rides in its batch."""
    running = model.replicas[request.slot].batches
    running[batch] = running.get(batch, 0) + 1


def run_ended(replica: Replica, batch: int) -> None:
    """Note that a request has left its batch; the batch is over with its last member."""
    replica.batches[batch] -= 1
    if not replica.batches[batch]:
        del replica.batches[batch]


def measured(state: State, model: Model, ended: d.RequestEnded, request: Request) -> None:
    """Learn how long a batch takes from a member that ran to its end, before it leaves it.

    What the worker says it waited there is left out: it is another batch's time.
    """
    batching = model.batching
    if batching is None or ended.reason != "embedded" or ended.usage is None:
        return
    took_us = max(1, state.now_us - request.since_us - ended.usage.queued_us)
    at = size_class(request.batch_texts)
    before = batching.service_us[at]
    # Only the first counts whole: one slow batch is no measure.
    batching.service_us[at] = before + (took_us - before) // _SERVICE_SHARE if before else took_us


def blocked(state: State, model: Model, cause: d.Cause) -> None:
    """Note what holds the queue back: any cause but the window ends an open one."""
    if model.batching is not None and cause != "window":
        close(state, model.batching)


def close(state: State, batching: Batching) -> None:
    """Note that no window is open."""
    batching.due_us = batching.opened_us = None
    drop_closed(state)


def tuned(state: State, decision: b.WindowTuned) -> None:
    """Remember the window that a model has from now on."""
    batching = _of(state, decision.model)
    batching.window_ms, batching.base_ms = decision.new_ms, decision.base_ms
    batching.tuned_at_us = state.now_us


def opened(state: State, decision: b.WindowOpened) -> None:
    """Remember when the window is due."""
    batching = _of(state, decision.model)
    batching.due_us, batching.opened_us = decision.due_us, decision.opened_us
    heappush(state.windows, (decision.due_us, decision.model))
    drop_closed(state)


def formed(state: State, decision: b.BatchFormed) -> None:
    """Remember the batch whose members are dispatched next."""
    batching = _of(state, decision.model)
    batching.next_batch = decision.batch + 1
    state.forming = Forming(
        model=decision.model,
        batch=decision.batch,
        slot=decision.slot,
        size=len(decision.members),
        longest_tokens=decision.longest_tokens,
        texts=decision.texts,
        texts_max=decision.texts_max,
        members=deque(decision.members),
        starved=decision.starved,
    )
    close(state, batching)
    # What stays behind may go to another replica, or needs a window of its own.
    state.touched[decision.model] = None


def dispatched(state: State, model: Model, request: Request, place: b.BatchPlace | None) -> None:
    """Note that a request was dispatched: with its place, as a member of the batch that forms."""
    if place is None:
        request.batch = None
        return
    forming = state.forming
    assert forming is not None, "a batch was formed before"  # noqa: S101 - ledger and code belong together
    forming.members.popleft()
    request.batch, request.batch_texts = place.batch, forming.texts
    run_began(model, request, place.batch)
    if not forming.members:
        state.forming = None


def drop_closed(state: State) -> None:
    """Drop windows that were closed or moved from the top of the heap, so a top is always due."""
    while state.windows:
        due_us, name = state.windows[0]
        model = state.models[name]
        if model.batching is not None and model.batching.due_us == due_us:
            return
        heappop(state.windows)


def rebuild(state: State) -> None:
    """Make the heap of due windows anew from the models."""
    state.windows = [
        (model.batching.due_us, name)
        for name, model in state.models.items()
        if model.batching is not None and model.batching.due_us is not None
    ]
    heapify(state.windows)


def _of(state: State, name: str) -> Batching:
    batching = state.models[name].batching
    assert batching is not None, "only a one-shot model has windows"  # noqa: S101 - ledger and code belong together
    return batching


def _drop_dead(state: State, model: Model, leaving: Request) -> None:
    """Drop the deadlines of requests that wait no longer; `leaving` is about to be one."""
    batching = _of(state, leaving.model)
    deadlines = batching.deadlines
    while deadlines and not _waits(state, deadlines[0], leaving):
        heappop(deadlines)
    if len(deadlines) > 2 * model.queue.waiting + _SWEEP_ITEMS_MIN:
        deadlines[:] = [item for item in deadlines if _waits(state, item, leaving)]
        heapify(deadlines)


def _waits(state: State, item: tuple[int, int, str], leaving: Request) -> bool:
    _, order, request_id = item
    request = state.requests.get(request_id)
    # An id may come again once it is forgotten: the order tells the lives apart.
    return (
        request is not None
        and request is not leaving
        and request.order == order
        and request.stage == "waiting"
    )


# What evolve does with the decisions on windows and batches.
EVOLVE: dict[type, Callable[[State, Any], None]] = {
    b.WindowTuned: tuned,
    b.WindowOpened: opened,
    b.BatchFormed: formed,
}
