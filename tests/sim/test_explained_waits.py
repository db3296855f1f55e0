"""Ten minutes of everything at once: each request's story explains every µs of its wait.

All tiers, tenants with quotas, preemption, batch windows, deadlines, cancels, replicas that are
lost, owners that are killed, policies that change in mid-run, and offline jobs, on virtual time.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from schemas import decisions as d
from schemas import facts as f
from schemas.batches import WindowOpened
from schemas.codec import decode_line
from schemas.policy import TIERS, Override, Policy
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.state import State
from services.scheduler.step import governing, recover, step
from streams.story import Story, tell
from streams.story_sources import Sieve
from streams.story_standing import standing_in, tell_standing
from tests.sim.oneshot_replica import ENCODER, OneShotReplica, submit_texts
from tests.sim.scheduler_world import KILLS, MS, SECOND, World

MINUTE = 60 * SECOND
SLOW_ITERATION_US = 100 * MS
LINES_A_RECORD = 40
NAMED = re.compile(rb'"id":"([^"]+)"')
QUOTAS = {"queued_requests": 12, "running_requests": 3, "tokens_per_minute": 9_000}


def limited(version: int, **changes: Any) -> Policy:
    """Return a policy in which the tenant x has quotas."""
    overrides = tuple(
        Override(tenant="x", key=f"quota_{key}", value=value) for key, value in QUOTAS.items()
    )
    policy = Policy(version=version, overrides=overrides, starvation_cap_ms=3_000)
    return replace(policy, **changes)


def ten_minutes(seed: int) -> World:
    """Return the world after ten minutes of mixed work, and what it takes for all to end."""
    world = World(seed=seed, policy=limited(1, reservation="quantile", reservation_samples_min=20))
    world.kill = lambda: world.random.choice(KILLS) if world.random.random() < 0.001 else None
    encoder = replace(ENCODER, model="e")
    world.send(f.ProfileSet(at_us=0, profile=encoder))
    world.add_replica(0, max_batch=8, kv_blocks=90, iteration_us=SLOW_ITERATION_US)
    world.add_replica(1, max_batch=6, kv_blocks=60, iteration_us=SLOW_ITERATION_US)
    OneShotReplica(world, slot=5, model="e").come()
    world.submit_job("night", 150)
    world.submit_job("metered", 60, tenant="x")
    sent = 0
    end_us = world.now_us + 10 * MINUTE
    began_us = world.now_us
    acts = iter(_acts(world))
    next_act_us, act = next(acts)
    while world.now_us < end_us:
        if world.now_us - began_us >= next_act_us:
            act()
            next_act_us, act = next(acts, (11 * MINUTE, act))
        busy = (world.now_us - began_us) // (20 * SECOND) % 2 == 0
        sent = _burst(world, sent) if busy else _trickle(world, sent)
        world.run(for_us=world.random.randrange(250 * MS if busy else 2 * SECOND))
    world.kill = lambda: None
    while len({one.job for one in world.jobs_finished}) < 2:
        assert world.now_us < end_us + 10 * MINUTE, "the jobs never ended"
        world.run(for_us=SECOND)
    world.run_until_all_ended()
    return world


def _acts(world: World) -> Iterator[tuple[int, Any]]:
    """Yield what happens beside the traffic, and when."""

    def freeze() -> None:
        world.replicas[1].frozen = True

    def thaw() -> None:
        world.replicas[1].frozen = False

    def activate(policy: Policy) -> None:
        world.send(f.PolicyActivated(at_us=0, policy=policy, who="ops", why="the run goes on"))

    yield 60 * SECOND, freeze
    yield 66 * SECOND, thaw
    yield 120 * SECOND, lambda: activate(limited(2, look_ahead_requests=1))
    yield 180 * SECOND, world.replicas[1].stop
    yield 200 * SECOND, lambda: world.add_replica(2, max_batch=6, kv_blocks=60)
    yield 260 * SECOND, lambda: activate(limited(3, window_mode="when_free", preemptions_max=1))
    yield 320 * SECOND, lambda: activate(limited(4, overrides=(), starvation_cap_ms=800))
    yield 380 * SECOND, lambda: activate(limited(5, reservation="full", fair_quantum=200))
    yield 440 * SECOND, lambda: world.steer("night", "pause")
    yield 470 * SECOND, lambda: world.steer("night", "resume")


def _burst(world: World, sent: int) -> int:
    draw = world.random
    for _ in range(draw.randrange(1, 4)):
        sent = _one(world, sent)
    return sent


def _trickle(world: World, sent: int) -> int:
    return _one(world, sent) if world.random.random() < 0.3 else sent


def _one(world: World, number: int) -> int:
    draw = world.random
    name, tenant, tier = f"r-{number}", draw.choice("xxyz"), draw.choice((None, *TIERS))
    deadline_ms = draw.choice((None, None, None, 400, 3_000, 20_000))
    if draw.random() < 0.3:
        texts = [draw.randrange(3, 60) for _ in range(draw.randrange(1, 4))]
        submit_texts(
            world, name, *texts, tier=tier, tenant=tenant, deadline_ms=deadline_ms, model="e"
        )
    else:
        output = draw.randrange(2, 50)
        world.tokens_of[name] = max(1, output - draw.randrange(10))
        world.submit(
            name,
            prompt=draw.randrange(4, 160),
            output=output,
            tier=tier,
            tenant=tenant,
            deadline_ms=deadline_ms,
        )
    if draw.random() < 0.05:
        world.cancel(f"r-{draw.randrange(max(0, number - 30), number + 1)}")
    return number + 1


@pytest.fixture(scope="module", params=[1, 2])
def world(request: pytest.FixtureRequest) -> World:
    """Give the world after ten minutes."""
    return ten_minutes(request.param)


class Told:
    """A ledger's entries by the requests that they name, as a story needs them."""

    def __init__(self, world: World) -> None:
        self.entries = entries = world.ledger
        self._named: dict[str, list[int]] = {}
        self._blocks: list[int] = []
        self._last_blocks: list[dict[Any, int]] = []
        last: dict[Any, int] = {}
        for at, (entry, line) in enumerate(zip(entries, world.lines(), strict=True)):
            for name in set(NAMED.findall(line)):
                self._named.setdefault(name.decode(), []).append(at)
            blocks = [
                one for one in entry.decisions if isinstance(one, d.QueueBlocked | WindowOpened)
            ]
            if blocks:
                self._blocks.append(at)
                last = last | {(type(one), one.model): at for one in blocks}
                self._last_blocks.append(last)

    def story(self, name: str, *, up_to: int | None = None, now_us: int = 0) -> Story:
        """Return the story of a request, by the entries before number `up_to`."""
        end = len(self.entries) if up_to is None else up_to
        named = [at for at in self._named[name] if at < end]
        begin = bisect_left(self._blocks, named[0])
        wanted = set(named)
        wanted.update(self._last_blocks[begin - 1].values() if begin else ())
        to = end if up_to is not None else named[-1] + 1
        wanted.update(self._blocks[begin : bisect_left(self._blocks, to)])
        if up_to is not None:
            wanted.add(end - 1)
        story = tell(name, [self.entries[at] for at in sorted(wanted)], now_us)
        assert story is not None
        return story


