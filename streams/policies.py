"""The policies of a deployment as people see them: the history, what cells act under, a new one.

Reads headway.config and the ledgers, and writes one kind of record: a policy that is set. It takes
no decision: which of several counts is the rule of schemas/policy_set, which the cells apply too.
"""

import time
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.codec import CodecError, decode_line, split_record
from schemas.facts import MessageUnreadable, PolicyActivated
from schemas.ledger import Entry
from schemas.policy import Policy
from schemas.policy_history import History, Refused, Version, record_of
from schemas.topics import CONFIG, LEDGER
from services import bus
from streams.cells import GROUP

# How many of a ledger's last records are looked through for an entry: the last may be no owner's.
_TAIL_RECORDS = 16
_CONFIG = TopicPartition(CONFIG, 0)


@dataclass(frozen=True, slots=True)
class InForce:
    """What a cell's last entry was decided under; None for a cell that has none yet."""

    cell: int
    version: int | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The history as the log tells it, and what each cell last decided under."""

    history: History
    cells: list[InForce]

    @property
    def behind(self) -> list[InForce]:
        """The cells that last decided under another version than the one in force."""
        active = self.history.active.policy.version
        return [cell for cell in self.cells if cell.version not in {None, active}]

    @property
    def next_version(self) -> int:
        """The version that a new policy takes: above every one that was ever in force.

        A cell may know of one whose record is gone from headway.config.
        """
        known = [one.version for one in self.cells if one.version is not None]
        return max([self.history.active.policy.version, *known]) + 1


@dataclass(slots=True)
class Became:
    """What became of a policy that was set.

    Attributes:
        offset: of its record. version: its number.
        lost_to: the version that won, if another operator's came first.
        refused: why, if it was refused for another reason.
        cells: how many there are. activated: those that decide under it, and when (µs).
        no_cell_up: no cell process runs; it comes into force as soon as one does.
    """

    offset: int
    version: int
    cells: int
    lost_to: Version | None = None
    refused: str | None = None
    activated: dict[int, int] = field(default_factory=dict[int, int])
    no_cell_up: bool = False
    waited_s: float = 0.0

    @property
    def everywhere(self) -> bool:
        """Whether every cell decides under it."""
        return len(self.activated) == self.cells


async def read_standing(bootstrap: str) -> Standing:
    """Return every version of the policy, and what the cells decide under.

    Raises:
        bus.BusError: the broker did not answer, or has none of Headway's topics.
    """
    ledgers = await _ledgers(bootstrap)
    async with bus.consuming(bootstrap, [_CONFIG, *ledgers]) as consumer:
        starts = await bus.bounded(
            consumer.beginning_offsets([_CONFIG, *ledgers]), "tell start offsets"
        )
        ends = await bus.bounded(consumer.end_offsets([_CONFIG, *ledgers]), "tell end offsets")
        history = History()
        async for record in bus.read_range(consumer, _CONFIG, starts[_CONFIG], ends[_CONFIG]):
            history.add(record.offset, record.key, record.value)
        cells = [await _in_force(consumer, ledger, starts, ends) for ledger in ledgers]
    return Standing(history, cells)


async def set_policy(
    bootstrap: str,
    policy: Policy,
    *,
    based_on: int,
    who: str,
    why: str,
    wait_s: float,
) -> Became:
    """Write a policy and return what became of it, after at most about `wait_s`.

    Raises:
        bus.BusError: the broker did not take it, or did not answer afterwards.
    """
    ledgers = await _ledgers(bootstrap)
    at_us = time.time_ns() // 1000
    key, value = record_of(policy, based_on=based_on, at_us=at_us, who=who, why=why)
    async with bus.consuming(bootstrap, ledgers) as consumer:
        ends = await bus.bounded(consumer.end_offsets(ledgers), "tell end offsets")
        for ledger, end in ends.items():
            consumer.seek(ledger, end)
        async with bus.producing(bootstrap) as producer:
            sent = producer.send_and_wait(CONFIG, value, key=key, partition=_CONFIG.partition)
            offset = (await bus.bounded(sent, "take a policy")).offset
        began_s = time.monotonic()
        became = Became(offset, policy.version, len(ledgers))
        try:
            await _judge(bootstrap, became)
            if became.lost_to is None and became.refused is None:
                became.no_cell_up = await _cell_processes(bootstrap) == 0
                await _follow(consumer, became, began_s + (0 if became.no_cell_up else wait_s))
        except bus.BusError as error:
            raise bus.BusError(
                f"version {policy.version} is on headway.config, but what became of it is not"
                f" known: {error}; `headway config history` tells it once Kafka answers"
            ) from error
        became.waited_s = time.monotonic() - began_s
    return became


async def _ledgers(bootstrap: str) -> list[TopicPartition]:
    cells = await bus.partition_count(bootstrap, LEDGER) - 1
    if cells < 1:
        raise bus.BusError(
            f"Kafka at {bootstrap} has none of Headway's topics yet: start a cell, or `headway up`"
        )
    return [TopicPartition(LEDGER, cell) for cell in range(cells)]


async def _in_force(
    consumer: AIOKafkaConsumer,
    ledger: TopicPartition,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> InForce:
    start, end = starts[ledger], ends[ledger]
    last: Entry | None = None
    for first in dict.fromkeys((max(start, end - 1), max(start, end - _TAIL_RECORDS))):
        async for record in bus.read_range(consumer, ledger, first, end):
            for entry in _entries(record.value):
                if last is None or (entry.epoch, entry.seq) >= (last.epoch, last.seq):
                    last = entry
        if last is not None:
            return InForce(ledger.partition, last.policy_version, last.policy_digest)
    return InForce(ledger.partition, None, None)


def _entries(value: bytes | None) -> list[Entry]:
    """Return the entries of a ledger record, none if it is no owner's."""
    try:
        return [decode_line(raw).entry for raw in split_record(value)]
    except CodecError:
        return []


