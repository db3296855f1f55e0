"""Prompts and outputs on their way through the shell: never in the core, never in the ledger.

What was read lately is kept in memory up to a bound; the rest is read again from its topic by the
offset that the ledger names. So memory does not grow with the queue, and a crash loses nothing.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from services import bus

V = TypeVar("V")

READ_AGAIN_BYTES = 256 * 1024


class Payloads(Generic[V]):
    """The decoded values of one topic partition, by offset.

    Args:
        bootstrap: of the broker.
        topic, partition: where the values lie.
        bytes_max: how much is kept, by the size of the raw values.
        parse: decodes a raw value, or returns None for one that is of no use.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        *,
        bytes_max: int,
        parse: Callable[[bytes | None], V | None],
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
        """Read from `offset` on, and keep what comes with it: the next one asked for is near."""
        consumer = await self._reader()
        if offset != self._next_offset:
            consumer.seek(self._partition, offset)
        got = await bus.bounded(
            consumer.getmany(self._partition, timeout_ms=1000), "answer a fetch"
        )
        found: V | None = None
        for record in got.get(self._partition, ()):
            self._next_offset = record.offset + 1
            value = self._parse(record.value)
            if value is not None and record.offset not in self._kept:
                self.keep(record.offset, value, len(record.value or b""))
            if record.offset == offset:
                found = value
        return found

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
