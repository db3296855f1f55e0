"""Which tier has waited past its starvation cap, and when one will. Pure.

A tier whose longest waiting request reached its cap goes next, whatever stands above it; within it
the tenants take their turns as always, so a tenant cannot buy a place with a long queue. Where many
have reached their caps at once there is too little capacity, and such requests get their share of
it (`starved_share_pct`): otherwise a flood in a low tier would stop the tiers above.

The heap `State.starving` tells when time alone makes a tier due. Its items are lower bounds: one
that comes due too early is put back, so it is touched once per cap and not at each dispatch.
`starved` belongs to decide, the rest to evolve.
"""

from heapq import heappop, heappush
from typing import Any

from schemas.policy import TIERS, Tier
from services.scheduler.queue import RANKS, Line, TierQueue
from services.scheduler.state import Model, State


def cap_us(state: State, model: str, tier: Tier) -> int:
    """Return the wait after which a request of the tier goes next."""
    return state.settings.at(model, tier).starvation_cap_ms * 1000


def arm(state: State, model: str, line: Line, of_tier: TierQueue) -> None:
    """See to it that a tier below another comes due, if its oldest has not reached its cap yet.

    Items of offline jobs have no cap: they yield to any other request, however long they wait.
    """
    oldest_us = of_tier.oldest_us
    if of_tier.timed or oldest_us is None or line == "offline":
        return
    due_us = oldest_us + cap_us(state, model, line)
    if due_us > state.now_us:
        heappush(state.starving, (due_us, model, RANKS[line]))
        of_tier.timed = True


def arm_below_first(state: State, model: Model) -> None:
    """Arm every tier that stands below another one: the first has nothing to wait for but room."""
    first = True
    for line, of_tier in model.queue.tiers.items():
        if of_tier.turns:
            if not first:
                arm(state, model.profile.model, line, of_tier)
            first = False


def come_due(state: State) -> None:
    """Touch the models of which a tier has reached its cap by now."""
    heap = state.starving
    while heap and heap[0][0] <= state.now_us:
        _, name, rank = heappop(heap)
        model = state.models[name]
        model.queue.tiers[TIERS[rank]].timed = False
        arm_below_first(state, model)
        state.touched[name] = None


def rebuild(state: State) -> None:
    """Make the heap anew: the caps have changed."""
    state.starving = []
    for model in state.models.values():
        for of_tier in model.queue.tiers.values():
            of_tier.timed = False
        arm_below_first(state, model)


def timed(state: State) -> list[list[Any]]:
    """Return the tiers, by model and rank, for whose oldest an item of the heap waits."""
    return [
        [name, RANKS[line]]
        for name, model in state.models.items()
        for line, of_tier in model.queue.tiers.items()
        if of_tier.timed
    ]


def thaw(state: State, items: list[list[Any]], tiers: list[list[Any]]) -> None:
    """Put the heap of a snapshot in place, and what `timed` said."""
    state.starving = [(due_us, name, rank) for due_us, name, rank in items]
    for name, rank in tiers:
        state.models[name].queue.tiers[TIERS[rank]].timed = True


def starved(state: State, model: Model) -> TierQueue | None:
    """Return the tier that goes before those above it now, or None where the order holds."""
    queue = model.queue
    first: Tier | None = None
    first_due_us: int | None = None
    chosen: TierQueue | None = None
    chosen_due_us = state.now_us + 1
    name = model.profile.model
    for tier in TIERS:
        of_tier = queue.tiers[tier]
        if not of_tier.turns:
            continue
        if first is None:
            if of_tier.waiting == queue.waiting:
                return None
            first = tier
            continue
        if of_tier.timed:
            # An item of the heap waits for it, so it has not come due.
            continue
        if first_due_us is None:
            first_due_us = queue.tiers[first].ages[0][0] + cap_us(state, name, first)
        due_us = of_tier.ages[0][0] + cap_us(state, name, tier)
        if due_us < chosen_due_us and due_us < first_due_us:
            chosen, chosen_due_us = of_tier, due_us
    if chosen is None:
        return None
    share_pct = state.settings.at(name).starved_share_pct
    return chosen if queue.since_starved * share_pct >= 100 - share_pct else None
