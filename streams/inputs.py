"""Everything that an owner reads: its input partitions, payloads by offset, and tails.

One consumer, assigned by hand and positioned from the ledger: nothing is committed. Decides
nothing. It watches that it moves: a consumer can stand still for ever after a broker's restart.
"""

import time
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from schemas import bus as messages
from schemas import decisions as d
from schemas.batch import BatchItem
from schemas.codec import CodecError, decode
from schemas.edge import Asked, read_request
from schemas.embeddings import EmbeddingRequest
from schemas.ids import Source
from schemas.ledger import Entry
from schemas.requests import InferenceRequest
from schemas.topics import BATCH_JOBS, CONFIG, LEDGER, REQUESTS, WORKER_EVENTS
from services import bus
from services.batches import raw_value
from streams.admission import Read
from streams.effects import Output, outputs_in
from streams.jobs import items_in
from streams.payloads import Payloads

# Without a record for this long, the end offsets are asked for: either there is nothing to read,
# or the consumer is stuck.
QUIET_S_MAX = 3.0
# How much further back each look for the last effect goes.
TAIL_GROWTH = 16
REPORT_CACHE_BYTES = 32 * 1024 * 1024
# Items are read one record after the other, so little has to be kept.
ITEMS_CACHE_BYTES = 2 * 1024 * 1024
# Records of jobs in one batch: each may hold hundreds of items, and online requests wait meanwhile.
JOB_RECORDS_MAX = 4

RawRecord = ConsumerRecord[bytes, bytes]