def test_the_run_is_as_mixed_as_it_says(world: World) -> None:
    world.check()
    ends = [end for (end,) in world.outcomes.values()]
    assert len(ends) > 1_500
    assert {"completed", "rejected", "expired", "cancelled"} <= {end.outcome for end in ends}
    causes = Counter(cause for end in ends for cause, _ in end.waits)
    assert set(causes) >= {"transit", "turn", "kv", "slots", "window", "quota", "backoff"}
    assert {end.tier for end in ends} == set(TIERS)
    kinds = Counter(one.kind for entry in world.ledger for one in entry.decisions)
    for kind in ("request-preempted", "attempt-lost", "replica-lost", "tenant-held", "job-held"):
        assert kinds[f"{kind}.v1"] > 0, kind
    assert kinds["batch-formed.v1"] > 100
    assert len({entry.policy_version for entry in world.ledger}) == 5
    assert world.kills > 0


def test_no_us_of_any_request_is_unexplained(world: World) -> None:
    told = Told(world)
    for name, (end,) in world.outcomes.items():
        assert sum(us for _, us in end.waits) == end.wait_us, name
        assert end.wait_us + end.run_us == end.e2e_us, name
        story = told.story(name)
        assert story.unexplained_us == 0, name
        assert tuple(story.waits()) == end.waits, name
        assert (story.wait_us, story.run_us, story.e2e_us) == (end.wait_us, end.run_us, end.e2e_us)
        # One part of the time follows the other, from the arrival to the end.
        edges = [end.arrived_us, *(one.to_us for one in story.segments)]
        assert [one.from_us for one in story.segments] == edges[:-1], name
        assert edges[-1] == end.arrived_us + end.e2e_us, name


