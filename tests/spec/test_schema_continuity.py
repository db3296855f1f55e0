"""Which ledger records count when others than an owner write to the topic."""

import pytest

from schemas.codec import CodecError
from schemas.continuity import Continuity, Position, is_foreign
from tests.spec.replay_ledger import begun
from tests.spec.scheduler_story import arrived, tick


def seqs(continuity: Continuity, *records: bytes | None) -> list[int]:
    return [line.entry.seq for record in records for line in continuity.admit(record)]


@pytest.mark.parametrize("foreign", [None, b"", b"garbage", b"{}", b"\xff\xfe\n{}"])
def test_a_record_that_no_owner_wrote_is_passed_over(foreign: bytes | None) -> None:
    first, second, third = begun(arrived("a", at=1)).records
    continuity = Continuity()
    assert seqs(continuity, first, foreign, second, foreign, third) == [0, 1, 2, 3]
    assert continuity.foreign_records == 2
    assert continuity.void_entries == 0
    assert is_foreign(foreign)
    assert not is_foreign(second)


def test_an_owner_s_record_that_was_damaged_is_found_by_the_one_behind_it() -> None:
    first, second, third = begun(tick(5)).records
    continuity = Continuity()
    assert seqs(continuity, first, second[1:]) == [0, 1]
    with pytest.raises(CodecError, match="altered at seq 2"):
        continuity.admit(third)


def test_a_record_that_is_damaged_behind_its_first_line_is_refused() -> None:
    first, *_ = begun().records
    with pytest.raises(CodecError):
        Continuity().admit(first[:-1])


def test_lines_that_the_chain_vouches_for_are_given_undecoded() -> None:
    first, second, third = begun(tick(5)).records
    continuity, decoding = Continuity(), Continuity()
    for record in (first, second, third):
        assert continuity.vouched(record) == [line.raw for line in decoding.admit(record)]
        assert continuity.position() == decoding.position()


def test_a_record_that_the_chain_does_not_vouch_for_is_left_as_it_was() -> None:
    first, second, third = begun(tick(5)).records
    continuity = Continuity()
    assert continuity.vouched(first)
    before = continuity.position()
    altered = second.replace(b'"epoch":1,', b'"epoch":7,')
    again_of_an_older_epoch = second.replace(b'"epoch":1,', b'"epoch":0,')
    for other in (None, b"", b"garbage", first, third, altered, again_of_an_older_epoch):
        assert continuity.vouched(other) is None
        assert continuity.position() == before
    assert continuity.vouched(second)


def test_a_record_of_a_superseded_owner_is_not_vouched_for() -> None:
    first, second, _ = begun(tick(5)).records
    started = Continuity()
    assert started.admit(first)
    behind = started.position()
    later = Continuity(Position(next_seq=behind.next_seq, chain=behind.chain, epoch=9))
    assert later.vouched(second) is None
    assert later.admit(second) == []
