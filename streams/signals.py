"""Queue depth per model: each cell's ledger folded by a Faust agent, told once a second.

May read headway.ledger and headway.snapshots, write headway.signals and headway.dead-letter, and
nothing else. It decides nothing. What it knows is derived and is built again at every start, from
the last snapshot and the ledger since; Faust delivers what is new, and neither its commits nor its
tables carry anything. Each cell's fold knows the next offset that it needs. What Faust delivers
twice is dropped, and what it leaves out is read from the log, so the depth is right whatever Faust
does with a rebalance, a restart or an error.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.bus import DepthSignal, ModelDepth, dead_letter
from schemas.codec import CodecError, decode_line, encode
from schemas.continuity import Continuity
from schemas.ledger import Entry
from schemas.topics import DEAD_LETTER, LEDGER, SIGNALS, SNAPSHOTS
from services import bus
from streams.depth import DepthFold, Freshness, Move, moves_of
from streams.recovery import best_snapshot, last_marks
from streams.snapshots import Pointer

# How long the fold may take to reach an end of the ledger before its depth is told as unknown.
LATE_S = 2.0
# Without a delivery for this long, while the ledger grows, the stream is taken for dead.
STUCK_S = 5.0
# Without an answer from the broker for this long, the process ends and waits in its next life.
AWAY_S_MAX = 20.0
# A cell that could not be read for want of the broker is begun again after this pause.
RETRY_S = 1.0
# A call of the timer waits at most this long: a second is its beat.
TIMER_CALL_S_MAX = 3.0
# Entries folded between two looks at the event loop: about 10 ms of work.
_YIELD_ENTRIES = 1000

log = logging.getLogger(__name__)


class SignalsError(RuntimeError):
    """The processor cannot go on; the sentence says why. The process ends and is begun again."""


class UnreadableError(RuntimeError):
    """The ledger of a cell cannot be followed, so its depth stays unknown."""


@dataclass(slots=True)
class CellDepth:
    """One cell's fold and how far it stands.

    Attributes:
        next_offset: of the ledger record that is folded next.
        delivered_offset: the highest that Faust delivered; delivered_s: when it last did.
        begun: the snapshot and the ledger's end as it stood at start were read.
        broken: why the ledger cannot be followed, or None.
    """

    cell: int
    fold: DepthFold
    continuity: Continuity = field(default_factory=Continuity)
    next_offset: int = 0
    delivered_offset: int = -1
    delivered_s: float = 0.0
    begun: bool = False
    broken: str | None = None
    freshness: Freshness = field(default_factory=lambda: Freshness(LATE_S))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def signal(self, at_us: int) -> DepthSignal:
        """Return the cell's depth at `at_us`, or that it is unknown."""
        known = self.begun and self.broken is None and self.freshness.known
        models: tuple[ModelDepth, ...] = self.fold.models() if known else ()
        return DepthSignal(
            cell=self.cell,
            at_us=at_us,
            ledger_seq=self.continuity.next_seq - 1,
            known=known,
            models=models,
        )


