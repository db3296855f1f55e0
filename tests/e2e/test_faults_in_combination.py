"""kill -9 of cell, workers, recorder and broker, in seeded random combinations, during traffic."""

import asyncio
import random

import pytest

from tests.e2e.deployment import Deployment
from tests.e2e.recorder_stage import clickhouse
from tests.e2e.store_record import check_store
from tests.e2e.traffic import Traffic

pytestmark = [pytest.mark.broker, pytest.mark.store]

WORKERS = 2
PARTS = ("broker", "cell", "recorder", "worker-0", "worker-1")


def _start(deployment: Deployment, part: str) -> None:
    match part:
        case "broker":
            assert deployment.broker is not None
            deployment.broker.start()
        case "cell":
            deployment.start_cell()
        case "recorder":
            deployment.start_recorder()
        case _:
            slot = int(part.removeprefix("worker-"))
            deployment.start_worker(slot, "--speed", "2", "--max-batch", "8")


def _kill(deployment: Deployment, part: str) -> None:
    if part == "broker":
        assert deployment.broker is not None
        deployment.broker.kill()
    else:
        deployment.kill(part)


def _start_what_ended(deployment: Deployment) -> None:
    """Start again what ended by itself while another part was away, as `headway up` does."""
    for part in PARTS[1:]:
        if not deployment.children[part].alive:
            _start(deployment, part)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [
        (1, 4),
        pytest.param(2, 25, marks=pytest.mark.long),
        pytest.param(3, 25, marks=pytest.mark.long),
    ],
)
async def test_any_parts_killed_together_lose_nothing_repeat_nothing_and_leave_no_gap(
    deployment: Deployment, seed: int, rounds: int
) -> None:
    for part in PARTS[1:]:
        _start(deployment, part)
    await deployment.wait_for_replicas(WORKERS)
    chance = random.Random(seed)
    async with Traffic(deployment, rate_per_s=30, prefix=f"seed-{seed}") as traffic:
        for _ in range(rounds):
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            killed = chance.sample(PARTS, chance.randint(1, len(PARTS)))
            for part in killed:
                await asyncio.to_thread(_kill, deployment, part)
            for part in chance.sample(killed, len(killed)):
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                await asyncio.to_thread(_start, deployment, part)
            _start_what_ended(deployment)
        until_s = asyncio.get_running_loop().time() + 120
        finishing = asyncio.create_task(traffic.finish(120))
        while not finishing.done() and asyncio.get_running_loop().time() < until_s:
            _start_what_ended(deployment)
            await asyncio.sleep(0.2)
        results = await finishing
    # A worker that is killed again and again may use up a request's attempts; that is an outcome.
    for result in results.values():
        assert result.outcome == "completed" or result.attempts == 3, result
    await deployment.check_record(traffic.ids)
    url = f"http://127.0.0.1:{deployment.recorder_port}"
    await check_store(deployment, url, traffic.ids)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_b20_clickhouse_down_for_60_s_under_load_leaves_scheduling_untouched_and_no_gap(
    deployment: Deployment,
) -> None:
    server_dir = deployment.directory / "clickhouse"
    async with clickhouse(server_dir) as server:
        port = server.port
        url = f"http://127.0.0.1:{port}"
        deployment.start_recorder(url)
        deployment.start_cell()
        deployment.start_worker()
        await deployment.wait_for_replicas()
        traffic = await Traffic(deployment, rate_per_s=50, prefix="b20").__aenter__()
        await asyncio.sleep(10)
        await traffic.settled(30)
    # With the server away, what is sent goes on to end.
    ended_before = len(traffic.results)
    back_s = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < back_s:
        await asyncio.sleep(5)
        await traffic.settled(30)
    assert deployment.children["recorder"].alive
    assert len(traffic.results) - ended_before > 1_000
    async with clickhouse(server_dir, port):
        results = await traffic.finish(30)
        await traffic.__aexit__(None, None, None)
        assert {result.outcome for result in results.values()} == {"completed"}
        await deployment.check_record(traffic.ids)
        await check_store(deployment, url, traffic.ids)
