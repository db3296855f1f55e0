"""Prompts and outputs on their way through the shell: never in the core, never in the ledger.

What was read lately is kept in memory up to a bound; the rest is read again from its topic by the
offset that the ledger names. So memory does not grow with the queue, and a crash loses nothing.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from services import bus
from services.batches import raw_value

V = TypeVar("V")

READ_AGAIN_BYTES = 256 * 1024
FETCH_WAIT_MS = 1000


class Payloads(Generic[V]):
    """The decoded values of one topic partition, by offset.

    Args:
        bootstrap: of the broker.
        topic, partition: where the values lie.
        bytes_max: how much is kept, by the size of the raw values.
        parse: decodes a record, or returns None for one that is of no use.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        *,
        bytes_max: int,
        parse: Callable[[bus.Record], V | None],
    ) -> None:
        self._bootstrap = bootstrap
        self._partition = TopicPartition(topic, partition)
        self._bytes_max = bytes_max
        self._parse = parse
        self._kept: OrderedDict[int, tuple[V, int]] = OrderedDict()
        self._kept_bytes = 0
        self._consumer: AIOKafkaConsumer | None = None
        self._next_offset = -1

    def keep(self, offset: int, value: V, raw_bytes: int) -> None:
        """Keep a value that was just read; the oldest ones make room for it."""
        self.forget(offset)
        self._kept[offset] = (value, raw_bytes)
        self._kept_bytes += raw_bytes
        self._make_room()

    def resize(self, bytes_max: int) -> None:
        """Keep up to `bytes_max` from now on."""
        if bytes_max != self._bytes_max:
            self._bytes_max = bytes_max
            self._make_room()

    def _make_room(self) -> None:
        while self._kept_bytes > self._bytes_max and len(self._kept) > 1:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self._kept_bytes -= dropped_bytes

    def forget(self, offset: int) -> None:
        """Drop a value that is not expected to be needed again."""
        dropped = self._kept.pop(offset, None)
        if dropped is not None:
            self._kept_bytes -= dropped[1]

    async def get(self, offset: int) -> V | None:
        """Return the value at `offset`, from memory or from the topic; None if it is gone.

        Raises:
            bus.BusError: the broker did not answer.
        """
        kept = self._kept.get(offset)
        return await self._read_again(offset) if kept is None else kept[0]

    async def _read_again(self, offset: int) -> V | None:
        """Read from `offset` on, and keep what comes with it: the next one asked for is near.

        Only the topic says that a value is gone; a broker that takes its time is waited for.
        """
        consumer = await self._reader()
        if offset != self._next_offset:
            consumer.seek(self._partition, offset)
            self._next_offset = offset
        until_s = time.monotonic() + bus.CALL_S_MAX
        while self._next_offset <= offset:
            got = await bus.bounded(
                consumer.getmany(self._partition, timeout_ms=FETCH_WAIT_MS), "answer a fetch"
            )
            found = self._take(got.get(self._partition, ()), offset)
            if found is not None:
                return found
            if not got and await self._is_past(consumer, offset):
                return None
            if time.monotonic() > until_s:
                # A consumer can stand still for ever after a broker's restart; a new one does not.
                await self.close()
                raise bus.BusError(
                    f"Kafka did not give {self._partition.topic}/{self._partition.partition}"
                    f" offset {offset} again within {bus.CALL_S_MAX:g} s"
                )
        return None

    def _take(self, records: Iterable[bus.Record], offset: int) -> V | None:
        """Keep what the records hold; return the value at `offset` if it is among them."""
        found: V | None = None
        for record in records:
            self._next_offset = record.offset + 1
            value = self._parse(record)
            if value is not None and record.offset not in self._kept:
                self.keep(record.offset, value, len(raw_value(record) or b""))
            if record.offset == offset:
                found = value
        return found

    async def _is_past(self, consumer: AIOKafkaConsumer, offset: int) -> bool:
        """Return whether no record is left at `offset`: it expired, or it was never one."""
        position = await bus.bounded(consumer.position(self._partition), "tell a position")
        return position > offset

    async def _reader(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            consumer = bus.new_consumer(self._bootstrap, fetch_bytes=READ_AGAIN_BYTES)
            await bus.bounded(consumer.start(), "accept a consumer")
            consumer.assign([self._partition])
            self._consumer = consumer
        return self._consumer

    async def close(self) -> None:
        """Give the connection back."""
        if self._consumer is not None:
            await bus.stop_client(self._consumer)
            self._consumer = None
            self._next_offset = -1
