"""Which records of a ledger count: the rule that every reader applies, in one place. Pure.

A record is a batch of entries of one owner. It is void when its epoch is below the highest seen
(a superseded owner appended it behind a takeover) or its first seq was there already (a takeover
that lost the race against another record). Every other record must be the very next one, and its
chain must hold. Because the rule reads nothing but the log, all readers agree.

A record that does not even begin with an entry was written by no owner: anybody may write to a
topic. It is passed over, so that it cannot end a cell. Were it an owner's after all, damaged, the
next record would not follow the one before it, and that is told.
"""

import re

from schemas.codec import CodecError, Line, chain_of, decode_line, split_record, told_chain
from schemas.ledger import GENESIS_CHAIN
from schemas.message import message

# How a line begins, as schemas/codec.py writes it.
_HEAD = re.compile(rb'\{"kind":"ledger-entry\.v1","cell":-?\d+,"seq":(\d+),"epoch":(\d+),')


@message
class Position:
    """How far a ledger has been read: the next seq, the last chain, the highest epoch."""

    next_seq: int = 0
    chain: str = GENESIS_CHAIN
    epoch: int = 0


def is_foreign(value: bytes | None) -> bool:
    """Return whether no owner wrote the record: it does not even begin with an entry."""
    try:
        decode_line(split_record(value)[0])
    except CodecError:
        return True
    return False


class Continuity:
    """Reads the records of one ledger in the order of their offsets and keeps what counts.

    Attributes:
        void_entries: how many entries did not count so far.
        foreign_records: how many records no owner wrote so far.
    """

    def __init__(self, position: Position | None = None) -> None:
        start = position or Position()
        self.next_seq = start.next_seq
        self.chain = start.chain
        self.epoch = start.epoch
        self.void_entries = 0
        self.foreign_records = 0

    def position(self) -> Position:
        """Return the place from which another reader may go on."""
        return Position(next_seq=self.next_seq, chain=self.chain, epoch=self.epoch)

    def admit(self, value: bytes | None) -> list[Line]:
        """Return the record's entries, or an empty list when they are void or no owner's.

        Raises:
            CodecError: a later line cannot be decoded, or the record is not void and does not
                follow the one before it: the ledger was altered. The message names the seq.
        """
        try:
            first_raw, *rest = split_record(value)
            lines = [decode_line(first_raw)]
        except CodecError:
            self.foreign_records += 1
            return []
        lines += [decode_line(raw) for raw in rest]
        first = lines[0].entry
        if first.epoch < self.epoch or first.seq < self.next_seq:
            self.epoch = max(self.epoch, first.epoch)
            self.void_entries += len(lines)
            return []
        self.epoch = first.epoch
        for line in lines:
            self._follow(line)
        return lines

    def vouched(self, value: bytes | None) -> list[bytes] | None:
        """Return the record's lines undecoded, where the chain vouches for all of them.

        A line whose chain follows from the line before is what an owner wrote, to the byte, so one
        who needs little of it need not decode it all. None of any other record: it is as if it had
        not been read, and `admit` says what it is.
        """
        lines = (value or b"").split(b"\n")
        chain, epoch = self.chain, self.epoch
        for place, raw in enumerate(lines):
            head = _HEAD.match(raw)
            if head is None or int(head[1]) != self.next_seq + place:
                return None
            if place == 0:
                epoch = int(head[2])
            chain = chain_of(raw, chain)
            if told_chain(raw) != chain:
                return None
        if epoch < self.epoch:
            return None
        self.chain, self.epoch, self.next_seq = chain, epoch, self.next_seq + len(lines)
        return lines

    def _follow(self, line: Line) -> None:
        entry = line.entry
        chain = chain_of(line.raw, self.chain)
        if entry.seq != self.next_seq or chain != line.chain:
            raise CodecError(_altered(entry.cell, self.next_seq))
        self.chain = chain
        self.next_seq += 1


def _altered(cell: int, seq: int) -> str:
    return (
        f"the ledger of cell {cell} was altered at seq {seq}: the entry does not match its chain"
        " digest, or does not follow the one before it"
    )
