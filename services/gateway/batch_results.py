"""The results of a job in the order of its items, read off the bus as they come. Decides nothing.

Two streams are read side by side: the items' records, for their names, and headway.results. Results
come nearly in order: a job never runs further ahead of its oldest open item than the policy's
`offline_window_items`, so only that many have to be held back, whatever the size of the job.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from heapq import heappop, heappush
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.batch import ENDED, BatchItems, BatchStatus, item_of, request_id
from schemas.bus import Result
from schemas.codec import CodecError, decode
from schemas.topics import BATCH_JOBS, RESULTS
from services import bus
from services.gateway.openai_batch import missing_line, result_line

# Of results behind one that is missing; more than any window means that it will not come.
HELD_BACK_MAX = 20_000
# Results are looked for from this long before the job's own stamp: clocks differ.
EARLIER_MS = 60_000
# Both streams are read a little at a time: what a fetch brings is all that is held of them.
FETCH_BYTES = 1024 * 1024


async def result_lines(bootstrap: str, status: BatchStatus) -> AsyncGenerator[dict[str, Any]]:
    """Yield a line of OpenAI's batch format for each item that has an outcome, in their order.

    Of a job that has ended, each item has a line: one that never ran says so.

    Raises:
        bus.BusError: the broker did not answer.
    """
    report = status.report
    over = report.state in ENDED
    async with AsyncExitStack() as stack:
        names = _Names(await _reader(stack, bootstrap, BATCH_JOBS, status.cell), status)
        consumer = await _reader(stack, bootstrap, RESULTS, status.cell)
        expected = 0
        async for number, result in _in_order(consumer, status):
            while over and expected < number:
                yield _missing(status, expected, await names.of(expected))
                expected += 1
            label = await names.of(number) or result.metadata.get("custom_id")
            name = label or request_id(status.job, number)
            yield result_line(name, report.endpoint, result)
            expected = number + 1
        while over and expected < report.items:
            yield _missing(status, expected, await names.of(expected))
            expected += 1


class _Names:
    """Gives items' custom_ids, asked for in rising order, from one pass over their records."""

    def __init__(self, consumer: AIOKafkaConsumer, status: BatchStatus) -> None:
        self._records = _item_records(consumer, status)
        self._first = 0
        self._names: list[str] = []
        self._done = False

    async def of(self, number: int) -> str | None:
        """Return the custom_id of an item, or None if its record is gone."""
        while not self._done and number >= self._first + len(self._names):
            record = await anext(self._records, None)
            if record is None:
                self._done = True
            elif record.first + len(record.items) > self._first + len(self._names):
                self._first = record.first
                self._names = [item.custom_id for item in record.items]
        place = number - self._first
        return self._names[place] if 0 <= place < len(self._names) else None


async def _reader(
    stack: AsyncExitStack, bootstrap: str, topic: str, partition: int
) -> AIOKafkaConsumer:
    return await stack.enter_async_context(
        bus.consuming(bootstrap, [TopicPartition(topic, partition)], FETCH_BYTES)
    )


async def _item_records(
    consumer: AIOKafkaConsumer, status: BatchStatus
) -> AsyncIterator[BatchItems]:
    partition = TopicPartition(BATCH_JOBS, status.cell)
    start, end = await _range(consumer, partition)
    start = max(start, status.report.offset)
    async for record in bus.read_range(consumer, partition, start, end):
        try:
            message = decode(record.value)
        except CodecError:
            continue
        if isinstance(message, BatchItems) and message.job == status.job:
            yield message


async def _in_order(
    consumer: AIOKafkaConsumer, status: BatchStatus
) -> AsyncIterator[tuple[int, Result]]:
    """Yield (item number, result), each item once, in rising order."""
    partition = TopicPartition(RESULTS, status.cell)
    start, end = await _range(consumer, partition)
    since_ms = status.report.submitted_us // 1000 - EARLIER_MS
    found = await bus.bounded(
        consumer.offsets_for_times({partition: since_ms}), "find an offset by time"
    )
    at = found.get(partition)
    start = max(start, at.offset) if at is not None else end
    prefix = request_id(status.job, 0)[:-1].encode()
    held: list[tuple[int, int, Result]] = []
    expected = 0
    async for record in bus.read_range(consumer, partition, start, end):
        numbered = _numbered(record, prefix, status)
        if numbered is None or numbered[0] < expected:
            continue
        heappush(held, (numbered[0], record.offset, numbered[1]))
        while held and (held[0][0] <= expected or len(held) > HELD_BACK_MAX):
            number, _, result = heappop(held)
            if number >= expected:
                yield number, result
                expected = number + 1
    while held:
        number, _, result = heappop(held)
        if number >= expected:
            yield number, result
            expected = number + 1


def _numbered(record: bus.Record, prefix: bytes, status: BatchStatus) -> tuple[int, Result] | None:
    if not (record.key or b"").startswith(prefix):
        return None
    try:
        message = decode(record.value)
    except CodecError:
        return None
    if not isinstance(message, Result) or message.model != status.model:
        return None
    item = item_of(message.id)
    return None if item is None or item[0] != status.job else (item[1], message)


def _missing(status: BatchStatus, number: int, name: str | None) -> dict[str, Any]:
    custom_id = name or request_id(status.job, number)
    report = status.report
    if number >= report.released:
        why = report.detail or f"the job was {report.state} before this item ran"
        return missing_line(status.job, number, custom_id, f"batch_{report.state}", why)
    why = "its result is no longer on headway.results, which keeps them for 7 days"
    return missing_line(status.job, number, custom_id, "result-gone", why)


async def _range(consumer: AIOKafkaConsumer, partition: TopicPartition) -> tuple[int, int]:
    starts = await bus.bounded(consumer.beginning_offsets([partition]), "tell a start offset")
    ends = await bus.bounded(consumer.end_offsets([partition]), "tell an end offset")
    return starts[partition], ends[partition]
