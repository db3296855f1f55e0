"""Batches of records into the store, each record once. Touches the store; knows no Kafka client.

How "once" comes about: rows have keys of (partition, offset, line) or of (cell, seq, index), and of
equal keys one remains; an insert that is tried again carries the same token; and where to read on
is the highest offset in the table that is written last. So a record is read again rather than
missed, and what is read again changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from schemas.topics import DEAD_LETTER, LEDGER, RESULTS, SIGNALS, TELEMETRY
from services.recorder.ledger_rows import LedgerReader, LedgerRows
from services.recorder.limits import RecorderLimits
from services.recorder.message_rows import MessageRows
from services.recorder.native import Column
from services.recorder.store import Store, StoreError

log = logging.getLogger("headway.recorder")

Place = tuple[str, int, int]
Partition = tuple[str, int]

# Whose highest offset is how far a topic has been recorded, and its partition's column.
POSITIONS: dict[str, tuple[str, str]] = {
    LEDGER: ("ledger", "cell"),
    RESULTS: ("result_rows", "partition"),
    TELEMETRY: ("telemetry_rows", "partition"),
    SIGNALS: ("signal_rows", "partition"),
    DEAD_LETTER: ("dead_letter_rows", "partition"),
}
# Asked before a dead letter is sent: after a crash its record may be read a second time.
_SENT = (
    "SELECT count() FROM dead_letter_rows WHERE source_topic = {topic:String}"
    " AND source_partition = {partition:Int32} AND source_offset = {offset:Int64}"
)
_LAST_ENTRY = (
    "SELECT seq, epoch, right(raw, 18), offset FROM ledger WHERE cell = {cell:Int32}"
    " ORDER BY offset DESC, line DESC LIMIT 1"
)
# Void records behind the last entry will be read again; those before it raised the epoch.
_LAST_EPOCH = (
    "SELECT max(epoch) FROM void_entries WHERE cell = {cell:Int32} AND offset < {offset:Int64}"
)

SendDeadLetter = Callable[[Place, bytes | None, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows for one table. `places` says of each row which record it comes from."""

    table: str
    columns: Mapping[str, Column]
    places: list[Place]
    token: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record, or part of one, that cannot be recorded."""

    place: Place
    value: bytes | None
    reason: str


@dataclass(slots=True)
class Batch:
    """What has been read and not stored."""

    rows: LedgerRows = field(default_factory=LedgerRows)
    void: LedgerRows = field(default_factory=LedgerRows)
    messages: MessageRows = field(default_factory=MessageRows)
    bad: list[BadRecord] = field(default_factory=list[BadRecord])
    first: dict[Partition, int] = field(default_factory=dict[Partition, int])
    last: dict[Partition, int] = field(default_factory=dict[Partition, int])
    records: int = 0
    bytes: int = 0

    def row_count(self) -> int:
        """Return how many rows wait, of what was read."""
        return len(self.rows) + len(self.void) + len(self.messages)

    def inserts(self) -> list[Insert]:
        """Return what to insert, in this order: the table that holds the position comes last."""
        ledger_token = self._token({LEDGER})
        others_token = self._token(set(POSITIONS) - {LEDGER})
        ledger_places = _ledger_places(self.rows)
        found = [
            Insert(
                "void_entries", self.void.void_columns(), _ledger_places(self.void), ledger_token
            ),
            Insert("ledger_in", self.rows.derived_columns(), ledger_places, ledger_token),
            Insert("ledger", self.rows.ledger_columns(), ledger_places, ledger_token),
            Insert("messages_in", self.messages.columns(), self._message_places(), others_token),
        ]
        return [insert for insert in found if insert.places]

    def _message_places(self) -> list[Place]:
        rows = self.messages
        return [
            (topic.decode(), partition, offset)
            for topic, partition, offset in zip(
                rows.topic, rows.partition, rows.offset, strict=True
            )
        ]

    def _token(self, topics: set[str]) -> str:
        return ",".join(
            f"{topic}:{partition}:{first}-{self.last[topic, partition]}"
            for (topic, partition), first in sorted(self.first.items())
            if topic in topics
        )


def _ledger_places(rows: LedgerRows) -> list[Place]:
    return [(LEDGER, cell, offset) for cell, offset in zip(rows.cell, rows.offset, strict=True)]


class Sink:
    """Turns records into rows and stores them.

    Args:
        store: where to.
        limits: pauses between attempts.
        send_dead_letter: sends one, and returns when it is on the bus.

    Attributes:
        next_offsets: where to read on, by partition; records below are left out.
        rows_stored: rows of `ledger`, `void_entries` and messages since the start.
        dead_letters: sent since the start.
        last_error: the sentence of the last failure, or None since the last success.
    """

    def __init__(
        self, store: Store, limits: RecorderLimits, send_dead_letter: SendDeadLetter
    ) -> None:
        self._store = store
        self._limits = limits
        self._send_dead_letter = send_dead_letter
        self._readers: dict[int, LedgerReader] = {}
        self.next_offsets: dict[Partition, int] = {}
        self.rows_stored = 0
        self.dead_letters = 0
        self.last_error: str | None = None

    @property
    def void_entries(self) -> int:
        """How many void entries were read since the start."""
        return sum(reader.void_entries for reader in self._readers.values())

    async def resume(self, partitions: Mapping[str, int]) -> None:
        """Find where to read on in each topic's partitions; `partitions` tells their number.

        Raises:
            StoreError: the store refused, or did not answer.
        """
        self.next_offsets = await asyncio.to_thread(self._positions, partitions)
        cells = range(partitions.get(LEDGER, 0))
        self._readers = {cell: await asyncio.to_thread(self._reader, cell) for cell in cells}

    def add(
        self,
        batch: Batch,
        place: Place,
        written_ms: int,
        value: bytes | None,
        broken: str | None = None,
    ) -> None:
        """Read one record into the batch. Records of a partition come in the order of offsets.

        `broken` says why a record could not be decoded; its value is what could be had of it.
        """
        topic, partition, offset = place
        if offset < self.next_offsets.get((topic, partition), 0):
            return
        self.next_offsets[topic, partition] = offset + 1
        batch.first.setdefault((topic, partition), offset)
        batch.last[topic, partition] = offset
        batch.records += 1
        batch.bytes += len(value or b"")
        if topic == LEDGER:
            seen = None if broken else value
            fault = self._readers[partition].read(offset, written_ms, seen, batch.rows, batch.void)
            fault = broken or fault
        else:
            fault = batch.messages.append(place, written_ms, value, broken)
        if fault is not None:
            batch.bad.append(BadRecord(place, value, fault))

    async def store(self, batch: Batch, stop: asyncio.Event) -> bool:
        """Store the batch, however long the store is away; return False if `stop` came first.

        Raises:
            BusError: a dead letter could not be sent; nothing of the batch is lost by it: the
                records are read again.
        """
        for bad in batch.bad:
            if not await self._put_away(bad, stop):
                return False
        for insert in batch.inserts():
            if not await self._insert(insert, stop):
                return False
        self.rows_stored += batch.row_count()
        self.last_error = None
        return True

    async def _insert(self, insert: Insert, stop: asyncio.Event) -> bool:
        try:
            return await self._until_done(
                lambda: self._store.insert(insert.table, insert.columns, insert.token),
                stop,
                divisible=len(insert.places) > 1,
            )
        except StoreError as error:
            if len(insert.places) == 1:
                bad = BadRecord(insert.places[0], None, f"ClickHouse refused the row: {error}")
                return await self._put_away(bad, stop)
        half = len(insert.places) // 2
        for start, end in ((0, half), (half, len(insert.places))):
            if not await self._insert(_part(insert, start, end), stop):
                return False
        return True

    async def _put_away(self, bad: BadRecord, stop: asyncio.Event) -> bool:
        topic, partition, offset = bad.place
        params: dict[str, str | int] = {"topic": topic, "partition": partition, "offset": offset}
        counts: list[int] = []

        def ask() -> None:
            counts.append(int(self._store.query(_SENT, params)[0][0]))

        if not await self._until_done(ask, stop):
            return False
        if not counts[-1]:
            log.warning("dead letter of %s:%d:%d: %s", topic, partition, offset, bad.reason)
            await self._send_dead_letter(bad.place, bad.value, bad.reason)
            self.dead_letters += 1
        return True

    async def _until_done(
        self, work: Callable[[], None], stop: asyncio.Event, *, divisible: bool = False
    ) -> bool:
        """Run `work` in a thread until it succeeds; return False if `stop` came first.

        Raises:
            StoreError: the data are at fault, or, where they are `divisible`, too large.
        """
        pause_ms = self._limits.retry_ms_first
        while True:
            try:
                await asyncio.to_thread(work)
            except StoreError as error:
                if error.data_at_fault or (error.too_large and divisible):
                    raise
                if str(error) != self.last_error:
                    log.warning("the store is in trouble, trying on: %s", error)
                self.last_error = str(error)
            else:
                return True
            if await _stopped_within(stop, pause_ms / 1000):
                return False
            pause_ms = min(2 * pause_ms, self._limits.retry_ms_max)

    # Where to read on

    def _positions(self, partitions: Mapping[str, int]) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for topic, count in partitions.items():
            table, column = POSITIONS[topic]
            found.update({(topic, partition): 0 for partition in range(count)})
            # Both names are constants of POSITIONS.
            sql = f"SELECT {column}, max(offset) FROM {table} GROUP BY {column}"  # noqa: S608
            rows = self._store.query(sql)
            found.update({(topic, int(row[0])): int(row[1]) + 1 for row in rows})
        return found

    def _reader(self, cell: int) -> LedgerReader:
        last = self._store.query(_LAST_ENTRY, {"cell": cell})
        if not last:
            return LedgerReader(cell)
        seq, epoch, tail, offset = last[0]
        void = self._store.query(_LAST_EPOCH, {"cell": cell, "offset": int(offset)})
        reader = LedgerReader(cell, max(int(epoch), int(void[0][0])), int(seq) + 1)
        reader.chain = str(tail)[:-2]
        return reader


def _part(insert: Insert, start: int, end: int) -> Insert:
    columns: dict[str, Column] = {
        name: (kind, values[start:end]) for name, (kind, values) in insert.columns.items()
    }
    token = f"{insert.token}/{start}-{end}"
    return Insert(insert.table, columns, insert.places[start:end], token)


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