class Depths:
    """The depths of the cells whose ledger partitions this process was given.

    Args:
        bootstrap: of the broker.
        cells: of the deployment; ledger partitions above belong to the planner and are left alone.

    Attributes:
        failed: gets the exception that ends the process.
    """

    def __init__(self, bootstrap: str, cells: int) -> None:
        self._bootstrap = bootstrap
        self._cells = cells
        self._held: dict[int, CellDepth] = {}
        self._begins: dict[int, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Semaphore(1)  # a snapshot is large for a moment
        self._producer: AIOKafkaProducer | None = None
        self._ends: AIOKafkaConsumer | None = None
        self._heard_s = time.monotonic()
        self._away = False
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Connect.

        Raises:
            bus.BusError: the broker did not answer.
        """
        self._producer = bus.new_producer(self._bootstrap)
        await bus.bounded(self._producer.start(), "accept a producer")
        self._ends = await self._connect_ends()
        self._heard_s = time.monotonic()

    async def stop(self) -> None:
        """Give the connections back."""
        self.hold(())
        clients = [client for client in (self._producer, self._ends) if client is not None]
        await asyncio.gather(*(bus.stop_client(client) for client in clients))

    def fail(self, error: BaseException) -> None:
        """End the process: a defect, or a bus that does not come back, is never sat out."""
        if not self.failed.done():
            self.failed.set_result(error)

    def hold(self, cells: Iterable[int]) -> None:
        """Hold exactly `cells` from now on: those that are new begin, the others are dropped."""
        wanted = {cell for cell in cells if cell < self._cells}
        for cell in set(self._held) - wanted:
            del self._held[cell]
            self._begins.pop(cell).cancel()
        for cell in sorted(wanted - set(self._held)):
            held = CellDepth(cell, DepthFold(cell, self._cells), delivered_s=time.monotonic())
            self._held[cell] = held
            self._begins[cell] = asyncio.create_task(self._begin(held))

    async def take(self, cell: int, offset: int, value: bytes | None) -> None:
        """Fold one record that Faust delivered; read what it left out before."""
        held = self._held.get(cell)
        if held is None or held.broken is not None:
            return
        held.delivered_offset = max(held.delivered_offset, offset)
        held.delivered_s = time.monotonic()
        if not held.begun:
            # It is read from the log with the rest, once the beginning is behind.
            return
        async with held.lock:
            if offset > held.next_offset:
                await self._follow(held, offset)
            if offset == held.next_offset and held.broken is None:
                try:
                    self._fold(held, offset, value)
                except CodecError:
                    # Faust delivers what an aborted transaction wrote, too. The log itself, read
                    # without such records, says whether this one is there.
                    await self._follow(held, offset + 1)

    # From the log

    async def _begin(self, held: CellDepth) -> None:
        """Read the snapshot and the ledger up to its end; again until the broker lets it."""
        while not held.begun and held.broken is None:
            try:
                async with self._one_at_a_time, held.lock:
                    await self._seed(held)
                    held.begun = held.broken is None
            except UnreadableError as error:
                await self._break(held, held.next_offset, None, str(error))
            except bus.BusError as error:
                log.warning("cell %d: its depth is not known yet: %s", held.cell, error)
                await asyncio.sleep(RETRY_S)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must end the process
                self.fail(error)
                return
        if held.broken is None:
            log.info(
                "cell %d: depth follows its ledger from seq %d", held.cell, held.continuity.next_seq
            )

    async def _seed(self, held: CellDepth) -> None:
        ledger = TopicPartition(LEDGER, held.cell)
        async with bus.consuming(self._bootstrap, [ledger]) as consumer:
            starts = await bus.bounded(consumer.beginning_offsets([ledger]), "tell a start offset")
            ends = await bus.bounded(consumer.end_offsets([ledger]), "tell an end offset")
            start, end = starts[ledger], ends[ledger]
            marks = await last_marks(consumer, ledger, start, end)
            if not await self._from_snapshot(held, marks.pointers, start):
                if start > 0:
                    raise UnreadableError(
                        f"the ledger of cell {held.cell} begins at offset {start} and no snapshot"
                        " of it can be read: its depth stays unknown until headway.snapshots is"
                        " restored and this process is begun again"
                    )
                held.fold, held.continuity = DepthFold(held.cell, self._cells), Continuity()
                held.next_offset = 0
            held.freshness = Freshness(LATE_S)
            held.freshness.note(end, held.next_offset, time.monotonic())
            await self._read(held, consumer, ledger, end)
        while held.broken is None and held.next_offset <= held.delivered_offset:
            await self._follow(held, held.delivered_offset + 1)
        held.freshness.note(end, held.next_offset, time.monotonic())

    async def _from_snapshot(
        self, held: CellDepth, pointers: list[Pointer], ledger_start: int
    ) -> bool:
        if not pointers:
            return False
        partition = TopicPartition(SNAPSHOTS, held.cell)
        async with bus.consuming(self._bootstrap, [partition]) as consumer:
            found = await best_snapshot(consumer, held.cell, pointers, ledger_start)
        if found is None:
            return False
        shell, state, _ = found
        held.fold = DepthFold.of_state(state)
        held.continuity = Continuity(shell.position)
        held.next_offset = shell.ledger_offset
        return True

    async def _follow(self, held: CellDepth, end: int) -> None:
        """Fold what the log holds from the next offset to before `end`."""
        ledger = TopicPartition(LEDGER, held.cell)
        async with bus.consuming(self._bootstrap, [ledger]) as consumer:
            ends = await bus.bounded(consumer.end_offsets([ledger]), "tell an end offset")
            # A record of an open transaction stands behind the end that can be read.
            await self._read(held, consumer, ledger, min(end, ends[ledger]))

    async def _read(
        self, held: CellDepth, consumer: AIOKafkaConsumer, ledger: TopicPartition, end: int
    ) -> None:
        since_yield = held.continuity.next_seq
        async for record in bus.read_range(consumer, ledger, held.next_offset, end):
            try:
                self._fold(held, record.offset, record.value)
            except CodecError as error:
                await self._break(held, record.offset, record.value, str(error))
                return
            if held.continuity.next_seq - since_yield > _YIELD_ENTRIES:
                since_yield = held.continuity.next_seq
                await asyncio.sleep(0)
        # The rest of the range holds no records: transaction markers take offsets too.
        held.next_offset = max(held.next_offset, end)

    def _fold(self, held: CellDepth, offset: int, value: bytes | None) -> None:
        before = held.continuity.position()
        try:
            folded = self._read_record(held.continuity, value)
        except CodecError:
            held.continuity = Continuity(before)
            raise
        for found in folded:
            if isinstance(found, Entry):
                held.fold.fold(found)
            else:
                held.fold.move(found)
        held.next_offset = offset + 1

    @staticmethod
    def _read_record(continuity: Continuity, value: bytes | None) -> list[Entry | list[Move]]:
        """Return what counts of a record, decoded only where that must be.

        Raises:
            CodecError: the ledger cannot be followed here.
        """
        lines = continuity.vouched(value)
        if lines is None:
            return [line.entry for line in continuity.admit(value)]
        found: list[Entry | list[Move]] = []
        for line in lines:
            moves = moves_of(line)
            found.append(decode_line(line).entry if moves is None else moves)
        return found

    async def _break(self, held: CellDepth, offset: int, value: bytes | None, reason: str) -> None:
        """Give a ledger up at `offset`: what follows cannot be counted, so it is unknown."""
        held.broken = reason
        log.error(
            "cell %d: its depth is unknown from ledger offset %d on: %s", held.cell, offset, reason
        )
        if self._producer is None:
            return
        letter = dead_letter((LEDGER, held.cell, offset), value, reason)
        key = f"{LEDGER}/{held.cell}/{offset}".encode()
        sent = self._producer.send_and_wait(
            DEAD_LETTER, encode(letter), key=key, partition=held.cell
        )
        await bus.bounded(sent, "take a dead letter")

    # Once a second

    def current(self, at_us: int) -> list[DepthSignal]:
        """Return the depth of each held cell at `at_us`, by cell, as far as it is known."""
        return [self._held[cell].signal(at_us) for cell in sorted(self._held)]

    async def tell(self) -> None:
        """Publish the depth of each held cell, as far as it is known.

        Raises:
            SignalsError: the broker stays away, or the stream is dead.
        """
        try:
            await self._compare_ends()
            await self._publish()
        except bus.BusError as error:
            away_s = time.monotonic() - self._heard_s
            if away_s > AWAY_S_MAX:
                raise SignalsError(
                    f"no signal could be told for {away_s:.0f} s: {error}"
                ) from error
            if not self._away:
                log.warning("no signal can be told, and it is tried again: %s", error)
            self._away = True
            await self._disconnect_ends()
            return
        if self._away:
            log.info("signals are told again")
        self._away = False
        self._heard_s = time.monotonic()

    async def _publish(self) -> None:
        if self._producer is None:
            return
        sends = [
            self._producer.send_and_wait(
                SIGNALS, encode(signal), key=b"%d" % signal.cell, partition=0
            )
            for signal in self.current(time.time_ns() // 1000)
        ]
        await bus.bounded(asyncio.gather(*sends), "take signals", seconds=TIMER_CALL_S_MAX)

    async def _compare_ends(self) -> None:
        """Note the ledgers' ends; read on by itself where Faust lags; end where it is dead."""
        held = self._held.values()
        begun = [item for item in held if item.begun and item.broken is None]
        if self._ends is None:
            self._ends = await self._connect_ends()
        if not begun:
            return
        partitions = {item.cell: TopicPartition(LEDGER, item.cell) for item in begun}
        asked = self._ends.end_offsets(list(partitions.values()))
        ends = await bus.bounded(asked, "tell end offsets", seconds=TIMER_CALL_S_MAX)
        for item in begun:
            end, now_s = ends[partitions[item.cell]], time.monotonic()
            item.freshness.note(end, item.next_offset, now_s)
            if item.freshness.late(now_s):
                await self._catch_up(item, end)

    async def _catch_up(self, held: CellDepth, end: int) -> None:
        if held.lock.locked():
            return  # the agent is at it; until it is done the depth is unknown
        async with held.lock:
            seq_before = held.continuity.next_seq
            await self._follow(held, end)
            missed = held.continuity.next_seq - seq_before
        held.freshness.note(end, held.next_offset, time.monotonic())
        if not missed:
            return
        silent_s = time.monotonic() - max(held.delivered_s, self._heard_s)
        log.warning("cell %d: read %d entries that the stream left out", held.cell, missed)
        if silent_s > STUCK_S:
            raise SignalsError(
                f"the stream of the ledger of cell {held.cell} has delivered nothing for"
                f" {silent_s:.0f} s while the ledger grew: it is taken for dead"
            )

    async def _connect_ends(self) -> AIOKafkaConsumer:
        consumer = bus.new_consumer(self._bootstrap)
        try:
            await bus.bounded(consumer.start(), "accept a consumer", seconds=TIMER_CALL_S_MAX)
        except bus.BusError:
            await bus.stop_client(consumer)
            raise
        return consumer

    async def _disconnect_ends(self) -> None:
        # A client that lost its broker may stand still for ever; a new one does not.
        if self._ends is not None:
            await bus.stop_client(self._ends)
            self._ends = None
