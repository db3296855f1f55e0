"""The worker's bus loop: work in from its slot, one iteration of the engine at a time, reports out.

It decides nothing about who runs: it runs what the cell dispatched to this life of its replica. It
is assigned its slot, not balanced into it. The engine steps in its device's thread, and is touched
by nothing else meanwhile, so heartbeats go out however long an iteration takes. Where the device is
shared with other models (host.py), each iteration waits for its turn.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas import bus as messages
from schemas.bus import WorkerReport
from schemas.codec import CodecError, decode, encode
from schemas.facts import ReplicaDraining, ReplicaStarting, ReplicaStopped
from schemas.ids import cell_of, replica_name
from schemas.policy import Tier
from schemas.topics import TOKENS, WORKER_EVENTS, work_topic
from services import bus
from services.worker.commands import Command, dispatch_number, give_or_take, work_of
from services.worker.device import Device
from services.worker.engine import Engine, StepResult
from services.worker.held import HeldWork
from services.worker.outbox import Outbox, Outgoing
from services.worker.reports import Life, heartbeat, progressed, ready, reports_of, tokens_of
from services.worker.turns import Replica

HEARTBEAT_S = 0.5
DRAIN_S_MAX = 30.0
REJOIN_S = 0.5
FETCH_WAIT_MS = 500
# Beyond this backlog the bus is away: heartbeats would only pile up.
BACKLOG_MAX = 1000

log = logging.getLogger(__name__)


class TurnedAwayError(RuntimeError):
    """The cell told this worker to stop: another life holds its slot, or there is no such slot."""


class LoadError(RuntimeError):
    """The engine cannot be made as it was asked for; the sentence says why."""


@dataclass(slots=True)
class Tally:
    """What the worker has done, for heartbeats and people."""

    output_tokens: int = 0
    progress_told_s: float = 0.0
    last: StepResult = field(default_factory=StepResult)


class WorkerService:
    """One replica on the bus.

    Args:
        bootstrap: of the broker.
        model, slot: which replica it is.
        load: makes the engine; called in a thread, after the cold start was reported.
        device: that it runs on, with whatever else that hosts; by default one of its own.
    """

    def __init__(
        self,
        bootstrap: str,
        model: str,
        slot: int,
        load: Callable[[], Engine],
        device: Device | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._slot = slot
        self._model = model
        self._load = load
        self._life = Life(model, slot, secrets.token_hex(8))
        self._outbox = Outbox(bootstrap)
        self._replica = Replica(model, slot)
        self._device = device or Device([self._replica])
        self._inbox: list[Command] = []
        self._wake = asyncio.Event()
        self._draining = False
        self._handed_over = False
        self._announced = False
        self._held = HeldWork()
        self._read_number = 0
        self._tally = Tally()
        self._seen = (-1, -1)
        self._cell = 0

    def stop(self) -> None:
        """Ask for an orderly end: finish what runs, take nothing more.

        What has not finished after DRAIN_S_MAX leaves with its tokens, for another replica.
        """
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Load, report ready, and serve until stopped.

        Raises:
            TurnedAwayError: the cell has no place for this replica.
            LoadError: the engine cannot be made.
            UnwritableError: a report is too large for the bus.
            bus.BusError: the topics are not there.
        """
        cells = await bus.partition_count(self._bootstrap, WORKER_EVENTS)
        if not cells:
            raise bus.BusError(
                f"there is no topic {WORKER_EVENTS}: start a cell first, it creates the topics"
            )
        self._cell = cell_of(self._model, cells)
        writing = asyncio.create_task(self._outbox.run())
        try:
            self._report(WorkerReport(fact=ReplicaStarting(**self._life.who())))
            engine = await self._device.load(self._replica, self._load_warm)
            await self._serve(engine, writing)
            why = "drained" if not self._held else "stopped with work in hand"
            self._report(WorkerReport(fact=ReplicaStopped(**self._life.who(), reason=why)))
            await self._outbox.flushed(bus.STOP_S_MAX)
        finally:
            writing.cancel()
            self._device.leave(self._replica)
            await asyncio.gather(writing, return_exceptions=True)

    def _load_warm(self) -> Engine:
        try:
            engine = self._load()
            engine.warm_up()
        except ValueError as error:
            raise LoadError(f"{self._name()} cannot load its model: {error}") from error
        return engine

    async def _serve(self, engine: Engine, writing: "asyncio.Task[None]") -> None:
        reading = asyncio.create_task(self._read_work(engine))
        beating = asyncio.create_task(self._beat())
        stepping = asyncio.create_task(self._step(engine))
        tasks = {reading, beating, stepping}
        try:
            # A worker that could not report any more would be mute, and work on for nobody.
            done, _ = await asyncio.wait({*tasks, writing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Work in

    async def _read_work(self, engine: Engine) -> None:
        """Read the slot, from its end at the beginning of each life; begin again after faults."""
        first = True
        told = ""
        while True:
            try:
                partition = await self._slot_partition()
                async with bus.consuming(self._bootstrap, [partition]) as consumer:
                    if first:
                        await self._begin_life(consumer, partition, engine)
                        first = False
                    else:
                        consumer.seek(partition, self._next_offset)
                    await self._read_on(consumer, partition, engine)
            except (bus.BusError, KafkaError) as error:
                if str(error) != told:
                    log.warning("%s reads its work again: %s", self._name(), error)
                    told = str(error)
                await asyncio.sleep(REJOIN_S)

    async def _slot_partition(self) -> TopicPartition:
        """Return where the slot's work lies.

        Raises:
            bus.BusError: no profile of the model, or none with that many slots, is known here yet.
        """
        topic = work_topic(self._model)
        slots = await bus.partition_count(self._bootstrap, topic)
        if self._slot < slots:
            return TopicPartition(topic, self._slot)
        have = f"it has {slots} slots, from 0 on" if slots else "it has none"
        raise bus.BusError(
            f"{topic} has no slot {self._slot} ({have}); a profile of {self._model} on"
            " headway.config says how many there are"
        )

    async def _begin_life(
        self, consumer: AIOKafkaConsumer, partition: TopicPartition, engine: Engine
    ) -> None:
        ends = await bus.bounded(consumer.end_offsets([partition]), "tell an end offset")
        self._next_offset = ends[partition]
        consumer.seek(partition, self._next_offset)
        self._report(ready(self._life, engine.info))
        self._announced = True
        log.info("%s is ready: %d KV blocks", self._name(), engine.info.kv_blocks)

    async def _read_on(
        self, consumer: AIOKafkaConsumer, partition: TopicPartition, engine: Engine
    ) -> None:
        quiet_since_s = time.monotonic()
        while True:
            call = consumer.getmany(timeout_ms=FETCH_WAIT_MS)
            got = await bus.bounded(call, "answer a fetch")
            for record in got.get(partition, ()):
                quiet_since_s = time.monotonic()
                self._next_offset = record.offset + 1
                command = self._command(record)
                if isinstance(command, messages.WorkerNotice):
                    if not command.rejoin:
                        raise TurnedAwayError(f"{self._name()} stops: {command.why}")
                    await self._rejoin(command.why)
                    await self._begin_life(consumer, partition, engine)
                elif command is not None:
                    self._inbox.append(command)
                    self._wake.set()
            if time.monotonic() - quiet_since_s > bus.CALL_S_MAX:
                await self._check_moving(consumer, partition)
                quiet_since_s = time.monotonic()

    async def _check_moving(self, consumer: AIOKafkaConsumer, partition: TopicPartition) -> None:
        ends = await bus.bounded(consumer.end_offsets([partition]), "tell an end offset")
        position = await bus.bounded(consumer.position(partition), "tell a position")
        if position < ends[partition]:
            # A consumer can stand still for ever after a broker's restart; a new one goes on.
            raise bus.BusError(f"the consumer stands at offset {position} of {ends[partition]}")

    def _command(self, record: bus.Record) -> Command | None:
        """Return the record's command, unless it is seen, unreadable, or for another life.

        Only what is for this life counts as seen: of a record for another, the headers say nothing.
        A notice ends a life, so a second one is for another; and it must get through to a worker
        that outlived its ledger, on the new one of which every seq is below what it has seen.
        """
        headers = dict(record.headers)
        # Noted whether or not the rest can be read: of what was passed and is not held, the cell
        # learns by the next heartbeat.
        number = dispatch_number(headers.get(messages.HEADER_DISPATCH), self._life.incarnation)
        self._read_number = max(self._read_number, number)
        try:
            message = decode(record.value)
            seen = (
                messages.header_number(headers, messages.HEADER_SEQ),
                messages.header_number(headers, messages.HEADER_INDEX),
            )
        except (CodecError, ValueError) as error:
            log.warning("%s skips offset %d: %s", self._name(), record.offset, error)
            return None
        if not isinstance(message, Command) or message.incarnation != self._life.incarnation:
            return None
        if isinstance(message, messages.WorkerNotice):
            return message
        if seen <= self._seen:
            return None
        self._seen = seen
        return message

    async def _rejoin(self, why: str) -> None:
        """Drop everything and become a new life of the replica."""
        log.warning("%s begins a new life: %s", self._name(), why)
        await asyncio.sleep(REJOIN_S)
        self._announced = False
        self._seen = (-1, -1)
        self._read_number = 0
        old = self._life
        self._life = Life(old.model, old.slot, secrets.token_hex(8))
        self._inbox = self._held.leaving(old.incarnation)
        self._held.streamed.clear()
        self._wake.set()

    # Iterations

    async def _step(self, engine: Engine) -> None:
        try:
            await self._iterate(engine)
        finally:
            self._device.rest(self._replica)

    async def _iterate(self, engine: Engine) -> None:
        drain_by_s = None
        while True:
            self._wake.clear()
            self._take_in(engine)
            if self._draining:
                if drain_by_s is None:
                    drain_by_s = time.monotonic() + DRAIN_S_MAX
                    self._report(WorkerReport(fact=ReplicaDraining(**self._life.who())))
                if not (engine.has_work or self._held) or self._handed_over:
                    return
                if time.monotonic() > drain_by_s:
                    self._hand_over(engine)
            if not engine.has_work:
                self._device.rest(self._replica)
                await self._woken(1.0 if self._draining else None)
                continue
            if self._device.shared:
                await self._device.turn(self._replica, self._tier)
                # What came while it waited is in time for this iteration.
                self._take_in(engine)
            life = self._life
            result = await self._device.run(engine.step)
            self._tell(life, result)
            self._tell_progress(life, engine)

    def _tier(self) -> Tier:
        return self._held.highest_tier(self._inbox)

    async def _woken(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    def _hand_over(self, engine: Engine) -> None:
        """Let all that still runs leave with its tokens: another replica goes on from them."""
        self._handed_over = True
        for key in self._held.keys:
            engine.preempt(key.id, key.attempt)

    def _take_in(self, engine: Engine) -> None:
        """Tell the engine what the cell has asked for meanwhile."""
        taken, self._inbox = self._inbox, []
        for command in taken:
            if isinstance(command, messages.WorkGrant | messages.WorkLeave):
                give_or_take(engine, command)
            elif isinstance(command, messages.Work):
                work = work_of(command)
                engine.add(work)
                self._held.add(work.key, command)

    def _tell(self, life: Life, result: StepResult) -> None:
        """Report what an iteration did, as the life that ran it."""
        tokens = tokens_of(life, result, self._held.streamed)
        if tokens is not None:
            self._put(TOKENS, encode(tokens))
        for report in reports_of(life, result):
            self._report(report)
        for gone in (*result.finished, *result.left, *result.failed):
            self._held.over(gone.key)
        self._tally.last = result
        self._tally.output_tokens += result.decode_tokens

    # Reports out

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            # A life that has not said ready yet is a stranger to the cell.
            if self._announced and self._outbox.backlog <= BACKLOG_MAX:
                self._report(
                    heartbeat(
                        self._life,
                        self._tally.last,
                        self._tally.output_tokens,
                        read=self._read_number,
                        held=self._held.numbers(self._inbox),
                    )
                )

    def _tell_progress(self, life: Life, engine: Engine) -> None:
        """Report how far the running requests are, a few times a second, between iterations."""
        now_s = time.monotonic()
        if now_s - self._tally.progress_told_s < HEARTBEAT_S:
            return
        running = [p for p in engine.progress() if p.joined and p.output_tokens]
        if running and self._outbox.backlog <= BACKLOG_MAX:
            self._tally.progress_told_s = now_s
            self._report(progressed(life, running))

    def _report(self, report: WorkerReport) -> None:
        self._put(WORKER_EVENTS, encode(report))

    def _put(self, topic: str, value: bytes) -> None:
        self._outbox.put(Outgoing(topic, self._cell, self._model.encode(), value))

    def _name(self) -> str:
        return f"worker {replica_name(self._model, self._slot)}"
