"""Batch windows on a virtual clock: what a window costs, what closes it, and who is kept waiting.

The name S27 is that of the scenario.
"""

from dataclasses import replace

from schemas import decisions as d
from schemas.batches import BatchFormed, WindowOpened
from schemas.policy import Policy
from tests.sim.oneshot_replica import ENCODER, OneShotReplica, submit_texts
from tests.sim.scheduler_world import MS, SECOND, World

# A window of 500 ms needs a tier whose target allows it: a quarter of normal's is 250 ms.
S27 = Policy(
    name="s27",
    default_tier="batch",
    window_ms=500,
    window_tunes=False,
    window_backlog_closes=None,
)


def encoder_world(policy: Policy) -> World:
    return World(policy=policy, profile=ENCODER)


def steady(world: World, *, per_s: int, seconds: int, prefix: str = "r") -> None:
    """Send a text of 20 tokens `per_s` times a second."""
    for number in range(per_s * seconds):
        submit_texts(world, f"{prefix}-{number}", 20)
        world.run(for_us=SECOND // per_s)


def p95_us(world: World) -> int:
    ordered = sorted(ends[0].e2e_us for ends in world.outcomes.values())
    return ordered[len(ordered) * 95 // 100]


def formed(world: World) -> list[BatchFormed]:
    return [item for item in world.published.values() if isinstance(item, BatchFormed)]


def run_s27(policy: Policy) -> World:
    world = encoder_world(policy)
    OneShotReplica(world).come()
    world.run(for_us=10 * MS)
    steady(world, per_s=20, seconds=8)
    world.run_until_all_ended()
    world.check()
    return world


def test_s27_a_window_that_outlives_the_work_is_named_and_closing_on_backlog_halves_p95() -> None:
    slow = run_s27(S27)
    waits = dict.fromkeys(d.CAUSES, 0)
    for (end,) in slow.outcomes.values():
        for cause, us in end.waits:
            waits[cause] += us
    # The diagnosis: nearly all of the waiting is the window's, and the numbers say how long it is.
    assert waits["window"] > 0.9 * sum(waits.values())
    opened = [item for item in slow.published.values() if isinstance(item, WindowOpened)]
    assert {item.allowed_us for item in opened} == {500 * MS}
    assert {item.why for item in formed(slow)} == {"due"}
    assert 500 * MS < p95_us(slow) < 600 * MS

    quick = run_s27(replace(S27, window_backlog_closes=1))
    assert {item.why for item in formed(quick)} == {"backlog"}
    assert p95_us(quick) < p95_us(slow) / 2
