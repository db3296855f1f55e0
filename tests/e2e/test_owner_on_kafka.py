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
from schemas.bus import DeadLetter, Result, Work, WorkerReport
from schemas.codec import decode, decode_line, encode
from schemas.ledger import Entry
from schemas.profile import SMOLLM2_135M, Profile
from schemas.topics import (
    CONFIG,
    DEAD_LETTER,
    LEDGER,
    REQUESTS,
    RESULTS,
    TOPICS,
    WORKER_EVENTS,
    work_topic,
)
from services import bus
from services.embedded.broker import Broker
from streams.counting import counter_of
from streams.inputs import Inputs
from streams.owner import RECORD_BYTES, Owner, SupersededError

PROFILE = replace(SMOLLM2_135M, tokenizer="bytes", work_slots=2)
READY = f.ReplicaReady(
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
# What is waited for comes in a second; a busy machine takes its time.
WAIT_S_MAX = 60.0


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
        await asyncio.wait_for(running, WAIT_S_MAX)


async def publish(bootstrap: str, profile: Profile, key: bytes = b"profile") -> None:
    async with bus.producing(bootstrap) as producer:
        await producer.send_and_wait(CONFIG, encode(profile), key=key)


async def report(bootstrap: str, fact: f.WorkerFact, *texts: str) -> None:
    async with bus.producing(bootstrap) as producer:
        value = encode(WorkerReport(fact=fact, texts=texts))
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
    await asyncio.wait_for(standing.wait(), WAIT_S_MAX)
    async with serving(new_owner(kafka_of_one_cell, "successor")):
        assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["once"]
        woken.set()
        with pytest.raises(SupersededError, match="the ledger went on to offset"):
            await asyncio.wait_for(running, WAIT_S_MAX)
    assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["once"]


async def write(bootstrap: str, topic: str, value: bytes) -> None:
    async with bus.producing(bootstrap) as producer:
        await producer.send_and_wait(topic, value, partition=0)


async def takeovers(bootstrap: str) -> list[int]:
    """Return the epochs that began on the ledger."""
    lines = b"\n".join(await read(bootstrap, LEDGER)).split(b"\n")
    entries = [decode_line(line).entry for line in lines if line.startswith(b"{")]
    return [e.fact.epoch for e in entries if isinstance(e.fact, f.OwnerTookOver)]


@pytest.mark.parametrize("session_ms", [bus.SESSION_MS, 0])
async def test_an_owner_goes_on_past_records_that_no_owner_wrote(
    kafka_of_one_cell: str, session_ms: int
) -> None:
    async with serving(new_owner(kafka_of_one_cell, session_ms=session_ms)):
        await ask(kafka_of_one_cell, "one")
        assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["one"]
        for stranger in (b"garbage", b"", b"more\ngarbage"):
            await write(kafka_of_one_cell, LEDGER, stranger)
        await ask(kafka_of_one_cell, "two")
        assert [one.id for one in await results(kafka_of_one_cell, 2)] == ["one", "two"]
    assert await takeovers(kafka_of_one_cell) == [1]
    async with serving(new_owner(kafka_of_one_cell, "next")):
        await ask(kafka_of_one_cell, "three")
        assert [one.id for one in await results(kafka_of_one_cell, 3)][2:] == ["three"]
    assert await takeovers(kafka_of_one_cell) == [1, 2]


async def test_an_owner_s_record_among_those_of_strangers_stops_the_one_that_serves(
    kafka_of_one_cell: str,
) -> None:
    """Even one that is void: that its writer lives on is not for this owner to judge."""
    owner = new_owner(kafka_of_one_cell)
    running = asyncio.create_task(owner.run())
    await ask(kafka_of_one_cell, "one")
    assert [one.id for one in await results(kafka_of_one_cell, 1)] == ["one"]
    first = (await read(kafka_of_one_cell, LEDGER))[0]
    for value in (b"garbage", first, b"garbage"):
        await write(kafka_of_one_cell, LEDGER, value)
    await ask(kafka_of_one_cell, "two")
    with pytest.raises(SupersededError, match="another owner has appended"):
        await asyncio.wait_for(running, WAIT_S_MAX)
    assert len(await results(kafka_of_one_cell, 1)) == 1


async def test_an_aborted_transaction_on_the_ledger_supersedes_nobody(
    kafka_of_one_cell: str,
) -> None:
    async with serving(new_owner(kafka_of_one_cell)):
        await ask(kafka_of_one_cell, "one")
        assert len(await results(kafka_of_one_cell, 1)) == 1
        stranger = bus.AIOKafkaProducer(
            bootstrap_servers=kafka_of_one_cell, transactional_id="stranger"
        )
        await stranger.start()
        await stranger.begin_transaction()
        await stranger.send_and_wait(LEDGER, b"never", partition=0)
        await stranger.abort_transaction()
        await stranger.stop()
        await ask(kafka_of_one_cell, "two")
        assert len(await results(kafka_of_one_cell, 2)) == 2
    assert await takeovers(kafka_of_one_cell) == [1]


async def test_a_text_too_long_for_an_outcome_is_cut_and_the_outcome_says_where_all_of_it_is(
    kafka_of_one_cell: str,
) -> None:
    metadata = {f"{number:é>64}": "é" * 512 for number in range(16)}
    usage = f.Usage(prompt_tokens=1, output_tokens=1, queued_us=1, prefill_us=1, decode_us=1)
    async with serving(new_owner(kafka_of_one_cell)):
        await report(kafka_of_one_cell, READY)
        await ask(kafka_of_one_cell, "long", model=PROFILE.model, metadata=metadata)
        await read_once_there(kafka_of_one_cell, work_topic(PROFILE.model), 0)
        done = f.WorkDone(
            id="long", attempt=1, finish_reason="stop", usage=usage, output_digest="0" * 16
        )
        fact = f.WorkFinished(
            model=PROFILE.model, slot=0, incarnation=READY.incarnation, items=(done,)
        )
        room = bus.REQUEST_BYTES_MAX - len(encode(WorkerReport(fact=fact, texts=("",)))) - 200
        await report(kafka_of_one_cell, fact, "x" * room)
        (result,) = await results(kafka_of_one_cell, 1)
        await ask(kafka_of_one_cell, "after")
        assert len(await results(kafka_of_one_cell, 2)) == 2
    assert (result.outcome, result.metadata) == ("completed", metadata)
    assert result.text == "x" * 2_088_960
    assert result.detail.endswith(
        f"the text is cut to 2088960 of its {room} characters: the outcome would not fit into a"
        " record; all of it is in headway.worker.events/0 at offset 1"
    )


async def test_a_work_topic_that_is_refused_at_a_takeover_is_a_dead_letter_and_the_cell_serves(
    kafka_of_one_cell: str,
) -> None:
    await publish(kafka_of_one_cell, replace(PROFILE, model="a_b"), b"profile/a_b")
    async with serving(new_owner(kafka_of_one_cell)):
        await ask(kafka_of_one_cell, "one")
        await results(kafka_of_one_cell, 1)
    async with bus.administering(kafka_of_one_cell) as admin:
        await admin.delete_topics([work_topic("a_b")])
        until_s = time.monotonic() + WAIT_S_MAX
        while await bus.partition_count(kafka_of_one_cell, work_topic("a_b")):
            assert time.monotonic() < until_s
            await asyncio.sleep(0.1)
    await bus.ensure_work_topic(kafka_of_one_cell, replace(PROFILE, model="a.b"))
    async with serving(new_owner(kafka_of_one_cell, "next")):
        await ask(kafka_of_one_cell, "two")
        assert [one.id for one in await results(kafka_of_one_cell, 2)] == ["one", "two"]
        (raw,) = await read_once_there(kafka_of_one_cell, DEAD_LETTER)
    letter = decode(raw)
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.offset) == (CONFIG, 1)
    assert "headway.work.a_b" in letter.reason


async def test_processes_that_begin_together_agree_on_the_number_of_cells(
    new_broker: Callable[[], Broker],
) -> None:
    bootstrap = new_broker().bootstrap
    asked = (2, 5, 3)
    told = await asyncio.gather(*(bus.ensure_topics(bootstrap, cells) for cells in asked))
    (cells,) = set(told)
    assert cells in asked
    for topic in TOPICS:
        if topic.partitions != "work-slots":
            wanted = topic.partition_count(cells)
            assert await bus.partition_count(bootstrap, topic.name) == wanted, topic.name


async def test_a_profile_with_more_slots_gives_its_work_topic_more_partitions(
    kafka_of_one_cell: str,
) -> None:
    async with serving(new_owner(kafka_of_one_cell)):
        await report(kafka_of_one_cell, READY)
        await ask(kafka_of_one_cell, "on-the-first", model=PROFILE.model)
        await publish(kafka_of_one_cell, replace(PROFILE, version=2, work_slots=4))
        await report(kafka_of_one_cell, replace(READY, slot=3))
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
