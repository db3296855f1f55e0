"""Offline jobs in the small world: every item ends once, whatever dies, in bounded memory."""

from collections import Counter
from dataclasses import replace

import pytest

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas.batch import request_id
from schemas.decisions import Decision
from schemas.facts import Fact
from schemas.policy import Override, Policy
from services.scheduler.state import State
from services.scheduler.step import governing, step
from tests.sim.scheduler_world import KILLS, MS, SECOND, World
from tests.spec.offline_story import item, items, submitted
from tests.spec.scheduler_story import finished, given, ready, us


@pytest.mark.parametrize("seed", range(4))
def test_each_item_ends_once_though_the_cell_and_a_replica_die_beside_online_traffic(
    seed: int,
) -> None:
    world = World(seed=seed, policy=replace(Policy(), offline_idle_ms=50, offline_release_max=16))
    world.add_replica(0, max_batch=6)
    world.add_replica(1, max_batch=4, kv_blocks=40)
    world.submit_job("night", 90, chunk=17)
    world.submit_job("other", 40)
    world.kill = lambda: world.random.choice(KILLS) if world.random.random() < 0.02 else None
    for number in range(40):
        tier = world.random.choice(("realtime", "normal", "batch"))
        world.submit(f"online-{number}", tier=tier, output=world.random.randrange(2, 30))
        world.run(for_us=world.random.randrange(80 * MS))
        if number == 20:
            world.replicas[1].frozen = True
    world.submit_job("night", 90, chunk=17)
    world.run(for_us=4 * SECOND)
    world.replicas[1].frozen = False
    while len({one.job for one in world.jobs_finished}) < 2:
        assert world.now_us < 3_000 * SECOND, "the jobs never ended"
        world.run(for_us=100 * MS)
    world.kill = lambda: None
    world.run(for_us=SECOND)
    world.run_until_all_ended()
    world.check()
    assert world.kills > 0
    ended = Counter(name for name, ends in world.outcomes.items() for _ in ends)
    wanted = [
        request_id(job, n) for job, most in (("night", 90), ("other", 40)) for n in range(most)
    ]
    assert {name: ended[name] for name in wanted} == dict.fromkeys(wanted, 1)
    reports = {one.job: one.report for one in world.jobs_finished}
    assert (reports["night"].completed, reports["other"].completed) == (90, 40)


@pytest.mark.parametrize("seed", range(3))
def test_a_job_whose_tenant_uses_its_quotas_up_loses_no_item_and_holds_no_other_job_back(
    seed: int,
) -> None:
    quotas = {"queued_requests": 3, "running_requests": 3, "tokens_per_minute": 900}
    overrides = tuple(
        Override(tenant="x", key=f"quota_{key}", value=value) for key, value in quotas.items()
    )
    policy = replace(Policy(), offline_idle_ms=50, offline_release_max=16, overrides=overrides)
    world = World(seed=seed, policy=policy)
    world.add_replica(0, max_batch=6)
    world.submit_job("of x", 60, tenant="x")
    world.submit_job("another of x", 20, tenant="x")
    world.submit_job("of y", 60, tenant="y")
    world.kill = lambda: world.random.choice(KILLS) if world.random.random() < 0.02 else None
    for number in range(60):
        tenant = world.random.choice("xy")
        world.submit(f"online-{number}", tenant=tenant, output=world.random.randrange(2, 30))
        world.run(for_us=world.random.randrange(120 * MS))
    while len({one.job for one in world.jobs_finished}) < 3:
        assert world.now_us < 3_000 * SECOND, "the jobs never ended"
        world.run(for_us=SECOND)
    world.kill = lambda: None
    world.run(for_us=SECOND)
    world.run_until_all_ended()
    world.check()
    refused = [name for name, (end, *_) in world.outcomes.items() if end.outcome == "rejected"]
    assert refused, "online requests of x meet its quota"
    assert all(name.startswith("online-") for name in refused)
    reports = {one.job: one.report for one in world.jobs_finished}
    assert [reports[job].completed for job in ("of x", "another of x", "of y")] == [60, 20, 60]
    assert dict(reports["of x"].held)["quota"] > 60 * SECOND
    assert "quota" not in dict(reports["of y"].held)
    ended_us = {job: report.ended_us or 0 for job, report in reports.items()}
    # It would wait for the minutes of x otherwise.
    assert ended_us["of y"] + 30 * SECOND < min(ended_us["of x"], ended_us["another of x"])


def test_a_job_of_100_000_items_is_run_in_bounded_memory_and_a_few_decisions_an_item() -> None:
    """The cell keeps counts and places; what it holds at once does not grow with the job."""
    total, chunk = 100_000, 500
    policy = replace(Policy(), dedupe_ids_max=1_000, offline_report_pct=10)
    state = given(ready(batch=200, blocks=1_000), policy=policy).state
    decisions = len(_step(state, submitted(items=total, at=10_000)))
    released: list[b.ItemsReleased] = []
    for first in range(0, total, chunk):
        got = _step(state, items(at=10_000, first=first, count=chunk, offset=first))
        decisions += len(got)
        released += [one for one in got if isinstance(one, b.ItemsReleased)]
    completed, waiting, running = 0, list[int](), list[str]()
    most = Counter[str]()
    now = 10_000
    while completed < total:
        waiting += [n for one in released for n in range(one.first, one.first + one.count)]
        now += 1
        if waiting:
            facts_now: list[Fact] = [replace(item(n), at_us=us(now)) for n in waiting]
            waiting = []
        else:
            facts_now = [finished(*running, at=now)]
            completed += len(running)
            running = []
        released = []
        for fact in facts_now:
            got = _step(state, fact)
            decisions += len(got)
            released += [one for one in got if isinstance(one, b.ItemsReleased)]
            running += [one.id for one in got if isinstance(one, d.RequestDispatched)]
        job = state.jobs.by_id["j"]
        for name, size in (("open", len(job.open)), ("requests", len(state.requests))):
            most[name] = max(most[name], size)
    job = state.jobs.by_id["j"]
    assert (job.state, job.ended[0], job.released) == ("completed", total, total)
    assert most["open"] <= 256
    assert most["requests"] <= 256
    assert len(job.chunks) == 0
    # Queued, dispatched and ended: three each, and less than a tenth of one for all else.
    assert decisions < 3.1 * total


def _step(state: State, fact: Fact) -> tuple[Decision, ...]:
    return step(governing(state, fact), state, fact)
