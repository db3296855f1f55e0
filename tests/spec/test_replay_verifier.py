"""Replay derives a ledger from its facts, counts what counts, and names what differs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from schemas.codec import decode_line, encode_entry
from schemas.continuity import Position
from schemas.decisions import RequestDispatched, RequestQueued
from schemas.facts import RequestArrived
from schemas.ledger import Entry
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from streams.replay import Report, Verifier, combined_digest
from tests.spec.replay_ledger import HandMade, begun, chained, takeover, with_decisions
from tests.spec.scheduler_story import arrived, finished, policy_is, ready, tick, with_policy


def verified(records: Sequence[bytes | None]) -> Report:
    verifier = Verifier(0)
    for record in records:
        verifier.feed(record)
    return verifier.report()


def a_run() -> HandMade:
    # Entries: 0 takeover, 1 policy, 2 profile, 3 ready, 4 and 5 arrivals, 6 finished.
    made = begun(ready(at=1))
    made.tell(arrived("a", at=2), arrived("b", at=2))
    return made.tell(finished("a", at=9))


def test_a_sound_ledger_is_derived_to_the_byte() -> None:
    report = verified(a_run().records)
    assert report.sound
    assert (report.entries, report.first_seq, report.next_seq) == (7, 0, 7)
    # admitted; queued and dispatched, twice; ended.
    assert report.decisions == 6
    assert report.void_entries == 0


def test_the_digest_does_not_depend_on_how_lines_are_batched() -> None:
    made = a_run()
    by_line = verified(made.lines())
    assert by_line.sound
    assert by_line.digest == verified(made.records).digest


def test_a_policy_change_on_the_ledger_governs_what_comes_after_it() -> None:
    changed = with_policy(version=2, queued_requests_max=1)
    made = begun(arrived("a", at=1), policy_is(changed, at=2), arrived("b", at=3))
    report = verified(made.records)
    assert report.sound
    assert [version for version, _ in report.policies] == [1, 2]


def altered_decision(entry: Entry) -> Entry:
    queued, dispatched = entry.decisions
    assert isinstance(queued, RequestQueued)
    assert isinstance(dispatched, RequestDispatched)
    return with_decisions(entry, queued, replace(dispatched, blocks=dispatched.blocks + 1))


def test_an_altered_decision_is_named_even_when_every_chain_was_made_right() -> None:
    made = a_run()
    lines = chained(made.lines(), 4, altered_decision(made.entries[4]))
    report = verified(lines)
    assert report.mismatch_count == 1
    (found,) = report.mismatches
    assert (found.cell, found.seq, found.index) == (0, 4, 1)
    assert found.what == "request-dispatched.v1: blocks is recorded as 3 and derived as 2"
    assert report.entries == 7


def test_an_altered_decision_with_its_old_chain_is_told_as_both() -> None:
    made = a_run()
    lines = made.lines()
    lines[4] = lines[4].replace(b'"blocks":2,', b'"blocks":3,')
    report = verified(lines)
    assert {(one.seq, one.index) for one in report.mismatches} == {(4, None), (4, 1)}
    assert "does not match its chain digest" in report.mismatches[0].sentence()
    assert report.entries == 7


def test_a_decision_left_out_is_named() -> None:
    made = a_run()
    lines = chained(made.lines(), 4, with_decisions(made.entries[4], made.entries[4].decisions[0]))
    (found,) = verified(lines).mismatches
    assert (found.seq, found.index) == (4, 1)
    assert found.what == "the facts give request-dispatched.v1, which is not recorded"


def test_a_decision_too_many_is_named() -> None:
    made = a_run()
    entry = made.entries[4]
    lines = chained(made.lines(), 4, with_decisions(entry, *entry.decisions, entry.decisions[0]))
    (found,) = verified(lines).mismatches
    assert (found.seq, found.index) == (4, 2)
    assert found.what == "request-queued.v1 is recorded, but does not follow from the facts"


def test_an_altered_fact_changes_what_follows_from_it() -> None:
    made = a_run()
    entry = made.entries[4]
    assert isinstance(entry.fact, RequestArrived)
    changed = replace(entry, fact=replace(entry.fact, prompt_tokens=40))
    found = verified(chained(made.lines(), 4, changed)).mismatches
    # 40 + 16 tokens are 4 blocks of 16 and not 2.
    assert (found[0].seq, found[0].index) == (4, 0)
    assert "prompt_tokens is recorded as 16 and derived as 40" in found[0].what


def test_an_altered_policy_digest_is_named() -> None:
    made = a_run()
    changed = replace(made.entries[4], policy_digest="0" * 16)
    (found,) = verified(chained(made.lines(), 4, changed)).mismatches
    assert (found.seq, found.index) == (4, None)
    assert found.what.startswith("policy_digest is recorded as '0000000000000000'")


@pytest.mark.parametrize("gone", [2, 4, 5])
def test_a_missing_entry_stops_the_replay_and_is_named(gone: int) -> None:
    lines = a_run().lines()
    del lines[gone]
    report = verified(lines)
    assert not report.sound
    assert report.mismatches[0].seq == gone
    assert "it is missing" in report.mismatches[0].what
    assert report.stopped == f"nothing behind seq {gone} of cell 0 can be derived"
    assert report.entries == gone


FOREIGN = [b"", b"{}", b"\xff\xfe", b'{"kind":"ledger-entry.v1"}', None]


@pytest.mark.parametrize("bytes_", FOREIGN)
def test_a_record_of_no_owner_is_counted_and_passed_over(bytes_: bytes | None) -> None:
    made = a_run()
    report = verified([made.records[0], bytes_, *made.records[1:]])
    assert report.sound
    assert report.foreign_records == 1
    assert report.digest == verified(made.records).digest


@pytest.mark.parametrize("bytes_", FOREIGN)
def test_a_record_that_is_no_entry_in_the_place_of_one_is_named(bytes_: bytes | None) -> None:
    made = a_run()
    for records in ([made.records[0], bytes_], [made.records[0], bytes_, *made.records[2:]]):
        report = verified(records)
        assert not report.sound
        assert report.mismatches[0].seq == 2
        assert report.entries == 2


def test_a_damaged_line_behind_others_of_its_record_is_named() -> None:
    made = a_run()
    lines = made.lines()
    report = verified([b"\n".join([*lines[:4], lines[4][:-5], *lines[5:]])])
    assert not report.sound
    assert report.mismatches[0].seq == 4
    assert report.entries == 4


def test_a_line_in_another_form_is_named_though_it_says_the_same() -> None:
    made = a_run()
    lines = made.lines()
    lines[3] = lines[3].replace(b'{"kind"', b'{ "kind"', 1)
    report = verified(lines)
    assert not report.sound
    assert {one.seq for one in report.mismatches} == {3}


def stale_record(before: HandMade, *facts: RequestArrived) -> bytes:
    """Return the record that the owner of `before` appends without knowing of a takeover."""
    copy = thaw(b"".join(encode_pieces(freeze(before.state))))
    late = HandMade(state=copy, entries=list(before.entries), chain=before.chain)
    return late.tell(*facts).records[-1]


def test_entries_of_a_superseded_owner_are_void() -> None:
    made = a_run()
    stale = stale_record(made, arrived("late", at=20))
    made.tell(takeover(2, at_us=20_000))
    made.records.append(stale)
    made.tell(arrived("c", at=30))
    report = verified(made.records)
    assert report.sound
    assert report.void_entries == 1
    assert (report.entries, report.next_seq) == (9, 9)


def test_a_takeover_that_lost_the_race_is_void_but_its_epoch_stands() -> None:
    made = a_run()
    loser = HandMade(
        state=thaw(b"".join(encode_pieces(freeze(made.state)))),
        entries=list(made.entries),
        chain=made.chain,
    )
    lost = loser.tell(takeover(2, at_us=21_000)).records[-1]
    made.tell(tick(20))
    made.records.append(lost)
    # The owner of epoch 1 does not know; its next record is void, and epoch 3 goes on.
    made.records.append(stale_record(made, arrived("late", at=22)))
    made.tell(takeover(3, at_us=30_000))
    made.tell(arrived("c", at=31))
    report = verified(made.records)
    assert report.sound
    assert report.void_entries == 2
    assert report.entries == 10


def test_a_replay_may_begin_from_a_snapshot() -> None:
    made = a_run()
    state = thaw(b"".join(encode_pieces(freeze(made.state))))
    position = Position(next_seq=len(made.entries), chain=made.chain, epoch=1)
    made.tell(arrived("c", at=30))
    verifier = Verifier(0, position, state)
    verifier.feed(made.records[-1])
    report = verifier.report()
    assert report.sound
    assert (report.first_seq, report.entries, report.next_seq) == (7, 1, 8)


def test_a_fact_that_the_core_cannot_take_is_named() -> None:
    # A profile that is gone from the ledger's facts, with every chain made right again.
    made = begun(ready(at=1), arrived("a", at=2))
    lines = made.lines()
    raw, chain = encode_entry(
        made.entry_of(takeover(1, cell=0, cells=0), (), 2), decode_line(lines[1]).chain
    )
    entry = replace(made.entries[4], seq=3)
    follow, _ = encode_entry(entry, chain)
    report = verified([*lines[:2], raw, follow])
    assert not report.sound


def test_the_combined_digest_is_of_all_cells_in_their_order() -> None:
    one, two = verified(a_run().records), verified(begun().records)
    two.cell = 1
    assert combined_digest([one, two]) == combined_digest([two, one])
    assert combined_digest([one, two]) != combined_digest([one])
