"""Whose the free room of a replica is: what others were asked to leave is kept. Pure; reads only.

A request for which others leave has a claim on their replica: so many blocks and one place. While
it stands, requests of its tier or a lower one take no more there than is left once all have gone
that were asked to. One of a higher tier is not bound by it: it goes first. If that eats into the
claim, so that what is to come no longer meets it, the claim binds nobody: its holder may ask more
to leave, and else waits as any other. Nor does it bind anybody while its holder's tenant is held
back by a quota: the room would stand empty.
"""

from collections.abc import Iterator
from typing import NamedTuple

from services.scheduler.queue import RANKS
from services.scheduler.state import Claim, Model, Replica, Request, State


class Space(NamedTuple):
    """KV blocks and places in the batch."""

    blocks: int
    places: int

    def holds(self, blocks: int) -> bool:
        """Return whether one more request fits, with so many blocks."""
        return self.blocks >= blocks and self.places > 0


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return the KV blocks that `tokens` tokens take: rounded up."""
    return -(-tokens // block_tokens)


def room(state: State, model: Model, replica: Replica, request: Request, *, starved: bool) -> Space:
    """Return what the replica has for `request` now.

    One that is `starved` has waited past its cap and goes next, whatever stands above it.
    """
    free = Space(replica.kv_blocks - replica.blocks_used, replica.max_batch - len(replica.running))
    if starved:
        return free
    to_come = room_to_come(state, model, replica, request)
    if min(to_come) < 0:
        return free
    return Space(min(free.blocks, to_come.blocks), min(free.places, to_come.places))


def room_to_come(state: State, model: Model, replica: Replica, request: Request) -> Space:
    """Return what it will have for `request` once all have left that were asked to.

    Below zero where the claims of others are not met.
    """
    blocks = replica.kv_blocks - replica.blocks_used + replica.leaving_blocks
    places = replica.max_batch - len(replica.running) + replica.leaving
    rank = RANKS[request.line]
    for holder, claim in _claims(state, model):
        if claim.slot == replica.slot and holder.id != request.id and RANKS[holder.line] <= rank:
            blocks -= claim.blocks
            places -= 1
    return Space(blocks, places)


def room_for_growth(state: State, model: Model, replica: Replica, request: Request) -> int:
    """Return the blocks that a running request may be given now; none where it is below 1.

    What runs goes before what waits, but for the claims of higher tiers.
    """
    rank = RANKS[request.line]
    claimed = [
        claim.blocks
        for holder, claim in _claims(state, model)
        if claim.slot == replica.slot and RANKS[holder.line] < rank
    ]
    return replica.kv_blocks - replica.blocks_used - sum(claimed)


def in_order(
    state: State, model: Model, request_ids: Iterator[str], starved: str | None
) -> Iterator[str]:
    """Yield waiting requests in the order in which they are tried; `request_ids` is that without.

    Those with a claim, and the one for which room is kept, come before the others of their tier,
    the oldest first, however far behind, or what is theirs would stand empty; but not before the
    one that is starved. One whose tenant is held back is not tried.
    """
    first = dict.fromkeys(model.claims)
    if model.room is not None:
        first[model.room.id] = None
    holders = [
        holder
        for holder in map(state.requests.__getitem__, first)
        if holder.id != starved and not model.accounts[holder.tenant].held
    ]
    holders.sort(key=lambda holder: (RANKS[holder.line], holder.order))
    holders.reverse()
    for request_id in request_ids:
        if request_id == starved:
            yield request_id
            continue
        rank = RANKS[state.requests[request_id].line]
        while holders and RANKS[holders[-1].line] <= rank:
            yield holders.pop().id
        if request_id not in first:
            yield request_id
    yield from (holder.id for holder in reversed(holders))


def _claims(state: State, model: Model) -> Iterator[tuple[Request, Claim]]:
    """Yield the claims that may bind, and whose they are."""
    for request_id, claim in model.claims.items():
        holder = state.requests[request_id]
        if not model.accounts[holder.tenant].held:
            yield holder, claim
