"""Whether what came between an owner's records is another owner's: then the fence has fallen.

An owner knows the offset at which its next record must come to stand. Anybody may write to a topic,
though, and a record that no owner wrote is passed over by every reader (see schemas.continuity): it
moves offsets and supersedes nobody. Reads the ledger, writes nothing. Whatever is not proved to be
so counts as another owner's, which may be of another version, with entries not known here.
"""

from aiokafka import TopicPartition

from schemas.continuity import is_foreign
from schemas.topics import LEDGER
from services import bus
from services.batches import raw_value
from streams.recovery import HEADER_PUBLISHED

# How a ledger line of any version begins.
_ENTRY = b'{"kind":"ledger-entry.'


def may_be_an_owners(record: bus.Record) -> bool:
    """Return whether an owner, of whatever version, may have written the ledger record."""
    if any(name == HEADER_PUBLISHED for name, _ in record.headers):
        return True
    return (raw_value(record) or b"").startswith(_ENTRY) or not is_foreign(record.value)


async def only_strangers_until(bootstrap: str, cell: int, start: int, end: int) -> bool:
    """Return whether no owner wrote any of the ledger's records from `start` to before `end`.

    `end` must be an end of the ledger that was told: what is below it is decided for good.

    Raises:
        bus.BusError: the broker did not answer.
    """
    ledger = TopicPartition(LEDGER, cell)
    async with bus.consuming(bootstrap, [ledger]) as consumer:
        async for record in bus.read_range(consumer, ledger, start, end):
            if may_be_an_owners(record):
                return False
    return start <= end


async def only_strangers_before(
    bootstrap: str, cell: int, start: int, offset: int, value: bytes
) -> bool:
    """Return whether no owner's record stands from `start` to before `offset`, and `value` there.

    To read one's own record shows that all before it is decided: a reader sees no further than the
    first transaction that is still open.

    Raises:
        bus.BusError: the broker did not answer.
    """
    ledger = TopicPartition(LEDGER, cell)
    async with bus.consuming(bootstrap, [ledger]) as consumer:
        async for record in bus.read_range(consumer, ledger, start, offset + 1):
            if record.offset == offset:
                return record.value == value
            if may_be_an_owners(record):
                return False
    return False