def test_the_story_of_a_request_that_still_waits_is_explained_up_to_now(world: World) -> None:
    told, state = Told(world), State()
    causes: Counter[str] = Counter()
    for at, entry in enumerate(world.ledger):
        recover(state, entry.fact, entry.decisions)
        if at % 7:
            continue
        now_us = state.now_us + 1_234
        for name, request in state.requests.items():
            if request.stage != "waiting":
                continue
            story = told.story(name, up_to=at + 1, now_us=now_us)
            standing = standing_in(state, name, now_us)
            assert standing is not None
            tell_standing(story, standing)
            assert story.present is not None
            assert story.present.cause == standing.cause
            assert story.unexplained_us == 0, (name, at)
            assert tuple(story.waits()) == standing.waits
            assert story.wait_us + story.run_us == now_us - request.arrived_us
            causes[standing.cause] += 1
    assert set(causes) >= {"turn", "quota", "slots", "kv", "window"}


def test_what_holds_a_request_back_in_the_end_is_what_its_record_says_next(world: World) -> None:
    """A request that waits, told a moment before its dispatch, gives the waits of the dispatch."""
    state = State()
    checked = 0
    for entry in world.ledger:
        dispatched = [one for one in entry.decisions if isinstance(one, d.RequestDispatched)]
        for decision in dispatched[:1]:
            standing = standing_in(state, decision.id, max(state.now_us, entry.fact.at_us))
            if standing is not None:
                checked += 1
                assert standing.waits == decision.waits
        recover(state, entry.fact, entry.decisions)
    assert checked > 500


def test_a_snapshot_of_any_moment_goes_on_as_the_ledger_does(world: World) -> None:
    """What a cell stores and reads again decides the same as one that never stopped."""
    state, done = State(), 0
    for at in range(100, len(world.ledger), 331):
        for entry in world.ledger[done:at]:
            recover(state, entry.fact, entry.decisions)
        done = at
        again = thaw(b"".join(encode_pieces(freeze(state))))
        for entry in world.ledger[at : at + 80]:
            assert step(governing(again, entry.fact), again, entry.fact) == entry.decisions


def test_the_sieve_gives_the_same_stories(world: World) -> None:
    told, lines = Told(world), world.lines()
    names = sorted(world.outcomes)
    for name in names[:: len(names) // 12]:
        sieve = Sieve(name)
        for at in range(0, len(lines), LINES_A_RECORD):
            sieve.feed(b"\n".join(lines[at : at + LINES_A_RECORD]))
        sifted = tell(name, [decode_line(raw).entry for raw in sieve.finish()])
        assert sifted is not None
        assert (sifted.segments, sifted.unexplained_us) == (told.story(name).segments, 0)
