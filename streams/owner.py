"""The owner of one cell: facts in, entries on the ledger, then effects.

The one place where a decision becomes visible, and only after the ledger holds it.
The order is the safety. An entry is appended and its offset checked (the offset is the fence: any
other owner's record in between moves it), and only then are its effects published. Whatever is
uncertain (a lost ack, an offset that is not the next, a long freeze) ends this life of the owner;
the next one learns from the log what is true. It keeps no state that the log does not hold.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas.codec import encode_entry
from schemas.continuity import Position
from schemas.facts import (
    CancelAsked,
    ClockTicked,
    Fact,
    OwnerTookOver,
    PolicyActivated,
    ProfileSet,
    RequestArrived,
    RequestRefused,
)
from schemas.ledger import Entry
from schemas.policy import Policy
from schemas.profile import Profile
from schemas.topics import LEDGER, REQUESTS
from services import bus
from services.scheduler.step import governing, next_due_us, step
from streams.admission import CountTokens, Edge, Read
from streams.effects import effects_of
from streams.inputs import Inputs
from streams.publisher import Publisher
from streams.recovery import (
    HEADER_PUBLISHED,
    HEADER_SNAPSHOTS,
    Recovered,
    note_source,
    recover_cell,
)
from streams.snapshotter import Snapshotter

# A fetch waits at most this long when nothing is due; the due times shorten it.
IDLE_WAIT_MS = 200

log = logging.getLogger(__name__)


class SupersededError(RuntimeError):
    """Another owner has appended to this ledger: this one publishes nothing more."""


@dataclass(slots=True)
class Counts:
    """What an owner has done in this process, for people."""

    entries: int = 0
    decisions: int = 0
    appends: int = 0
    epoch: int = 0
    recovered_entries: int = 0
    last_append_monotonic_s: float = field(default_factory=time.monotonic)


class Owner:
    """One life of a cell's owner: from recovery to the first doubt.

    Args:
        bootstrap: of the broker.
        cell, cells: which partition, of how many.
        name: of the process, for the record.
        counter_of: gives the function that counts a request's prompt tokens, for a profile.
        session_ms: of the group by which cells are shared; half of it is a freeze.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        cell: int,
        cells: int,
        name: str,
        counter_of: Callable[[Profile], CountTokens],
        session_ms: int = bus.SESSION_MS,
    ) -> None:
        self._bootstrap = bootstrap
        self._cell = cell
        self._cells = cells
        self._name = name
        self._frozen_s = session_ms / 2000
        self._edge = Edge(counter_of)
        self._stopping = asyncio.Event()
        self._serving = False
        self._ledger: AIOKafkaProducer = bus.new_producer(bootstrap)
        self._publisher = Publisher(bootstrap)
        self._snapshots = Snapshotter(cell, self._publisher)
        self.counts = Counts()

    def stop(self) -> None:
        """Ask the owner to end after the batch in hand."""
        self._stopping.set()

    @property
    def next_request_offset(self) -> int | None:
        """The offset of headway.requests up to which everything is on the ledger, if known yet."""
        last = self._shell.inputs.get((REQUESTS, self._cell)) if self._serving else None
        return None if last is None else last + 1

    async def run(self) -> None:
        """Recover, take over and serve until stopped or in doubt.

        Raises:
            SupersededError: another owner has taken the ledger.
            bus.BusError: the broker did not do what it must.
            RecoveryError: the ledger cannot be followed.
        """
        inputs = Inputs(self._bootstrap, self._cell)
        try:
            await self._take_over()
            await inputs.start(self._shell.inputs, self._state.policy.payload_cache_bytes)
            self._inputs = inputs
            await self._publish_missing()
            await self._read_config()
            await self._serve()
        except KafkaError as error:
            raise bus.BusError(f"Kafka failed the owner of cell {self._cell}: {error!r}") from error
        finally:
            self._snapshots.stop()
            await asyncio.gather(
                inputs.stop(), bus.stop_client(self._ledger), self._publisher.stop()
            )

    # Taking over

    async def _take_over(self) -> None:
        await bus.bounded(self._ledger.start(), "accept a producer")
        recovered = await recover_cell(self._bootstrap, self._cell)
        await self._publisher.start(recovered.published_seq)
        self._adopt(recovered)
        fact = OwnerTookOver(
            at_us=self._now_us(),
            cell=self._cell,
            cells=self._cells,
            epoch=self._shell.position.epoch + 1,
            owner=self._name,
        )
        self._epoch = fact.epoch
        facts: list[Fact] = [fact]
        if self._shell.position.next_seq == 0:
            who, why = "headway", "the built-in default of a new deployment"
            facts.append(PolicyActivated(at_us=fact.at_us, policy=Policy(), who=who, why=why))
        try:
            entries = await self._append([(fact, None) for fact in facts])
        except SupersededError as error:
            # The owner before appended while the log was read. This takeover is void, but its epoch
            # stands: that owner's next record is void too, so the next try will find it silent.
            raise bus.BusError(f"{error}; the ledger is read again") from error
        self._missing = [*recovered.unpublished, *entries]
        self.counts.epoch = self._epoch
        self.counts.recovered_entries = recovered.entries
        log.info(
            "cell %d: epoch %d began at seq %d after %d entries since the snapshot",
            self._cell,
            self._epoch,
            entries[0].seq,
            recovered.entries,
        )

    def _adopt(self, recovered: Recovered) -> None:
        self._state = recovered.state
        self._shell = recovered.shell
        self._snapshots.adopt(recovered.pointers)
        for name, model in self._state.models.items():
            self._edge.profiles[name] = model.profile

    async def _publish_missing(self) -> None:
        """Publish the effects that the owner before may not have published.

        An effect partition has one writer, so its last record tells how far that one got. A
        partition that many cells write to (routed requests) may get a message twice; its reader
        drops the second by its headers.
        """
        for model in self._state.models.values():
            await bus.ensure_work_topic(self._bootstrap, model.profile)
        effects = [
            effect
            for entry in self._missing
            for effect in await effects_of(entry, self._inputs, self._cells)
        ]
        owned = {(e.topic, e.partition) for e in effects if e.topic != REQUESTS}
        tails = await self._inputs.effect_tails(sorted(owned))
        lacking = [
            effect
            for effect in effects
            if (effect.seq, effect.index) > tails.get((effect.topic, effect.partition), (-1, -1))
        ]
        await self._publisher.publish(lacking, self._missing[-1].seq)
        self._missing = []

    async def _read_config(self) -> None:
        """Take in every policy and profile before the first request, so none is unknown."""
        while records := await self._inputs.config_backlog():
            await self._record(records)

    # Serving

    async def _serve(self) -> None:
        self._serving = True
        while not self._stopping.is_set():
            records = await self._inputs.poll(self._wait_ms(), self._batch_max())
            await self._record(records)
            self._snapshots.take_if_due(self._state, self._shell)
        await self._publisher.settle(0)

    def _wait_ms(self) -> int:
        due_us = next_due_us(self._state.policy, self._state)
        if due_us is None:
            return IDLE_WAIT_MS
        return max(0, min(IDLE_WAIT_MS, -(-(due_us - self._now_us()) // 1000)))

    def _batch_max(self) -> int:
        return self._state.policy.append_entries_max

    async def _record(self, records: Iterable[Any]) -> None:
        """Step the facts of the records, append their entries, and publish the effects."""
        at_us = self._now_us()
        facts: list[tuple[Fact, tuple[str, int, int] | None]] = []
        for record in records:
            read = self._edge.read(record, at_us)
            if read is not None and self._is_new(read):
                self._inputs.keep(read)
                facts.append((read.fact, read.source))
                if isinstance(read.fact, ProfileSet):
                    await bus.ensure_work_topic(self._bootstrap, read.fact.profile)
                    self._edge.profiles[read.fact.profile.model] = read.fact.profile
        if not facts:
            due_us = next_due_us(self._state.policy, self._state)
            if due_us is None or due_us > at_us:
                return
            facts.append((ClockTicked(at_us=at_us), None))
        entries = await self._append(facts)
        await self._publish(entries)

    def _is_new(self, read: Read) -> bool:
        """Return whether a fact was not recorded before; moves the input's position on."""
        topic, partition, offset = read.source
        if offset <= self._shell.inputs.get((topic, partition), -1):
            return False
        fact = read.fact
        if isinstance(fact, RequestArrived | RequestRefused | CancelAsked) and fact.routed_by:
            cell, seq, index = fact.routed_by
            if (seq, index) <= self._shell.routed.get(cell, (-1, -1)):
                return False
            self._shell.routed[cell] = (seq, index)
        return True

    async def _append(self, facts: list[tuple[Fact, tuple[str, int, int] | None]]) -> list[Entry]:
        """Step the facts and append their entries as one record; return once it is the truth.

        Raises:
            SupersededError: the record did not come to stand where it had to.
            bus.BusError: the ack did not come; what the log holds is not known here.
        """
        lines: list[bytes] = []
        entries: list[Entry] = []
        position = self._shell.position
        seq, chain = position.next_seq, position.chain
        for fact, source in facts:
            entry = self._decide(fact, source, seq)
            raw, chain = encode_entry(entry, chain)
            lines.append(raw)
            entries.append(entry)
            seq += 1
        expected = self._shell.ledger_offset
        began_s = time.monotonic()
        sent = self._ledger.send_and_wait(
            LEDGER,
            b"\n".join(lines),
            key=b"%d" % self._cell,
            partition=self._cell,
            headers=self._marks(),
        )
        offset = (await bus.bounded(sent, "acknowledge a ledger record")).offset
        if offset != expected:
            raise SupersededError(
                f"cell {self._cell}: the record of seq {entries[0].seq} came to stand at offset"
                f" {offset}, not {expected}: another owner has appended; this one stops"
            )
        await self._check_not_frozen(began_s, expected + 1)
        self._shell.ledger_offset = expected + 1
        self._shell.position = Position(next_seq=seq, chain=chain, epoch=self._epoch)
        self.counts.appends += 1
        self.counts.entries += len(entries)
        self.counts.last_append_monotonic_s = time.monotonic()
        return entries

    def _decide(self, fact: Fact, source: tuple[str, int, int] | None, seq: int) -> Entry:
        decisions = step(governing(self._state, fact), self._state, fact)
        self.counts.decisions += len(decisions)
        entry = Entry(
            cell=self._cell,
            seq=seq,
            epoch=self._epoch,
            source=source,
            policy_version=self._state.policy.version,
            policy_digest=self._state.policy_digest,
            fact=fact,
            decisions=decisions,
        )
        note_source(self._shell, entry)
        return entry

    async def _check_not_frozen(self, began_s: float, next_offset: int) -> None:
        """Look at the ledger's end before publishing, if the process stood still for long.

        A successor may have taken over between the ack and now.
        """
        if time.monotonic() - began_s <= self._frozen_s:
            return
        end = await self._inputs.ledger_end()
        if end != next_offset:
            raise SupersededError(
                f"cell {self._cell}: stood still for {time.monotonic() - began_s:.1f} s, and the"
                f" ledger went on to offset {end} meanwhile; this owner stops"
            )

    def _marks(self) -> bus.Headers:
        self._publisher.count_acks()
        marks: bus.Headers = [(HEADER_PUBLISHED, b"%d" % self._publisher.published_seq)]
        pointers = self._snapshots.pointers_text()
        if pointers:
            marks.append((HEADER_SNAPSHOTS, pointers.encode()))
        return marks

    async def _publish(self, entries: list[Entry]) -> None:
        effects = [
            effect
            for entry in entries
            for effect in await effects_of(entry, self._inputs, self._cells)
        ]
        await self._publisher.publish(effects, entries[-1].seq)
        self._inputs.forget(entries)

    def _now_us(self) -> int:
        """The one reading of the clock: µs since the epoch. The core never lets it go back."""
        return time.time_ns() // 1000
