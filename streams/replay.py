"""Derives every recorded decision again from the facts alone, and compares byte for byte. Pure.

The verifier is fed the raw records of one ledger in the order of their offsets. It keeps what
counts (schemas/continuity.py), steps each fact under the policy that the ledger itself activated,
encodes the whole entry anew, chain included, and compares it with the recorded line. Recorded
decisions are never remembered, so nothing that was tampered with can vouch for itself.
"""

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from schemas.codec import CodecError, Line, chain_of, decode_line, encode_entry, split_record
from schemas.continuity import Continuity, Position
from schemas.decisions import Decision
from schemas.facts import AnyFact, Fact
from schemas.ids import Source
from schemas.ledger import Entry
from schemas.message import message
from services.scheduler.state import State
from services.scheduler.step import governing, step

MISMATCHES_KEPT = 20
_SHOWN_CHARS = 240
# What the core raises when a fact does not belong to the facts before it.
CORE_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@message
class Given:
    """What an entry is given, without what was concluded from it."""

    seq: int
    epoch: int
    source: Source | None
    fact: AnyFact


_GIVEN: TypeAdapter[Given] = TypeAdapter(Given)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between the ledger and what its facts give.

    Attributes:
        index: of the decision in its entry; None when the difference is not in a decision.
        recorded, derived: the differing part of each, cut to a readable length.
    """

    cell: int
    seq: int
    index: int | None
    what: str
    recorded: str
    derived: str

    def sentence(self) -> str:
        """Return what differs, where."""
        place = "" if self.index is None else f", decision {self.index}"
        return f"cell {self.cell}, seq {self.seq}{place}: {self.what}"


@dataclass(slots=True)
class Report:
    """What a verification found.

    Attributes:
        first_seq: the first entry that was derived; above 0 when the beginning is gone.
        void_entries: of superseded owners and lost takeovers; they do not count.
        foreign_records: of no owner; they neither.
        mismatch_count: all of them; `mismatches` holds the first ones.
        stopped: why nothing behind some seq could be derived, or None.
        digest: 16 hex characters over every derived line.
        policies: (version, digest) of every policy under which something was derived.
    """

    cell: int
    first_seq: int
    next_seq: int
    entries: int = 0
    decisions: int = 0
    void_entries: int = 0
    foreign_records: int = 0
    mismatch_count: int = 0
    mismatches: list[Mismatch] = field(default_factory=list[Mismatch])
    stopped: str | None = None
    digest: str = ""
    policies: tuple[tuple[int, str], ...] = ()

    @property
    def sound(self) -> bool:
        """Whether every entry was derived and none differs."""
        return self.mismatch_count == 0 and self.stopped is None


class Verifier:
    """Verifies the ledger of one cell.

    Args:
        cell: whose ledger it is.
        position, state: where to begin, from a snapshot; the ledger's beginning when left out.
    """

    def __init__(
        self, cell: int, position: Position | None = None, state: State | None = None
    ) -> None:
        self._continuity = Continuity(position)
        self._state = state or State()
        self._digest = hashlib.blake2b(digest_size=8)
        self._policies: dict[tuple[int, str], None] = {}
        first_seq = self._continuity.next_seq
        self._report = Report(cell=cell, first_seq=first_seq, next_seq=first_seq)
        # A foreign record that nothing follows: it may as well be the next entry, damaged.
        self._foreign_last: bytes | None = None

    def feed(self, value: bytes | None) -> None:
        """Take the next record of the ledger; differences are collected, never raised."""
        if self._report.stopped is not None:
            return
        self._foreign_last = None
        began = self._continuity.position()
        rest = self._confirm(value)
        if rest is None:
            return
        first, value = rest
        before = self._continuity.position()
        foreign = self._continuity.foreign_records
        try:
            lines = self._continuity.admit(value)
        except CodecError as error:
            lines = self._salvage(value, before, str(error))
        if self._continuity.foreign_records > foreign:
            if first is None and before == began:
                self._foreign_last = value or b""
                return
            # Behind lines of an owner, or with a fact in its place: it is an entry, damaged.
            self._continuity.foreign_records = foreign
            lines = self._salvage(value, before, "it cannot be read")
        chain = before.chain
        for line in lines:
            if not self._compare(line, chain, first):
                return
            chain, first = line.chain, None

    def report(self) -> Report:
        """Return what was found so far."""
        if self._foreign_last is not None:
            what = "what stands in its place is no entry"
            self._note(self._mismatch(self._continuity.next_seq, what, self._foreign_last))
            self._foreign_last = None
        self._report.next_seq = self._continuity.next_seq
        self._report.void_entries = self._continuity.void_entries
        self._report.foreign_records = self._continuity.foreign_records
        self._report.digest = self._digest.hexdigest()
        self._report.policies = tuple(self._policies)
        return self._report

    def _confirm(self, value: bytes | None) -> tuple[Entry | None, bytes | None] | None:
        """Derive the record's entries as long as each is, to the byte, the very next one.

        A line that equals the derived one needs no other check: its seq, epoch and chain are part
        of it. So the recorded decisions need not even be decoded.

        Returns:
            None when the whole record is confirmed; else the entry that was derived for the first
            line that differs (None if it was not), and the record from that line on.
        """
        continuity = self._continuity
        lines = value.split(b"\n") if value else []
        for number, raw in enumerate(lines):
            try:
                given = _GIVEN.validate_json(raw)
            except ValidationError:
                return None, b"\n".join(lines[number:])
            if given.epoch != continuity.epoch or given.seq != continuity.next_seq:
                return None, b"\n".join(lines[number:])
            try:
                entry = self._derive(given.seq, given.source, given.fact)
            except CORE_FAULTS:
                return None, b"\n".join(lines[number:])
            derived, chain = encode_entry(entry, continuity.chain)
            if derived != raw:
                return entry, b"\n".join(lines[number:])
            self._count(entry, derived)
            continuity.chain = chain
            continuity.next_seq += 1
        return None if lines else (None, value)

    def _compare(self, line: Line, chain_before: str, entry: Entry | None) -> bool:
        """Derive one entry, unless it is given, and compare; return whether to go on."""
        recorded = line.entry
        try:
            entry = entry or self._derive(recorded.seq, recorded.source, recorded.fact)
        except CORE_FAULTS as error:
            # Only a ledger that was altered holds a fact that the core cannot take.
            self._stop(recorded.seq, f"its fact cannot be stepped: {error!r}", line.raw)
            return False
        raw, _ = encode_entry(entry, chain_before)
        self._count(entry, raw)
        if raw != line.raw:
            self._note(_difference(recorded, entry, line.raw, raw))
        return True

    def _count(self, entry: Entry, raw: bytes) -> None:
        self._digest.update(raw)
        self._report.entries += 1
        self._report.decisions += len(entry.decisions)
        self._policies[entry.policy_version, entry.policy_digest] = None

    def _derive(self, seq: int, source: Source | None, fact: Fact) -> Entry:
        state = self._state
        decisions = step(governing(state, fact), state, fact)
        return Entry(
            cell=self._report.cell,
            seq=seq,
            epoch=state.epoch,
            source=source,
            policy_version=state.policy.version,
            policy_digest=state.policy_digest,
            fact=fact,
            decisions=decisions,
        )

    def _salvage(self, value: bytes | None, before: Position, why: str) -> list[Line]:
        """Return the lines of a record that was altered, so that it can be told what differs.

        Bytes that changed leave every fact in its place, so the rest is derived and compared. An
        entry that is missing, or no longer an entry, leaves nothing to go on from.
        """
        seq, chain = before.next_seq, before.chain
        lines: list[Line] = []
        try:
            for raw in split_record(value):
                line = decode_line(raw)
                if line.entry.seq != seq:
                    self._stop(seq, f"it is missing: seq {line.entry.seq} stands in its place", raw)
                    break
                if chain_of(raw, chain) != line.chain:
                    what = "the line does not match its chain digest: it was altered"
                    self._note(self._mismatch(seq, what, raw))
                lines.append(line)
                seq, chain = seq + 1, line.chain
        except CodecError as error:
            self._stop(seq, f"it cannot be read: {error}", value or b"")
        if not lines and self._report.stopped is None:
            self._stop(seq, why, value or b"")
        epoch = lines[0].entry.epoch if lines else before.epoch
        counted = self._continuity
        self._continuity = Continuity(Position(next_seq=seq, chain=chain, epoch=epoch))
        self._continuity.void_entries = counted.void_entries
        self._continuity.foreign_records = counted.foreign_records
        return lines

    def _stop(self, seq: int, what: str, raw: bytes) -> None:
        self._note(self._mismatch(seq, what, raw))
        self._report.stopped = (
            f"nothing behind seq {seq} of cell {self._report.cell} can be derived"
        )

    def _mismatch(self, seq: int, what: str, raw: bytes) -> Mismatch:
        text = raw.decode(errors="replace")
        return Mismatch(self._report.cell, seq, None, what, text[:_SHOWN_CHARS], "")

    def _note(self, mismatch: Mismatch) -> None:
        self._report.mismatch_count += 1
        if len(self._report.mismatches) < MISMATCHES_KEPT:
            self._report.mismatches.append(mismatch)


def combined_digest(reports: list[Report]) -> str:
    """Return 16 hex characters over the digests of all cells, in the order of the cells."""
    total = hashlib.blake2b(digest_size=8)
    for report in sorted(reports, key=lambda item: item.cell):
        total.update(f"{report.cell}:{report.first_seq}:{report.digest};".encode())
    return total.hexdigest()


def _difference(
    recorded: Entry, derived: Entry, recorded_raw: bytes, derived_raw: bytes
) -> Mismatch:
    """Return the first thing in which two entries differ, the decisions first."""
    index, ours, theirs = _first_difference(recorded.decisions, derived.decisions)
    if index is not None:
        what = _decision_sentence(theirs, ours)
        return Mismatch(derived.cell, derived.seq, index, what, *_shown(theirs, ours))
    for name in ("cell", "epoch", "policy_version", "policy_digest"):
        was, is_now = getattr(recorded, name), getattr(derived, name)
        if was != is_now:
            what = f"{name} is recorded as {was!r} and derived as {is_now!r}"
            return Mismatch(derived.cell, derived.seq, None, what, repr(was), repr(is_now))
    at = next(
        (i for i, (a, b) in enumerate(zip(recorded_raw, derived_raw, strict=False)) if a != b),
        min(len(recorded_raw), len(derived_raw)),
    )
    what = f"the line is not in its canonical form: it differs from byte {at} on"
    return Mismatch(
        derived.cell,
        derived.seq,
        None,
        what,
        recorded_raw[at : at + _SHOWN_CHARS].decode(errors="replace"),
        derived_raw[at : at + _SHOWN_CHARS].decode(errors="replace"),
    )


def _first_difference(
    recorded: tuple[Decision, ...], derived: tuple[Decision, ...]
) -> tuple[int | None, Decision | None, Decision | None]:
    for index in range(max(len(recorded), len(derived))):
        theirs = recorded[index] if index < len(recorded) else None
        ours = derived[index] if index < len(derived) else None
        if ours != theirs:
            return index, ours, theirs
    return None, None, None


def _decision_sentence(recorded: Decision | None, derived: Decision | None) -> str:
    if recorded is None and derived is not None:
        return f"the facts give {derived.kind}, which is not recorded"
    if derived is None and recorded is not None:
        return f"{recorded.kind} is recorded, but does not follow from the facts"
    assert recorded is not None  # noqa: S101 - one of two that differ is there
    assert derived is not None  # noqa: S101 - same
    if recorded.kind != derived.kind:
        return f"{recorded.kind} is recorded, but the facts give {derived.kind}"
    names = [one.name for one in fields(cast("Any", derived))]
    parts = [
        f"{name} is recorded as {getattr(recorded, name)!r} and derived as"
        f" {getattr(derived, name)!r}"
        for name in names
        if getattr(recorded, name) != getattr(derived, name)
    ]
    return f"{derived.kind}: {'; '.join(parts)}"


def _shown(recorded: Decision | None, derived: Decision | None) -> tuple[str, str]:
    return repr(recorded)[:_SHOWN_CHARS], repr(derived)[:_SHOWN_CHARS]
