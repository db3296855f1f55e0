"""The client's record batches, made so that no record on a topic can stop its reader.

The client decodes a fetch record by record, late, and raises at the first that it cannot decode:
what came before it in the fetch is lost, the position stays, and every later fetch ends at the same
place. Anybody may write such a record (a header's name that is no UTF-8 does), and then no cell,
worker or recorder would ever get past it. `install` puts the classes of this module in the place of
the client's own, for every consumer of the process, Faust's too.

What the client decodes comes as ever. Of the rest each record comes by itself: whole where only
the client is too narrow, else as a `BrokenRecord`, whose value is null. So a reader that only
follows passes it over like any other record that says nothing, and one that answers for its topic
tells the reason. Compressed batches are inflated here, to a bound. Knows no topic, decides nothing.
"""

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import ConsumerRecord

from services.inflate import InflateError, inflate

# The head of a batch, as the protocol fixes it: base offset, length, leader epoch, magic, checksum,
# attributes, last offset delta, first and last timestamp, producer id and epoch, sequence, count.
_HEAD = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_LENGTH_END = 12
_ATTRIBUTES_AT = 21
_CODEC_MASK = 0x07
_APPEND_TIME_MASK = 0x08
_VARINT_BITS_MAX = 63

log = logging.getLogger(__name__)


@dataclass
class BrokenRecord(ConsumerRecord[bytes, bytes]):
    """A record that cannot be decoded: without key, value and headers.

    Attributes:
        fault: what is wrong with it, as a sentence without a subject.
        raw_value: its value's bytes, where they can be had.
    """

    fault: str = ""
    raw_value: bytes | None = None


def fault_of(record: ConsumerRecord[bytes, bytes]) -> str | None:
    """Return why the record cannot be decoded, or None for a good one."""
    return record.fault if isinstance(record, BrokenRecord) else None


def raw_value(record: Any) -> bytes | None:
    """Return the bytes of the record's value, of a broken one too where they can be had."""
    return record.raw_value if isinstance(record, BrokenRecord | _Broken) else record.value


def install() -> None:
    """Let every consumer of this process read through this module."""
    setattr(fetcher, "MemoryRecords", Batches)  # noqa: B010 - the client's types know no other class
    setattr(fetcher, "PartitionRecords", PartitionRecords)  # noqa: B010 - as above


@dataclass(slots=True)
class _Broken:
    """What the client's record becomes when it cannot be decoded."""

    offset: int
    timestamp: int
    timestamp_type: int
    fault: str
    raw_value: bytes | None = None
    key: None = None
    value: None = None
    checksum: None = None
    headers: tuple[()] = ()


class PartitionRecords(fetcher.PartitionRecords):
    """The client's, which gives broken records their own class and logs each."""

    def _consumer_record(self, tp: TopicPartition, record: Any) -> ConsumerRecord[bytes, bytes]:
        made: ConsumerRecord[bytes, bytes] = super()._consumer_record(tp, record)
        if not isinstance(record, _Broken):
            return made
        where = f"{tp.topic}/{tp.partition} offset {record.offset}"
        log.warning("%s cannot be decoded and is passed over: %s", where, record.fault)
        fields = {name: getattr(made, name) for name in ConsumerRecord.__dataclass_fields__}
        return BrokenRecord(**fields, fault=record.fault, raw_value=record.raw_value)


