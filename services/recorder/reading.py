"""Reads the recorder's topics by manual assignment and hands batches to the sink. Owns the client.

Whatever happens to the broker, it tries on: every await on the client is bounded, and a client that
has gone quiet while there is more to read is replaced.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.bus import dead_letter
from schemas.codec import encode
from schemas.topics import DEAD_LETTER
from services import bus
from services.batches import fault_of, raw_value
from services.recorder.limits import RecorderLimits
from services.recorder.sink import POSITIONS, Batch, Place, Sink
from services.recorder.store import Store, StoreError

log = logging.getLogger("headway.recorder")

GROUP = "headway-recorder"
# A look at the end of the log, or a commit, is soon answered or not at all.
ASK_S_MAX = 3.0
_RECORDS_A_POLL = 500
_POLL_MS = 100


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far one partition is recorded; None is what is not known yet."""

    topic: str
    partition: int
    position: int
    end_offset: int | None
    lag: int | None


class Reading:
    """Reads until it is asked to stop.

    Args:
        bootstrap: the brokers.
        store: where rows go.
        limits: batches and pauses.
    """

    def __init__(self, bootstrap: str, store: Store, limits: RecorderLimits) -> None:
        self._bootstrap = bootstrap
        self._limits = limits
        self._stop = asyncio.Event()
        self._producer: AIOKafkaProducer | None = None
        self._counts: dict[str, int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._stored: dict[tuple[str, int], int] = {}
        self._committed_s = 0.0
        self._progress_s = 0.0
        self.sink = Sink(store, limits, self._send_dead_letter)
        self.trouble: str | None = None
        self.reading = asyncio.Event()

    def stop(self) -> None:
        """Ask it to store what it has read and end."""
        self._stop.set()

    def partitions(self) -> list[PartitionStatus]:
        """Return how far each partition is recorded."""
        found: list[PartitionStatus] = []
        for (topic, partition), position in sorted(self._stored.items()):
            end = self._ends.get((topic, partition))
            lag = None if end is None else max(0, end - position)
            found.append(PartitionStatus(topic, partition, position, end, lag))
        return found

    def last_error(self) -> str | None:
        """Return the sentence of a failure that lasts, or None."""
        return self.sink.last_error or self.trouble

    async def run(self) -> None:
        """Read and store until `stop`; never ends by itself."""
        pause_ms = self._limits.retry_ms_first
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                await self._session()
            except (bus.BusError, KafkaError, StoreError, OSError) as error:
                if str(error) != self.trouble:
                    log.warning("the recorder starts reading again after this: %s", error)
                self.trouble = str(error)
            if time.monotonic() - began_s > self._limits.stall_s:
                pause_ms = self._limits.retry_ms_first
            try:
                await asyncio.wait_for(self._stop.wait(), pause_ms / 1000)
            except TimeoutError:
                pause_ms = min(2 * pause_ms, self._limits.retry_ms_max)

    async def _session(self) -> None:
        """Read with one consumer, until `stop` or until something is wrong with it."""
        self._counts = {
            topic: await bus.partition_count(self._bootstrap, topic) for topic in POSITIONS
        }
        missing = [topic for topic, count in self._counts.items() if not count]
        if missing:
            raise bus.BusError(f"there is no topic {missing[0]} yet: a cell creates the topics")
        await self.sink.resume(self._counts)
        consumer = bus.new_consumer(
            self._bootstrap,
            group=GROUP,
            fetch_bytes=self._limits.fetch_bytes,
            gather_bytes=self._limits.gather_bytes,
        )
        producer = bus.new_producer(self._bootstrap)
        try:
            await bus.bounded(consumer.start(), "accept a consumer")
            await bus.bounded(producer.start(), "accept a producer")
            self._producer = producer
            await self._assign(consumer)
            self.trouble = None
            self.reading.set()
            await self._read(consumer)
        finally:
            self._producer = None
            await bus.stop_client(consumer)
            await bus.stop_client(producer)

    async def _assign(self, consumer: AIOKafkaConsumer) -> None:
        wanted = {TopicPartition(*place): at for place, at in self.sink.next_offsets.items()}
        ends = await bus.bounded(consumer.end_offsets(list(wanted)), "tell end offsets")
        begins = await bus.bounded(consumer.beginning_offsets(list(wanted)), "tell begin offsets")
        for partition, position in wanted.items():
            if ends[partition] < position:
                raise bus.BusError(
                    f"the store has {partition.topic}:{partition.partition} up to offset"
                    f" {position - 1}, and the log ends at {ends[partition]}: this is another"
                    " Kafka, or it has lost records; use another state directory or database"
                )
        consumer.assign(list(wanted))
        for partition, position in wanted.items():
            place = (partition.topic, partition.partition)
            if position < begins[partition]:
                if position > 0:
                    log.warning(
                        "%s:%d: records before %d expired unread", *place, begins[partition]
                    )
                position = begins[partition]  # noqa: PLW2901 - expired records are not lag
            consumer.seek(partition, position)
            self._stored[place] = position
            self._ends[place] = ends[partition]

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        self._progress_s = time.monotonic()
        while not self._stop.is_set():
            batch = await self._gather(consumer)
            if batch.records:
                if not await self.sink.store(batch, self._stop):
                    return
                for (topic, partition), last in batch.last.items():
                    self._stored[topic, partition] = last + 1
                self._progress_s = time.monotonic()
                await self._commit(consumer)
            elif time.monotonic() - self._progress_s > self._limits.stall_s:
                await self._look(consumer)

    async def _gather(self, consumer: AIOKafkaConsumer) -> Batch:
        """Return what came until the batch is full or old enough, perhaps nothing."""
        batch = Batch()
        limits = self._limits
        due_s = time.monotonic() + limits.batch_ms / 1000
        while (
            batch.row_count() < limits.batch_rows
            and batch.bytes < limits.batch_bytes
            and not self._stop.is_set()
        ):
            left_ms = int((due_s - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            polled = consumer.getmany(
                timeout_ms=min(left_ms, _POLL_MS), max_records=_RECORDS_A_POLL
            )
            got = await bus.bounded(polled, "answer a fetch")
            for partition, records in got.items():
                place = (partition.topic, partition.partition)
                for record in records:
                    self.sink.add(
                        batch,
                        (*place, record.offset),
                        record.timestamp,
                        raw_value(record),
                        fault_of(record),
                    )
                self._ends[place] = consumer.highwater(partition) or records[-1].offset + 1
        return batch

    async def _look(self, consumer: AIOKafkaConsumer) -> None:
        """Find out whether the silence means that there is nothing to read.

        Raises:
            BusError: the broker is away, or has records that do not come.
        """
        partitions = [TopicPartition(*place) for place in self._stored]
        ends = await bus.bounded(
            consumer.end_offsets(partitions), "tell end offsets", seconds=ASK_S_MAX
        )
        for partition, end in ends.items():
            self._ends[partition.topic, partition.partition] = end
            # Behind the last record may stand transaction markers, which the consumer steps over.
            at = await bus.bounded(consumer.position(partition), "tell a position", ASK_S_MAX)
            if at < end:
                raise bus.BusError(
                    f"{partition.topic}:{partition.partition} has records up to {end - 1}, but none"
                    f" came after {at - 1} for {self._limits.stall_s:g} s"
                )
        self.trouble = None
        self._progress_s = time.monotonic()

    async def _commit(self, consumer: AIOKafkaConsumer) -> None:
        """Commit how far the store is, for tools that show a group's lag; nothing else reads it."""
        if time.monotonic() - self._committed_s < self._limits.commit_s:
            return
        offsets: Mapping[Any, int] = {
            TopicPartition(*place): at for place, at in self._stored.items()
        }
        try:
            await bus.bounded(consumer.commit(dict(offsets)), "take a commit", ASK_S_MAX)
        except bus.BusError as error:
            log.warning("lag tools will see the recorder's last commit: %s", error)
        self._committed_s = time.monotonic()

    async def _send_dead_letter(self, place: Place, value: bytes | None, reason: str) -> None:
        assert self._producer is not None  # noqa: S101 - only called in a session
        topic, partition, offset = place
        sent = self._producer.send_and_wait(
            DEAD_LETTER,
            encode(dead_letter(place, value, reason)),
            key=f"{topic}:{partition}:{offset}".encode(),
            partition=partition % self._counts[DEAD_LETTER],
        )
        await bus.bounded(sent, "take a dead letter")
