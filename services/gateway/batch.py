"""A submitter's side of offline jobs: submit a file, ask how far jobs are, steer them.

Everything goes over Kafka alone: what is sent stands on headway.batch.jobs, and what became of it
on headway.batch.status. Each send may be repeated, so one that was cut off goes on from the number
of items that the cell has. Every wait is bounded, or the caller's to bound.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition

from schemas.batch import ENDED, BatchControl, BatchHold, BatchJob, BatchStatus
from schemas.codec import BusMessage, CodecError, decode, encode
from schemas.ids import cell_of
from schemas.topics import BATCH_JOBS, BATCH_STATUS
from services import bus
from services.gateway.batch_file import Checked, records

# Records on their way at once.
IN_FLIGHT_MAX = 16
# How long a submit is repeated while the broker is away or the cell lacks items.
SUBMIT_S_MAX = 60.0
RETRY_S = 0.5
FETCH_WAIT_MS = 250

OnProgress = Callable[[int], None]


class JobError(RuntimeError):
    """A job is not what was expected; the sentence says what it is."""


@dataclass(slots=True)
class Standing:
    """What headway.batch.status says: every job, and what holds each model's jobs back."""

    jobs: dict[str, BatchStatus] = field(default_factory=dict[str, BatchStatus])
    holds: dict[str, BatchHold] = field(default_factory=dict[str, BatchHold])

    def hold_of(self, status: BatchStatus) -> BatchHold | None:
        """Return what holds a job's items back now, or None when nothing does."""
        hold = self.holds.get(status.model)
        wants = status.report.state == "running" and status.report.released < status.report.items
        return hold if wants and hold is not None and hold.cause is not None else None


async def standing(bootstrap: str) -> Standing:
    """Return how far every job is.

    Raises:
        bus.BusError: the broker is away, or Headway's topics are not there.
    """
    partitions = await _partitions(bootstrap, BATCH_STATUS)
    last: dict[bytes, bytes | None] = {}
    async with bus.consuming(bootstrap, partitions) as consumer:
        starts = await bus.bounded(consumer.beginning_offsets(partitions), "tell start offsets")
        ends = await bus.bounded(consumer.end_offsets(partitions), "tell end offsets")
        for part in partitions:
            async for record in bus.read_range(consumer, part, starts[part], ends[part]):
                last[record.key or b""] = record.value
    found = Standing()
    for value in last.values():
        _take(found, value)
    return found


async def follow(bootstrap: str, job: str, timeout_s: float | None) -> AsyncIterator[BatchStatus]:
    """Yield a job's status, at once if there is one and then each new one, until it has ended.

    Ends too when nothing new came within `timeout_s`.

    Raises:
        bus.BusError: the broker is away for longer than the client bears.
    """
    partitions = await _partitions(bootstrap, BATCH_STATUS)
    key = f"job/{job}".encode()
    known = (await standing(bootstrap)).jobs.get(job)
    if known is not None:
        yield known
        if known.report.state in ENDED:
            return
    seen = known.seq if known is not None else -1
    heard_s = time.monotonic()
    async with bus.consuming(bootstrap, partitions) as consumer:
        while timeout_s is None or time.monotonic() - heard_s < timeout_s:
            got = await bus.bounded(consumer.getmany(timeout_ms=FETCH_WAIT_MS), "answer a fetch")
            for record in itertools.chain.from_iterable(got.values()):
                status = _status(record.value) if record.key == key else None
                if status is None or status.seq <= seen:
                    continue
                seen, heard_s = status.seq, time.monotonic()
                yield status
                if status.report.state in ENDED:
                    return


async def submit(
    bootstrap: str, checked: Checked, header: BatchJob, on_progress: OnProgress
) -> BatchStatus:
    """Send a job, as far as the cell lacks it, and return its status once it is there or refused.

    `on_progress` is called with the number of items that are on their way for good.

    Raises:
        JobError: another job has that id, or the cell did not take it in time.
        batch_file.FileError: the file changed since it was checked.
        bus.BusError: the broker is away for too long.
    """
    until_s = time.monotonic() + SUBMIT_S_MAX
    known = (await standing(bootstrap)).jobs.get(header.job)
    _check_same(header, known)
    while known is None or known.report.state == "receiving":
        arrived = known.report.arrived if known else 0
        sender = _Sender(bootstrap, header, arrived, on_progress)
        try:
            await sender.send(checked)
        except bus.BusError:
            if time.monotonic() > until_s:
                raise
            await asyncio.sleep(RETRY_S)
        if sender.done > arrived:
            until_s = time.monotonic() + SUBMIT_S_MAX
        known = await _taken(bootstrap, header, until_s) or known
        _check_same(header, known)
        if time.monotonic() > until_s and (known is None or known.report.state == "receiving"):
            here = known.report.arrived if known else 0
            raise JobError(
                f"the job {header.job} was sent, and the cell has {here} of {header.items} items of"
                " it: `headway doctor` tells whether cells run; the same command goes on from there"
            )
    return known


