"""Record batches as bytes, for what no client of ours would write; and the client that writes them.

The layout is the protocol's (record batch, magic 2). The broker checks some of it and refuses the
rest; what it takes, every reader gets to see.
"""

import struct
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from services import bus

_BEHIND_THE_CHECKSUM = struct.Struct(">hiqqqhii")
_HEAD = struct.Struct(">qiibI")
# Of every record, as its producer has it.
STAMP_MS = 1_700_000_000_000


def varint(value: int) -> bytes:
    """Return the protocol's number: zigzag, seven bits a byte."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(0x80 | (rest & 0x7F))
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(value: bytes | None) -> bytes:
    """Return a byte string behind its length; null is the length -1."""
    return varint(-1) if value is None else varint(len(value)) + value


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record; `headers` have names of any bytes."""

    value: bytes | None
    key: bytes | None = b"k"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    attributes: int = 0

    def encoded(self, offset_delta: int) -> bytes:
        """Return its bytes at its place in a batch."""
        headers = b"".join(sized(name) + sized(value) for name, value in self.headers)
        body = (
            bytes([self.attributes])
            + varint(0)
            + varint(offset_delta)
            + sized(self.key)
            + sized(self.value)
            + varint(len(self.headers))
            + headers
        )
        return varint(len(body)) + body


@dataclass(slots=True)
class RawBatch:
    """What the producer's `send_batch` takes for a batch of its own.

    Attributes:
        codec: the compression that the attributes name.
        packed: the records' bytes as they are sent, in the place of the records' own.
    """

    records: list[RawRecord]
    codec: int = 0
    packed: bytes | None = None
    magic: int = 2
    attributes: int = 0

    def encoded(self, base_offset: int = 0) -> bytes:
        """Return the batch's bytes; the broker gives it its base offset."""
        count = len(self.records)
        plain = plain_of(self.records)
        numbers = (self.attributes | self.codec, count - 1, STAMP_MS, STAMP_MS, -1, -1, -1, count)
        packed = plain if self.packed is None else self.packed
        body = _BEHIND_THE_CHECKSUM.pack(*numbers) + packed
        head = _HEAD.pack(base_offset, len(body) + 9, -1, self.magic, calc_crc32c(body))
        return head + body

    def record_count(self) -> int:
        """Return how many records it has."""
        return len(self.records)

    def close(self) -> None:
        """It is complete from the beginning."""

    def closed(self) -> bool:
        """Return that nothing more comes."""
        return True

    def _build(self) -> bytes:
        return self.encoded()


def plain_of(records: list[RawRecord]) -> bytes:
    """Return the records' bytes without compression."""
    return b"".join(record.encoded(at) for at, record in enumerate(records))


async def write_batch(bootstrap: str, topic: str, partition: int, batch: RawBatch) -> int:
    """Write the batch; return the offset of its first record.

    Raises:
        KafkaError: the broker refused it.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_request_size=bus.REQUEST_BYTES_MAX
    )
    await bus.bounded(producer.start(), "accept a producer")
    try:
        sent: Any = await producer.send_batch(batch, topic, partition=partition)  # pyright: ignore[reportArgumentType] - it stands in for the client's
        return int((await bus.bounded(sent, "take a batch")).offset)
    finally:
        await bus.stop_client(producer)
