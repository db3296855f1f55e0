"""Records of the topics besides the ledger to rows of `messages_in`, and dead letters. Pure.

Each message is decoded and encoded again: what is stored has the types of its schema, whatever
form its writer chose.
"""

from dataclasses import dataclass, field

from schemas.bus import DeadLetter, DepthSignal, DeviceSample, ResendAnswer, Result, dead_letter
from schemas.codec import BusMessage, CodecError, decode, encode
from schemas.ids import Source
from schemas.topics import DEAD_LETTER, RESULTS, SIGNALS, TELEMETRY
from services.recorder.ledger_rows import AT_US_MAX
from services.recorder.native import Column

_INT64_MAX = 2**63 - 1

_TYPES: dict[str, type] = {
    RESULTS: Result,
    TELEMETRY: DeviceSample,
    SIGNALS: DepthSignal,
    DEAD_LETTER: DeadLetter,
}


@dataclass(slots=True)
class MessageRows:
    """Rows of `messages_in`, as columns."""

    topic: list[bytes] = field(default_factory=list[bytes])
    partition: list[int] = field(default_factory=list[int])
    offset: list[int] = field(default_factory=list[int])
    written_ms: list[int] = field(default_factory=list[int])
    message: list[bytes] = field(default_factory=list[bytes])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.message)

    def columns(self) -> dict[str, Column]:
        """Return the columns of `messages_in`."""
        return {
            "topic": ("String", self.topic),
            "partition": ("Int32", self.partition),
            "offset": ("Int64", self.offset),
            "written_ms": ("Int64", self.written_ms),
            "message": ("String", self.message),
        }

    def append(
        self, place: Source, written_ms: int, value: bytes | None, broken: str | None = None
    ) -> str | None:
        """Append the record at `place` as a row; return what is wrong with it, or None.

        Of a `broken` record the value is all that could be had, and is not looked into.

        A dead letter that cannot be read is appended as one that says so of itself: to send it to
        its own topic would never end.
        """
        topic, partition, offset = place
        try:
            if broken is not None:
                raise CodecError(broken)  # noqa: TRY301 - as good as one that was decoded in vain
            message = _checked(topic, value)
        except CodecError as error:
            if topic != DEAD_LETTER:
                return str(error)
            message = encode(dead_letter(place, value, str(error)))
        if message is None:
            return None
        self.topic.append(topic.encode())
        self.partition.append(partition)
        self.offset.append(offset)
        self.written_ms.append(written_ms)
        self.message.append(message)
        return None


def _checked(topic: str, value: bytes | None) -> bytes | None:
    """Return the message's row, or None for an answer to a resend: the ledger's entry tells it.

    Raises:
        CodecError: the topic does not carry such a message.
    """
    message = decode(value)
    if topic == RESULTS and isinstance(message, ResendAnswer):
        return None
    if not isinstance(message, _TYPES[topic]):
        raise CodecError(f"{topic} does not carry {message.kind} messages")
    _check_range(message)
    return encode(message)


def _check_range(message: BusMessage) -> None:
    numbers: tuple[int | None, ...] = ()
    if isinstance(message, DeviceSample | DepthSignal):
        if not 0 <= message.at_us <= AT_US_MAX:
            raise CodecError(f"at_us: {message.at_us} is no time before the year 2300")
        if isinstance(message, DeviceSample):
            numbers = (message.memory_used_bytes, message.memory_total_bytes)
        else:
            numbers = (message.ledger_seq,)
    elif isinstance(message, Result):
        numbers = (message.seq, message.wait_us, message.run_us, message.e2e_us, message.ttft_us)
    elif isinstance(message, DeadLetter):
        numbers = (message.partition, message.offset, message.body_bytes)
    if any(number is not None and abs(number) > _INT64_MAX for number in numbers):
        raise CodecError("a number of the message does not fit 64 bits")
