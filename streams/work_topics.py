"""The work topics of the models that a cell knows: made, grown, and whether a partition is there.

May create topics and add partitions. Decides nothing, and publishes nothing.
"""

import logging

from aiokafka import TopicPartition

from schemas.codec import CodecError, decode
from schemas.profile import Profile
from schemas.topics import CONFIG, WORK_PREFIX, work_topic
from services import bus
from streams.effects import Effect
from streams.publisher import Publisher

log = logging.getLogger(__name__)


class WorkTopics:
    """Which work topics have how many partitions; none is known of a model without a profile."""

    def __init__(self, bootstrap: str, cell: int, publisher: Publisher) -> None:
        self._bootstrap = bootstrap
        self._cell = cell
        self._publisher = publisher
        self._partitions: dict[str, int] = {}

    async def prepare(self, profile: Profile) -> None:
        """Give the model's topic a partition for each slot.

        Raises:
            bus.RefusedError: Kafka will never have it: its name is too much like another's, as a.b
                is like a_b.
            bus.BusError: the broker could not do it now.
        """
        partitions = await bus.ensure_work_topic(self._bootstrap, profile)
        topic = work_topic(profile.model)
        if partitions > self._partitions.get(topic, partitions):
            await self._publisher.look_at_topics()
        self._partitions[topic] = partitions

    def has_reader(self, effect: Effect) -> bool:
        """Return whether the effect's partition is there, if it is one of a work topic.

        A report may name any model and slot, and nobody listens then to what it is told.
        """
        if not effect.topic.startswith(WORK_PREFIX):
            return True
        if effect.partition < self._partitions.get(effect.topic, 0):
            return True
        log.warning(
            "cell %d: there is no %s/%d to publish (seq %d, index %d) to",
            self._cell,
            effect.topic,
            effect.partition,
            effect.seq,
            effect.index,
        )
        return False


async def record_of(bootstrap: str, profile: Profile) -> bus.Record | None:
    """Return the last record of headway.config that holds `profile`, or None if it is gone.

    Raises:
        bus.BusError: the broker did not answer.
    """
    config = TopicPartition(CONFIG, 0)
    found: bus.Record | None = None
    async with bus.consuming(bootstrap, [config]) as consumer:
        starts = await bus.bounded(consumer.beginning_offsets([config]), "tell a start offset")
        ends = await bus.bounded(consumer.end_offsets([config]), "tell an end offset")
        async for record in bus.read_range(consumer, config, starts[config], ends[config]):
            if _holds(record, profile):
                found = record
    return found


def _holds(record: bus.Record, profile: Profile) -> bool:
    try:
        return decode(record.value) == profile
    except CodecError:
        return False
