"""Why a request waited, so that the causes of each wait add up to it. Pure.

Each tier of a model has, at every moment at which something waits in it, exactly one cause: the
model's blocking cause, or `turn` where there is capacity and requests of a higher tier wait for it
too. A lane whose tenant is held back has `quota` instead. Each keeps the total time under each
cause, so the causes of one request's wait are the difference between the totals at its end and at
its beginning: no request is touched while it waits. evolve changes the totals through here.
"""

from schemas.decisions import CAUSES, Waits
from services.scheduler.queue import Lane, TierQueue
from services.scheduler.state import CAUSE_INDEX, Model, Request

BACKOFF = CAUSE_INDEX["backoff"]
TRANSIT = CAUSE_INDEX["transit"]
QUOTA = CAUSE_INDEX["quota"]
# Of these there is some, and a higher tier gets it first.
_CAPACITY = ("kv", "slots")


def waited_us(request: Request, model: Model, now_us: int) -> list[int]:
    """Return the µs that the request waited for each cause (index in CAUSES) up to `now_us`.

    It does not run: one that runs waits no more, and its `waited_us` is all.
    """
    waited = request.waited_us.copy()
    if request.stage == "waiting":
        of_tier = model.queue.tiers[request.line]
        lane = of_tier.lanes[request.tenant]
        if lane.shift_us is None and lane.held_since_us < 0:
            mark, totals = request.mark, of_tier.totals_us
            if mark is not totals:
                for index, total_us in enumerate(totals):
                    waited[index] += total_us - mark[index]
            waited[CAUSE_INDEX[of_tier.cause or "turn"]] += now_us - of_tier.cause_since_us
        else:
            for index, total_us in enumerate(lane_totals_us(of_tier, lane, now_us)):
                waited[index] += total_us - request.mark[index]
    else:
        waited[BACKOFF] += now_us - request.since_us
    return waited


def as_waits(waited: list[int]) -> Waits:
    """Return the causes above zero with their µs, in the order of CAUSES."""
    return tuple([(cause, us) for cause, us in zip(CAUSES, waited, strict=True) if us])


def mark(request: Request, of_tier: TierQueue, lane: Lane, now_us: int) -> None:
    """Note where the totals stand as the request begins to wait."""
    if lane.shift_us is None and lane.held_since_us < 0:
        # No copy: as long as the cause is the same, so are the totals.
        request.mark = of_tier.totals_us
        request.waited_us[CAUSE_INDEX[of_tier.cause or "turn"]] -= now_us - of_tier.cause_since_us
    else:
        request.mark = tuple(lane_totals_us(of_tier, lane, now_us))


def lane_totals_us(of_tier: TierQueue, lane: Lane, now_us: int) -> list[int]:
    """Return a lane's time under each cause up to `now_us`."""
    if lane.held_since_us >= 0:
        totals = list(lane.frozen_us)
        totals[QUOTA] += now_us - lane.held_since_us
        return totals
    totals = _tier_totals_us(of_tier, now_us)
    if lane.shift_us is not None:
        totals = [total + shift for total, shift in zip(totals, lane.shift_us, strict=True)]
    return totals


def hold(of_tier: TierQueue, lane: Lane, now_us: int) -> None:
    """From now on the lane waits for its tenant's quota."""
    lane.frozen_us = tuple(lane_totals_us(of_tier, lane, now_us))
    lane.held_since_us = now_us


def release(of_tier: TierQueue, lane: Lane, now_us: int) -> None:
    """From now on the lane waits for what its tier waits for."""
    own = lane_totals_us(of_tier, lane, now_us)
    tiers = _tier_totals_us(of_tier, now_us)
    lane.shift_us = tuple([mine - all_of for mine, all_of in zip(own, tiers, strict=True)])
    lane.held_since_us, lane.frozen_us = -1, ()


def tell_tiers(model: Model, now_us: int) -> None:
    """Give each tier its cause: the model's, or `turn` below one that takes turns."""
    first = True
    for of_tier in model.queue.tiers.values():
        cause = None
        if of_tier.waiting:
            # A step that was cut short has not told the cause yet: it had not come to their turn.
            cause = model.cause or "turn"
            if not first and cause in _CAPACITY:
                cause = "turn"
            if of_tier.turns:
                first = False
        if cause != of_tier.cause:
            of_tier.totals_us = tuple(_tier_totals_us(of_tier, now_us))
            of_tier.cause = cause
            of_tier.cause_since_us = now_us


def _tier_totals_us(of_tier: TierQueue, now_us: int) -> list[int]:
    totals = list(of_tier.totals_us)
    if of_tier.cause is not None:
        totals[CAUSE_INDEX[of_tier.cause]] += now_us - of_tier.cause_since_us
    return totals
