"""Reads every partition of one topic from a noted place on, through outages. Decides nothing.

The place is taken before anything is sent, so an answer cannot be missed. A consumer can stand
still for ever after a broker's restart, without a word: a quiet one is checked against the end
offsets, and begun again from where it stood.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from services import bus

T = TypeVar("T")

FETCH_WAIT_MS = 250
QUIET_S_MAX = 3.0
RETRY_S = 0.5

log = logging.getLogger(__name__)


class Tail:
    """One topic's records from the moment of `start` on.

    Args:
        bootstrap: of the broker.
        topic: whose partitions are read, all of them.
        partitions: how many it has.
        on_record: called with each record, in the order of each partition's offsets.

    Attributes:
        trouble: what is wrong with the bus now, or None.
        ending: done once nothing is read any more, for whatever reason.
    """

    ending: "asyncio.Future[None]"

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, on_record: Callable[[bus.Record], None]
    ) -> None:
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._on_record = on_record
        self._next: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None

    async def start(self, *, from_the_beginning: bool = False) -> None:
        """Note the end of each partition, or its beginning, and begin to read from there.

        Raises:
            bus.BusError: the broker did not answer.
        """
        async with bus.consuming(self._bootstrap) as consumer:
            ask = consumer.beginning_offsets if from_the_beginning else consumer.end_offsets
            self._next = await bus.bounded(ask(self._partitions), "tell offsets")
        self._task = asyncio.create_task(self._run())
        self.ending = self._task

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self, waiting: "asyncio.Future[T]", timeout_s: float | None) -> T:
        """Return what `waiting` becomes, which a record will tell; it is not cancelled.

        Raises:
            TimeoutError: nothing within `timeout_s`.
            bus.BusError: nothing is read any more, so it will never come.
        """
        both = {waiting, self.ending}
        await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        self.check()
        raise TimeoutError

    def check(self) -> None:
        """Return if records are still read.

        Raises:
            bus.BusError: they are not; the sentence says why.
        """
        if self._task is None or not self._task.done():
            return
        error = None if self._task.cancelled() else self._task.exception()
        why = "it was stopped" if error is None else repr(error)
        raise bus.BusError(
            f"{self._partitions[0].topic} is not read any more, so no answer will be seen: {why}"
        ) from error

    async def _run(self) -> None:
        try:
            await self._run_through_outages()
        except Exception:
            # A defect of who is told the records; whoever waits for one learns of it by `check`.
            log.exception("reading %s ends", self._partitions[0].topic)
            raise

    async def _run_through_outages(self) -> None:
        while True:
            try:
                async with bus.consuming(self._bootstrap, self._partitions) as consumer:
                    for partition, offset in self._next.items():
                        consumer.seek(partition, offset)
                    await self._read(consumer)
            except (bus.BusError, KafkaError) as error:
                self.trouble = str(error)
                log.warning("reading %s again: %s", self._partitions[0].topic, error)
            await asyncio.sleep(RETRY_S)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        moved_s = time.monotonic()
        while True:
            call = consumer.getmany(timeout_ms=FETCH_WAIT_MS)
            got = await bus.bounded(call, "answer a fetch")
            for partition, records in got.items():
                for record in records:
                    self._on_record(record)
                self._next[partition] = records[-1].offset + 1
            if got:
                self.trouble = None
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > QUIET_S_MAX:
                await self._check_moving(consumer)
                moved_s = time.monotonic()

    async def _check_moving(self, consumer: AIOKafkaConsumer) -> None:
        ends = await bus.bounded(consumer.end_offsets(self._partitions), "tell end offsets")
        self.trouble = None
        for partition, end in ends.items():
            position = await bus.bounded(consumer.position(partition), "tell a position")
            if position < end:
                got = await bus.bounded(
                    consumer.getmany(partition, timeout_ms=1000, max_records=1), "answer a fetch"
                )
                if not got:
                    raise bus.BusError(
                        f"the consumer of {partition.topic} stands still at offset {position},"
                        f" before the end {end}"
                    )
                consumer.seek(partition, position)
