"""Ledgers that a test writes to a real broker as an owner would, and what is told of them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from itertools import chain, islice
from pathlib import Path

from aiokafka import AIOKafkaProducer, TopicPartition

from schemas.bus import DeadLetter, DepthSignal
from schemas.codec import decode, encode_entry
from schemas.ids import cell_of
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.topics import DEAD_LETTER, LEDGER, SIGNALS
from services import bus
from streams.app import run
from streams.recovery import HEADER_SNAPSHOTS
from tests.spec.signals_story import Ledger, RandomRun

WAIT_S_MAX = 40.0
ENTRIES_A_RECORD = 7


class WrittenLedger:
    """The ledger of one cell: a seeded random run, appended piece by piece."""

    def __init__(self, producer: AIOKafkaProducer, cell: int, cells: int) -> None:
        self.cell = cell
        self.told = Ledger(cells=cells, cell=cell)
        self.chain = GENESIS_CHAIN
        self.pointers = ""
        self._producer = producer
        names = (f"model-{number}" for number in range(1_000))
        models = tuple(islice((name for name in names if cell_of(name, cells) == cell), 2))
        story = RandomRun(7, self.told, models).entries(1_000_000)
        self._entries: Iterator[Entry] = chain([self.told.first], story)

    async def append(self, count: int) -> int:
        """Append the next `count` entries; return the offset of the last record."""
        entries = list(islice(self._entries, count))
        offset = -1
        for at in range(0, count, ENTRIES_A_RECORD):
            lines: list[bytes] = []
            for entry in entries[at : at + ENTRIES_A_RECORD]:
                line, self.chain = encode_entry(entry, self.chain)
                lines.append(line)
            offset = await self.append_raw(b"\n".join(lines))
        return offset

    async def append_raw(self, value: bytes | None) -> int:
        """Append any record; return its offset."""
        headers = [(HEADER_SNAPSHOTS, self.pointers.encode())] if self.pointers else []
        sent = self._producer.send_and_wait(
            LEDGER, value, key=b"%d" % self.cell, partition=self.cell, headers=headers
        )
        return (await bus.bounded(sent, "take a record")).offset

    @property
    def last_seq(self) -> int:
        """The seq of the last entry."""
        return self.told.seq - 1

    def depths(self) -> dict[str, tuple[int, int]]:
        """Count (waiting, running) of each model of the cell in the core's own memory."""
        state = self.told.state
        own = [name for name, model in state.models.items() if model.owner_cell == self.cell]
        stages = {
            name: [item.stage for item in state.requests.values() if item.model == name]
            for name in own
        }
        return {name: (s.count("waiting"), s.count("running")) for name, s in stages.items()}


class Told:
    """Reads what is told on headway.signals from now on."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._next = 0
        self.signals: list[DepthSignal] = []

    async def from_now(self) -> None:
        """Leave out what was told before."""
        partition = TopicPartition(SIGNALS, 0)
        async with bus.consuming(self._bootstrap, [partition]) as consumer:
            self._next = (await consumer.end_offsets([partition]))[partition]
        self.signals = []

    async def until(self, cell: int, seq: int, *, known: bool = True) -> DepthSignal:
        """Return the first signal of `cell` that stands at `seq` or later and is as `known`."""
        async with asyncio.timeout(WAIT_S_MAX):
            partition = TopicPartition(SIGNALS, 0)
            async with bus.consuming(self._bootstrap, [partition]) as consumer:
                consumer.seek(partition, self._next)
                while True:
                    got = await consumer.getmany(partition, timeout_ms=500)
                    for record in got.get(partition, ()):
                        self._next = record.offset + 1
                        signal = decode(record.value)
                        assert isinstance(signal, DepthSignal)
                        self.signals.append(signal)
                        reached = signal.cell == cell and signal.ledger_seq >= seq
                        if reached and signal.known == known:
                            return signal


def depths_of(signal: DepthSignal) -> dict[str, tuple[int, int]]:
    """Return (waiting, running) by model."""
    return {model.model: (model.waiting, model.running) for model in signal.models}


async def dead_letters_once_there(bootstrap: str, cell: int) -> list[DeadLetter]:
    """Return the dead letters in the partition of `cell`, as soon as there is one."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not (letters := await dead_letters(bootstrap, cell)):  # noqa: ASYNC110 - Kafka tells no event
            await asyncio.sleep(0.1)
    return letters


async def dead_letters(bootstrap: str, cell: int) -> list[DeadLetter]:
    """Return the dead letters in the partition of `cell`."""
    partition = TopicPartition(DEAD_LETTER, cell)
    letters: list[DeadLetter] = []
    async with bus.consuming(bootstrap, [partition]) as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        async for record in bus.read_range(consumer, partition, 0, end):
            letter = decode(record.value)
            assert isinstance(letter, DeadLetter)
            letters.append(letter)
    return letters


@contextlib.asynccontextmanager
async def running(bootstrap: str, state_dir: Path) -> AsyncGenerator["asyncio.Task[None]", None]:
    """Run the signal processors in this process until the block ends."""
    stop = asyncio.Event()
    task = asyncio.create_task(run(bootstrap, state_dir=state_dir, stop=stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task}, timeout=WAIT_S_MAX)
    if not task.done():
        raise AssertionError("the signal processors did not stop")
