"""What a worker says, in order, until the bus has it: a broker that is away loses nothing.

A report may reach the topic twice when an acknowledgement is lost; a second one speaks of an
attempt that is over by then, and changes nothing. Knows no engine.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from services import bus

BATCH_MAX = 500
RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Outgoing:
    """One record to write."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class UnwritableError(RuntimeError):
    """The bus will never take a report; the work that it speaks of is another life's to do."""


class Outbox:
    """Writes records in the order of `put`, and writes again what was not acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._waiting: deque[Outgoing] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, record: Outgoing) -> None:
        """Take a record; it is written as soon as the bus lets it."""
        self._waiting.append(record)
        self._empty.clear()
        self._filled.set()

    @property
    def backlog(self) -> int:
        """How many records are not acknowledged yet."""
        return len(self._waiting)

    async def flushed(self, seconds: float) -> bool:
        """Wait until everything is acknowledged, at most `seconds`; return whether it is."""
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Write until cancelled.

        Raises:
            UnwritableError: a record is larger than the bus takes.
        """
        wait_s = RETRY_S_MIN
        while True:
            producer = bus.new_producer(self._bootstrap)
            try:
                await bus.bounded(producer.start(), "accept a producer")
                while True:
                    await self._write_some(producer)
                    wait_s = RETRY_S_MIN
            except (bus.BusError, KafkaError) as error:
                if isinstance(error.__cause__, MessageSizeTooLargeError):
                    # To try again would hold up every report behind it, for ever.
                    raise UnwritableError(
                        f"a report is too large for the bus, so this worker ends: {error}"
                    ) from error
                log.warning("%d records wait for the bus: %s", len(self._waiting), error)
            finally:
                await bus.stop_client(producer)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)

    async def _write_some(self, producer: AIOKafkaProducer) -> None:
        if not self._waiting:
            self._empty.set()
            self._filled.clear()
            await self._filled.wait()
        batch = [self._waiting[at] for at in range(min(len(self._waiting), BATCH_MAX))]
        await bus.bounded(self._write(producer, batch), "take a worker's reports")
        for _ in batch:
            self._waiting.popleft()

    async def _write(self, producer: AIOKafkaProducer, batch: list[Outgoing]) -> None:
        acks = [
            await producer.send(one.topic, one.value, key=one.key, partition=one.partition)
            for one in batch
        ]
        await asyncio.gather(*acks)
