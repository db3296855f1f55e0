"""Kafka clients with the settings that Headway rests on, and topics that exist. Knows no decision.

The client library's defaults lose messages (acks=1, no idempotence, auto-commit) and its calls can
hang for as long as the broker is away. So every client is made here, and every await on one goes
through `bounded`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    PolicyViolationError,
    TopicAlreadyExistsError,
)
from aiokafka.structs import ConsumerRecord

from schemas.profile import Profile
from schemas.topics import TOPICS, WORK_PREFIX, Topic, work_topic
from services import batches

T = TypeVar("T")

CALL_S_MAX = 10.0
STOP_S_MAX = 3.0
REQUEST_BYTES_MAX = 16 * 1024 * 1024
SESSION_MS = 6_000
TOPIC_POLL_S = 0.05
# Copies of each record on a cluster; a single broker holds one.
REPLICAS_MAX = 3
# A fetch that finds nothing comes back after this long, so a stop never waits longer for it.
FETCH_WAIT_MS = 250
FETCH_BYTES_MAX = 32 * 1024 * 1024

# To ask again for a topic that was refused for one of these is of no use.
_FINAL = {
    error.errno
    for error in (
        InvalidTopicError,
        InvalidPartitionsError,
        InvalidConfigurationError,
        PolicyViolationError,
    )
}

# No record may stop a reader, whoever makes its consumer.
batches.install()

Headers = list[tuple[str, bytes]]
Record = ConsumerRecord[bytes, bytes]


class BusError(RuntimeError):
    """The bus did not do what it must; the sentence says what to look at."""


class RefusedError(BusError):
    """The broker will never do what was asked for, however often it is asked."""


async def bounded(call: Awaitable[T], what: str, seconds: float = CALL_S_MAX) -> T:
    """Await `call` for at most `seconds`, and give it up then.

    asyncio.wait_for would go on waiting until the call has let itself be cancelled, and some of the
    client's calls do not while the broker is away.

    Raises:
        BusError: it took longer, or the client failed; `what` stands in the sentence.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        _give_up(task)
        raise
    if not done:
        _give_up(task)
        raise BusError(f"Kafka did not {what} within {seconds:g} s; is the broker up?")
    if task.cancelled():
        # Some of the client's calls end in the cancellation of a task of its own. Let out, it would
        # pass for a cancellation of ours and end the caller without a word.
        raise BusError(f"Kafka could not {what}: the client cut the call off")
    try:
        return task.result()
    except KafkaError as error:
        raise BusError(f"Kafka could not {what}: {error!r}") from error


def _give_up(task: "asyncio.Future[Any]") -> None:
    def look(ended: "asyncio.Future[Any]") -> None:
        # Whatever it still ends with was told already, as a call that took too long.
        if not ended.cancelled():
            ended.exception()

    task.cancel()
    task.add_done_callback(look)


def new_producer(bootstrap: str) -> AIOKafkaProducer:
    """Return a producer that waits for all replicas and never writes a record twice."""
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        max_batch_size=1024 * 1024,
        max_request_size=REQUEST_BYTES_MAX,
        request_timeout_ms=int(CALL_S_MAX * 1000),
        retry_backoff_ms=50,
    )


def new_consumer(
    bootstrap: str,
    *topics: str,
    group: str | None = None,
    fetch_bytes: int = REQUEST_BYTES_MAX,
    gather_bytes: int = 1,
) -> AIOKafkaConsumer:
    """Return a consumer that commits nothing by itself and starts at the beginning.

    One fetch takes about `fetch_bytes` of a partition; a larger record comes whole all the same.
    The broker answers once `gather_bytes` are there, or after 250 ms: a reader that stores in
    batches anyway asks for more at once, and leaves the processor to those who cannot wait.
    """
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 6,
        fetch_min_bytes=gather_bytes,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        fetch_max_bytes=FETCH_BYTES_MAX,
        max_partition_fetch_bytes=fetch_bytes,
        retry_backoff_ms=50,
    )


async def stop_client(client: Any) -> None:
    """Stop a producer or consumer, or give up: without its broker it may never stop by itself."""
    with contextlib.suppress(BusError):
        await bounded(client.stop(), "let go of a client", STOP_S_MAX)


@contextlib.asynccontextmanager
async def producing(bootstrap: str) -> AsyncGenerator[AIOKafkaProducer, None]:
    """Yield a started producer and stop it afterwards."""
    producer = new_producer(bootstrap)
    try:
        await bounded(producer.start(), "accept a producer")
        yield producer
    finally:
        await stop_client(producer)


@contextlib.asynccontextmanager
async def consuming(
    bootstrap: str,
    partitions: Iterable[TopicPartition] = (),
    fetch_bytes: int = REQUEST_BYTES_MAX,
) -> AsyncGenerator[AIOKafkaConsumer, None]:
    """Yield a started consumer, assigned to `partitions` and to no group; stop it afterwards."""
    consumer = new_consumer(bootstrap, fetch_bytes=fetch_bytes)
    try:
        await bounded(consumer.start(), "accept a consumer")
        chosen = list(partitions)
        if chosen:
            consumer.assign(chosen)
        yield consumer
    finally:
        await stop_client(consumer)


