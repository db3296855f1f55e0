"""Which records become which rows: void entries, altered ones, and what cannot be recorded."""

from pathlib import Path

import pytest

from schemas.bus import DeadLetter, dead_letter
from schemas.codec import decode, decode_line, encode_entry
from schemas.continuity import Continuity
from schemas.facts import ClockTicked, OwnerTookOver
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.topics import DEAD_LETTER, RESULTS, SIGNALS, TELEMETRY
from services.recorder.ledger_rows import LedgerReader, LedgerRows
from services.recorder.message_rows import MessageRows

ROOT = Path(__file__).parents[2]
GOLDEN = (ROOT / "tests/golden/scheduler-ledger.ndjson").read_bytes().splitlines()
EXAMPLES = ROOT / "schemas/examples"


def entry(seq: int, *, epoch: int = 1, cell: int = 0, at_us: int = 5) -> Entry:
    took_over = OwnerTookOver(at_us=at_us, cell=cell, cells=1, epoch=epoch, owner="o")
    return Entry(
        cell=cell,
        seq=seq,
        epoch=epoch,
        source=None,
        policy_version=1,
        policy_digest="0" * 16,
        fact=took_over if seq == 0 else ClockTicked(at_us=at_us),
        decisions=(),
    )


def chained(*entries: Entry, before: str = GENESIS_CHAIN) -> list[bytes]:
    lines: list[bytes] = []
    for item in entries:
        line, before = encode_entry(item, before)
        lines.append(line)
    return lines


class Read:
    """A reader that has read some records."""

    def __init__(self, *records: bytes | None, cell: int = 0) -> None:
        self.rows, self.void = LedgerRows(), LedgerRows()
        self.reader = LedgerReader(cell)
        self.faults = [
            self.reader.read(offset, 7, record, self.rows, self.void)
            for offset, record in enumerate(records)
        ]


def test_every_column_is_what_the_entry_says() -> None:
    read = Read(b"\n".join(GOLDEN[:100]), b"\n".join(GOLDEN[100:]), cell=2)
    entries = [decode_line(raw).entry for raw in GOLDEN]
    rows = read.rows
    assert read.faults == [None, None]
    assert rows.raw == GOLDEN
    assert rows.seq == [item.seq for item in entries]
    assert rows.epoch == [item.epoch for item in entries]
    assert rows.at_us == [item.fact.at_us for item in entries]
    assert rows.fact_kind == [item.fact.kind.encode() for item in entries]
    assert rows.policy_version == [item.policy_version for item in entries]
    assert rows.policy_digest == [item.policy_digest.encode() for item in entries]
    sources = [item.source or ("", -1, -1) for item in entries]
    told = zip(rows.source_topic, rows.source_partition, rows.source_offset, strict=True)
    assert [(topic.decode(), partition, offset) for topic, partition, offset in told] == sources
    assert rows.line == [*range(100), *range(len(GOLDEN) - 100)]
    assert set(rows.chain_holds) == {1}


def test_entries_of_an_epoch_that_a_takeover_ended_are_void() -> None:
    first = chained(entry(0), entry(1))
    last = decode_line(first[-1]).chain
    takeover = chained(entry(2, epoch=2), before=last)
    late = chained(entry(2), entry(3), before=last)
    records = [b"\n".join(first), takeover[0], b"\n".join(late)]
    read = Read(*records)
    assert read.rows.seq == [0, 1, 2]
    assert read.rows.epoch == [1, 1, 2]
    assert [(seq, epoch) for seq, epoch in zip(read.void.seq, read.void.epoch, strict=True)] == [
        (2, 1),
        (3, 1),
    ]
    assert read.faults == [None, None, None]
    # The same as every other reader of the ledger says.
    continuity = Continuity()
    kept = [line.entry.seq for record in records for line in continuity.admit(record)]
    assert kept == read.rows.seq
    assert continuity.void_entries == read.reader.void_entries


def test_a_takeover_that_lost_the_race_ends_the_older_epoch_all_the_same() -> None:
    first = chained(entry(0), entry(1), entry(2))
    lost = chained(entry(1, epoch=5), before=decode_line(first[0]).chain)
    after = chained(entry(3), before=decode_line(first[2]).chain)
    read = Read(b"\n".join(first), lost[0], after[0])
    assert read.rows.seq == [0, 1, 2]
    assert read.void.seq == [1, 3]


def test_an_altered_entry_is_kept_and_marked() -> None:
    lines = chained(entry(0), entry(1), entry(2))
    lines[1] = lines[1].replace(b'"at_us":5', b'"at_us":6')
    read = Read(b"\n".join(lines))
    assert read.faults == [None]
    assert read.rows.raw == lines
    assert read.rows.chain_holds == [1, 0, 1]


