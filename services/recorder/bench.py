"""Measures the recorder: rows it stores in a second of one core's time, and how far it is behind.

Builds records with the real codec and stores them with the real sink in an embedded ClickHouse of
its own; needs no broker.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from aiokafka import TopicPartition

from schemas.bus import Result
from schemas.codec import decode_line, encode, encode_entry, split_record
from schemas.decisions import Decision, RequestDispatched, RequestEnded, RequestQueued
from schemas.facts import Fact, RequestArrived, Usage, WorkDone, WorkFinished, WorkRef, WorkStarted
from schemas.figures import Figure
from schemas.ids import Source
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.topics import LEDGER, RESULTS
from services import bus
from services.recorder.engine import Engine
from services.recorder.limits import RecorderLimits
from services.recorder.migrate import migrate
from services.recorder.sink import Batch, Place, Sink
from services.recorder.store import EmbeddedStore, ServerStore

MODEL = "bench-model"
BEGAN_US = 1_764_500_000_000_000
REQUESTS = 120_000
REQUESTS_QUICK = 20_000
# As an owner appends them under load: the arrivals of a moment, then what workers reported.
_REQUESTS_A_RECORD = 32
Record = tuple[Place, int, bytes]


def recorder_figures(*, quick: bool = False) -> list[Figure]:
    """Return `recorder.rows_per_s`: rows of all tables by the process's CPU time, merges included.

    CPU time and not the clock, because the question is how much of one core the recorder takes.
    """
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as directory:
        count = REQUESTS_QUICK if quick else REQUESTS
        return asyncio.run(_stored(Path(directory), count))


async def _stored(directory: Path, count: int) -> list[Figure]:
    limits = RecorderLimits()
    engine = Engine(directory, limits)
    try:
        store = EmbeddedStore(engine)
        migrate(store)
        sink = Sink(store, limits, _no_dead_letter)
        await sink.resume({LEDGER: 1, RESULTS: 1})
        stop = asyncio.Event()
        making = _Making(count)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        batch = Batch()
        for place, at_ms, value in making:
            sink.add(batch, place, at_ms, value)
            if batch.row_count() >= limits.batch_rows or batch.bytes >= limits.batch_bytes:
                await sink.store(batch, stop)
                batch = Batch()
        await sink.store(batch, stop)
        cpu_s = time.process_time() - began_cpu_s - making.cpu_s
        wall_s = time.perf_counter() - began_s - making.wall_s
        rows = _decided_rows(count)
        return [
            Figure("recorder.rows_per_s", rows / cpu_s, "rows/s"),
            Figure("recorder.rows_per_s_by_the_clock", rows / wall_s, "rows/s"),
        ]
    finally:
        engine.close()


class _Making:
    """Makes the records one by one, and knows what that took: it is no work of the recorder."""

    def __init__(self, count: int) -> None:
        self._records = _records(count)
        self.cpu_s = 0.0
        self.wall_s = 0.0

    def __iter__(self) -> Iterator[Record]:
        while True:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            record = next(self._records, None)
            self.cpu_s += time.thread_time() - cpu_s
            self.wall_s += time.perf_counter() - wall_s
            if record is None:
                return
            yield record


def _decided_rows(count: int) -> int:
    """Return how many rows `count` requests make: 2 entries and a share, 3 decisions, 2 + 1 rows.

    Each request has an entry for its arrival; starts and ends come two entries a record. Its row in
    `requests` is written twice, when it is accepted and when it has ended.
    """
    records = count // _REQUESTS_A_RECORD
    entries = records * (_REQUESTS_A_RECORD + 2)
    return entries + records * _REQUESTS_A_RECORD * (3 + 2 + 1)


async def _no_dead_letter(place: Place, value: bytes | None, reason: str) -> None:
    del value
    raise AssertionError(f"the bench made a record that cannot be recorded: {place}: {reason}")


def _records(count: int) -> Iterator[Record]:
    """Yield the ledger's records and the results of `count` requests."""
    seq, chain = 0, GENESIS_CHAIN
    firsts = range(0, count - _REQUESTS_A_RECORD + 1, _REQUESTS_A_RECORD)
    for offset, first in enumerate(firsts):
        numbers = range(first, first + _REQUESTS_A_RECORD)
        lines: list[bytes] = []
        for fact, decisions in _facts(numbers):
            source: Source = ("headway.requests", 0, seq)
            entry = Entry(
                cell=0,
                seq=seq,
                epoch=1,
                source=source,
                policy_version=1,
                policy_digest="b9dadf40654ab4ab",
                fact=fact,
                decisions=decisions,
            )
            line, chain = encode_entry(entry, chain)
            lines.append(line)
            seq += 1
        at_ms = BEGAN_US // 1000 + first
        yield (LEDGER, 0, offset), at_ms, b"\n".join(lines)
        for number in numbers:
            yield (RESULTS, 0, number), at_ms, encode(_result(number, seq - 1))


def _facts(numbers: range) -> Iterator[tuple[Fact, tuple[Decision, ...]]]:
    at_us = BEGAN_US + numbers[0] * 1000
    for number in numbers:
        yield _arrived(number, at_us), (_queued(number), _dispatched(number))
    refs = tuple(WorkRef(id=f"request-{number:09}", attempt=1) for number in numbers)
    where = {"model": MODEL, "slot": 0, "incarnation": "life-1"}
    yield WorkStarted(at_us=at_us + 1000, items=refs, **where), ()  # pyright: ignore[reportArgumentType] - a dict of three
    done = tuple(
        WorkDone(
            id=ref.id,
            attempt=1,
            finish_reason="stop",
            usage=_usage(),
            output_digest="13922e574cb9f1a8",
        )
        for ref in refs
    )
    finished = WorkFinished(at_us=at_us + 9000, offset=numbers[0], items=done, **where)  # pyright: ignore[reportArgumentType] - as above
    yield finished, tuple(_ended(number, at_us) for number in numbers)


