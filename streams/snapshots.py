"""A cell's state on headway.snapshots: written in chunks, checked when read. Decides nothing.

Two slots take turns, so the snapshot before stays whole until the new one is. The ledger's own
records say where the chunks lie (see `Pointer`); one that is torn, altered or of another format is
ignored in favour of the one before it, and that in favour of the ledger from its start.
"""

import base64
import json
import zlib
from dataclasses import asdict, dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.bus import SnapshotChunk
from schemas.codec import CodecError, decode, digest, encode
from schemas.continuity import Position
from schemas.topics import SNAPSHOTS
from services import bus
from services.scheduler.snapshot import thaw
from services.scheduler.state import State

CHUNK_BYTES = 512 * 1024
SLOTS = 2
_FAST = 1


@dataclass(slots=True)
class Shell:
    """What the owner remembers beside the core's state.

    Attributes:
        position: of the ledger that it has followed so far.
        ledger_offset: of the next ledger record.
        inputs: last recorded offset by (topic, partition).
        routed: last (seq, index) seen from each other cell.
    """

    position: Position
    ledger_offset: int
    inputs: dict[tuple[str, int], int]
    routed: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a snapshot lies: its first and last chunk's offset, its seq, and its slot."""

    first: int
    last: int
    seq: int
    slot: int

    def text(self) -> str:
        """Return the form in which ledger records carry it."""
        return f"{self.first}:{self.last}:{self.seq}:{self.slot}"


def read_pointers(text: str) -> list[Pointer]:
    """Return the pointers of a ledger record's header, newest first; a wrong one is left out."""
    pointers: list[Pointer] = []
    for part in filter(None, text.split(";")):
        numbers = part.split(":")
        if len(numbers) == 4 and all(number.isdigit() for number in numbers):  # noqa: PLR2004 - its fields
            pointers.append(Pointer(*(int(number) for number in numbers)))
    return pointers


def pack(shell: Shell, state_bytes: bytes) -> bytes:
    """Return the compressed bytes of a snapshot: the shell's line, then the core's."""
    head = {
        "position": asdict(shell.position),
        "ledger_offset": shell.ledger_offset,
        "inputs": [[*key, offset] for key, offset in shell.inputs.items()],
        "routed": [[cell, *seen] for cell, seen in shell.routed.items()],
    }
    line = json.dumps(head, separators=(",", ":")).encode()
    return zlib.compress(line + b"\n" + state_bytes, _FAST)


def unpack(packed: bytes) -> tuple[Shell, State]:
    """Return what `pack` was given.

    Raises:
        CodecError: the bytes are not a snapshot.
    """
    try:
        line, _, state_bytes = zlib.decompress(packed).partition(b"\n")
        head = json.loads(line)
        shell = Shell(
            position=Position(**head["position"]),
            ledger_offset=head["ledger_offset"],
            inputs={(topic, part): offset for topic, part, offset in head["inputs"]},
            routed={cell: (seq, index) for cell, seq, index in head["routed"]},
        )
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise CodecError(f"the snapshot cannot be read: {error!r}") from error
    return shell, thaw(state_bytes)


async def write(
    producer: AIOKafkaProducer, cell: int, slot: int, shell: Shell, packed: bytes
) -> Pointer:
    """Write a snapshot into one of the two slots and return where it lies.

    Raises:
        bus.BusError: the broker did not take a chunk.
    """
    seq = shell.position.next_seq - 1
    pieces = [packed[at : at + CHUNK_BYTES] for at in range(0, len(packed), CHUNK_BYTES)]
    name = digest(packed)
    offsets: list[int] = []
    for part, piece in enumerate(pieces):
        chunk = SnapshotChunk(
            cell=cell,
            seq=seq,
            ledger_offset=shell.ledger_offset - 1,
            part=part,
            parts=len(pieces),
            digest=name,
            body_base64=base64.b64encode(piece).decode(),
        )
        key = f"{cell}/{slot}/{part}".encode()
        sent = producer.send_and_wait(SNAPSHOTS, encode(chunk), key=key, partition=cell)
        offsets.append((await bus.bounded(sent, "take a snapshot")).offset)
    return Pointer(offsets[0], offsets[-1], seq, slot)


async def read(consumer: AIOKafkaConsumer, cell: int, pointer: Pointer) -> tuple[Shell, State]:
    """Return the snapshot that lies at `pointer`. The consumer must be assigned its partition.

    Raises:
        CodecError: it is torn, altered, or of a format that this version does not read.
        bus.BusError: the broker did not answer.
    """
    partition = TopicPartition(SNAPSHOTS, cell)
    pieces: list[bytes] = []
    name, parts = "", 0
    async for record in bus.read_range(consumer, partition, pointer.first, pointer.last + 1):
        chunk = decode(record.value)
        if not isinstance(chunk, SnapshotChunk) or chunk.seq != pointer.seq:
            continue
        if chunk.part != len(pieces):
            raise CodecError(f"the snapshot of seq {pointer.seq} lacks its part {len(pieces)}")
        pieces.append(base64.b64decode(chunk.body_base64))
        name, parts = chunk.digest, chunk.parts
    packed = b"".join(pieces)
    if not pieces or len(pieces) != parts or digest(packed) != name:
        raise CodecError(
            f"the snapshot of seq {pointer.seq} is not whole: {len(pieces)} of {parts} parts"
        )
    return unpack(packed)
