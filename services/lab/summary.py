"""What came of a run of requests: counts, percentiles and rates over their outcomes. Pure.

Percentiles are nearest-rank: a value that was measured, never one between two. What was not
measured is None, never zero.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.bus import Result
from schemas.policy import TIERS, Tier

US_PER_MS = 1000
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread: nearest-rank percentiles of `count` of them."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class TierSummary:
    """One tier's requests. `ttft_ms` of those with a first token, `e2e_ms` of those completed."""

    tier: Tier
    requests: int
    completed: int
    ttft_ms: Spread | None
    e2e_ms: Spread | None


@dataclass(frozen=True, slots=True)
class TenantSummary:
    """One tenant's requests.

    Attributes:
        tokens: read and generated for it. wait_ms: without a replica. e2e_ms: of those completed.
    """

    tenant: str
    requests: int
    completed: int
    tokens: int
    wait_ms: Spread | None
    e2e_ms: Spread | None


@dataclass(frozen=True, slots=True)
class Summary:
    """All of a run's outcomes.

    Attributes:
        outcomes: how many of each, the most frequent first.
        ttft_ms: arrival to first token, of the requests that had one.
        e2e_ms: arrival to outcome, of those completed. wait_ms: without a replica, of all.
        tenants: the one with the most requests first.
        waits_ms: all requests' waits by cause, added up, the longest first.
        seconds: from the first arrival to the last outcome. tokens_per_s: output over them.
        slowest: the id of the completed request that took longest, or of any if none completed.
    """

    requests: int
    outcomes: tuple[tuple[str, int], ...]
    reasons: tuple[tuple[str, int], ...]
    ttft_ms: Spread | None
    e2e_ms: Spread | None
    wait_ms: Spread | None
    waits_ms: tuple[tuple[str, float], ...]
    tiers: tuple[TierSummary, ...]
    tenants: tuple[TenantSummary, ...]
    retried: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    tokens_per_s: float | None
    slowest: str | None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values in order: the ceil(percent% of n)-th of them.

    Raises:
        ValueError: there is no value.
    """
    if not ordered:
        raise ValueError("there is no percentile of no values")
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> Spread | None:
    """Return how the values are spread, or None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Spread(len(ordered), p50, p95, p99, ordered[-1])


def summarise(results: Sequence[Result], seconds: float) -> Summary:
    """Summarise outcomes; `seconds` lie between the first arrival and the last outcome."""
    completed = [result for result in results if result.outcome == "completed"]
    usages = [result.usage for result in results if result.usage is not None]
    waits = Counter[str]()
    for result in results:
        waits.update(dict(result.waits))
    output_tokens = sum(usage.output_tokens for usage in usages)
    slowest = max(completed or results, key=lambda result: (result.e2e_us, result.id), default=None)
    return Summary(
        requests=len(results),
        outcomes=tuple(Counter(result.outcome for result in results).most_common()),
        reasons=tuple(Counter(result.reason for result in results).most_common()),
        ttft_ms=_ttft_ms(results),
        e2e_ms=_e2e_ms(completed),
        wait_ms=spread([result.wait_us / US_PER_MS for result in results]),
        waits_ms=tuple((cause, us / US_PER_MS) for cause, us in waits.most_common()),
        tiers=tuple(_of_tier(tier, results) for tier in TIERS),
        tenants=_of_tenants(results),
        retried=sum(result.attempts > 1 for result in results),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        output_tokens=output_tokens,
        seconds=seconds,
        tokens_per_s=output_tokens / seconds if seconds > 0 else None,
        slowest=slowest.id if slowest else None,
    )


def _of_tier(tier: Tier, results: Sequence[Result]) -> TierSummary:
    mine = [result for result in results if result.tier == tier]
    completed = [result for result in mine if result.outcome == "completed"]
    return TierSummary(tier, len(mine), len(completed), _ttft_ms(mine), _e2e_ms(completed))


def _of_tenants(results: Sequence[Result]) -> tuple[TenantSummary, ...]:
    counts = Counter(result.tenant for result in results)
    return tuple(
        _of_tenant(tenant, results)
        for tenant, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def _of_tenant(tenant: str, results: Sequence[Result]) -> TenantSummary:
    mine = [result for result in results if result.tenant == tenant]
    completed = [result for result in mine if result.outcome == "completed"]
    usages = [result.usage for result in mine if result.usage is not None]
    return TenantSummary(
        tenant=tenant,
        requests=len(mine),
        completed=len(completed),
        tokens=sum(usage.prompt_tokens + usage.output_tokens for usage in usages),
        wait_ms=spread([result.wait_us / US_PER_MS for result in mine]),
        e2e_ms=_e2e_ms(completed),
    )


def _ttft_ms(results: Sequence[Result]) -> Spread | None:
    return spread([one.ttft_us / US_PER_MS for one in results if one.ttft_us is not None])


def _e2e_ms(results: Sequence[Result]) -> Spread | None:
    return spread([one.e2e_us / US_PER_MS for one in results])
