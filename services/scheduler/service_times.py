"""How fast a model serves, measured from its own ledger, and what that means for a deadline. Pure.

Three integer moving averages, each new value with a weight of 1/16: the time between two dispatches
out of a backlog, the prefill time of a prompt token, and the decode time of an output token. `note`
functions belong to evolve, the others to decide. What was not measured is not guessed.
"""

from dataclasses import dataclass

from schemas.facts import Usage
from schemas.policy import TIERS, Tier
from services.scheduler.queue import RANKS
from services.scheduler.state import Model, Service

_PARTS = 16


def note_dispatch(service: Service, waiting: int, now_us: int) -> None:
    """Time a dispatch that left `waiting` requests, if others have waited since the last one."""
    if service.backlog_since_us >= 0:
        between_ns = (now_us - service.backlog_since_us) * 1000
        service.interval_ns = _average(service.interval_ns, between_ns, service.samples)
        service.samples += 1
    service.backlog_since_us = now_us if waiting else -1


def note_usage(service: Service, usage: Usage) -> None:
    """Take in what one run took."""
    if usage.prompt_tokens and usage.prefill_us:
        took_ns = usage.prefill_us * 1000 // usage.prompt_tokens
        service.prefill_ns = _average(service.prefill_ns, took_ns, service.prefill_ns)
    if usage.output_tokens > 1:
        took_ns = usage.decode_us * 1000 // (usage.output_tokens - 1)
        service.decode_ns = _average(service.decode_ns, took_ns, service.decode_ns)


@dataclass(slots=True, frozen=True)
class Estimate:
    """How many requests go before one that arrives now, and when it would start at the soonest."""

    ahead: int
    starts_us: int


def estimate(model: Model, tier: Tier, tenant: str) -> Estimate:
    """Return when a request that arrives now would start, by the measured interval.

    What stands ahead of it: all of the tiers above, and of its own tier as many as take their turn
    before its tenant's lane has come to it. Without a backlog, and without a replica that could
    work it off, nothing is known to stand ahead. A deadline is the time by which a request must
    have *started*, so the time that it runs is told and not counted.
    """
    if not model.queue.waiting or not model.replicas:
        return Estimate(0, 0)
    ahead = _ahead(model, tier, tenant)
    return Estimate(ahead, ahead * model.service.interval_ns // 1000)


def told(
    model: Model, found: Estimate, prompt_tokens: int, output_tokens: int, left_us: int
) -> str:
    """Return the sentence that says why a deadline in `left_us` cannot be met."""
    service = model.service
    runs_us = (prompt_tokens * service.prefill_ns + output_tokens * service.decode_ns) // 1000
    return (
        f"{found.ahead} requests go before it, one each {service.interval_ns // 1000} µs as"
        f" measured: it would start in {found.starts_us // 1000} ms (and run for about"
        f" {runs_us // 1000} ms), but its deadline is in {left_us // 1000} ms"
    )


def _ahead(model: Model, tier: Tier, tenant: str) -> int:
    tiers = model.queue.tiers
    above = sum([tiers[name].waiting for name in TIERS[: RANKS[tier]]])
    of_tier = tiers[tier]
    lane = of_tier.lanes.get(tenant)
    # A lane that comes anew begins behind the others of its round.
    own = len(of_tier.lanes) if lane is None else len(lane) * len(of_tier.lanes)
    return above + min(of_tier.waiting, own)


def _average(average: int, value: int, known: int) -> int:
    return average + (value - average) // _PARTS if known else value
