"""kill -9 of cell, worker and broker during traffic: nothing lost, nothing twice, replay agrees."""

import asyncio
import random
import time
from collections import Counter

import pytest

from schemas.facts import WorkStarted
from schemas.topics import LEDGER
from services import bus
from services.gateway.client import SEND_S_MAX
from tests.e2e.deployment import Deployment
from tests.e2e.traffic import Traffic


async def _in_service(deployment: Deployment, workers: int = 1, *arguments: str) -> None:
    deployment.start_cell()
    for slot in range(workers):
        deployment.start_worker(slot, *arguments)
    await deployment.wait_for_replicas(workers)


async def test_b1_a_slow_request_in_flight_at_a_kill_of_the_cell_still_ends(
    deployment: Deployment,
) -> None:
    await _in_service(deployment, 1, "--speed", "1", "--max-batch", "2")
    slow = await deployment.send([deployment.request("slow", max_output_tokens=400)])
    quick = await deployment.send(deployment.request(f"quick-{n}") for n in range(4))
    await deployment.outcomes(quick)
    deployment.kill("cell")
    deployment.start_cell()
    outcomes = await deployment.outcomes(slow)
    assert outcomes["slow"].outcome == "completed"
    assert outcomes["slow"].attempts == 1
    await deployment.check_record([*slow, *quick])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.long)])
async def test_b5_kills_in_the_middle_of_a_batch_give_each_decision_one_id_and_each_request_one_end(
    deployment: Deployment, kills: int
) -> None:
    await _in_service(deployment, 2, "--speed", "1", "--max-batch", "16")
    chance = random.Random(5)
    async with Traffic(deployment, rate_per_s=25, prefix="b5") as traffic:
        for _ in range(kills):
            await traffic.settled(120)
            while not traffic.under_way:  # noqa: ASYNC110 - the traffic's doing
                await asyncio.sleep(0.001)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            deployment.kill("cell")
            assert traffic.under_way, "the cell was killed while nothing was under way"
            deployment.start_cell()
        results = await traffic.finish(90)
    assert {result.outcome for result in results.values()} == {"completed"}
    await deployment.check_record(traffic.ids)
    entries = await deployment.entries()
    takeovers = sum(entry.fact.kind == "owner-took-over.v1" for entry in entries)
    assert takeovers > kills
    started = Counter(
        (item.id, item.attempt)
        for entry in entries
        if isinstance(entry.fact, WorkStarted)
        for item in entry.fact.items
    )
    assert {key: count for key, count in started.items() if count > 1} == {}
    ends = Counter((result.cell, result.seq, result.id) for result in await deployment.results())
    assert set(ends.values()) == {1}
    published = Counter(await deployment.published_decisions())
    assert {key: count for key, count in published.items() if count > 1} == {}


async def test_b23_a_killed_worker_loses_no_request_of_its_batch(deployment: Deployment) -> None:
    await _in_service(deployment, 1, "--speed", "1", "--max-batch", "16")
    ids = await deployment.send_many(
        [deployment.request(f"w{n}", max_output_tokens=400) for n in range(30)]
    )
    await deployment.wait_for_dispatches(16)
    deployment.kill("worker-0")
    deployment.start_worker(0)
    outcomes = await deployment.outcomes(ids)
    assert {result.outcome for result in outcomes.values()} == {"completed"}
    assert max(result.attempts for result in outcomes.values()) == 2
    await deployment.check_record(ids)


async def test_a_lost_replica_s_work_goes_to_another_after_the_back_off(
    deployment: Deployment,
) -> None:
    await _in_service(deployment, 2, "--speed", "1", "--max-batch", "8")
    ids = await deployment.send_many(
        [deployment.request(f"m{n}", max_output_tokens=600) for n in range(12)]
    )
    await deployment.wait_for_dispatches(12)
    deployment.kill("worker-0")
    outcomes = await deployment.outcomes(ids)
    assert {result.outcome for result in outcomes.values()} == {"completed"}
    retried = [result for result in outcomes.values() if result.attempts == 2]
    assert len(retried) == 8
    assert {result.replica for result in retried} == {f"{deployment.profile.model}/1"}
    assert all(dict(result.waits)["backoff"] >= 100_000 for result in retried)
    await deployment.check_record(ids)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("away_s", [12, pytest.param(60, marks=pytest.mark.long)])
