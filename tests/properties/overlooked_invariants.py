"""What must not be left undone between two facts: a place unused, a look not taken. Pure checks."""

from schemas.policy import Policy
from schemas.room import RoomKept
from services.scheduler import reservation
from services.scheduler.decide import decide
from services.scheduler.order import is_open
from services.scheduler.state import Model, State


def check_kept_room_is_used(state: State, model: Model) -> None:
    """Check that room stands empty for nobody who could have it."""
    if model.room is None or model.claims:
        return
    holder, replica = state.requests[model.room.id], model.replicas[model.room.slot]
    if not model.accounts[holder.tenant].held:
        assert replica.running or reservation.of(state, model, holder, replica).full > (
            replica.kv_blocks
        ), f"{holder.id} does not get the room that is kept for it"


def check_nothing_was_overlooked(policy: Policy, state: State) -> None:
    """Check by looking at every model that each one in which something could be done was looked at.

    But that room is kept may come at the next look: before it nothing passes the one it is for.
    """
    touched = state.touched
    state.touched = {name: None for name, model in state.models.items() if model.batching is None}
    left = decide(policy, state)
    state.touched = touched
    assert left is None or isinstance(left, RoomKept), left


def check_nothing_fits(state: State, model: Model) -> None:
    """Check by trying all that no dispatch was left out, but where room is kept for another."""
    look_ahead = state.settings.at(model.profile.model).look_ahead_requests
    for request_id in model.queue.first(look_ahead):
        request = state.requests[request_id]
        for replica in model.replicas.values():
            if replica.draining or len(replica.running) >= replica.max_batch:
                continue
            if any(claim.slot == replica.slot for claim in model.claims.values()):
                continue
            if not is_open(state, model, request, replica):
                continue
            reserved = reservation.of(state, model, request, replica)
            if reserved.full > replica.kv_blocks:
                continue
            free = replica.kv_blocks - sum(replica.running.values())
            assert free < reserved.blocks, f"{request_id} would fit"
