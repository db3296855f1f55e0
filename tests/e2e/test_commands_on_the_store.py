"""explain, replay and sql on a real recorder; and a replay whose ledger has lost its beginning."""

import asyncio
import time
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from schemas.policy import Policy
from schemas.requests import InferenceRequest
from schemas.topics import LEDGER
from services.embedded.broker import free_port
from services.gateway.client import Client
from streams import snapshots
from tests.e2e.command_line import Commands
from tests.e2e.deployment import Deployment

pytestmark = [pytest.mark.broker, pytest.mark.store]


@pytest.fixture
def commands(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(deployment, monkeypatch)


async def test_the_recorder_tells_what_kafka_tells(
    deployment: Deployment, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(None)
    deployment.spawn("recorder", "recorder", "--port", str(port))
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "10", "--max-batch", "2")
    await deployment.wait_for_replicas()
    await _run(deployment, 12)
    monkeypatch.setenv("HEADWAY_CLICKHOUSE", f"http://127.0.0.1:{port}")
    await _until_recorded(commands, 12)
    for request_id in ("r-0", "r-11"):
        by_store = await commands.json("explain", request_id, "--from", "clickhouse")
        by_kafka = await commands.json("explain", request_id, "--from", "kafka")
        assert by_store == by_kafka
        assert by_store["unexplained_us"] == 0
    found = await commands.json("replay", "--verify", "--from", "clickhouse")
    assert (found["mismatches"], found["cells"][0]["first_seq"]) == (0, 0)
    assert found["entries"] > 12
    await _queries(commands)


async def test_while_the_broker_is_away_the_recorder_tells_of_a_waiting_request_what_it_can(
    deployment: Deployment, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(None)
    deployment.spawn("recorder", "recorder", "--port", str(port))
    deployment.start_cell()
    await deployment.send([deployment.request("waits")])
    monkeypatch.setenv("HEADWAY_CLICKHOUSE", f"http://127.0.0.1:{port}")
    until_s = time.monotonic() + 60
    while (await commands.call("explain", "waits", "--from", "clickhouse")).exit_code:
        assert time.monotonic() < until_s, "the recorder did not store the request"
        await asyncio.sleep(0.3)
    told = await commands.json("explain", "waits")
    assert (told["present"]["cause"], told["standing_fault"]) == ("no-replica", None)
    monkeypatch.setenv("HEADWAY_KAFKA", f"127.0.0.1:{free_port(None)}")
    told = await commands.json("explain", "waits")
    assert told["present"]["cause"] == "no-replica"
    assert "Kafka could not" in told["standing_fault"]
    shown = await commands.call("explain", "waits")
    assert shown.exit_code == 0
    assert "what holds this very request back could not be read: Kafka could not" in shown.output


async def _queries(commands: Commands) -> None:
    rows = await commands.json("sql", "SELECT outcome, count() AS n FROM requests GROUP BY outcome")
    assert rows == [{"outcome": "completed", "n": 12}]
    lines = await commands.call("sql", "SELECT id FROM requests ORDER BY id LIMIT 1", "--csv")
    assert lines.stdout == "id\nr-0\n"
    tables = {row["table"] for row in await commands.json("sql")}
    assert {"ledger", "decisions", "requests", "waits", "audit"} <= tables
    for query in ("SELECT nothing_like_it", "DROP TABLE ledger", "SELEC 1"):
        refused = await commands.call("sql", query)
        assert refused.exit_code == 1
        assert "the query failed: Code:" in refused.output


async def test_a_ledger_without_its_beginning_is_replayed_from_a_snapshot(
    deployment: Deployment, commands: Commands
) -> None:
    await deployment.set_policy(Policy(version=2, snapshot_entries=40))
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "50", "--max-batch", "4")
    await deployment.wait_for_replicas()
    pointers = await _until_two_snapshots(deployment)
    await _cut(deployment, pointers[1].seq // 4)
    found = await commands.json("replay", "--verify", "--cell", str(deployment.cell_number))
    (cell,) = found["cells"]
    assert found["mismatches"] == 0
    assert cell["first_seq"] > 1
    assert "verified from the snapshot of seq" in cell["began"]
    assert found["entries"] == cell["next_seq"] - cell["first_seq"]


async def _until_two_snapshots(deployment: Deployment) -> list[snapshots.Pointer]:
    until_s = time.monotonic() + 60
    number = 0
    while time.monotonic() < until_s:
        await _run(deployment, 20, first=number)
        number += 20
        if len(pointers := await deployment.snapshot_pointers()) > 1:
            return pointers
    raise AssertionError("the owner wrote no two snapshots")


async def _cut(deployment: Deployment, offset: int) -> None:
    """Do what retention does: let the ledger begin at `offset`."""
    ledger = TopicPartition(LEDGER, deployment.cell_number)
    admin = AIOKafkaAdminClient(bootstrap_servers=deployment.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ledger: RecordsToDelete(before_offset=max(2, offset))})
    finally:
        await admin.close()


async def _run(deployment: Deployment, count: int, *, first: int = 0) -> None:
    async with Client(deployment.bootstrap) as client:
        asked = [
            InferenceRequest(
                kind="inference-request.v1",
                id=f"r-{number}",
                model=deployment.profile.model,
                prompt="hello there",
                max_output_tokens=16,
            )
            for number in range(first, first + count)
        ]
        results = await asyncio.gather(*(client.run(one, 60) for one in asked))
    assert {result.outcome for result in results} == {"completed"}


async def _until_recorded(commands: Commands, count: int) -> None:
    until_s = time.monotonic() + 60
    rows: Any = None
    while time.monotonic() < until_s:
        got = await commands.call(
            "sql", "SELECT count() AS n FROM requests WHERE outcome IS NOT NULL", "--csv"
        )
        rows = got.output
        if got.exit_code == 0 and int(got.stdout.split()[-1]) >= count:
            return
        await asyncio.sleep(0.3)
    raise AssertionError(f"the recorder did not store {count} outcomes: {rows}")
