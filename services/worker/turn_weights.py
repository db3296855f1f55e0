"""The weights of models that share a device, as the policy in force says; read from headway.config.

A worker that hosts several models reads the policies itself, by the rule that cells and people
apply too (schemas/policy_set.py). So a change holds from the next turn on, also for work that runs
already, and no work message need carry what no decision depended on. What cannot be read, or is
refused, changes nothing; while the bus is away, the last weights hold.
"""

import asyncio
import logging
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.policy import TIERS, Policy, Tier
from schemas.policy_history import History
from schemas.policy_scope import Settings
from schemas.topics import CONFIG
from services import bus

FETCH_WAIT_MS = 500
QUIET_S_MAX = 3.0
REJOIN_S = 0.5
_PARTITION = TopicPartition(CONFIG, 0)

log = logging.getLogger(__name__)


def turn_weight(settings: Settings, model: str, tier: Tier) -> int:
    """Return a model's weight while `tier` is the highest among its requests."""
    policy = settings.at(model)
    return policy.iteration_weight * policy.iteration_tier_weights[TIERS.index(tier)]


class TurnWeights:
    """The weights that hold now; the built-in policy's until another was read."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._history = History()
        self._settings = Settings(Policy())
        self._next_offset: int | None = None

    def of(self, model: str, tier: Tier) -> int:
        """Return a model's weight while `tier` is the highest among its requests."""
        return turn_weight(self._settings, model, tier)

    async def follow(self) -> None:
        """Read every policy, and each new one as it is set, until cancelled."""
        told = ""
        while True:
            try:
                async with bus.consuming(self._bootstrap, [_PARTITION]) as consumer:
                    await self._seek(consumer)
                    await self._read_on(consumer)
            except (bus.BusError, KafkaError) as error:
                if str(error) != told:
                    log.warning("the policies are read again: %s", error)
                    told = str(error)
                await asyncio.sleep(REJOIN_S)

    async def _seek(self, consumer: AIOKafkaConsumer) -> None:
        if self._next_offset is None:
            starts = await bus.bounded(
                consumer.beginning_offsets([_PARTITION]), "tell a start offset"
            )
            self._next_offset = starts[_PARTITION]
        consumer.seek(_PARTITION, self._next_offset)

    async def _read_on(self, consumer: AIOKafkaConsumer) -> None:
        moved_s = time.monotonic()
        while True:
            call = consumer.getmany(timeout_ms=FETCH_WAIT_MS)
            got = await bus.bounded(call, "answer a fetch")
            for record in got.get(_PARTITION, ()):
                self._take(record)
                self._next_offset = record.offset + 1
                moved_s = time.monotonic()
            if time.monotonic() - moved_s > QUIET_S_MAX:
                await self._check_moving(consumer)
                moved_s = time.monotonic()

    def _take(self, record: bus.Record) -> None:
        before = self._history.active
        self._history.add(record.offset, record.key, record.value)
        active = self._history.active
        if active is not before:
            self._settings = Settings(active.policy)
            log.info("turns follow version %d of the policy", active.policy.version)
        # Only the one in force matters here.
        self._history = History([active])

    async def _check_moving(self, consumer: AIOKafkaConsumer) -> None:
        ends = await bus.bounded(consumer.end_offsets([_PARTITION]), "tell an end offset")
        position = await bus.bounded(consumer.position(_PARTITION), "tell a position")
        if position < ends[_PARTITION]:
            # A consumer can stand still for ever after a broker's restart; a new one goes on.
            raise bus.BusError(f"the consumer stands at offset {position} of {ends[_PARTITION]}")
