"""The commands and the client on real processes over the real broker."""

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from schemas.requests import InferenceRequest
from schemas.topics import LEDGER, TOKENS
from services import bus
from services.gateway.client import Client
from streams.replay_sources import Replayed, replay_kafka
from tests.e2e.command_line import Commands
from tests.e2e.deployment import Deployment, decision_kinds
from tests.spec.replay_ledger import begun
from tests.spec.scheduler_story import arrived, ready

pytestmark = pytest.mark.broker


@pytest.fixture
def commands(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(deployment, monkeypatch)


async def test_a_request_is_submitted_followed_cancelled_explained_and_replayed(
    deployment: Deployment, commands: Commands, tmp_path: Path
) -> None:
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "1", "--max-batch", "4")
    await deployment.wait_for_replicas()
    await _submits(commands)
    await _cancels(commands)
    await _explains(commands)
    await _replays(commands, tmp_path)
    topics = {one["name"]: one for one in await commands.json("topics")}
    assert sum(topics["headway.results"]["live"]["headway.results"].values()) >= 4


async def test_explain_says_what_holds_this_very_request_back_while_it_waits(
    deployment: Deployment, commands: Commands
) -> None:
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "0.02", "--max-batch", "1")
    await deployment.wait_for_replicas()
    await deployment.send(
        [
            deployment.request("runs", tier="realtime", max_output_tokens=2_000),
            deployment.request("high", tier="critical"),
            deployment.request("low", tier="batch"),
        ]
    )
    await deployment.until_recorded(
        "three requests were queued",
        lambda entries: decision_kinds(entries)["request-queued.v1"] == 3,
    )
    low, high = await commands.json("explain", "low"), await commands.json("explain", "high")
    assert (high["present"]["cause"], low["present"]["cause"]) == ("slots", "turn")
    assert low["present"]["why"] == "requests of higher tiers wait for the same room: 1 critical"
    assert (low["unexplained_us"], high["unexplained_us"]) == (0, 0)
    waits = dict(low["waits"])
    assert sum(waits.values()) == low["wait_us"] == low["e2e_us"] > 0
    assert "waiting (turn)" in (await commands.call("explain", "low")).output


async def _submits(commands: Commands) -> None:
    result = await commands.json("submit", "hello", "--id", "one", "--max-output-tokens", "8")
    assert (result["outcome"], result["usage"]["output_tokens"]) == ("completed", 8)
    again = await commands.json("submit", "hello", "--id", "one", "--max-output-tokens", "8")
    assert again == result, "a resend gets the outcome that there is"
    followed = await commands.call("submit", "-", "--follow", "--id", "two", given="hello there")
    assert followed.exit_code == 0, followed.output
    pieces = await commands.call("submit", "hi", "--follow", "--id", "three", "--json")
    *streamed, last = [json.loads(line) for line in pieces.stdout.splitlines()]
    assert "".join(piece["text"] for piece in streamed) == last["text"]
    rejected = await commands.call("submit", "hello", "--model", "nobody")
    assert rejected.exit_code == 1
    assert "ended as rejected (unknown-model)" in rejected.output


async def test_a_request_that_is_followed_late_shows_what_was_generated_so_far_and_goes_on(
    deployment: Deployment, commands: Commands
) -> None:
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "1", "--max-batch", "4")
    await deployment.wait_for_replicas()
    await deployment.send([deployment.request("other", stream=True)])
    same = ("submit", "hi", "--follow", "--id", "late", "--max-output-tokens", "600")
    sent = await commands.call(*same, "--no-wait")
    assert sent.exit_code == 0, sent.output
    while not any(b'"id":"late"' in value for value in await deployment.read_all(TOKENS)):  # noqa: ASYNC110 - the worker's doing
        await asyncio.sleep(0.1)
    other = await commands.call("submit", "ho", "--follow", "--id", "late")
    assert other.exit_code == 1
    assert "another request has this id already" in other.output
    joined = await commands.call(*same, "--json")
    assert joined.exit_code == 0, joined.output
    *pieces, result = [json.loads(line) for line in joined.stdout.splitlines()]
    assert pieces[0]["index"] == 0, "what was generated before it was followed comes first"
    assert sum(len(piece["tokens"]) for piece in pieces) == 600
    assert "".join(piece["text"] for piece in pieces) == result["text"]


