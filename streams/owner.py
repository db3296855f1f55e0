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
from collections import deque
from collections.abc import Callable, Iterable

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
from schemas.ids import Source
from schemas.ledger import Entry
from schemas.policy_history import built_in
from schemas.profile import Profile
from schemas.topics import LEDGER, REQUESTS
from services import bus
from services.scheduler.step import governing, next_due_us, step
from streams.admission import CountTokens, Edge, Read, unreadable
from streams.clock import LedgerClock
from streams.effects import Effect, effects_of
from streams.fence import only_strangers_before, only_strangers_until
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
from streams.work_topics import WorkTopics, record_of

# A ledger record is full at this size. The topic takes 16 times as much, because a single entry may
# hold many decisions.
RECORD_BYTES = 1024 * 1024
# A fetch waits at most this long when nothing is due; the due times shorten it.
IDLE_WAIT_MS = 200

log = logging.getLogger(__name__)

# A fact, and the record that it was read from, if it was.
Sourced = tuple[Fact, Source | None]


class SupersededError(RuntimeError):
    """Another owner has appended to this ledger: this one publishes nothing more."""


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
        self._edge = Edge(cells, counter_of)
        self._stopping = asyncio.Event()
        self._serving = False
        self._ledger: AIOKafkaProducer = bus.new_producer(bootstrap)
        self._publisher = Publisher(bootstrap)
        self._snapshots = Snapshotter(cell, self._publisher)
        self._inputs = Inputs(bootstrap, cell)
        self._work_topics = WorkTopics(bootstrap, cell, self._publisher)
        self._append_began_s = 0.0
        self._clock = LedgerClock()

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
        try:
            await self._take_over()
            await self._inputs.start(self._shell.inputs, self._state.policy.payload_cache_bytes)
            await self._publish_missing()
            await self._read_config()
            await self._serve()
        except KafkaError as error:
            raise bus.BusError(f"Kafka failed the owner of cell {self._cell}: {error!r}") from error
        finally:
            self._snapshots.stop()
            await asyncio.gather(
                self._inputs.stop(), bus.stop_client(self._ledger), self._publisher.stop()
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
        facts: deque[Sourced] = deque([(fact, None)])
        if self._shell.position.next_seq == 0:
            first = built_in()
            activated = PolicyActivated(
                at_us=fact.at_us, policy=first.policy, who=first.who, why=first.why
            )
            facts.append((activated, None))
        try:
            entries = await self._append(facts)
        except SupersededError as error:
            # The owner before appended while the log was read. This takeover is void, but its epoch
            # stands: that owner's next record is void too, so the next try will find it silent.
            raise bus.BusError(f"{error}; the ledger is read again") from error
        self._missing = [*recovered.unpublished, *entries]
        log.info(
            "cell %d: epoch %d began at seq %d after %d entries since the snapshot",
            self._cell,
            self._epoch,
            entries[0].seq,
            recovered.entries,
        )

    def _adopt(self, recovered: Recovered) -> None:
        self._state = recovered.state
        self._clock.go_on_from(self._state.now_us)
        self._shell = recovered.shell
        self._snapshots.adopt(recovered.pointers)
        self._edge.policy = self._state.policy
        for name, model in self._state.models.items():
            self._edge.profiles[name] = model.profile

    async def _publish_missing(self) -> None:
        """Publish the effects that the owner before may not have published.

        An effect partition has one writer, so its last record tells how far that one got. A
        partition that many cells write to (routed requests) may get a message twice; its reader
        drops the second by its headers.
        """
        refused: list[tuple[Profile, str]] = []
        for model in self._state.models.values():
            try:
                await self._work_topics.prepare(model.profile)
            except bus.RefusedError as error:
                # It was to be had when the profile was recorded.
                refused.append((model.profile, str(error)))
        effects = await self._effects_of(self._missing)
        owned = {(e.topic, e.partition) for e in effects if e.topic != REQUESTS}
        tails = await self._inputs.effect_tails(sorted(owned))
        lacking = [
            effect
            for effect in effects
            if (effect.seq, effect.index) > tails.get((effect.topic, effect.partition), (-1, -1))
        ]
        await self._check_alone()
        await self._publisher.publish(lacking, self._missing[-1].seq)
        self._missing = []
        await self._put_away(refused)

    async def _put_away(self, refused: list[tuple[Profile, str]]) -> None:
        """Record the profiles whose models cannot be served any more, and why."""
        facts: deque[Sourced] = deque()
        for profile, reason in refused:
            log.error("cell %d: %s cannot be served: %s", self._cell, profile.model, reason)
            record = await record_of(self._bootstrap, profile)
            if record is not None:
                facts.append((unreadable(record, self._now_us(), reason), None))
        await self._carry_out(facts)

    async def _read_config(self) -> None:
        """Take in every policy and profile before the first request, so none is unknown."""
        while records := await self._inputs.config_backlog():
            await self._record(records)

    # Serving

    async def _serve(self) -> None:
        self._serving = True
        while not self._stopping.is_set():
            records_max = self._state.policy.append_entries_max
            records = await self._inputs.poll(self._wait_ms(), records_max)
            await self._record(records)
            self._snapshots.take_if_due(self._state, self._shell)
        await self._publisher.settle(0)

    def _wait_ms(self) -> int:
        due_us = next_due_us(self._state.policy, self._state)
        if due_us is None:
            return IDLE_WAIT_MS
        return max(0, min(IDLE_WAIT_MS, -(-(due_us - self._now_us()) // 1000)))

    async def _record(self, records: Iterable[bus.Record]) -> None:
        """Step the facts of the records, append their entries, and publish the effects."""
        at_us = self._now_us()
        facts: deque[Sourced] = deque()
        for record in records:
            read = self._edge.read(record, at_us)
            if read is not None and self._is_new(read):
                self._inputs.keep(read)
                if isinstance(read.fact, ProfileSet):
                    read.fact = await self._prepared(read.fact, record)
                facts.append((read.fact, read.source))
        if not facts:
            due_us = next_due_us(self._state.policy, self._state)
            if due_us is None or due_us > at_us:
                return
            facts.append((ClockTicked(at_us=at_us), None))
        await self._carry_out(facts)

    async def _carry_out(self, facts: deque[Sourced]) -> None:
        """Append the facts, taking them out, and publish the effects of what was decided."""
        while facts:
            entries = await self._append(facts)
            effects = await self._effects_of(entries)
            await self._check_alone()
            await self._publisher.publish(effects, entries[-1].seq)
            self._inputs.forget(entries)
            self._inputs.resize(self._state.policy.payload_cache_bytes)

    def _is_new(self, read: Read) -> bool:
        """Return whether a fact was not recorded before.

        What another cell sent on is noted, so that its second copy in the same batch is not new.
        """
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

    async def _append(self, facts: deque[Sourced]) -> list[Entry]:
        """Step as many of the facts as one record may hold, taking them out, and append it.

        Return its entries once they are the truth.

        Raises:
            SupersededError: the record did not come to stand where it had to.
            bus.BusError: the ack did not come; what the log holds is not known here.
        """
        lines: list[bytes] = []
        entries: list[Entry] = []
        record_bytes = 0
        position = self._shell.position
        seq, chain = position.next_seq, position.chain
        while facts and record_bytes < RECORD_BYTES:
            fact, source = facts.popleft()
            entry = self._decide(fact, source, seq)
            raw, chain = encode_entry(entry, chain)
            lines.append(raw)
            entries.append(entry)
            record_bytes += len(raw)
            seq += 1
        expected, value = self._shell.ledger_offset, b"\n".join(lines)
        self._append_began_s = time.monotonic()
        sent = self._ledger.send_and_wait(
            LEDGER,
            value,
            key=b"%d" % self._cell,
            partition=self._cell,
            headers=self._marks(),
        )
        offset = (await bus.bounded(sent, "acknowledge a ledger record")).offset
        if offset != expected and not await only_strangers_before(
            self._bootstrap, self._cell, expected, offset, value
        ):
            raise SupersededError(
                f"cell {self._cell}: the record of seq {entries[0].seq} came to stand at offset"
                f" {offset}, not {expected}: another owner has appended; this one stops"
            )
        self._shell.ledger_offset = offset + 1
        self._shell.position = Position(next_seq=seq, chain=chain, epoch=self._epoch)
        return entries

    def _decide(self, fact: Fact, source: Source | None, seq: int) -> Entry:
        decisions = step(governing(self._state, fact), self._state, fact)
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

    async def _check_alone(self) -> None:
        """Look at the ledger's end before publishing, if the process stood still since the append.

        A successor may have taken over meanwhile, and published these effects itself.

        Raises:
            SupersededError: one has.
        """
        stood_s = time.monotonic() - self._append_began_s
        if stood_s <= self._frozen_s:
            return
        start, end = self._shell.ledger_offset, await self._inputs.ledger_end()
        if end != start and not await only_strangers_until(self._bootstrap, self._cell, start, end):
            raise SupersededError(
                f"cell {self._cell}: stood still for {stood_s:.1f} s, and the ledger went on to"
                f" offset {end} meanwhile; this owner stops"
            )
        self._shell.ledger_offset = end

    def _marks(self) -> bus.Headers:
        self._publisher.count_acks()
        marks: bus.Headers = [(HEADER_PUBLISHED, b"%d" % self._publisher.published_seq)]
        pointers = self._snapshots.pointers_text()
        if pointers:
            marks.append((HEADER_SNAPSHOTS, pointers.encode()))
        return marks

    async def _prepared(self, fact: ProfileSet, record: bus.Record) -> Fact:
        """Return the fact once its model can be served, or the one that it never can be."""
        try:
            await self._work_topics.prepare(fact.profile)
        except bus.RefusedError as error:
            return unreadable(record, fact.at_us, str(error))
        self._edge.profiles[fact.profile.model] = fact.profile
        return fact

    async def _effects_of(self, entries: Iterable[Entry]) -> list[Effect]:
        """Return the effects of the entries, less those for a work partition that is not there."""
        effects = [
            effect
            for entry in entries
            for effect in await effects_of(entry, self._inputs, self._cells)
        ]
        return [effect for effect in effects if self._work_topics.has_reader(effect)]

    def _now_us(self) -> int:
        """The one reading of the clock. The broker's stamps are as far behind as the wall clock."""
        now_us = self._clock.now_us()
        self._edge.ahead_us = self._clock.ahead_us
        return now_us
