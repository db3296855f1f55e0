"""The recorder on a real broker: what it stores, and what it survives. Each test has new topics."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.codec import lz4_encode

from schemas.bus import DeadLetter, DeviceSample
from schemas.codec import decode, encode
from schemas.topics import DEAD_LETTER, LEDGER, TELEMETRY
from services import bus
from services.embedded.broker import Broker
from services.inflate import LZ4
from services.recorder.chdb_server import HOST
from services.recorder.service import Recorder
from services.recorder.store import ServerStore
from services.settings import CLICKHOUSE, KAFKA, STATE, load
from tests.e2e.raw_batches import RawBatch, RawRecord, plain_of, write_batch
from tests.e2e.recorder_stage import (
    CELLS,
    QUICK,
    WAIT_S_MAX,
    CutProxy,
    Running,
    assert_whole,
    chosen,
    clickhouse,
    new_topics,
    recording,
)
from tests.e2e.signals_ledger import WrittenLedger

pytestmark = [pytest.mark.broker, pytest.mark.store]


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests' own: they delete its topics, and kill it."""
    broker = Broker(load(), tmp_path_factory.mktemp("recorder-broker"))
    broker.start()
    yield broker
    broker.stop()


@pytest_asyncio.fixture
async def kafka_now(own_broker: Broker) -> str:
    """A broker with new, empty topics."""
    await new_topics(own_broker.bootstrap)
    return own_broker.bootstrap


@pytest_asyncio.fixture
async def producer(kafka_now: str) -> AsyncIterator[AIOKafkaProducer]:
    async with bus.producing(kafka_now) as started:
        yield started


