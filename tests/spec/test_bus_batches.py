"""What a reader gets of batches that the client cannot decode, or decodes to what is not so."""

import gzip

import pytest
from aiokafka import TopicPartition
from aiokafka.codec import lz4_encode, snappy_encode, zstd_encode
from aiokafka.structs import ConsumerRecord

from services.batches import Batches, BrokenRecord, PartitionRecords, fault_of, raw_value
from services.inflate import BATCH_BYTES_MAX, GZIP, LZ4, SNAPPY, ZSTD
from tests.e2e.raw_batches import STAMP_MS, RawBatch, RawRecord, plain_of

BASE = 5
READ_COMMITTED = 1
THREE = [RawRecord(b"a"), RawRecord(b"b", None), RawRecord(b"c", b"", ((b"h", None),))]
NO_UTF8 = [
    RawRecord(b"a"),
    RawRecord(b"b", headers=((b"ok", b"1"), (b"\xff", b"2"))),
    RawRecord(b""),
]
Record = ConsumerRecord[bytes, bytes]


def read(*batches: bytes, fetch_offset: int = BASE) -> list[Record]:
    """Return what a consumer that stands at `fetch_offset` gets of one fetch."""
    partition = TopicPartition("t", 3)
    fetched = Batches(b"".join(batches))
    records = PartitionRecords(
        partition, fetched, [], fetch_offset, None, None, True, READ_COMMITTED
    )
    return list(records)


def told(records: list[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


PACKED = {
    "plain": RawBatch(THREE),
    "gzip": RawBatch(THREE, GZIP, gzip.compress(plain_of(THREE))),
    "gzip in two members": RawBatch(
        THREE, GZIP, gzip.compress(plain_of(THREE)[:7]) + gzip.compress(plain_of(THREE)[7:])
    ),
    "gzip with something behind it": RawBatch(
        THREE, GZIP, gzip.compress(plain_of(THREE)) + b"something"
    ),
    "snappy as Java streams it": RawBatch(THREE, SNAPPY, snappy_encode(plain_of(THREE))),
    "snappy in one block": RawBatch(
        THREE, SNAPPY, snappy_encode(plain_of(THREE), xerial_compatible=False)
    ),
    "lz4": RawBatch(THREE, LZ4, lz4_encode(plain_of(THREE))),
    "zstd": RawBatch(THREE, ZSTD, zstd_encode(plain_of(THREE))),
    "zstd in two frames": RawBatch(
        THREE, ZSTD, zstd_encode(plain_of(THREE)[:7]) + zstd_encode(plain_of(THREE)[7:])
    ),
}


@pytest.mark.parametrize("how", PACKED)
def test_good_records_come_whole_however_they_are_packed(how: str) -> None:
    records = read(PACKED[how].encoded(BASE))
    assert told(records) == [(5, b"a"), (6, b"b"), (7, b"c")]
    assert [record.key for record in records] == [b"k", None, b""]
    assert [tuple(record.headers) for record in records] == [(), (), (("h", None),)]
    assert {(record.topic, record.partition, record.timestamp) for record in records} == {
        ("t", 3, STAMP_MS)
    }
    assert [fault_of(record) for record in records] == [None, None, None]


@pytest.mark.parametrize("codec", [0, GZIP])
def test_a_header_whose_name_is_no_utf8_breaks_its_record_and_no_other(codec: int) -> None:
    packed = gzip.compress(plain_of(NO_UTF8)) if codec else None
    records = read(RawBatch(NO_UTF8, codec, packed).encoded(BASE), RawBatch(THREE).encoded(8))
    assert told(records) == [(5, b"a"), (6, None), (7, b""), (8, b"a"), (9, b"b"), (10, b"c")]
    broken = records[1]
    assert isinstance(broken, BrokenRecord)
    assert broken.fault == "the name of header 1 is no UTF-8: b'\\xff'"
    assert (raw_value(broken), broken.key, tuple(broken.headers)) == (b"b", None, ())
    assert [fault_of(record) for record in records].count(None) == 5


def test_a_reader_that_begins_in_the_midst_of_such_a_batch_gets_the_rest() -> None:
    batch = RawBatch(NO_UTF8).encoded(BASE)
    assert told(read(batch, fetch_offset=6)) == [(6, None), (7, b"")]
    assert told(read(batch, fetch_offset=7)) == [(7, b"")]


def test_a_batch_that_cannot_be_inflated_is_one_broken_record_at_its_last_offset() -> None:
    damaged = RawBatch(THREE, LZ4, lz4_encode(plain_of(THREE)) + b"something")
    records = read(damaged.encoded(BASE), RawBatch(THREE).encoded(8))
    assert told(records) == [(7, None), (8, b"a"), (9, b"b"), (10, b"c")]
    fault = str(fault_of(records[0]))
    assert fault.startswith("the batch of the offsets 5 to 7: its lz4 cannot be inflated")
    assert raw_value(records[0]) is None


def test_a_batch_that_would_become_too_large_is_one_broken_record() -> None:
    large = [RawRecord(bytes(BATCH_BYTES_MAX))]
    (record,) = read(RawBatch(large, GZIP, gzip.compress(plain_of(large))).encoded(BASE))
    assert (record.offset, record.value) == (5, None)
    assert f"more than {BATCH_BYTES_MAX} bytes" in str(fault_of(record))


def test_an_offset_that_is_not_the_batch_s_own_is_not_believed() -> None:
    """One far ahead would pass for the last that was read, and what follows for read before."""
    far = THREE[0].encoded(0) + THREE[1].encoded(1_000_000) + THREE[2].encoded(2)
    records = read(RawBatch(THREE, packed=far).encoded(BASE), RawBatch(THREE).encoded(8))
    assert told(records) == [(5, b"a"), (6, None), (7, b"c"), (8, b"a"), (9, b"b"), (10, b"c")]
    assert fault_of(records[1]) == "it gives its offset as 1000005"
    assert raw_value(records[1]) == b"b"


def test_an_offset_beyond_64_bits_ends_its_batch_and_nothing_else() -> None:
    far = THREE[0].encoded(0) + THREE[1].encoded(2**63 - 1) + THREE[2].encoded(2)
    records = read(RawBatch(THREE, packed=far).encoded(BASE), RawBatch(THREE).encoded(8))
    assert told(records) == [(5, b"a"), (7, None), (8, b"a"), (9, b"b"), (10, b"c")]
    assert "is damaged behind offset 5" in str(fault_of(records[1]))


def test_what_is_left_of_a_damaged_batch_is_one_broken_record() -> None:
    """The broker takes none of these; a disk may give one."""
    for cut in range(1, len(plain_of(THREE))):
        batch = RawBatch(THREE, packed=plain_of(THREE)[:cut])
        records = read(batch.encoded(BASE), RawBatch(THREE).encoded(8))
        assert told(records)[-4:] == [(7, None), (8, b"a"), (9, b"b"), (10, b"c")]
        assert told(records)[:-4] == [(5, b"a"), (6, b"b")][: len(records) - 4]
        assert "is damaged behind offset" in str(fault_of(records[-4]))


def test_the_last_batch_of_a_fetch_may_be_cut_anywhere() -> None:
    batch = RawBatch(THREE).encoded(BASE)
    for cut in range(len(batch)):
        fetched = Batches(batch + batch[:cut])
        assert fetched.size_in_bytes() == len(batch) + cut
        assert fetched.next_batch() is not None
        assert not fetched.has_next()
        assert fetched.next_batch() is None