async def _cancels(commands: Commands) -> None:
    sent = await commands.call(
        "submit", "hello", "--id", "long", "--max-output-tokens", "4000", "--no-wait"
    )
    assert sent.stdout.strip() == "long"
    cancelled = await commands.json("cancel", "long")
    assert (cancelled["became"], cancelled["outcome"]) == ("cancelled", "cancelled")
    ended = await commands.call("cancel", "long")
    assert ended.exit_code == 1
    assert "had ended already" in ended.output
    for arguments in (["nobody"], ["nobody", "--model", "smollm2-135m"]):
        unknown = await commands.call("cancel", *arguments)
        assert unknown.exit_code == 1
        assert "no cell knows a request 'nobody'" in unknown.output


async def _explains(commands: Commands) -> None:
    story = await commands.json("explain", "long")
    assert (story["outcome"], story["unexplained_us"]) == ("cancelled", 0)
    assert story["wait_us"] + story["run_us"] == story["e2e_us"]
    shown = await commands.call("explain", "long")
    assert "unexplained 0 µs" in shown.output
    assert "asked to leave" in shown.output
    unknown = await commands.call("explain", "nobody-at-all")
    assert unknown.exit_code == 1
    assert "no ledger speaks of 'nobody-at-all'" in unknown.output


async def _replays(commands: Commands, tmp_path: Path) -> None:
    found = await commands.json("replay", "--verify")
    assert found["mismatches"] == 0
    path = tmp_path / "ledger.ndjson.gz"
    plain = tmp_path / "altered.ndjson"
    exported = await commands.json("replay", "--export", str(plain))
    assert exported["lines"] >= found["entries"]
    await commands.json("replay", "--export", str(path))
    assert (await commands.json("replay", "--file", str(path)))["mismatches"] == 0
    text = plain.read_bytes()
    assert b'"max_output_tokens":8,' in text
    plain.write_bytes(text.replace(b'"max_output_tokens":8,', b'"max_output_tokens":9,', 1))
    altered = await commands.call("replay", "--file", str(plain))
    assert altered.exit_code == 1
    assert "seq" in altered.output


async def test_b11_a_ledger_that_ends_in_a_transaction_marker_is_replayed_to_its_end(
    deployment: Deployment,
) -> None:
    made = begun(ready(at=1), arrived("a", at=2))
    producer = AIOKafkaProducer(
        bootstrap_servers=deployment.bootstrap, transactional_id="a-foreign-writer"
    )
    # The broker's first transaction makes a topic of its own first.
    await bus.bounded(producer.start(), "accept a producer", seconds=60)
    try:
        async with producer.transaction():
            for record in made.records:
                await producer.send_and_wait(LEDGER, record, partition=0)
        # The broker writes the marker after it has answered.
        while await _end(deployment.bootstrap) < len(made.records) + 1:  # noqa: ASYNC110 - the broker's doing
            await asyncio.sleep(0.1)
        found = await _replayed(deployment.bootstrap)
        assert (found.report.sound, found.report.entries) == (True, len(made.entries))
        # An aborted one leaves records that nobody reads, and one more marker.
        await producer.begin_transaction()
        await producer.send_and_wait(LEDGER, b"never", partition=0)
        await producer.abort_transaction()
    finally:
        await bus.stop_client(producer)
    assert (await _replayed(deployment.bootstrap)).report == found.report


async def _replayed(bootstrap: str) -> Replayed:
    def unheard(_cell: int, _done: int, _total: int) -> None:
        """Progress is for people."""

    return await asyncio.wait_for(replay_kafka(bootstrap, 0, unheard), 90)


async def _end(bootstrap: str) -> int:
    ledger = TopicPartition(LEDGER, 0)
    async with bus.consuming(bootstrap) as consumer:
        return (await consumer.end_offsets([ledger]))[ledger]


async def test_a_client_gets_every_outcome_though_the_broker_was_killed(
    deployment: Deployment,
) -> None:
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "2", "--max-batch", "8")
    await deployment.wait_for_replicas()
    broker = deployment.broker
    assert broker is not None
    async with Client(deployment.bootstrap) as client:
        running = [
            asyncio.create_task(client.run(_request(f"r-{number}"), 90)) for number in range(60)
        ]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(broker.kill)
        late = [asyncio.create_task(client.run(_request(f"l-{number}"), 90)) for number in range(5)]
        await asyncio.to_thread(broker.start)
        results = await asyncio.gather(*running, *late)
    assert {result.outcome for result in results} == {"completed"}
    await deployment.check_record([result.id for result in results])


def _request(request_id: str) -> InferenceRequest:
    return InferenceRequest(
        kind="inference-request.v1",
        id=request_id,
        model="smollm2-135m",
        prompt="hello there",
        max_output_tokens=24,
    )
