"""The depth signal on a real broker: from restarts to broken ledgers. Each test has new topics."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from schemas.continuity import Position
from schemas.topics import DEAD_LETTER, LEDGER, SIGNALS, SNAPSHOTS
from services import bus
from services.embedded.broker import Broker
from services.scheduler.snapshot import encode_pieces, freeze
from services.settings import load
from streams import snapshots
from streams.app import run
from streams.depth import DepthFold
from streams.signals import Depths, SignalsError
from tests.e2e.raw_batches import RawBatch, RawRecord, write_batch
from tests.e2e.signals_ledger import (
    WAIT_S_MAX,
    Told,
    WrittenLedger,
    dead_letters,
    dead_letters_once_there,
    depths_of,
    running,
)

CELLS = 2
UNDECODABLE = RawBatch([RawRecord(b"{}", headers=((b"\xff", b"1"),))])

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests' own: they alter ledgers, and kill it."""
    broker = Broker(load(), tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.stop()


@dataclass
class Deployment:
    """A broker, a ledger for each cell, and what is told."""

    broker: Broker
    producer: AIOKafkaProducer
    cells: list[WrittenLedger]
    told: Told
    state_dir: Path

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap


@pytest_asyncio.fixture
async def deployment(own_broker: Broker, tmp_path: Path) -> AsyncIterator[Deployment]:
    bootstrap = own_broker.bootstrap
    await delete_topics(bootstrap)
    await bus.ensure_topics(bootstrap, CELLS)
    async with bus.producing(bootstrap) as producer:
        cells = [WrittenLedger(producer, cell, CELLS) for cell in range(CELLS)]
        yield Deployment(own_broker, producer, cells, Told(bootstrap), tmp_path)


async def test_depth_follows_the_ledger_and_survives_a_restart(deployment: Deployment) -> None:
    first, second = deployment.cells
    await first.append(700)
    async with running(deployment.bootstrap, deployment.state_dir):
        signal_0 = await deployment.told.until(0, first.last_seq)
        assert depths_of(signal_0) == first.depths()
        empty = await deployment.told.until(1, -1)
        assert empty.models == ()
        await second.append(300)
        await first.append(200)
        signal_0 = await deployment.told.until(0, first.last_seq)
        signal_1 = await deployment.told.until(1, second.last_seq)
        assert depths_of(signal_0) == first.depths()
        assert depths_of(signal_1) == second.depths()
    # What is appended while nobody reads is not lost, and nothing is told before it is read.
    await first.append(400)
    await deployment.told.from_now()
    async with running(deployment.bootstrap, deployment.state_dir):
        signal_0 = await deployment.told.until(0, -1)
        assert signal_0.ledger_seq == first.last_seq
        assert depths_of(signal_0) == first.depths()
        for told in deployment.told.signals:
            assert told.known or told.models == ()


async def test_depth_begins_from_a_snapshot_where_the_ledgers_beginning_is_gone(
    deployment: Deployment,
) -> None:
    ledger = deployment.cells[0]
    offset = await ledger.append(500)
    shell = snapshots.Shell(
        Position(next_seq=ledger.last_seq + 1, chain=ledger.chain, epoch=1), offset + 1, {}, {}
    )
    packed = snapshots.pack(shell, b"".join(encode_pieces(freeze(ledger.told.state))))
    pointer = await snapshots.write(deployment.producer, 0, 0, shell, packed)
    # A pointer to a snapshot that is not there stands before it, and is ignored.
    gone = snapshots.Pointer(pointer.last + 7, pointer.last + 7, 9999, 1)
    ledger.pointers = f"{gone.text()};{pointer.text()}"
    await ledger.append(60)
    await delete_before(deployment.bootstrap, 0, offset + 1)
    async with running(deployment.bootstrap, deployment.state_dir):
        signal_0 = await deployment.told.until(0, ledger.last_seq)
        assert depths_of(signal_0) == ledger.depths()


async def test_depth_stays_unknown_where_the_beginning_is_gone_without_a_snapshot(
    deployment: Deployment,
) -> None:
    offset = await deployment.cells[0].append(100)
    await delete_before(deployment.bootstrap, 0, offset)
    async with running(deployment.bootstrap, deployment.state_dir):
        await deployment.told.until(1, -1)
        unknown = await deployment.told.until(0, -1, known=False)
        await asyncio.sleep(2)
        assert unknown.models == ()
        assert not any(told.known for told in deployment.told.signals if told.cell == 0)


@pytest.mark.parametrize("foreign", [b"{}", b"\xff\xfe not json", None, UNDECODABLE])
async def test_a_ledger_record_of_no_owner_is_passed_over_and_depth_stays_right(
    deployment: Deployment, foreign: bytes | RawBatch | None
) -> None:
    ledger = deployment.cells[0]
    await ledger.append(50)
    async with running(deployment.bootstrap, deployment.state_dir):
        await deployment.told.until(0, ledger.last_seq)
        if isinstance(foreign, RawBatch):
            await write_batch(deployment.bootstrap, LEDGER, ledger.cell, foreign)
        else:
            await ledger.append_raw(foreign)
        await ledger.append(20)
        signal = await deployment.told.until(0, ledger.last_seq)
        assert signal.known
        assert depths_of(signal) == ledger.depths()
        assert await dead_letters(deployment.bootstrap, 0) == []


async def test_an_altered_entry_makes_its_cell_unknown(deployment: Deployment) -> None:
    ledger = deployment.cells[0]
    await ledger.append(50)
    ledger.chain = "f" * 16
    await ledger.append(7)
    async with running(deployment.bootstrap, deployment.state_dir):
        unknown = await deployment.told.until(0, 49, known=False)
        assert unknown.ledger_seq == 49
        letters = await dead_letters_once_there(deployment.bootstrap, 0)
        assert "altered at seq 50" in letters[0].reason


async def test_a_ledger_that_ends_in_a_transaction_marker_stays_known(
    deployment: Deployment,
) -> None:
    ledger = deployment.cells[0]
    await ledger.append(80)
    transactional = AIOKafkaProducer(
        bootstrap_servers=deployment.bootstrap, transactional_id="stray"
    )
    await transactional.start()
    async with running(deployment.bootstrap, deployment.state_dir) as processors:
        await deployment.told.until(0, ledger.last_seq)
        await transactional.begin_transaction()
        await transactional.send(LEDGER, b"never", partition=0)
        await transactional.abort_transaction()
        await transactional.stop()
        await asyncio.sleep(4)
        await deployment.told.from_now()
        signal_0 = await deployment.told.until(0, ledger.last_seq)
        assert depths_of(signal_0) == ledger.depths()
        await ledger.append(30)
        signal_0 = await deployment.told.until(0, ledger.last_seq)
        assert depths_of(signal_0) == ledger.depths()
        assert not processors.done()


async def test_what_the_stream_repeats_is_dropped_and_what_it_leaves_out_is_read(
    deployment: Deployment,
) -> None:
    ledger = deployment.cells[0]
    await ledger.append(140)
    depths = Depths(deployment.bootstrap, CELLS)
    await depths.start()
    try:
        depths.hold([0])
        async with asyncio.timeout(WAIT_S_MAX):
            while not depths.current(at_us=0)[0].known:  # noqa: ASYNC110 - as a reader would
                await asyncio.sleep(0.05)
        last = await ledger.append(140)
        records = await read_ledger(deployment.bootstrap, 0)
        await depths.take(0, last, records[last])
        await depths.take(0, last - 3, records[last - 3])
        await depths.take(0, 0, records[0])
        (told,) = depths.current(at_us=0)
        assert told.ledger_seq == ledger.last_seq
        assert depths_of(told) == ledger.depths()
    finally:
        await depths.stop()


async def test_a_processor_that_raises_ends_the_run_within_five_seconds(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = deployment.cells[0]
    stop = asyncio.Event()
    task = asyncio.create_task(run(deployment.bootstrap, state_dir=deployment.state_dir, stop=stop))
    await deployment.told.until(0, -1)

    def defect(_fold: DepthFold, _entry: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(DepthFold, "fold", defect)
    await ledger.append(1)
    done, _ = await asyncio.wait({task}, timeout=5.0)
    assert done
    with pytest.raises(SignalsError, match="a defect"):
        await task


async def test_two_processes_share_the_cells_and_one_takes_over_from_the_other(
    deployment: Deployment,
) -> None:
    first, second = deployment.cells
    await first.append(200)
    await second.append(200)
    one = await start_process(deployment.bootstrap)
    await deployment.told.until(0, first.last_seq)
    two = await start_process(deployment.bootstrap)
    try:
        await asyncio.sleep(5)
        one.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(one.wait(), 15) == 0
        await first.append(100)
        await second.append(100)
        assert depths_of(await deployment.told.until(0, first.last_seq)) == first.depths()
        assert depths_of(await deployment.told.until(1, second.last_seq)) == second.depths()
    finally:
        for process in (one, two):
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.parametrize("away_s", [1, 9])
async def test_depth_comes_back_after_the_broker_was_killed(
    deployment: Deployment, away_s: float
) -> None:
    first, second = deployment.cells
    await first.append(200)
    await second.append(100)
    supervisor = asyncio.create_task(supervise(deployment.bootstrap))
    try:
        await deployment.told.until(0, first.last_seq)
        port = int(deployment.bootstrap.rpartition(":")[2])
        deployment.broker.kill()
        await asyncio.sleep(away_s)
        deployment.broker.port = port
        deployment.broker.start()
        await first.append(100)
        await second.append(100)
        assert depths_of(await deployment.told.until(0, first.last_seq)) == first.depths()
        assert depths_of(await deployment.told.until(1, second.last_seq)) == second.depths()
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})


async def start_process(bootstrap: str) -> asyncio.subprocess.Process:
    """Start the signal processors as a process of their own, one that is soon out of patience."""
    code = (
        "import asyncio, sys; from streams import app, signals;"
        " signals.AWAY_S_MAX = 3.0; asyncio.run(app.run(sys.argv[1]))"
    )
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, bootstrap)


async def supervise(bootstrap: str) -> None:
    """Keep a process alive, as the supervisor of a deployment does."""
    while True:
        process = await start_process(bootstrap)
        try:
            assert await process.wait() != 0, "it ended as if it had been asked to"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def delete_topics(bootstrap: str) -> None:
    """Delete what an earlier test left, and wait until it is gone."""
    names = [LEDGER, SIGNALS, SNAPSHOTS, DEAD_LETTER]
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics(names)
    await admin.close()
    async with asyncio.timeout(WAIT_S_MAX):
        for name in names:
            while await bus.partition_count(bootstrap, name):  # noqa: ASYNC110 - Kafka tells no event
                await asyncio.sleep(0.1)


async def delete_before(bootstrap: str, cell: int, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(LEDGER, cell): RecordsToDelete(offset)})
    await admin.close()


async def read_ledger(bootstrap: str, cell: int) -> dict[int, bytes | None]:
    partition = TopicPartition(LEDGER, cell)
    async with bus.consuming(bootstrap, [partition]) as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        return {
            record.offset: record.value
            async for record in bus.read_range(consumer, partition, 0, end)
        }