def _usage() -> Usage:
    return Usage(
        prompt_tokens=30,
        output_tokens=26,
        queued_us=2100,
        prefill_us=1400,
        decode_us=4000,
        first_token_us=3500,
    )


def _arrived(number: int, at_us: int) -> RequestArrived:
    return RequestArrived(
        at_us=at_us,
        id=f"request-{number:09}",
        model=MODEL,
        tenant=f"tenant-{number % 7}",
        tier="normal",
        arrived_us=at_us - 500,
        offset=number,
        prompt_tokens=30,
        max_output_tokens=64,
        body_digest="13922e574cb9f1a8",
        body_bytes=387,
    )


def _queued(number: int) -> RequestQueued:
    return RequestQueued(
        id=f"request-{number:09}",
        model=MODEL,
        tenant=f"tenant-{number % 7}",
        tier="normal",
        prompt_tokens=30,
        max_output_tokens=64,
        deadline_us=None,
        ahead=number % 5,
        preemptible=True,
        quota_us=0,
    )


def _dispatched(number: int) -> RequestDispatched:
    return RequestDispatched(
        id=f"request-{number:09}",
        model=MODEL,
        tenant=f"tenant-{number % 7}",
        tier="normal",
        slot=0,
        incarnation="life-1",
        attempt=1,
        blocks=6,
        blocks_free=1000,
        running=8,
        wait_us=1200,
        waits=(("transit", 500), ("slots", 700)),
        passed_over=(),
        starved=False,
        cost=1,
        weight=1,
        quantum=1,
        offset=number,
        max_output_tokens=64,
        prompt_tokens=30,
        seed=number,
        blocks_full=6,
        samples=0,
        number=number + 1,
        resume_tokens=0,
        resume_offset=-1,
    )


def _ended(number: int, at_us: int) -> RequestEnded:
    return RequestEnded(
        id=f"request-{number:09}",
        model=MODEL,
        tenant=f"tenant-{number % 7}",
        tier="normal",
        outcome="completed",
        reason="stop",
        detail="generated 26 tokens and stopped by itself",
        attempts=1,
        slot=0,
        arrived_us=at_us - 500,
        wait_us=1200,
        waits=(("transit", 500), ("slots", 700)),
        run_us=8300,
        e2e_us=9500,
        ttft_us=4700,
        usage=_usage(),
        prompt_tokens=30,
        max_output_tokens=64,
        blocks=6,
        request_offset=number,
        output_offset=number,
        body_digest="13922e574cb9f1a8",
        output_digest="13922e574cb9f1a8",
        metadata=(),
        cost=0,
        retry_after_ms=None,
        keep_until_us=at_us + 600_000_000,
    )


def _result(number: int, seq: int) -> Result:
    return Result(
        id=f"request-{number:09}",
        model=MODEL,
        tenant=f"tenant-{number % 7}",
        tier="normal",
        outcome="completed",
        reason="stop",
        detail="generated 26 tokens and stopped by itself",
        text="A queue grows in a burst because requests arrive faster than they are served.",
        usage=_usage(),
        attempts=1,
        replica=f"{MODEL}/0",
        wait_us=1200,
        waits=(("transit", 500), ("slots", 700)),
        run_us=8300,
        ttft_us=4700,
        e2e_us=9500,
        metadata={},
        retry_after_ms=None,
        cell=0,
        seq=seq,
        policy_version=1,
        policy_digest="b9dadf40654ab4ab",
    )


async def lag_s(kafka: str, clickhouse: str) -> float:
    """Return how much older the newest recorded entry is than the newest on the ledger, in seconds.

    The largest over the cells, by the owners' stamps. Of a cell whose ledger ends in an entry that
    is recorded it is 0.

    Raises:
        BusError, StoreError: Kafka or ClickHouse did not answer.
    """
    newest = await _newest_us(kafka)
    store = ServerStore(clickhouse)
    try:
        sql = "SELECT cell, toUnixTimestamp64Micro(max(at)) FROM ledger GROUP BY cell"
        rows = await asyncio.to_thread(store.query, sql)
    finally:
        store.close()
    recorded = {int(cell): int(at_us) for cell, at_us in rows}
    behind_us = [at_us - recorded.get(cell, at_us) for cell, at_us in newest.items()]
    return max(0, *behind_us, 0) / 1e6


async def _newest_us(kafka: str) -> dict[int, int]:
    """Return the stamp of the last entry of each cell that has one."""
    cells = await bus.partition_count(kafka, LEDGER)
    partitions = [TopicPartition(LEDGER, cell) for cell in range(cells)]
    newest: dict[int, int] = {}
    async with bus.consuming(kafka, partitions) as consumer:
        ends = await bus.bounded(consumer.end_offsets(partitions), "tell end offsets")
        for partition, end in ends.items():
            async for record in bus.read_range(consumer, partition, max(0, end - 1), end):
                line = split_record(record.value)[-1]
                newest[partition.partition] = decode_line(line).entry.fact.at_us
    return newest
