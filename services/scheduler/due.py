"""The heaps of what time alone makes due: deadlines and returns. Pure; changed only by evolve.

An item is (due µs, order, id). It is dead when its request no longer waits for it; dead items are
dropped when they come to the top, and all at once when they outnumber the requests, so a top is
always a real due time and the heaps stay as small as the work, however far away the deadlines are.
"""

from heapq import heapify, heappop, heappush

from services.scheduler.state import Request, State

# Below this many items a heap is not worth sweeping.
_SWEEP_ITEMS_MIN = 64


def add_deadline(state: State, request: Request) -> None:
    """Remember when a request that does not run expires, if it ever does."""
    if request.deadline_us is not None:
        heappush(state.deadlines, (request.deadline_us, request.order, request.id))
        if len(state.deadlines) > 2 * len(state.requests) + _SWEEP_ITEMS_MIN:
            rebuild(state)


def add_return(state: State, request: Request) -> None:
    """Remember when a request in back-off joins its queue again."""
    heappush(state.retries, (request.retry_at_us, request.order, request.id))
    if len(state.retries) > 2 * len(state.requests) + _SWEEP_ITEMS_MIN:
        rebuild(state)


def drop_dead(state: State) -> None:
    """Drop dead items from the tops of the heaps."""
    requests = state.requests
    while state.deadlines:
        due_us, order, request_id = state.deadlines[0]
        request = requests.get(request_id)
        # An id may come again once it is forgotten: the order tells the lives apart.
        if (
            request is not None
            and request.order == order
            and request.deadline_us == due_us
            and request.stage != "running"
        ):
            break
        heappop(state.deadlines)
    while state.retries:
        due_us, order, request_id = state.retries[0]
        request = requests.get(request_id)
        if (
            request is not None
            and request.order == order
            and request.retry_at_us == due_us
            and request.stage == "backoff"
        ):
            break
        heappop(state.retries)


def rebuild(state: State) -> None:
    """Make both heaps anew from the requests: no dead item is left in them."""
    state.deadlines = [
        (request.deadline_us, request.order, request.id)
        for request in state.requests.values()
        if request.deadline_us is not None and request.stage != "running"
    ]
    state.retries = [
        (request.retry_at_us, request.order, request.id)
        for request in state.requests.values()
        if request.stage == "backoff"
    ]
    heapify(state.deadlines)
    heapify(state.retries)