class Batches:
    """The batches of one fetched partition, in the place of the client's MemoryRecords."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._client = MemoryRecords(data)
        self.has_next = self._client.has_next

    def size_in_bytes(self) -> int:
        """Return how many bytes were fetched."""
        return len(self._data)

    def next_batch(self) -> Any:
        """Return the next batch, or None when no whole one is left: the broker may cut the last.

        One of a format that brokers since version 4 neither take nor keep is the client's own.
        """
        client = self._client.next_batch()
        if client is None:
            return None
        start = self._at
        (length,) = _LENGTH.unpack_from(self._data, start + _LENGTH_AT)
        self._at = start + _LENGTH_END + length
        if not isinstance(client, DefaultRecordBatch):
            return client
        return Batch(client, self._data, start, self._at)


class Batch:
    """One batch: what the client asks of it, and its records one by one.

    Most hold one record, so as little as can be is done before it is clear that a record is broken.
    """

    __slots__ = (
        "_client",
        "_end",
        "_fetched",
        "_start",
        "base_offset",
        "is_control_batch",
        "is_transactional",
        "next_offset",
        "producer_id",
        "validate_crc",
    )

    def __init__(self, client: Any, fetched: bytes, start: int, end: int) -> None:
        self._client = client
        self._fetched = fetched
        self._start = start
        self._end = end
        self.base_offset: int = client.base_offset
        self.next_offset: int = client.next_offset
        self.is_control_batch: bool = client.is_control_batch
        self.is_transactional: bool = client.is_transactional
        self.producer_id: int | None = client.producer_id
        self.validate_crc = client.validate_crc

    def __next__(self) -> Any:
        """Return the one record of a control batch, which only brokers write."""
        return next(self._client)

    def __iter__(self) -> Iterator[Any]:
        """Yield the records, good and broken.

        Where the client gives up, or gives an offset that is not the batch's own, the batch is read
        from its beginning by `_by_hand`; the fetch leaves out the offsets that it has had.
        """
        client, plain = self._client, None
        if client.compression_type:
            try:
                plain = self._plain()
            except InflateError as error:
                yield self._whole_as_broken(str(error))
                return
            client = DefaultRecordBatch(plain)
        previous, last = self.base_offset - 1, self.next_offset - 1
        try:
            for record in client:
                offset = record.offset
                if not previous < offset <= last:
                    break
                previous = offset
                yield record
            else:
                return
        except Exception:  # noqa: BLE001, S110 - it raises what its C code meets; the records tell more
            pass
        yield from self._in_order(self._by_hand(self._bytes() if plain is None else plain))

    def _bytes(self) -> bytes:
        return self._fetched[self._start : self._end]

    def _in_order(self, records: Iterator[Any]) -> Iterator[Any]:
        """Yield the records, those whose offsets are not the batch's own as broken ones.

        The broker does not look at the offsets inside a batch. One far ahead would pass for the
        last that was read, and every record after it for one that was read before.
        """
        last, previous = self.next_offset - 1, self.base_offset - 1
        for record in records:
            if previous < record.offset <= last:
                previous = record.offset
                yield record
            elif previous < last:
                previous += 1
                fault = f"it gives its offset as {record.offset}"
                yield self._broken(previous, fault, raw_value(record))

    def _plain(self) -> bytes:
        """Return the batch without compression: its head, which says so, and the records."""
        data = self._bytes()
        head = bytearray(data[: _HEAD.size])
        attributes = self._client.attributes & ~_CODEC_MASK
        head[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big", signed=True)
        return bytes(head) + inflate(self._client.compression_type, data[_HEAD.size :])

    def _whole_as_broken(self, fault: str) -> _Broken:
        """Return one record for the whole batch, at its last offset: what follows is read on."""
        first, last = self.base_offset, self.next_offset - 1
        return self._broken(last, f"the batch of the offsets {first} to {last}: {fault}")

    def _broken(self, offset: int, fault: str, value: bytes | None = None) -> _Broken:
        client = self._client
        return _Broken(offset, client.max_timestamp, client.timestamp_type, fault, value)

    def _by_hand(self, plain: bytes) -> Iterator[Any]:
        reader = _Reader(plain, _HEAD.size)
        offset = self.base_offset - 1
        (count,) = _LENGTH.unpack_from(plain, _HEAD.size - _LENGTH.size)
        for _ in range(count):
            try:
                end = reader.varint()
                end += reader.at
                record = self._record(reader)
            except (OverflowError, ValueError) as error:
                # Where the next record begins is not known either.
                last = self.next_offset - 1
                yield self._broken(last, f"the batch is damaged behind offset {offset}: {error}")
                return
            offset = record.offset
            reader.at = end
            yield record

    def _record(self, reader: "_Reader") -> Any:
        """Read one record as the protocol has it.

        Raises:
            OverflowError, ValueError: its lengths do not fit, or a number is beyond 64 bits.
        """
        client = self._client
        reader.take(1)
        stamp = client.first_timestamp + reader.varint()
        if client.attributes & _APPEND_TIME_MASK:
            stamp = client.max_timestamp
        offset = self.base_offset + reader.varint()
        key, value = reader.sized(), reader.sized()
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(reader.varint()):
            name, content = reader.sized() or b"", reader.sized()
            try:
                headers.append((name.decode(), content))
            except UnicodeDecodeError:
                fault = f"the name of header {len(headers)} is no UTF-8: {name[:40]!r}"
                return self._broken(offset, fault, value)
        return DefaultRecord(offset, stamp, client.timestamp_type, key, value, headers)


class _Reader:
    """Reads the protocol's numbers and byte strings off `data`, from `at` on."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises ValueError: there are not so many."""
        end = self.at + count
        if end > len(self._data):
            raise ValueError(f"{count} bytes should follow, and there are fewer")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def varint(self) -> int:
        """Return the next number: zigzag, seven bits a byte."""
        value = shift = 0
        while shift <= _VARINT_BITS_MAX:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follow
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise ValueError("a number has no end")

    def sized(self) -> bytes | None:
        """Return the next byte string behind its length, or None where that says null."""
        size = self.varint()
        return None if size < 0 else self.take(size)