async def test_b9_the_broker_away_for_a_while_costs_time_and_nothing_else(
    deployment: Deployment, away_s: int
) -> None:
    await _in_service(deployment)
    broker = deployment.broker
    assert broker is not None
    async with Traffic(deployment, rate_per_s=5, prefix="b9") as traffic:
        await asyncio.sleep(1)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(broker.start)
        await traffic.settled(30)
        results = await traffic.finish(30)
    # Each call came back within its own bound, and not when the broker did.
    assert traffic.longest_send_s < SEND_S_MAX + 15
    assert {result.outcome for result in results.values()} == {"completed"}
    await deployment.check_record(traffic.ids)


async def test_b10_a_broker_bounced_again_and_again_loses_and_repeats_nothing(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    assert deployment.broker is not None
    ids: list[str] = []
    for bounce in range(4):
        ids += await deployment.send_many([deployment.request(f"b{bounce}-{n}") for n in range(30)])
        deployment.broker.kill()
        deployment.broker.start()
        await asyncio.sleep(1)
    outcomes = await deployment.outcomes(ids, 90)
    assert {result.outcome for result in outcomes.values()} == {"completed"}
    await deployment.check_record(ids)


async def test_everything_killed_at_once_comes_back_with_nothing_lost(
    deployment: Deployment,
) -> None:
    await _in_service(deployment, 2, "--speed", "2", "--max-batch", "8")
    ids = await deployment.send_many(
        [deployment.request(f"all-{n}", max_output_tokens=60) for n in range(60)]
    )
    await asyncio.sleep(0.6)
    assert deployment.broker is not None
    for name in ("cell", "worker-0", "worker-1"):
        deployment.kill(name)
    deployment.broker.kill()
    deployment.broker.start()
    deployment.start_worker(0)
    deployment.start_worker(1)
    deployment.start_cell()
    outcomes = await deployment.outcomes(ids, 90)
    assert {result.outcome for result in outcomes.values()} == {"completed"}
    await deployment.check_record(ids)


async def test_b15_a_frozen_owner_that_wakes_publishes_nothing_more(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    ids = await deployment.send_many([deployment.request(f"f{n}") for n in range(20)])
    await deployment.outcomes(ids)
    deployment.freeze("cell")
    late = await deployment.send_many([deployment.request(f"g{n}") for n in range(20)])
    deployment.start_cell("cell-2")
    await deployment.outcomes(late)
    deployment.thaw("cell")
    woken = await deployment.send_many([deployment.request(f"h{n}") for n in range(20)])
    await deployment.outcomes(woken)
    await asyncio.sleep(2)
    await deployment.check_record([*ids, *late, *woken])


async def test_losing_a_cell_process_moves_its_cells_within_10_s(deployment: Deployment) -> None:
    deployment.start_cell("cell")
    deployment.start_cell("cell-2")
    deployment.start_worker()
    await deployment.wait_for_replicas()
    ids = await deployment.send_many([deployment.request(f"p{n}") for n in range(10)])
    await deployment.outcomes(ids)
    deployment.kill("cell")
    began_s = time.monotonic()
    one = await deployment.send([deployment.request("moved")])
    two = await deployment.send([deployment.request("moved-again")])
    await deployment.outcomes([*one, *two], 15)
    deployment.start_cell("cell")
    await asyncio.sleep(4)
    deployment.kill("cell-2")
    more = await deployment.send([deployment.request("back")])
    await deployment.outcomes(more, 15)
    assert time.monotonic() - began_s < 34
    await deployment.check_record([*ids, *one, *two, *more])


async def test_b11_a_ledger_that_ends_in_a_transaction_marker_is_replayed_to_its_end(
    deployment: Deployment,
) -> None:
    await _in_service(deployment)
    ids = await deployment.send([deployment.request("one")])
    await deployment.outcomes(ids)
    deployment.kill("cell")
    producer = bus.AIOKafkaProducer(
        bootstrap_servers=deployment.bootstrap, transactional_id="marker"
    )
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(LEDGER, b"aborted", partition=deployment.cell_number)
    await producer.abort_transaction()
    await producer.stop()
    assert await asyncio.wait_for(deployment.mismatches(), 20) == []
    deployment.start_cell()
    again = await deployment.send([deployment.request("two")])
    await deployment.outcomes(again)
    await deployment.check_record([*ids, *again])
