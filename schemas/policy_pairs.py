"""Which values of a policy contradict each other, though each is within its own bounds. Pure.

The rules are data. A value that holds for a model, tier or tenant is compared with what the other
key says there. A policy that was recorded stands as it is; these are asked before one is set.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.policy import Override, Policy
from schemas.policy_check import Fault, named, shown
from schemas.policy_scope import Settings, Where

_EVERYWHERE: Where = (None, None, None)


@dataclass(frozen=True, slots=True)
class _AtMost:
    """`low` is at most `high`; `why` says what it would mean otherwise."""

    low: str
    high: str
    why: str


_TUNED = "a window is tuned between window_min_ms and window_max_ms"
_RULES = (
    _AtMost("window_min_ms", "window_ms", _TUNED),
    _AtMost("window_ms", "window_max_ms", _TUNED),
    _AtMost("window_min_ms", "window_max_ms", _TUNED),
    _AtMost(
        "batch_texts_max",
        "batch_look_ahead_requests",
        "requests of one text each could never fill a batch",
    ),
    _AtMost(
        "reservation_samples_min",
        "reservation_samples_max",
        "so many outputs are never remembered, and no quantile would ever be trusted",
    ),
)


def contradictions(policy: Policy) -> Iterator[Fault]:
    """Yield what contradicts in a policy in which every value by itself is right."""
    settings = Settings(policy)
    for rule in _RULES:
        yield from _broken(policy, settings, rule)
    targets = policy.tier_latency_target_ms
    if list(targets) != sorted(targets):
        name = "tier_latency_target_ms"
        reason = "a higher tier aims at a longer wait than one below it; the highest stands first"
        yield Fault((name,), name, shown(targets), reason)


def _broken(policy: Policy, settings: Settings, rule: _AtMost) -> Iterator[Fault]:
    told: set[tuple[int, int]] = set()
    for where, path in _places(policy, rule):
        there = settings.at(*where)
        low, high = getattr(there, rule.low), getattr(there, rule.high)
        if low <= high or (low, high) in told:
            continue
        told.add((low, high))
        model, tier, tenant = where
        place = {"model": model, "tier": tier, "tenant": tenant}
        name = f"{rule.low} {named(place)}" if any(where) else rule.low
        there_too = " there" if any(where) else ""
        reason = f"it is above {rule.high}, which is {high}{there_too}: {rule.why}; set both"
        yield Fault(path, name, shown(low), reason)


def _places(policy: Policy, rule: _AtMost) -> Iterator[tuple[Where, tuple[str | int, ...]]]:
    """Yield everywhere, and each place of which an override sets one of the keys."""
    changed = rule.low if getattr(policy, rule.low) != getattr(_DEFAULT, rule.low) else rule.high
    yield _EVERYWHERE, (changed,)
    for index, override in enumerate(policy.overrides):
        if override.key in {rule.low, rule.high}:
            yield _where(override), ("overrides", index, "value")


def _where(override: Override) -> Where:
    return override.model, override.tier, override.tenant


_DEFAULT = Policy()
