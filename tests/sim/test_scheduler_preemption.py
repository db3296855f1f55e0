"""Preemption on a virtual clock: S4, S5, and that nothing is generated twice or lost."""

import pytest

from schemas import decisions as d
from schemas.policy import TIERS, Policy
from tests.sim.scheduler_world import BUS_US, KILLS, MS, SECOND, World


def outcome(world: World, request_id: str) -> d.RequestEnded:
    (end,) = world.outcomes[request_id]
    return end


def decided(world: World, kind: type[d.Decision]) -> list[d.Decision]:
    return [item for entry in world.ledger for item in entry.decisions if isinstance(item, kind)]


def test_s4_a_realtime_request_starts_within_one_iteration_when_all_places_hold_batch_jobs() -> (
    None
):
    world = World()
    world.add_replica(kv_blocks=200, max_batch=4, iteration_us=10 * MS)
    for number in range(4):
        world.submit(f"job-{number}", output=300, tier="batch")
    world.run(for_us=500 * MS)
    world.submit("urgent", output=20, tier="realtime")
    world.run_until_all_ended()
    urgent = outcome(world, "urgent")
    # The rest of the iteration in hand, and the bus: to the cell, to the worker and back.
    assert urgent.wait_us <= 10 * MS + 4 * BUS_US
    (preempted,) = decided(world, d.RequestPreempted)
    assert isinstance(preempted, d.RequestPreempted)
    assert preempted.output_tokens > 40
    end = outcome(world, preempted.id)
    assert (end.outcome, end.attempts) == ("completed", 2)
    assert end.usage is not None
    assert end.usage.output_tokens == 300 == world.generated[preempted.id]
    world.check()


def test_s5_a_preempted_request_comes_back_ahead_of_younger_ones_and_not_for_ever() -> None:
    world = World(policy=Policy(preemptions_max=2))
    world.add_replica(kv_blocks=200, max_batch=1, iteration_us=10 * MS)
    world.submit("old", output=200, tier="batch")
    world.run(for_us=20 * MS)
    for number in range(5):
        world.submit(f"young-{number}", output=5, tier="batch")
    for number in range(6):
        world.run(for_us=300 * MS)
        world.submit(f"urgent-{number}", output=5, tier="critical")
    world.run_until_all_ended()
    assert [item.id for item in decided(world, d.RequestPreempted)] == ["old", "old"]  # pyright: ignore[reportAttributeAccessIssue]
    assert outcome(world, "old").attempts == 3
    assert world.generated["old"] == 200
    ended = list(world.outcomes)
    assert ended.index("old") < min(ended.index(f"young-{number}") for number in range(5))
    world.check()


def test_work_that_never_reached_its_replica_is_tried_again_while_heartbeats_go_on() -> None:
    world = World()
    replica = world.add_replica()
    replica.deaf_to["lost"] = True
    world.submit("lost")
    world.submit("other")
    world.run_until_all_ended(limit_us=3 * SECOND)
    assert outcome(world, "lost").attempts == 2
    assert outcome(world, "other").attempts == 1
    world.check()


@pytest.mark.parametrize("seed", range(4))
def test_no_token_is_generated_twice_or_lost_whoever_leaves_dies_or_is_cancelled(seed: int) -> None:
    world = World(seed=seed, policy=Policy(preemptions_max=4))
    world.kill = lambda: world.random.choice(KILLS) if world.random.random() < 0.004 else None
    draw = world.random
    for slot in range(2):
        world.add_replica(slot, kv_blocks=24, max_batch=4)
    for number in range(250):
        world.submit(
            f"r{number}",
            prompt=draw.randrange(1, 120),
            output=draw.randrange(1, 60),
            tier=draw.choice(TIERS),
            deadline_ms=draw.choice((None, None, None, 3000)),
        )
        if number % 15 == 0:
            world.cancel(f"r{draw.randrange(number + 1)}")
        world.run(for_us=draw.randrange(70 * MS))
    world.run_until_all_ended()
    preempted = [x for x in decided(world, d.RequestPreempted) if isinstance(x, d.RequestPreempted)]
    assert len(preempted) > 5
    assert max(item.preemptions for item in preempted) <= 4
    for request_id, (end,) in world.outcomes.items():
        if end.outcome == "completed":
            assert end.usage is not None
            assert end.usage.output_tokens == world.generated[request_id]
            assert end.max_output_tokens == end.usage.output_tokens
        assert sum(us for _, us in end.waits) == end.wait_us
    assert not any(isinstance(x, d.AttemptLost) for x in decided(world, d.AttemptLost))
    world.check()


GUESSING = Policy(
    reservation="quantile",
    reservation_quantile_pct=50,
    reservation_margin_pct=0,
    reservation_samples_min=10,
    reservation_growth_blocks=1,
    preemptions_max=3,
)


def test_s5_of_one_tier_the_youngest_leaves_and_comes_back_ahead_of_those_behind_it() -> None:
    world = World(policy=GUESSING)
    world.add_replica(kv_blocks=12, max_batch=8, iteration_us=10 * MS)
    for number in range(10):
        world.submit(f"seen-{number}", output=4)
    world.run_until_all_ended()
    for number in range(12):
        world.submit(f"r{number:02}", output=120)  # 9 blocks in full, 2 to begin with
    world.run_until_all_ended()
    preempted = [x for x in decided(world, d.RequestPreempted) if isinstance(x, d.RequestPreempted)]
    assert preempted
    assert max(item.preemptions for item in preempted) <= 3
    # Nobody is overtaken for good: they end in the order in which they came.
    assert [name for name in world.outcomes if name.startswith("r")] == [
        f"r{number:02}" for number in range(12)
    ]
    assert all(world.generated[f"r{number:02}"] == 120 for number in range(12))
    world.check()


@pytest.mark.parametrize("seed", range(3))
def test_guessed_reservations_never_exceed_the_pool_and_never_block_each_other(seed: int) -> None:
    world = World(seed=seed, policy=GUESSING)
    world.kill = lambda: world.random.choice(KILLS) if world.random.random() < 0.003 else None
    draw = world.random
    for slot in range(2):
        world.add_replica(slot, kv_blocks=16, max_batch=8)
    for number in range(200):
        name = f"r{number}"
        limit = draw.randrange(1, 200)
        world.tokens_of[name] = min(limit, draw.choice((3, 8, 20, 200)))
        world.submit(name, prompt=draw.randrange(1, 50), output=limit, tier=draw.choice(TIERS))
        world.run(for_us=draw.randrange(60 * MS))
    # The replicas refuse more blocks than they have, at every dispatch and every grant.
    world.run_until_all_ended()
    assert {end.outcome for (end,) in world.outcomes.values()} == {"completed"}
    assert decided(world, d.ReservationGrown)
    assert all(world.generated[name] == tokens for name, tokens in world.tokens_of.items())
    world.check()
