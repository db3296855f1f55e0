"""One owner in this process over a real broker: what may reach it, and what may come in between."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest
from aiokafka import TopicPartition

from schemas import facts as f
from schemas.bus import Result, Work, WorkerReport
from schemas.codec import decode, encode
from schemas.ledger import Entry
from schemas.profile import SMOLLM2_135M, Profile
from schemas.topics import CONFIG, LEDGER, REQUESTS, RESULTS, WORKER_EVENTS, work_topic
from services import bus
from services.embedded.broker import Broker
from streams.counting import counter_of
from streams.inputs import Inputs
from streams.owner import RECORD_BYTES, Owner, SupersededError

PROFILE = replace(SMOLLM2_135M, tokenizer="bytes", work_slots=2)
WAIT_S_MAX = 20.0


@pytest.fixture
async def kafka_of_one_cell(new_broker: Callable[[], Broker]) -> str:
    """Give a broker with the topics of one cell and a profile."""
    bootstrap = new_broker().bootstrap
    await bus.ensure_topics(bootstrap, 1)
    await publish(bootstrap, PROFILE)
    return bootstrap


def new_owner(bootstrap: str, name: str = "owner", session_ms: int = bus.SESSION_MS) -> Owner:
    return Owner(
        bootstrap, cell=0, cells=1, name=name, counter_of=counter_of, session_ms=session_ms
    )


@contextlib.asynccontextmanager
async def serving(owner: Owner) -> AsyncGenerator[None]:
    """Run the owner for as long as the context lasts; it must not end by itself."""
    running = asyncio.create_task(owner.run())
    try:
        yield
        assert not running.done(), running.exception()
    finally:
        owner.stop()
        await asyncio.wait_for(running, 20)


async def publish(bootstrap: str, profile: Profile) -> None:
    async with bus.producing(bootstrap) as producer:
        await producer.send_and_wait(CONFIG, encode(profile), key=b"profile")


async def report(bootstrap: str, fact: f.WorkerFact) -> None:
    async with bus.producing(bootstrap) as producer:
        value = encode(WorkerReport(fact=fact))
        await producer.send_and_wait(WORKER_EVENTS, value, partition=0)


async def ask(bootstrap: str, *ids: str, **fields: object) -> None:
    """Send requests; by default to a model that nobody knows, which are answered at once."""
    body = {"kind": "inference-request.v1", "model": "nobody", "prompt": "how long"} | fields
    async with bus.producing(bootstrap) as producer:
        acks = [
            await producer.send(
                REQUESTS, json.dumps(body | {"id": one}, ensure_ascii=False).encode(), partition=0
            )
            for one in ids
        ]
        await asyncio.gather(*acks)


async def read(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    chosen = TopicPartition(topic, partition)
    async with bus.consuming(bootstrap, [chosen]) as consumer:
        end = (await consumer.end_offsets([chosen]))[chosen]
        return [r.value or b"" async for r in bus.read_range(consumer, chosen, 0, end)]


async def read_once_there(
    bootstrap: str, topic: str, partition: int = 0, count: int = 1
) -> list[bytes]:
    """Return all values of a partition, as soon as it is there and has `count` of them."""
    until_s = time.monotonic() + WAIT_S_MAX
    while True:
        there = partition < await bus.partition_count(bootstrap, topic)
        values = await read(bootstrap, topic, partition) if there else []
        if len(values) >= count or time.monotonic() > until_s:
            return values
        await asyncio.sleep(0.1)


async def results(bootstrap: str, count: int) -> list[Result]:
    """Return every outcome once there are `count` of them."""
    values = await read_once_there(bootstrap, RESULTS, count=count)
    return [one for one in map(decode, values) if isinstance(one, Result)]


async def test_a_report_that_names_an_unknown_model_or_slot_stops_no_cell(
    kafka_of_one_cell: str,
) -> None:
    stranger = f.ReplicaHeartbeat(
        model="ghost", slot=0, incarnation="x", running=0, kv_blocks_used=0, output_tokens=0
    )
    async with serving(new_owner(kafka_of_one_cell)):
        await report(kafka_of_one_cell, stranger)
        await report(kafka_of_one_cell, replace(stranger, model="not a name / at all"))
        await report(kafka_of_one_cell, replace(stranger, model=PROFILE.model, slot=2))
        await ask(kafka_of_one_cell, "after")
        assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["after"]
    async with serving(new_owner(kafka_of_one_cell, "next")):
        await ask(kafka_of_one_cell, "later")
        assert [one.id for one in await results(kafka_of_one_cell, 2)] == ["after", "later"]


async def test_a_batch_too_large_for_one_ledger_record_becomes_several(
    kafka_of_one_cell: str,
) -> None:
    # The largest metadata there may be, in characters of two bytes: 18 kB, once in the fact and
    # once in the outcome.
    metadata = {f"{number:é>64}": "é" * 512 for number in range(16)}
    ids = [f"fat-{number}" for number in range(500)]
    await ask(kafka_of_one_cell, *ids, metadata=metadata)
    async with serving(new_owner(kafka_of_one_cell)):
        found = await results(kafka_of_one_cell, len(ids))
    assert [one.id for one in found] == ids
    assert all(one.metadata == metadata for one in found)
    records = await read(kafka_of_one_cell, LEDGER)
    assert sum(map(len, records)) > 16 * 1024 * 1024
    assert max(map(len, records)) < 2 * RECORD_BYTES


async def test_an_owner_whose_broker_is_slow_looks_at_the_ledger_and_goes_on(
    kafka_of_one_cell: str,
) -> None:
    # Every append takes longer than half of no session at all.
    async with serving(new_owner(kafka_of_one_cell, session_ms=0)):
        await ask(kafka_of_one_cell, "one")
        assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["one"]


async def test_an_owner_that_stood_still_between_its_append_and_its_effects_publishes_none(
    kafka_of_one_cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = new_owner(kafka_of_one_cell, "frozen", session_ms=0)
    derive = frozen._effects_of  # pyright: ignore[reportPrivateUsage] - to stand still behind it
    standing, woken = asyncio.Event(), asyncio.Event()

    async def stand_still(entries: list[Entry]) -> object:
        effects = await derive(entries)
        if any(decision.kind == "request-ended.v1" for e in entries for decision in e.decisions):
            standing.set()
            await woken.wait()
        return effects

    monkeypatch.setattr(frozen, "_effects_of", stand_still)
    running = asyncio.create_task(frozen.run())
    await ask(kafka_of_one_cell, "once")
    await asyncio.wait_for(standing.wait(), 20)
    async with serving(new_owner(kafka_of_one_cell, "successor")):
        assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["once"]
        woken.set()
        with pytest.raises(SupersededError, match="the ledger went on to offset"):
            await asyncio.wait_for(running, 20)
    assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["once"]


async def test_a_profile_with_more_slots_gives_its_work_topic_more_partitions(
    kafka_of_one_cell: str,
) -> None:
    ready = f.ReplicaReady(
        model=PROFILE.model,
        slot=0,
        incarnation="first",
        engine="simulated",
        dtype="none",
        device="none",
        kv_pool_bytes=1 << 30,
        kv_blocks=64,
        block_tokens=16,
        max_batch=1,
        max_sequence_tokens=8192,
        weights_bytes=0,
    )
    async with serving(new_owner(kafka_of_one_cell)):
        await report(kafka_of_one_cell, ready)
        await ask(kafka_of_one_cell, "on-the-first", model=PROFILE.model)
        await publish(kafka_of_one_cell, replace(PROFILE, version=2, work_slots=4))
        await report(kafka_of_one_cell, replace(ready, slot=3))
        await ask(kafka_of_one_cell, "on-the-last", model=PROFILE.model)
        work = await read_once_there(kafka_of_one_cell, work_topic(PROFILE.model), 3)
    assert [one.id for one in map(decode, work) if isinstance(one, Work)] == ["on-the-last"]


async def test_a_consumer_that_stands_still_on_one_partition_is_noticed_whatever_the_others_give(
    kafka_of_one_cell: str,
) -> None:
    """After a broker's restart, a client may go on with some partitions only."""
    inputs = Inputs(kafka_of_one_cell, 0)
    await inputs.start({}, 1024)
    inputs._consumer.pause(  # pyright: ignore[reportPrivateUsage] - it stands still so
        TopicPartition(REQUESTS, 0)
    )
    await ask(kafka_of_one_cell, "unheard")

    async def hear_of_workers() -> None:
        until_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until_s:
            draining = f.ReplicaDraining(model="m", slot=0, incarnation="x")
            await report(kafka_of_one_cell, draining)
            await inputs.poll(200, 10)

    with pytest.raises(bus.BusError, match=r"headway\.requests/0 stands still at offset 0"):
        await hear_of_workers()
    await inputs.stop()
