"""Effects on their way: sent in the order of their entries, counted as they are acknowledged.

Sends only what it is given, after the ledger holds it; decides nothing. A failed send ends the
owner's life, and the next one publishes again what the topics lack.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaProducer

from services import bus
from streams.effects import Effect

# Batches of effects on their way before the owner waits for the oldest.
BATCHES_MAX = 1_000


class Publisher:
    """Publishes effects for one owner.

    Attributes:
        published_seq: every effect of the entries up to this one is acknowledged.
    """

    def __init__(self, bootstrap: str) -> None:
        self.producer: AIOKafkaProducer = bus.new_producer(bootstrap)
        self.published_seq = -1
        self._unacked: deque[tuple[int, list[asyncio.Future[Any]]]] = deque()

    async def start(self, published_seq: int) -> None:
        """Connect; `published_seq` is what the ledger says is out already."""
        self.published_seq = published_seq
        await bus.bounded(self.producer.start(), "accept a producer")

    async def stop(self) -> None:
        """Give the connection back."""
        await bus.stop_client(self.producer)

    async def look_at_topics(self) -> None:
        """Learn of partitions that a topic was given since it was first written to."""
        await bus.bounded(self.producer.client.force_metadata_update(), "tell its topics")

    async def publish(self, effects: Iterable[Effect], last_seq: int) -> None:
        """Send the effects of the entries up to `last_seq`.

        Raises:
            bus.BusError: the broker did not take one, of these or of earlier ones.
        """
        await bus.bounded(self._send(effects, last_seq), "take effects")
        self.count_acks()
        await self.settle(BATCHES_MAX)

    async def _send(self, effects: Iterable[Effect], last_seq: int) -> None:
        sent = [
            await self.producer.send(
                effect.topic,
                effect.value,
                key=effect.key,
                partition=effect.partition,
                headers=effect.headers,
            )
            for effect in effects
        ]
        self._unacked.append((last_seq, sent))

    def count_acks(self) -> None:
        """Move `published_seq` on over what is acknowledged by now.

        Raises:
            bus.BusError: the broker did not take an effect.
        """
        while self._unacked and all(future.done() for future in self._unacked[0][1]):
            seq, futures = self._unacked.popleft()
            for future in futures:
                failure = future.exception()
                if failure is not None:
                    raise bus.BusError(f"Kafka did not take an effect: {failure!r}") from failure
            self.published_seq = seq

    async def settle(self, most: int) -> None:
        """Wait until at most `most` batches are on their way."""
        while len(self._unacked) > most:
            oldest = self._unacked[0][1]
            await bus.bounded(asyncio.gather(*oldest), "take effects")
            self.count_acks()
