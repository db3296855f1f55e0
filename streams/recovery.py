"""How an owner learns what its ledger says: the last good snapshot, then every entry since.

Recovery folds facts and recorded decisions; it decides nothing, so a new policy or a new version
of the rules never rewrites the past. Reads the bus, writes nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.bus import header_number
from schemas.codec import CodecError
from schemas.continuity import Continuity, Position, is_foreign
from schemas.facts import CancelAsked, RequestArrived, RequestRefused
from schemas.ledger import Entry
from schemas.topics import LEDGER, SNAPSHOTS
from services import bus
from services.scheduler.state import State
from services.scheduler.step import recover
from streams import snapshots
from streams.snapshots import Pointer, Shell

HEADER_PUBLISHED = "headway-published"
HEADER_SNAPSHOTS = "headway-snapshots"
# How many of the ledger's last records are looked through for such marks.
_TAIL_RECORDS = 16
# Entries folded between two looks at the event loop: about 10 ms of work.
_YIELD_ENTRIES = 1000

log = logging.getLogger(__name__)


class RecoveryError(RuntimeError):
    """The ledger cannot be followed; the sentence says where and what to do."""


@dataclass(slots=True)
class Recovered:
    """What the log says.

    Attributes:
        pointers: where the snapshots lie, from the one that was good on.
        published_seq: every effect up to this entry is known to be on its topic.
        unpublished: the entries above it, whose effects may be missing.
        entries: how many were folded after the snapshot.
    """

    state: State
    shell: Shell
    pointers: list[Pointer]
    published_seq: int
    unpublished: list[Entry] = field(default_factory=list[Entry])
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Marks:
    """What owners noted on a ledger's records.

    Attributes:
        published_seq: every effect up to this entry is known to be on its topic; -1 for none.
        pointers: where snapshots lie, the newest first.
    """

    published_seq: int
    pointers: list[Pointer]


async def recover_cell(bootstrap: str, cell: int) -> Recovered:
    """Return the state of a cell as its ledger tells it.

    Raises:
        RecoveryError: the ledger's beginning is gone and no snapshot is good, or it was altered.
        bus.BusError: the broker did not answer.
    """
    ledger = TopicPartition(LEDGER, cell)
    async with bus.consuming(bootstrap, [ledger, TopicPartition(SNAPSHOTS, cell)]) as consumer:
        starts = await bus.bounded(consumer.beginning_offsets([ledger]), "tell a start offset")
        ends = await bus.bounded(consumer.end_offsets([ledger]), "tell an end offset")
        start, end = starts[ledger], ends[ledger]
        marks = await last_marks(consumer, ledger, start, end)
        found = await best_snapshot(consumer, cell, marks.pointers, start)
        if found is None:
            if start > 0:
                raise RecoveryError(
                    f"the ledger of cell {cell} begins at offset {start} and no snapshot of it can"
                    " be read: its state is lost. Restore headway.snapshots, or start a new"
                    " deployment on empty topics"
                )
            result = Recovered(State(), Shell(Position(), 0, {}, {}), [], marks.published_seq)
        else:
            shell, state, pointer = found
            # A newer one is not good, and the next snapshot shall take its slot.
            good = marks.pointers[marks.pointers.index(pointer) :]
            result = Recovered(state, shell, good, marks.published_seq)
        await follow(consumer, result, ledger, end)
        return result


async def follow(
    consumer: AIOKafkaConsumer, result: Recovered, ledger: TopicPartition, end: int
) -> None:
    """Fold the ledger's records up to before offset `end` into `result`."""
    shell = result.shell
    continuity = Continuity(shell.position)
    done = 0
    async for record in bus.read_range(consumer, ledger, shell.ledger_offset, end):
        try:
            lines = continuity.admit(record.value)
        except CodecError as error:
            raise RecoveryError(
                f"{error} (partition {ledger.partition}, offset {record.offset}); nothing can be"
                " decided on top of it. Restore headway.ledger from a copy, or start a new"
                " deployment on empty topics"
            ) from error
        for line in lines:
            fold(result.state, shell, line.entry)
            if line.entry.seq > result.published_seq:
                result.unpublished.append(line.entry)
        result.entries += len(lines)
        shell.ledger_offset = record.offset + 1
        if result.entries - done > _YIELD_ENTRIES:
            done = result.entries
            await asyncio.sleep(0)
    if continuity.foreign_records:
        log.warning(
            "%s/%d: %d records are no owner's and were passed over; find out who writes there",
            ledger.topic,
            ledger.partition,
            continuity.foreign_records,
        )
    shell.ledger_offset = max(shell.ledger_offset, end)
    shell.position = continuity.position()


def fold(state: State, shell: Shell, entry: Entry) -> None:
    """Remember one recorded entry: in the core's state, and where its fact came from."""
    recover(state, entry.fact, entry.decisions)
    note_source(shell, entry)


def note_source(shell: Shell, entry: Entry) -> None:
    """Remember where the entry's fact came from, so that it is never taken twice."""
    if entry.source is not None:
        topic, partition, offset = entry.source
        shell.inputs[topic, partition] = offset
    fact = entry.fact
    if isinstance(fact, RequestArrived | RequestRefused | CancelAsked) and fact.routed_by:
        cell, seq, index = fact.routed_by
        shell.routed[cell] = (seq, index)


async def last_marks(
    consumer: AIOKafkaConsumer, ledger: TopicPartition, start: int, end: int
) -> Marks:
    """Return what owners noted on the last records of the ledger's offsets `start` to `end`.

    Several are looked at: the very last may be a superseded owner's, which knows of older snapshots
    only, or no owner's at all.

    Raises:
        bus.BusError: the broker did not answer.
    """
    published_seq = -1
    pointers: set[Pointer] = set()
    async for record in bus.read_range(consumer, ledger, max(start, end - _TAIL_RECORDS), end):
        if is_foreign(record.value):
            continue
        headers = dict(record.headers)
        # Anybody can write headers: what is not an owner's mark says nothing.
        with contextlib.suppress(ValueError):
            published_seq = max(published_seq, header_number(headers, HEADER_PUBLISHED))
        text = (headers.get(HEADER_SNAPSHOTS) or b"").decode(errors="replace")
        pointers.update(snapshots.read_pointers(text))
    newest_first = sorted(pointers, key=lambda pointer: (-pointer.seq, -pointer.first))
    return Marks(published_seq, newest_first)


async def best_snapshot(
    consumer: AIOKafkaConsumer, cell: int, pointers: Iterable[Pointer], ledger_start: int
) -> tuple[Shell, State, Pointer] | None:
    """Return the first of the snapshots that checks out and that the ledger still continues.

    Raises:
        bus.BusError: the broker did not answer.
    """
    for pointer in pointers:
        try:
            shell, state = await snapshots.read(consumer, cell, pointer)
        except CodecError as error:
            log.warning("cell %d: a snapshot is ignored: %s", cell, error)
            continue
        if shell.ledger_offset >= ledger_start:
            return shell, state, pointer
    return None