class Inputs:
    """The inputs of one cell. Also what streams.effects calls Sources."""

    def __init__(self, bootstrap: str, cell: int) -> None:
        self._bootstrap = bootstrap
        self._cell = cell
        self._consumer: AIOKafkaConsumer = bus.new_consumer(bootstrap)
        self._config = TopicPartition(CONFIG, 0)
        self._jobs = TopicPartition(BATCH_JOBS, cell)
        # In this order a batch is taken in: first what changes the rules, then what frees room.
        self._partitions = [
            self._config,
            TopicPartition(WORKER_EVENTS, cell),
            TopicPartition(REQUESTS, cell),
            self._jobs,
        ]
        self._others = [part for part in self._partitions if part != self._jobs]
        self._started = False
        self._raw: dict[Source, bytes] = {}
        self._raw_again: dict[tuple[str, int], Payloads[bytes]] = {}
        # When each partition last gave a record, or was seen to have none.
        self._moved_s = dict.fromkeys(self._partitions, time.monotonic())

    async def start(self, recorded: dict[tuple[str, int], int], cache_bytes: int) -> None:
        """Stand behind the last recorded offset of each partition."""
        self._requests: Payloads[Asked] = Payloads(
            self._bootstrap, REQUESTS, self._cell, bytes_max=cache_bytes, parse=_parse_request
        )
        self._reports: Payloads[dict[str, Output]] = Payloads(
            self._bootstrap,
            WORKER_EVENTS,
            self._cell,
            bytes_max=REPORT_CACHE_BYTES,
            parse=_parse_outputs,
        )
        self._items: Payloads[tuple[BatchItem, ...]] = Payloads(
            self._bootstrap,
            BATCH_JOBS,
            self._cell,
            bytes_max=ITEMS_CACHE_BYTES,
            parse=items_in,
        )
        self._started = True
        await bus.bounded(self._consumer.start(), "accept a consumer")
        self._consumer.assign(self._partitions)
        starts = await bus.bounded(
            self._consumer.beginning_offsets(self._partitions), "tell start offsets"
        )
        for partition in self._partitions:
            last = recorded.get((partition.topic, partition.partition), -1)
            self._consumer.seek(partition, max(last + 1, starts[partition]))

    async def stop(self) -> None:
        """Give the connections back."""
        await bus.stop_client(self._consumer)
        if self._started:
            await self._requests.close()
            await self._reports.close()
            await self._items.close()
        for payloads in self._raw_again.values():
            await payloads.close()

    async def config_backlog(self) -> list[RawRecord]:
        """Return the next policies and profiles, or nothing when all that exist are read."""
        ends = await bus.bounded(self._consumer.end_offsets([self._config]), "tell an end offset")
        while True:
            position = await bus.bounded(self._consumer.position(self._config), "tell a position")
            if position >= ends[self._config]:
                return []
            got = await bus.bounded(
                self._consumer.getmany(self._config, timeout_ms=500), "answer a fetch"
            )
            if got:
                return got[self._config]

    async def poll(self, wait_ms: int, records_max: int) -> list[RawRecord]:
        """Return the next records, at most `records_max`, waiting at most `wait_ms`.

        Raises:
            bus.BusError: the broker is silent, or the consumer stands still before the end.
        """
        got = await bus.bounded(self._getmany(wait_ms, records_max), "answer a fetch")
        now_s = time.monotonic()
        self._moved_s.update(dict.fromkeys(got, now_s))
        # Each by itself: heartbeats come all the time, and say nothing about the requests.
        quiet = [part for part, moved_s in self._moved_s.items() if now_s - moved_s > QUIET_S_MAX]
        if quiet:
            await self._check_moving(quiet)
        return [record for part in self._partitions for record in got.get(part, ())]

    async def _getmany(
        self, wait_ms: int, records_max: int
    ) -> dict[TopicPartition, list[RawRecord]]:
        # By itself and first: the client empties one partition before it turns to the next, and
        # thousands of requests that wait to be read must not keep a new policy waiting.
        got = await self._consumer.getmany(self._config, timeout_ms=0, max_records=records_max)
        if got:
            return got
        got = await self._consumer.getmany(self._jobs, timeout_ms=0, max_records=JOB_RECORDS_MAX)
        got.update(
            await self._consumer.getmany(
                *self._others, timeout_ms=0 if got else wait_ms, max_records=records_max
            )
        )
        return got

    async def _check_moving(self, partitions: list[TopicPartition]) -> None:
        """Find out whether partitions that gave nothing have nothing.

        Raises:
            bus.BusError: the broker is silent, or one has records that do not come.
        """
        ends = await bus.bounded(
            self._consumer.end_offsets(partitions), "tell end offsets", seconds=5.0
        )
        for partition, end in ends.items():
            position = await bus.bounded(self._consumer.position(partition), "tell a position")
            if position < end:
                # One more look: a record may have come between the two answers.
                got = await bus.bounded(
                    self._consumer.getmany(partition, timeout_ms=2000, max_records=1),
                    "answer a fetch",
                )
                if not got:
                    raise bus.BusError(
                        f"the consumer of {partition.topic}/{partition.partition} stands still at"
                        f" offset {position}, before the end {end}"
                    )
                self._consumer.seek(partition, position)
        self._moved_s.update(dict.fromkeys(partitions, time.monotonic()))

    def resize(self, cache_bytes: int) -> None:
        """Keep up to `cache_bytes` of prompts in memory from now on."""
        self._requests.resize(cache_bytes)

    async def ledger_end(self) -> int:
        """Return the end offset of the cell's ledger."""
        ledger = TopicPartition(LEDGER, self._cell)
        ends = await bus.bounded(self._consumer.end_offsets([ledger]), "tell an end offset")
        return ends[ledger]

    async def effect_tails(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the (seq, index) of the last effect of this cell on each of its partitions."""
        tails: dict[tuple[str, int], tuple[int, int]] = {}
        chosen = [TopicPartition(*pair) for pair in partitions]
        if not chosen:
            return tails
        async with bus.consuming(self._bootstrap, chosen) as consumer:
            starts = await bus.bounded(consumer.beginning_offsets(chosen), "tell start offsets")
            ends = await bus.bounded(consumer.end_offsets(chosen), "tell end offsets")
            for partition in chosen:
                tail = await self._tail(consumer, partition, starts[partition], ends[partition])
                if tail is not None:
                    tails[partition.topic, partition.partition] = tail
        return tails

    async def _tail(
        self, consumer: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int
    ) -> tuple[int, int] | None:
        """Return the (seq, index) of this cell's last effect, looking back further and further.

        Others write to the dead-letter topic too, so the last record need not be an effect.
        """
        tail: tuple[int, int] | None = None
        span = 1
        until = end
        while tail is None and until > start:
            first = max(start, end - span)
            async for record in bus.read_range(consumer, partition, first, until):
                tail = self._effect_id(record) or tail
            until = first
            span *= TAIL_GROWTH
        return tail

    def _effect_id(self, record: RawRecord) -> tuple[int, int] | None:
        try:
            found = messages.decision_id(dict(record.headers))
        except ValueError:
            return None
        return found[1:] if found is not None and found[0] == self._cell else None

    # Payloads

    def keep(self, read: Read) -> None:
        """Keep what the effects of this batch are likely to need."""
        topic, _, offset = read.source
        raw_bytes = len(read.raw or b"")
        if isinstance(read.payload, InferenceRequest | EmbeddingRequest):
            self._requests.keep(offset, read.payload, raw_bytes)
        elif isinstance(read.payload, messages.WorkerReport):
            outputs = outputs_in(read.payload)
            if outputs is not None:
                self._reports.keep(offset, outputs, raw_bytes)
        if read.raw is not None and topic != CONFIG:
            self._raw[read.source] = read.raw

    def forget(self, entries: list[Entry]) -> None:
        """Drop what was published: prompts that are dispatched or ended, and reports."""
        for entry in entries:
            if entry.source is not None:
                self._raw.pop(entry.source, None)
            # Kept tokens are read once more, when their request is dispatched again.
            kept = any(isinstance(item, d.RequestPreempted) for item in entry.decisions)
            if entry.source is not None and entry.source[0] == WORKER_EVENTS and not kept:
                self._reports.forget(entry.source[2])
            for decision in entry.decisions:
                if isinstance(decision, d.RequestDispatched):
                    self._requests.forget(decision.offset)
                elif isinstance(decision, d.RequestEnded):
                    self._requests.forget(decision.request_offset)

    async def request(self, offset: int) -> Asked | None:
        """Return a request of this cell."""
        return await self._requests.get(offset)

    async def items(self, offset: int) -> tuple[BatchItem, ...] | None:
        """Return a job's items of one record."""
        return await self._items.get(offset)

    async def outputs(self, offset: int) -> dict[str, Output] | None:
        """Return the outputs, by request id, of a worker's report to this cell."""
        return await self._reports.get(offset)

    async def raw(self, topic: str, partition: int, offset: int) -> bytes | None:
        """Return the raw value of any input record."""
        kept = self._raw.get((topic, partition, offset))
        if kept is not None:
            return kept
        again = self._raw_again.get((topic, partition))
        if again is None:
            again = self._raw_again[topic, partition] = Payloads(
                self._bootstrap, topic, partition, bytes_max=0, parse=raw_value
            )
        return await again.get(offset)


def _parse_request(record: RawRecord) -> Asked | None:
    asked = read_request(record.value)
    return asked if isinstance(asked, InferenceRequest | EmbeddingRequest) else None


def _parse_outputs(record: RawRecord) -> dict[str, Output] | None:
    try:
        report = decode(record.value)
    except CodecError:
        return None
    return outputs_in(report) if isinstance(report, messages.WorkerReport) else None