async def _judge(bootstrap: str, became: Became) -> None:
    """Read back who came first: the log's order says it, whoever asks."""
    standing = await read_standing(bootstrap)
    mine = next((one for one in standing.history.refused if one.offset == became.offset), None)
    if mine is not None:
        _refused(became, mine, standing.history)


def _refused(became: Became, mine: Refused, history: History) -> None:
    winner = history.version(became.version)
    if winner is not None:
        became.lost_to = winner
    else:
        became.refused = mine.reason


async def _cell_processes(bootstrap: str) -> int | None:
    """Return how many cell processes the group has, or None where the broker cannot tell yet."""
    try:
        async with bus.administering(bootstrap) as admin:
            groups = await bus.bounded(admin.list_consumer_groups(), "list its groups")
            # A broker that never had a group cannot describe one.
            if GROUP not in {name for name, *_ in groups}:
                return 0
            (described,) = await bus.bounded(
                admin.describe_consumer_groups([GROUP]), "describe the cells' group"
            )
    except bus.BusError:
        return None
    (group,) = described.to_object()["groups"]
    return len(group["members"])


async def _follow(consumer: AIOKafkaConsumer, became: Became, until_s: float) -> None:
    """Follow the ledgers until every cell has said what it made of the record."""
    while not became.everywhere and became.refused is None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return
        wait_ms = max(1, min(500, int(left_s * 1000)))
        got = await bus.bounded(consumer.getmany(timeout_ms=wait_ms), "answer a fetch")
        for partition, records in got.items():
            for record in records:
                for entry in _entries(record.value):
                    _hear(became, partition.partition, entry)


def _hear(became: Became, cell: int, entry: Entry) -> None:
    if entry.source != (CONFIG, 0, became.offset):
        return
    if isinstance(entry.fact, PolicyActivated):
        became.activated[cell] = entry.fact.at_us
    elif isinstance(entry.fact, MessageUnreadable):
        became.refused = f"cell {cell} says: {entry.fact.reason}"
