"""Which records between two of an owner's are a stranger's, and which may be another owner's."""

import pytest
from aiokafka.structs import ConsumerRecord

from services.batches import BrokenRecord
from streams.fence import may_be_an_owners
from streams.recovery import HEADER_PUBLISHED
from tests.spec.replay_ledger import begun

NEWER = b'{"kind":"ledger-entry.v9","seals":["not known here"]}'
Record = ConsumerRecord[bytes, bytes]


def record(value: bytes | None, *headers: tuple[str, bytes]) -> Record:
    return Record("headway.ledger", 0, 7, 1, 1, b"0", value, None, 1, len(value or b""), headers)


@pytest.mark.parametrize("value", [None, b"", b"garbage", b"{}", b'{"kind":"result.v1"}'])
def test_what_neither_begins_as_an_entry_nor_bears_an_owner_s_mark_is_a_stranger_s(
    value: bytes | None,
) -> None:
    assert not may_be_an_owners(record(value))
    assert not may_be_an_owners(record(value, ("headway-cell", b"0")))


def test_an_entry_is_an_owner_s_whether_it_can_be_decoded_or_not() -> None:
    first, *_ = begun().records
    assert may_be_an_owners(record(first))
    assert may_be_an_owners(record(NEWER))


def test_what_bears_an_owner_s_mark_is_an_owner_s_whatever_it_holds() -> None:
    assert may_be_an_owners(record(b"\x00packed", (HEADER_PUBLISHED, b"12")))


def test_a_record_that_cannot_be_decoded_is_judged_by_what_can_be_had_of_it() -> None:
    broken = ("headway.ledger", 0, 7, 1, 1, None, None, None, -1, -1, ())
    assert may_be_an_owners(BrokenRecord(*broken, fault="why", raw_value=NEWER))
    assert not may_be_an_owners(BrokenRecord(*broken, fault="why", raw_value=b"garbage"))
    assert not may_be_an_owners(BrokenRecord(*broken, fault="why"))