async def test_what_is_on_the_bus_is_in_the_tables(
    kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    ledgers = [WrittenLedger(producer, cell, CELLS) for cell in range(CELLS)]
    for ledger in ledgers:
        await ledger.append(900)
    async with recording(chosen(kafka_now, tmp_path)) as running:
        await running.until("SELECT count() FROM ledger FINAL", 1_800)
        await assert_whole(running, ledgers)
        for ledger in ledgers:
            await ledger.append(100)
        await running.until("SELECT count() FROM ledger FINAL", 2_000)
        await assert_whole(running, ledgers)
        status = await until_status(running.url, "lag", 0)
        assert status["last_error"] is None
    # A restart reads on from where the tables end.
    await ledgers[0].append(50)
    async with recording(chosen(kafka_now, tmp_path)) as running:
        await running.until("SELECT count() FROM ledger FINAL", 2_050)
        await assert_whole(running, ledgers)
        rows = await running.ask("SELECT raw FROM ledger FINAL WHERE cell = 0 ORDER BY seq")
    assert [str(row[0]).encode() for row in rows] == await lines_on_kafka(kafka_now, 0)


async def lines_on_kafka(bootstrap: str, cell: int) -> list[bytes]:
    partition = TopicPartition(LEDGER, cell)
    lines: list[bytes] = []
    async with bus.consuming(bootstrap, [partition]) as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        async for record in bus.read_range(consumer, partition, 0, end):
            assert record.value is not None
            lines += record.value.split(b"\n")
    return lines


async def test_b17_of_ten_thousand_samples_one_bad_one_is_a_dead_letter(
    kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    for number in range(10_000):
        value = encode(sample(number))
        if number == 4_321:
            value = value.replace(b'"power_w":300.0', b'"power_w":"much"')
        await producer.send(TELEMETRY, value, partition=0)
    await producer.flush()
    async with recording(chosen(kafka_now, tmp_path)) as running:
        await running.until("SELECT count() FROM telemetry", 9_999)
        await running.until("SELECT count() FROM dead_letters", 1)
        told = await running.ask(
            "SELECT source_topic, source_partition, source_offset FROM dead_letters"
        )
        assert told == [[TELEMETRY, 0, 4_321]]
        missing = "SELECT 49995000 - sum(offset) FROM telemetry"
        assert await running.one(missing) == 4_321
    letters = await dead_letters(kafka_now)
    assert [(letter.topic, letter.offset) for letter in letters] == [(TELEMETRY, 4_321)]
    assert "power_w" in letters[0].reason


async def test_what_cannot_be_decoded_is_a_dead_letter_and_all_beside_it_is_recorded(
    kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    ledger = WrittenLedger(producer, 0, CELLS)
    strange = ((b"\xff", b"1"),)
    samples = [RawRecord(encode(sample(number))) for number in range(3)]
    samples[1] = RawRecord(samples[1].value, headers=strange)
    await ledger.append(70)
    at = await write_batch(kafka_now, LEDGER, 0, RawBatch([RawRecord(b"{}", headers=strange)]))
    await ledger.append(70)
    await write_batch(kafka_now, TELEMETRY, 0, RawBatch(samples))
    packed = lz4_encode(plain_of(samples)) + b"more"
    await write_batch(kafka_now, TELEMETRY, 0, RawBatch(samples, LZ4, packed))
    await write_batch(kafka_now, TELEMETRY, 0, RawBatch([samples[0]]))
    async with recording(chosen(kafka_now, tmp_path)) as running:
        await running.until("SELECT count() FROM ledger FINAL", 140)
        await running.until("SELECT count() FROM telemetry", 3)
        await running.until("SELECT count() FROM dead_letters", 3)
        told = await running.ask(
            "SELECT source_topic, source_offset FROM dead_letters ORDER BY source_topic,"
            " source_offset"
        )
        assert told == [[LEDGER, at], [TELEMETRY, 1], [TELEMETRY, 5]]
        await assert_whole(running, [ledger])
    letters = {(one.topic, one.offset): one for one in await dead_letters(kafka_now)}
    assert "no UTF-8" in letters[LEDGER, at].reason
    assert letters[TELEMETRY, 1].body_bytes == len(samples[1].value or b"")
    assert "of the offsets 3 to 5" in letters[TELEMETRY, 5].reason


def sample(number: int) -> DeviceSample:
    return DeviceSample(
        node="host-1",
        device="GPU-0",
        at_us=1_764_500_000_000_000 + number,
        simulated=True,
        utilisation=None,
        memory_used_bytes=number,
        memory_total_bytes=2**34,
        power_w=300.0,
        temperature_c=None,
    )


async def dead_letters(bootstrap: str) -> list[DeadLetter]:
    letters: list[DeadLetter] = []
    for number in range(CELLS):
        partition = TopicPartition(DEAD_LETTER, number)
        async with bus.consuming(bootstrap, [partition]) as consumer:
            end = (await consumer.end_offsets([partition]))[partition]
            async for record in bus.read_range(consumer, partition, 0, end):
                letter = decode(record.value)
                assert isinstance(letter, DeadLetter)
                letters.append(letter)
    return letters


async def test_b18_an_insert_cut_between_body_and_reply_leaves_no_duplicate(
    kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    ledger = WrittenLedger(producer, 0, CELLS)
    await ledger.append(500)
    async with clickhouse(tmp_path / "server") as server:
        proxy = CutProxy(server.port)
        await proxy.start()
        settings = chosen(kafka_now, tmp_path, f"http://{HOST}:{proxy.port}")
        async with recording(settings) as running:
            await running.until("SELECT count() FROM ledger FINAL", 500)
            for _ in range(5):
                proxy.cut_next_inserts = 2
                await ledger.append(70)
                await running.until("SELECT count() FROM ledger FINAL", ledger.last_seq + 1)
            await assert_whole(running, [ledger])
            # Not even where nobody asks for FINAL.
            assert await running.one("SELECT count() FROM ledger") == ledger.last_seq + 1
        assert proxy.cuts >= 5
        await proxy.stop()


async def test_b20_clickhouse_away_for_a_while_leaves_no_gap_and_no_duplicate(
    kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    ledger = WrittenLedger(producer, 0, CELLS)
    async with clickhouse(tmp_path / "server") as server:
        port = server.port
        settings = chosen(kafka_now, tmp_path, f"http://{HOST}:{port}")
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        recorder = Recorder(settings, limits=QUICK, ready=url.set_result)
        task = asyncio.create_task(recorder.run())
        await asyncio.wait_for(url, WAIT_S_MAX)
        await ledger.append(300)
        await asyncio.sleep(0.5)
    for _ in range(10):
        await ledger.append(100)
        await asyncio.sleep(0.3)
    async with asyncio.timeout(WAIT_S_MAX):
        while "ClickHouse at" not in str((await recorder.status())["last_error"]):  # noqa: ASYNC110 - as a person would look
            await asyncio.sleep(0.1)
    assert not task.done()
    async with clickhouse(tmp_path / "server", port):
        running = Running(recorder, f"http://{HOST}:{port}")
        await running.until("SELECT count() FROM ledger FINAL", ledger.last_seq + 1)
        await assert_whole(running, [ledger])
        recorder.stop()
        await asyncio.wait_for(task, WAIT_S_MAX)
        assert (await recorder.status())["last_error"] is None


async def test_the_broker_killed_and_back_is_read_on(
    own_broker: Broker, kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    ledger = WrittenLedger(producer, 0, CELLS)
    await ledger.append(300)
    async with recording(chosen(kafka_now, tmp_path)) as running:
        await running.until("SELECT count() FROM ledger FINAL", 300)
        await asyncio.to_thread(own_broker.kill)
        await asyncio.sleep(2)
        await asyncio.to_thread(own_broker.start)
        async with bus.producing(kafka_now) as again:
            rest = WrittenLedger(again, 0, CELLS)
            rest.told, rest.chain, rest._entries = ledger.told, ledger.chain, ledger._entries  # pyright: ignore[reportPrivateUsage] - the same ledger, by another producer
            await rest.append(300)
        await running.until("SELECT count() FROM ledger FINAL", 600)
        await assert_whole(running, [rest])


class Process:
    """`headway recorder` as a process of its own."""

    def __init__(self, kafka: str, state: Path, port: int = 0) -> None:
        environ = {**os.environ, KAFKA: kafka, STATE: str(state)}
        environ.pop(CLICKHOUSE, None)
        argv = [sys.executable, "-m", "services.cli", "recorder", "--port", str(port)]
        self.child = subprocess.Popen(
            argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = ""

    def wait_until_ready(self) -> None:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line.startswith("ready "), line + self.said()
        self.url = line.split()[1]

    def said(self) -> str:
        assert self.child.stderr is not None
        return self.child.stderr.read()

    def end(self, number: int) -> int:
        self.child.send_signal(number)
        code = self.child.wait(timeout=WAIT_S_MAX)
        for stream in (self.child.stdout, self.child.stderr):
            assert stream is not None
            stream.close()
        return code


async def test_kill_9_in_mid_insert_leaves_no_gap_and_no_duplicate(
    kafka_now: str, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    ledger = WrittenLedger(producer, 0, CELLS)
    await ledger.append(20_000)
    for _ in range(4):
        process = Process(kafka_now, tmp_path)
        await asyncio.to_thread(process.wait_until_ready)
        appending = asyncio.create_task(ledger.append(3_000))
        await until_it_stores(process.url)
        process.end(signal.SIGKILL)
        await appending
    process = Process(kafka_now, tmp_path)
    await asyncio.to_thread(process.wait_until_ready)
    running = Running(Recorder(chosen(kafka_now, tmp_path)), process.url)
    await running.until("SELECT count() FROM ledger FINAL", ledger.last_seq + 1)
    await assert_whole(running, [ledger])
    wanted = sum(1 for line in await lines_on_kafka(kafka_now, 0) for _ in decisions_in(line))
    assert await running.one("SELECT count() FROM decisions") == wanted
    running.store.close()
    assert process.end(signal.SIGTERM) == 0


def decisions_in(line: bytes) -> list[Any]:
    return json.loads(line)["decisions"]


async def until_it_stores(url: str) -> None:
    """Wait until some rows are in: others are on their way then."""
    store = ServerStore(url)
    try:
        begin = (await asyncio.to_thread(store.query, "SELECT count() FROM ledger"))[0][0]
        until_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until_s:
            now = (await asyncio.to_thread(store.query, "SELECT count() FROM ledger"))[0][0]
            if now > begin:
                return
            await asyncio.sleep(0.02)
    finally:
        store.close()
    raise AssertionError("nothing was stored")


async def until_status(url: str, name: str, wanted: object) -> dict[str, Any]:
    """Return the recorder's status once it says so: rows are there before it counts them."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            status = await asyncio.to_thread(read_json, f"{url}/headway/status")
            if status[name] == wanted:
                return status
            await asyncio.sleep(0.1)


def read_json(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
        return json.loads(answer.read())


async def test_a_second_recorder_on_the_same_state_says_so(kafka_now: str, tmp_path: Path) -> None:
    first = Process(kafka_now, tmp_path)
    await asyncio.to_thread(first.wait_until_ready)
    second = Process(kafka_now, tmp_path)
    _, said = await asyncio.to_thread(second.child.communicate, None, WAIT_S_MAX)
    assert second.child.returncode != 0
    assert "another recorder" in said
    assert "Traceback" not in said
    assert first.end(signal.SIGTERM) == 0
