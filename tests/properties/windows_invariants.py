"""The invariants of one-shot models: what batches hold, and that no batch was left out."""

from collections import Counter

from services.scheduler.batching import Batching
from services.scheduler.state import Model, Replica, State


def check_batches(state: State, replica: Replica) -> None:
    """Check that the batches on a replica are those that its running requests ride in."""
    riding = Counter(state.requests[key].batch for key in replica.running)
    del riding[None]
    assert replica.batches == dict(riding)


def check_window(state: State, model: Model, batching: Batching) -> None:
    """Check between two facts: who waits is known, and the right cause holds it back."""
    name = model.profile.model
    waiting = [
        request
        for request in state.requests.values()
        if request.model == name and request.stage == "waiting"
    ]
    open_ones = [r for r in waiting if not model.accounts[r.tenant].held]
    assert batching.requests_waiting == len(open_ones)
    assert batching.texts_waiting == sum(request.texts for request in open_ones)
    tenants = Counter(request.tenant for request in waiting)
    assert {name: count for name, (count, _) in batching.of_tenant.items()} == tenants
    with_deadline = {(r.deadline_us, r.order, r.id) for r in waiting if r.deadline_us is not None}
    assert with_deadline <= set(batching.deadlines)
    assert not batching.deadlines or batching.deadlines[0] in with_deadline
    assert (batching.due_us is not None) == (model.cause == "window")
    if batching.due_us is not None:
        assert (batching.due_us, name) in state.windows
        assert batching.due_us > state.now_us
    _check_nothing_left(state, model, batching)


def _check_nothing_left(state: State, model: Model, batching: Batching) -> None:
    """Check that no idle replica stands beside a queue that nothing holds back."""
    keys = state.settings.at(model.profile.model)
    ready = [replica for replica in model.replicas.values() if not replica.draining]
    idle = [replica for replica in ready if not replica.batches]
    if not model.queue.waiting:
        return
    if model.cause == "window":
        assert ready
        assert keys.window_mode == "window"
        assert batching.texts_waiting < keys.batch_texts_max
    elif model.cause == "slots":
        assert ready
        assert not idle
    elif model.cause in {"no-replica", "cold-start"}:
        assert not ready
    elif model.cause == "quota":
        assert not batching.requests_waiting
    else:
        assert model.cause == "kv"
