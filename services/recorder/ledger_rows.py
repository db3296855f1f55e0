"""Ledger records to the rows of the tables `ledger_in`, `ledger` and `void_entries`. Pure.

Applies the rule of schemas/continuity.py for what is void. Unlike an owner, the recorder goes on
behind an altered entry: it keeps what is there and marks that the chain does not hold.
"""

import re
from dataclasses import dataclass, field

from schemas.codec import CodecError, chain_of, decode_line, split_record, told_chain
from schemas.ledger import Entry
from services.recorder.native import Column

# ClickHouse's DateTime64 ends with the year 2299.
AT_US_MAX = 10_413_791_999_999_999
_INT64_MAX = 2**63 - 1
# The head of a line as schemas/codec.py writes it: every column of `ledger` but the raw line. A
# full decoding of a line takes five times as long as this and the chain digest, which proves that
# the rest is what an owner wrote.
_HEAD = re.compile(
    rb'^\{"kind":"ledger-entry\.v\d+","cell":(\d+),"seq":(\d+),"epoch":(\d+),'
    rb'"source":(?:null|\["([^"\\]*)",(-?\d+),(-?\d+)\]),'
    rb'"policy_version":(\d+),"policy_digest":"([^"\\]*)",'
    rb'"fact":\{"kind":"([^"\\]*)","at_us":(\d+)[,}]'
)


@dataclass(slots=True)
class LedgerRows:
    """Rows of one table, as columns; `void` ones are kept apart by the caller."""

    cell: list[int] = field(default_factory=list[int])
    offset: list[int] = field(default_factory=list[int])
    line: list[int] = field(default_factory=list[int])
    seq: list[int] = field(default_factory=list[int])
    epoch: list[int] = field(default_factory=list[int])
    at_us: list[int] = field(default_factory=list[int])
    fact_kind: list[bytes] = field(default_factory=list[bytes])
    source_topic: list[bytes] = field(default_factory=list[bytes])
    source_partition: list[int] = field(default_factory=list[int])
    source_offset: list[int] = field(default_factory=list[int])
    policy_version: list[int] = field(default_factory=list[int])
    policy_digest: list[bytes] = field(default_factory=list[bytes])
    chain_holds: list[int] = field(default_factory=list[int])
    appended_ms: list[int] = field(default_factory=list[int])
    raw: list[bytes] = field(default_factory=list[bytes])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.raw)

    def derived_columns(self) -> dict[str, Column]:
        """Return the columns of `ledger_in`."""
        return {
            "cell": ("Int32", self.cell),
            "seq": ("Int64", self.seq),
            "epoch": ("Int64", self.epoch),
            "offset": ("Int64", self.offset),
            "at_us": ("Int64", self.at_us),
            "policy_version": ("Int32", self.policy_version),
            "policy_digest": ("String", self.policy_digest),
            "raw": ("String", self.raw),
        }

    def ledger_columns(self) -> dict[str, Column]:
        """Return the columns of `ledger`; the times are counts since 1970, as it stores them."""
        return {
            "cell": ("Int32", self.cell),
            "offset": ("Int64", self.offset),
            "line": ("Int32", self.line),
            "seq": ("Int64", self.seq),
            "epoch": ("Int64", self.epoch),
            "at": ("DateTime64(6, 'UTC')", self.at_us),
            "fact_kind": ("String", self.fact_kind),
            "source_topic": ("String", self.source_topic),
            "source_partition": ("Int32", self.source_partition),
            "source_offset": ("Int64", self.source_offset),
            "policy_version": ("Int32", self.policy_version),
            "policy_digest": ("String", self.policy_digest),
            "chain_holds": ("UInt8", self.chain_holds),
            "appended_at": ("DateTime64(3, 'UTC')", self.appended_ms),
            "raw": ("String", self.raw),
        }

    def void_columns(self) -> dict[str, Column]:
        """Return the columns of `void_entries`."""
        return {
            "cell": ("Int32", self.cell),
            "offset": ("Int64", self.offset),
            "line": ("Int32", self.line),
            "seq": ("Int64", self.seq),
            "epoch": ("Int64", self.epoch),
            "raw": ("String", self.raw),
        }


