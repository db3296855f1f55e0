"""Measures replay and recovery. Replay needs nothing; recovery needs a broker of its own.

The ledger is what the real core and the real codec make of the facts of streams/bench_core.py. It
is written to the broker as an owner writes it: records of a batch, and snapshots in their slots.
"""

import gc
from collections.abc import Iterator
from time import perf_counter

from aiokafka import AIOKafkaProducer, TopicPartition

from schemas.codec import encode_entry
from schemas.continuity import Position
from schemas.facts import Fact, OwnerTookOver, PolicyActivated
from schemas.figures import Figure
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import Policy
from schemas.topics import LEDGER
from services import bus
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.state import State
from services.scheduler.step import governing, step
from streams import snapshots
from streams.bench_core import Traffic
from streams.recovery import HEADER_PUBLISHED, HEADER_SNAPSHOTS, recover_cell
from streams.replay import Verifier

_WAITING = 200
_FACTS = 100_000
_FACTS_QUICK = 20_000
_RECORD_ENTRIES = 100
_ROUNDS = 3
_ENTRIES = 1_000_000
_ENTRIES_QUICK = 100_000
_PART_ENTRIES = 50_000


def replay_figures(*, quick: bool = False) -> list[Figure]:
    """Return replay.facts_per_s: a ledger in memory, verified to the byte; the best round.

    Raises:
        AssertionError: a derived line differs from the one just made.
    """
    ledger = Ledger()
    first = thaw(b"".join(encode_pieces(freeze(ledger.state))))
    start = ledger.position
    frozen = b"".join(encode_pieces(freeze(first)))
    records = list(ledger.records(_FACTS_QUICK if quick else _FACTS))
    best_s, entries = float("inf"), 0
    for _ in range(1 if quick else _ROUNDS):
        verifier = Verifier(0, start, thaw(frozen))
        gc.collect()
        began_s = perf_counter()
        for value in records:
            verifier.feed(value)
        best_s = min(best_s, perf_counter() - began_s)
        report = verifier.report()
        assert report.sound, report.mismatches  # noqa: S101 - a figure of a wrong replay is none
        entries = report.entries
    return [Figure("replay.facts_per_s", round(entries / best_s), "facts/s")]


async def recovery_figures(bootstrap: str, *, quick: bool = False) -> list[Figure]:
    """Return recovery.s.entries_1000000: how long a new owner reads before it can take over.

    The last snapshot is a whole snapshot interval back, which is the worst that an owner leaves.

    Args:
        bootstrap: of a broker whose ledger of cell 0 is empty; it is filled.
        quick: a tenth of the entries; the figure's name tells.

    Raises:
        ValueError: the ledger is not empty. bus.BusError: the broker did not answer.
    """
    entries = _ENTRIES_QUICK if quick else _ENTRIES
    await bus.ensure_topics(bootstrap, 1)
    ledger = TopicPartition(LEDGER, 0)
    async with bus.consuming(bootstrap) as consumer:
        ends = await bus.bounded(consumer.end_offsets([ledger]), "tell an end offset")
    if ends[ledger]:
        raise ValueError("the ledger of cell 0 is not empty; recovery is measured on a new broker")
    async with bus.producing(bootstrap) as producer:
        await _fill(producer, entries)
    gc.collect()
    began_s = perf_counter()
    recovered = await recover_cell(bootstrap, 0)
    seconds = perf_counter() - began_s
    next_seq = recovered.shell.position.next_seq
    assert next_seq == entries, next_seq  # noqa: S101 - a figure of a wrong recovery is none
    return [Figure(f"recovery.s.entries_{entries}", round(seconds, 2), "s")]


class Ledger:
    """A ledger of cell 0 in the making, from its very first entry on."""

    def __init__(self) -> None:
        self.state = State()
        self.position = Position()
        self.offset = 0
        policy = Policy(name="bench", replica_lost_ms=86_400_000)
        self._traffic = Traffic(_WAITING, models=4, tenants=8)
        # The traffic's own first facts are behind it, so the ledger begins from its state.
        self.state = thaw(b"".join(encode_pieces(freeze(self._traffic.state))))
        self._head: list[Fact] = [
            OwnerTookOver(at_us=self.state.now_us, cell=0, cells=1, epoch=1, owner="bench"),
            PolicyActivated(at_us=self.state.now_us, policy=policy, who="bench", why="bench"),
        ]
        self.position = Position(next_seq=0, chain=GENESIS_CHAIN, epoch=1)

    def records(self, entries: int) -> Iterator[bytes]:
        """Yield records of together `entries` more entries."""
        done = 0
        while done < entries:
            count = min(_PART_ENTRIES, entries - done)
            head, self._head = self._head, []
            facts = [*head, *self._traffic.facts(count - len(head))]
            for start in range(0, count, _RECORD_ENTRIES):
                yield self._record(facts[start : start + _RECORD_ENTRIES])
            done += count

    def _record(self, facts: list[Fact]) -> bytes:
        lines: list[bytes] = []
        seq, chain = self.position.next_seq, self.position.chain
        for fact in facts:
            decisions = step(governing(self.state, fact), self.state, fact)
            entry = Entry(
                cell=0,
                seq=seq,
                epoch=1,
                source=("headway.worker.events", 0, seq),
                policy_version=self.state.policy.version,
                policy_digest=self.state.policy_digest,
                fact=fact,
                decisions=decisions,
            )
            raw, chain = encode_entry(entry, chain)
            lines.append(raw)
            seq += 1
        self.position = Position(next_seq=seq, chain=chain, epoch=1)
        self.offset += 1
        return b"\n".join(lines)


async def _fill(producer: AIOKafkaProducer, entries: int) -> None:
    """Write a ledger of `entries` entries, with the snapshots that an owner would have left."""
    ledger = Ledger()
    every = ledger.state.policy.snapshot_entries
    pointers: list[snapshots.Pointer] = []
    slot = 0
    # The first snapshot stands for the traffic's own beginning, which is not on this ledger.
    due = 0
    for value in ledger.records(entries):
        headers: bus.Headers = [(HEADER_PUBLISHED, b"%d" % (ledger.position.next_seq - 1))]
        if pointers:
            text = ";".join(pointer.text() for pointer in pointers)
            headers.append((HEADER_SNAPSHOTS, text.encode()))
        sent = producer.send_and_wait(LEDGER, value, key=b"0", partition=0, headers=headers)
        await bus.bounded(sent, "take a ledger record")
        next_seq = ledger.position.next_seq
        if next_seq >= due and next_seq <= max(_RECORD_ENTRIES, entries - every):
            shell = snapshots.Shell(ledger.position, ledger.offset, {}, {})
            packed = snapshots.pack(shell, b"".join(encode_pieces(freeze(ledger.state))))
            pointer = await snapshots.write(producer, 0, slot, shell, packed)
            pointers = [pointer, *pointers][: snapshots.SLOTS]
            slot = (slot + 1) % snapshots.SLOTS
            due = next_seq + every if due else every
