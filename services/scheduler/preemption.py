"""Who leaves so that a request of a higher tier can run. Pure; reads only.

Work leaves at the end of an iteration and is computed again later, so what it costs is its prompt
and its tokens so far. Asked are those of strictly lower tiers that were marked preemptible when
they were accepted, have not left too often, do not leave already, and do not run because they had
waited past their cap: on one replica, and no more than are needed. The lowest tier leaves first,
and within a tier those with the least to compute again. Items of offline jobs stand below every
tier: they leave before any other, and as often as it takes, because offline work yields at once.
The choice is exact when one is enough, which is the usual case; of several it takes the cheapest in
turn and spares each that the others make superfluous.
"""

from collections.abc import Iterable
from typing import NamedTuple

from schemas.room import LeaveAsked, Preemption
from services.scheduler.claims import Space, room_to_come
from services.scheduler.queue import LINES, RANKS
from services.scheduler.state import Model, Replica, Request, State

# Tokens to compute again, by line, the highest first; then how many leave.
Cost = tuple[int, ...]


class Choice(NamedTuple):
    """Those that would leave on one replica, the cheapest first."""

    cost: Cost
    replica: Replica
    blocks_needed: int
    victims: list[Request]
    candidates: int


def tokens_lost(request: Request) -> int:
    """Return how many tokens must be computed again when the request leaves."""
    return request.prompt_tokens + request.output_tokens


def worthwhile(model: Model) -> bool:
    """Return whether anybody runs who might leave for the highest tier that waits; one does."""
    tiers = enumerate(model.queue.tiers.values())
    rank = next(rank for rank, of_tier in tiers if of_tier.waiting)
    return any(model.yielding[rank + 1 :])


def possible(model: Model, request: Request) -> bool:
    """Return whether anybody runs who might leave for `request`."""
    return any(model.yielding[RANKS[request.line] + 1 :])


def ask(
    state: State, model: Model, request: Request, offers: Iterable[tuple[Replica, int]]
) -> LeaveAsked | None:
    """Return who is to leave next for `request`, or None when nobody is, or enough leave already.

    `offers` are the replicas that could hold it, none of which has room, each with the blocks that
    it would get there.
    """
    rank = RANKS[request.line]
    short: list[tuple[Replica, int, Space]] = []
    for replica, blocks in offers:
        to_come = room_to_come(state, model, replica, request)
        if to_come.blocks >= blocks and to_come.places > 0:
            return None
        lacking = Space(max(0, blocks - to_come.blocks), max(0, 1 - to_come.places))
        short.append((replica, blocks, lacking))
    best: Choice | None = None
    for replica, blocks, lacking in short:
        found = _cheapest(state, replica, rank, lacking, blocks)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return None if best is None else _asked(request, best)


def _cheapest(
    state: State, replica: Replica, rank: int, lacking: Space, blocks_needed: int
) -> Choice | None:
    """Return the cheapest set of victims on a replica that gives what is lacking, or None."""
    requests = state.requests
    candidates = [
        victim
        for victim in [requests[request_id] for request_id in replica.running]
        if victim.yielding and RANKS[victim.line] > rank
    ]
    if not candidates:
        return None
    first = min(candidates, key=order_of_leaving)
    if first.blocks >= lacking.blocks and lacking.places <= 1:
        return Choice(_cost([first]), replica, blocks_needed, [first], len(candidates))
    candidates.sort(key=order_of_leaving)
    enough = _enough(candidates, lacking)
    single = next(
        (victim for victim in candidates if _meets([victim], lacking)),
        None,
    )
    choices = [victims for victims in (enough, [single] if single else None) if victims]
    if not choices:
        return None
    victims = min(choices, key=_cost)
    return Choice(_cost(victims), replica, blocks_needed, victims, len(candidates))


def order_of_leaving(request: Request) -> tuple[int, int, int]:
    """Return the key by which requests leave: lowest line, least to compute again, youngest."""
    return -RANKS[request.line], tokens_lost(request), -request.order


def _enough(candidates: list[Request], lacking: Space) -> list[Request] | None:
    """Return the first candidates that are enough together, less each that is superfluous."""
    taken: list[Request] = []
    for victim in candidates:
        taken.append(victim)
        if _meets(taken, lacking):
            break
    else:
        return None
    for victim in reversed(taken.copy()):
        others = [other for other in taken if other is not victim]
        if _meets(others, lacking):
            taken = others
    return taken


def _meets(victims: list[Request], lacking: Space) -> bool:
    blocks = sum(victim.blocks for victim in victims)
    return len(victims) >= lacking.places and blocks >= lacking.blocks


def _cost(victims: list[Request]) -> Cost:
    by_line = [0] * len(LINES)
    for victim in victims:
        by_line[RANKS[victim.line]] += tokens_lost(victim)
    return (*by_line, len(victims))


def _asked(request: Request, choice: Choice) -> LeaveAsked:
    victim, replica = choice.victims[0], choice.replica
    slots_free = replica.max_batch - len(replica.running)
    return LeaveAsked(
        id=victim.id,
        model=victim.model,
        slot=victim.slot,
        incarnation=victim.incarnation,
        attempt=victim.attempt,
        cause="preempted",
        preemption=Preemption(
            for_id=request.id,
            for_tier=request.tier,
            lacks="kv" if slots_free else "slots",
            blocks_needed=choice.blocks_needed,
            blocks_free=replica.kv_blocks - replica.blocks_used,
            slots_free=slots_free,
            tier=victim.tier,
            blocks=victim.blocks,
            tokens_lost=tokens_lost(victim),
            preemptions=victim.preemptions,
            candidates=choice.candidates,
            leaving=len(choice.victims),
        ),
    )