@dataclass(slots=True)
class LedgerReader:
    """Reads one cell's records in the order of their offsets.

    Attributes:
        cell: the partition. epoch: the highest seen. next_seq: lower ones were there already.
        chain: after the last entry, or None when the one before is not known.
        void_entries: how many did not count so far.
    """

    cell: int
    epoch: int = 0
    next_seq: int = 0
    chain: str | None = None
    void_entries: int = 0

    def read(
        self, offset: int, written_ms: int, value: bytes | None, rows: LedgerRows, void: LedgerRows
    ) -> str | None:
        """Append the record's entries to `rows`, or to `void`; return what is wrong, or None.

        Lines that can be read are kept, whatever is wrong with others of the record.
        """
        fault: str | None = None
        counts: bool | None = None
        chain_before = self.chain
        try:
            lines = split_record(value)
        except CodecError as error:
            return str(error)
        for number, raw in enumerate(lines):
            vouched = self.chain is not None and chain_of(raw, self.chain) == told_chain(raw)
            try:
                head = _head(raw, vouched=vouched)
                _check_range(head, self.cell)
            except CodecError as error:
                fault = fault or f"line {number} of the record: {error}"
                self.chain = None
                continue
            if counts is None:
                counts = self._counts(head.epoch, head.seq)
            # The first entry that is read has no known one before it to be compared with.
            holds = vouched or self.chain is None
            if counts:
                self.chain = told_chain(raw)
                self.next_seq = head.seq + 1
            else:
                self.void_entries += 1
            place = (offset, number, written_ms, int(holds))
            _append(rows if counts else void, head, place, raw)
        if counts is None:
            # No owner's record, it seems: what comes next must follow what came before.
            self.chain = chain_before
        return fault

    def _counts(self, epoch: int, seq: int) -> bool:
        counts = epoch >= self.epoch and seq >= self.next_seq
        self.epoch = max(self.epoch, epoch)
        return counts


@dataclass(slots=True)
class Head:
    """What the tables tell of an entry besides its line."""

    cell: int
    seq: int
    epoch: int
    source_topic: bytes
    source_partition: int
    source_offset: int
    policy_version: int
    policy_digest: bytes
    fact_kind: bytes
    at_us: int


def _head(raw: bytes, *, vouched: bool) -> Head:
    """Return the head of a line; when no chain vouches for the rest, the rest is decoded too.

    Raises:
        CodecError: the line is no ledger entry.
    """
    match = _HEAD.match(raw)
    if match is None or not vouched:
        entry = decode_line(raw).entry
        if match is None:
            return _head_of(entry)
    cell, seq, epoch, topic, partition, at, version, digest, kind, at_us = match.groups()
    return Head(
        int(cell),
        int(seq),
        int(epoch),
        topic or b"",
        -1 if partition is None else int(partition),
        -1 if at is None else int(at),
        int(version),
        digest,
        kind,
        int(at_us),
    )


def _head_of(entry: Entry) -> Head:
    topic, partition, offset = entry.source or ("", -1, -1)
    return Head(
        entry.cell,
        entry.seq,
        entry.epoch,
        topic.encode(),
        partition,
        offset,
        entry.policy_version,
        entry.policy_digest.encode(),
        entry.fact.kind.encode(),
        entry.fact.at_us,
    )


def _check_range(head: Head, cell: int) -> None:
    if head.cell != cell:
        raise CodecError(f"the entry is of cell {head.cell} and stands in the ledger of {cell}")
    if not 0 <= head.at_us <= AT_US_MAX:
        raise CodecError(f"the fact's at_us, {head.at_us}, is no time before the year 2300")
    largest = max(head.seq, head.epoch, head.source_offset)
    small = max(head.policy_version, head.source_partition)
    if largest > _INT64_MAX or small >= 2**31 or min(head.seq, head.epoch) < 0:
        raise CodecError("a number of the entry is out of range")


def _append(rows: LedgerRows, head: Head, place: tuple[int, int, int, int], raw: bytes) -> None:
    offset, line, written_ms, holds = place
    rows.cell.append(head.cell)
    rows.offset.append(offset)
    rows.line.append(line)
    rows.seq.append(head.seq)
    rows.epoch.append(head.epoch)
    rows.at_us.append(head.at_us)
    rows.fact_kind.append(head.fact_kind)
    rows.source_topic.append(head.source_topic)
    rows.source_partition.append(head.source_partition)
    rows.source_offset.append(head.source_offset)
    rows.policy_version.append(head.policy_version)
    rows.policy_digest.append(head.policy_digest)
    rows.chain_holds.append(holds)
    rows.appended_ms.append(written_ms)
    rows.raw.append(raw)