async def read_range(
    consumer: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[Record]:
    """Yield the records of an assigned partition from offset `start` to before `end`.

    Ends too where the rest of the range holds no records (transaction markers, compacted ones).

    Raises:
        BusError: the broker went silent before the end was reached, or answers and gives nothing:
            a consumer can stand still for ever after a broker's restart.
    """
    if start >= end:
        return
    consumer.seek(partition, start)
    moved_s, stood_at = time.monotonic(), start
    while True:
        got = await bounded(consumer.getmany(partition, timeout_ms=1000), "answer a fetch")
        for record in got.get(partition, ()):
            if record.offset >= end:
                return
            yield record
        position = await bounded(consumer.position(partition), "tell a position")
        if got or position != stood_at:
            moved_s, stood_at = time.monotonic(), position
            if position >= end:
                return
        elif position >= min(end, await _stable_end(consumer, partition)):
            return
        elif time.monotonic() - moved_s > CALL_S_MAX:
            raise BusError(
                f"Kafka gave nothing of {partition.topic}/{partition.partition} from offset"
                f" {position} on for {CALL_S_MAX:g} s, though there should be records up to"
                f" {end - 1}; a new consumer may get on, so try again, and look at the broker's log"
                " if that stands still too"
            )


async def _stable_end(consumer: AIOKafkaConsumer, partition: TopicPartition) -> int:
    ends = await bounded(consumer.end_offsets([partition]), "tell an end offset")
    return ends[partition]


@contextlib.asynccontextmanager
async def administering(bootstrap: str) -> AsyncGenerator[AIOKafkaAdminClient, None]:
    """Yield a started admin client and close it afterwards."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await bounded(admin.start(), "accept an admin client")
        yield admin
    finally:
        with contextlib.suppress(BusError):
            await bounded(admin.close(), "let go of an admin client", STOP_S_MAX)


async def partition_count(bootstrap: str, topic: str) -> int:
    """Return how many partitions the topic has, 0 if it does not exist."""
    async with administering(bootstrap) as admin:
        described = await bounded(admin.describe_topics([topic]), "describe a topic")
        return len(described[0].get("partitions", ()))


async def ensure_topics(bootstrap: str, cells: int) -> int:
    """Create every topic that is missing; return the number of cells of the deployment.

    A deployment that exists keeps its number of cells, whatever is asked for: as many as its first
    topic has partitions.

    Raises:
        BusError: the broker refused; the sentence names the topic.
    """
    first, *others = [topic for topic in TOPICS if topic.partitions != "work-slots"]
    agreed = await partition_count(bootstrap, first.name)
    if not agreed:
        # Alone, so that of two processes that begin together the one that comes first decides.
        await _create(bootstrap, {first.name: first}, {first.name: first.partition_count(cells)})
        agreed = await partition_count(bootstrap, first.name)
    counts = {topic.name: topic.partition_count(agreed) for topic in others}
    await _create(bootstrap, {topic.name: topic for topic in others}, counts)
    return agreed


async def ensure_work_topic(bootstrap: str, profile: Profile) -> int:
    """Give the model's work topic a partition for each slot; return how many it has.

    Slots that a profile takes away leave their partitions: a worker may still listen there.

    Raises:
        RefusedError: the broker will never have this topic; the sentence says why.
        BusError: the broker could not do it now.
    """
    described = next(topic for topic in TOPICS if topic.name.startswith(WORK_PREFIX))
    name, slots = work_topic(profile.model), profile.work_slots
    existing = await partition_count(bootstrap, name)
    if not existing:
        await _create(bootstrap, {name: described}, {name: slots})
    elif existing < slots:
        await _grow(bootstrap, name, slots)
    return max(existing, slots)


async def _create(bootstrap: str, topics: dict[str, Topic], counts: dict[str, int]) -> None:
    async with administering(bootstrap) as admin:
        cluster = await bounded(admin.describe_cluster(), "describe the cluster")
        replicas = min(REPLICAS_MAX, len(cluster["brokers"]))
        wanted = [
            NewTopic(name, counts[name], replicas, topic_configs=topic.config())
            for name, topic in topics.items()
        ]
        response = await bounded(admin.create_topics(wanted), "create topics")
        refusals: list[tuple[str, int, str | None]] = getattr(response, "topic_errors")  # noqa: B009 - the client's type lacks it
        for name, code, message in refusals:
            if code not in (0, TopicAlreadyExistsError.errno):
                failure = RefusedError if code in _FINAL else BusError
                raise failure(f"Kafka refused to create the topic {name}: {message or code}")
        await _once_shown(admin, list(counts))


async def _once_shown(admin: AIOKafkaAdminClient, topics: list[str]) -> None:
    """Wait until topics that were just created are seen, which is a little later."""
    until_s = time.monotonic() + CALL_S_MAX
    while True:
        described = await bounded(admin.describe_topics(topics), "describe topics")
        unseen = [one["topic"] for one in described if not one.get("partitions")]
        if not unseen:
            return
        if time.monotonic() > until_s:
            raise BusError(
                f"Kafka took the topic {unseen[0]} and did not show it within {CALL_S_MAX:g} s;"
                " is the broker's controller up?"
            )
        await asyncio.sleep(TOPIC_POLL_S)


async def _grow(bootstrap: str, name: str, partitions: int) -> None:
    async with administering(bootstrap) as admin:
        wanted = {name: NewPartitions(partitions)}
        response = await bounded(admin.create_partitions(wanted), "add partitions")
        refusals: list[tuple[str, int, str | None]] = getattr(response, "topic_errors")  # noqa: B009 - as above
        for _, code, message in refusals:
            # Another cell may have been first.
            if code not in (0, InvalidPartitionsError.errno):
                raise BusError(
                    f"Kafka refused to give the topic {name} {partitions} partitions:"
                    f" {message or code}"
                )