async def steer(bootstrap: str, control: BatchControl) -> None:
    """Send a control to the cell that owns the job's model.

    Raises:
        bus.BusError: the broker did not take it.
    """
    cells = len(await _partitions(bootstrap, BATCH_JOBS))
    async with bus.producing(bootstrap) as producer:
        sent = producer.send_and_wait(
            BATCH_JOBS,
            encode(control),
            key=control.model.encode(),
            partition=cell_of(control.model, cells),
        )
        await bus.bounded(sent, "take a control")


class _Sender:
    """Sends a job's header and its items from a number on, several records at once.

    Attributes:
        done: items that the broker holds, those before the first included.
    """

    def __init__(
        self, bootstrap: str, header: BatchJob, start: int, on_progress: OnProgress
    ) -> None:
        self._bootstrap = bootstrap
        self._header = header
        self._on_progress = on_progress
        self._waiting: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self.done = start

    async def send(self, checked: Checked) -> None:
        cells = len(await _partitions(self._bootstrap, BATCH_JOBS))
        partition = cell_of(self._header.model, cells)
        async with bus.producing(self._bootstrap) as producer:
            await self._write(producer, partition, self._header, self.done)
            for record in records(checked, self._header.job, self.done):
                count = record.first + len(record.items)
                await self._write(producer, partition, record, count)
            await self._settle(0)

    async def _write(
        self, producer: AIOKafkaProducer, partition: int, message: BusMessage, count: int
    ) -> None:
        key = self._header.model.encode()
        sent = producer.send(BATCH_JOBS, encode(message), key=key, partition=partition)
        self._waiting.append((count, await bus.bounded(sent, "take a record")))
        await self._settle(IN_FLIGHT_MAX)

    async def _settle(self, most: int) -> None:
        while len(self._waiting) > most:
            count, acked = self._waiting.popleft()
            await bus.bounded(acked, "acknowledge a record")
            self.done = count
            self._on_progress(count)


async def _taken(bootstrap: str, header: BatchJob, until_s: float) -> BatchStatus | None:
    """Wait until the cell has all items, or has none new for a while; return the last status."""
    last: BatchStatus | None = None
    while time.monotonic() < until_s:
        async for status in follow(bootstrap, header.job, timeout_s=5.0):
            last = status
            if status.report.state != "receiving":
                return last
        if last is not None:
            return last
    return last


def _check_same(header: BatchJob, known: BatchStatus | None) -> None:
    if known is None:
        return
    report = known.report
    if (known.model, report.items, report.digest) != (header.model, header.items, header.digest):
        raise JobError(
            f"the job {header.job} exists and is another one ({report.items} items of"
            f" {known.model}, {report.label or 'no label'}): name this one differently with --job"
        )


async def _partitions(bootstrap: str, topic: str) -> list[TopicPartition]:
    count = await bus.partition_count(bootstrap, topic)
    if not count:
        raise bus.BusError(
            f"there is no topic {topic} on {bootstrap}: start Headway first (`headway up`)"
        )
    return [TopicPartition(topic, number) for number in range(count)]


def _take(found: Standing, value: bytes | None) -> None:
    try:
        message = decode(value)
    except CodecError:
        # What is no cell's says nothing about a job.
        return
    if isinstance(message, BatchStatus):
        found.jobs[message.job] = message
    elif isinstance(message, BatchHold):
        found.holds[message.model] = message


def _status(value: bytes | None) -> BatchStatus | None:
    found = Standing()
    _take(found, value)
    return next(iter(found.jobs.values()), None)


def first_of(values: Iterable[BatchStatus]) -> list[BatchStatus]:
    """Return statuses in the order in which their jobs were submitted."""
    return sorted(values, key=lambda status: (status.report.submitted_us, status.job))
