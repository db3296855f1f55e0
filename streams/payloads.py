"""Prompts and outputs on their way through the shell: never in the core, never in the ledger.

What was read lately is kept in memory up to a bound; the rest is read again from its topic by the
offset that the ledger names. So memory does not grow with the queue, and a crash loses nothing.
"""

from collections import OrderedDict

from aiokafka import AIOKafkaConsumer, TopicPartition

from services import bus


class Payloads:
    """The raw values of one topic partition, by offset."""

    def __init__(self, bootstrap: str, topic: str, partition: int, bytes_max: int) -> None:
        self._bootstrap = bootstrap
        self._partition = TopicPartition(topic, partition)
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._consumer: AIOKafkaConsumer | None = None

    def keep(self, offset: int, raw: bytes) -> None:
        """Keep a value that was just read; the oldest ones make room for it."""
        self._kept[offset] = raw
        self._kept_bytes += len(raw)
        while self._kept_bytes > self._bytes_max and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)

    def forget(self, offset: int) -> None:
        """Drop a value that is not expected to be needed again."""
        dropped = self._kept.pop(offset, None)
        if dropped is not None:
            self._kept_bytes -= len(dropped)

    async def get(self, offset: int) -> bytes | None:
        """Return the value at `offset`, from memory or from the topic; None if it is gone.

        Raises:
            bus.BusError: the broker did not answer.
        """
        kept = self._kept.get(offset)
        if kept is not None:
            return kept
        if self._consumer is None:
            consumer = bus.new_consumer(self._bootstrap)
            await bus.bounded(consumer.start(), "accept a consumer")
            consumer.assign([self._partition])
            self._consumer = consumer
        read = bus.read_range(self._consumer, self._partition, offset, offset + 1)
        async for record in read:
            if record.offset == offset:
                return record.value
        return None

    async def close(self) -> None:
        """Give the connection back."""
        if self._consumer is not None:
            await bus.stop_client(self._consumer)
            self._consumer = None