def test_behind_a_record_of_no_owner_the_chain_is_checked_all_the_same() -> None:
    lines = chained(entry(0), entry(1), entry(2))
    read = Read(lines[0], b"garbage", lines[1], lines[2])
    assert read.rows.chain_holds == [1, 1, 1]
    damaged = Read(lines[0], lines[1][1:], lines[2])
    assert damaged.rows.seq == [0, 2]
    assert damaged.rows.chain_holds == [1, 0]


def test_a_line_that_cannot_be_read_leaves_the_others_of_its_record() -> None:
    lines = chained(entry(0), entry(1), entry(2))
    lines[1] = lines[1][:-30]
    read = Read(b"\n".join(lines))
    assert read.rows.seq == [0, 2]
    assert read.faults[0] is not None
    assert read.faults[0].startswith("line 1 of the record: ")


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (None, "the ledger record has no value"),
        (b"", "the ledger record has no value"),
        (b"\xff\xfe", "line 0 of the record: "),
        (chained(entry(0, cell=3))[0], "line 0 of the record: the entry is of cell 3"),
        (chained(entry(0, at_us=2**62))[0], "line 0 of the record: the fact's at_us"),
    ],
)
def test_a_record_that_cannot_be_recorded_is_told(record: bytes | None, fault: str) -> None:
    read = Read(record)
    assert len(read.rows) == len(read.void) == 0
    assert read.faults[0] is not None
    assert read.faults[0].startswith(fault)


@pytest.mark.parametrize(
    ("topic", "example"),
    [
        (RESULTS, "result.v1"),
        (TELEMETRY, "device-sample.v1"),
        (SIGNALS, "depth.v1"),
        (DEAD_LETTER, "dead-letter.v1"),
    ],
)
def test_a_message_of_the_topic_becomes_a_row(topic: str, example: str) -> None:
    value = (EXAMPLES / f"{example}.json").read_bytes().strip()
    rows = MessageRows()
    assert rows.append((topic, 1, 9), 7, value) is None
    assert rows.message == [value]
    assert (rows.topic, rows.partition, rows.offset) == ([topic.encode()], [1], [9])


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[1]",
        b"\xff",
        (EXAMPLES / "depth.v1.json").read_bytes(),
        (EXAMPLES / "device-sample.v1.json").read_bytes().replace(b"0.87", b'"x"'),
        (EXAMPLES / "device-sample.v1.json").read_bytes().replace(b"0.87", b"7"),
        (EXAMPLES / "device-sample.v1.json").read_bytes().replace(b"21474836480", b"9" * 30),
        (EXAMPLES / "device-sample.v1.json").read_bytes().replace(b"1764500001", b"9" * 30),
    ],
)
def test_a_message_that_is_none_of_the_topic_is_told(value: bytes | None) -> None:
    rows = MessageRows()
    assert rows.append((TELEMETRY, 0, 0), 7, value)
    assert len(rows) == 0


def test_an_unknown_reading_stays_unknown() -> None:
    rows = MessageRows()
    value = (EXAMPLES / "device-sample.v1.json").read_bytes().replace(b"0.87", b"null")
    assert rows.append((TELEMETRY, 0, 0), 7, value) is None
    assert b'"utilisation":null' in rows.message[0]


def test_a_dead_letter_that_cannot_be_read_is_recorded_as_one_and_not_sent_on() -> None:
    rows = MessageRows()
    assert rows.append((DEAD_LETTER, 1, 4), 7, b"{") is None
    letter = decode(rows.message[0])
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.partition, letter.offset) == (DEAD_LETTER, 1, 4)


def test_a_record_that_the_client_cannot_decode_is_told_with_its_fault_whatever_it_holds() -> None:
    good = (EXAMPLES / "depth.v1.json").read_bytes()
    rows = MessageRows()
    assert rows.append((SIGNALS, 0, 4), 7, good, "a header is damaged") == "a header is damaged"
    assert len(rows) == 0
    assert rows.append((DEAD_LETTER, 0, 5), 7, b"bytes", "a header is damaged") is None
    assert decode(rows.message[0]) == dead_letter(
        (DEAD_LETTER, 0, 5), b"bytes", "a header is damaged"
    )


def test_a_dead_letter_carries_the_record_up_to_half_a_mebibyte() -> None:
    letter = dead_letter(("t", 0, 1), b"x" * 600_000, "why")
    assert letter.body_bytes == 600_000
    assert letter.body_base64 is not None
    assert len(letter.body_base64) == 4 * 524_288 // 3 + 2
    assert dead_letter(("t", 0, 1), None, "why").body_base64 is None
