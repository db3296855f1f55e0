"""Depth folded from entries: by hand for each rule, and against the core's own state."""

from collections import Counter
from dataclasses import replace

import pytest

from schemas import facts as f
from schemas.bus import ModelDepth
from schemas.codec import CodecError, decode_line, encode_entry
from schemas.continuity import Continuity
from schemas.facts import Fact
from schemas.ids import cell_of
from schemas.ledger import GENESIS_CHAIN
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.state import State
from streams.depth import DepthFold, Freshness, moves_of
from tests.spec.signals_story import Ledger, RandomRun, arrived, profile, ready


def told_by_state(state: State) -> dict[str, tuple[int, int]]:
    """Count the stages in the core's own memory."""
    counts = Counter((request.model, request.stage) for request in state.requests.values())
    return {name: (counts[name, "waiting"], counts[name, "running"]) for name in state.models}


def told_by_fold(fold: DepthFold) -> dict[str, tuple[int, int]]:
    return {depth.model: (depth.waiting, depth.running) for depth in fold.models()}


@pytest.mark.parametrize("seed", range(8))
def test_the_depth_is_the_cores_own_at_every_seq(seed: int) -> None:
    ledger = Ledger()
    fold = DepthFold(cell=0)
    kinds: Counter[str] = Counter()
    deepest = 0
    for entry in RandomRun(seed, ledger).entries(1_500):
        fold.fold(entry)
        kinds.update(decision.kind for decision in entry.decisions)
        told = told_by_fold(fold)
        assert told == told_by_state(ledger.state), f"seed {seed}, seq {entry.seq}"
        assert fold.live_requests() == len(ledger.state.requests)
        deepest = max(deepest, *(waiting for waiting, _ in told.values()), 0)
    assert deepest > 3, "the run put nothing to the test"
    for kind in ("request-dispatched.v1", "attempt-lost.v1", "request-returned.v1"):
        assert kinds[kind] > 20, f"seed {seed} had too few {kind}"


@pytest.mark.parametrize("seed", range(4))
def test_a_line_is_folded_alike_whether_it_is_decoded_or_not(seed: int) -> None:
    decoded, seen = DepthFold(cell=0), DepthFold(cell=0)
    chain, undecoded = GENESIS_CHAIN, 0
    for entry in RandomRun(seed, Ledger()).entries(1_000):
        line, chain = encode_entry(entry, chain)
        moves = moves_of(line)
        decoded.fold(entry)
        if moves is None:
            seen.fold(entry)
        else:
            seen.move(moves)
            undecoded += 1
        assert seen.models() == decoded.models(), f"seed {seed}, seq {entry.seq}"
    assert undecoded > 700, "most lines of a run are of common kinds"


@pytest.mark.parametrize(
    "name", ['quo"ted', "back\\slash", '{"kind":"request-ended.v1","id":"a","model":"alpha"}']
)
def test_a_line_with_a_name_that_json_escapes_is_decoded(name: str) -> None:
    ledger = Ledger()
    for fact in (profile("alpha"), ready("alpha", 0, "life")):
        ledger.tell(fact)
    entry = ledger.tell(arrived(name, "alpha"))
    assert entry.decisions, "the request is queued"
    assert moves_of(encode_entry(entry, GENESIS_CHAIN)[0]) is None


def test_a_line_of_a_kind_that_is_not_known_here_is_decoded() -> None:
    ledger = Ledger()
    line, _ = encode_entry(ledger.tell(f.ClockTicked(at_us=1)), GENESIS_CHAIN)
    assert moves_of(line) == []
    assert moves_of(line.replace(b"clock-ticked.v1", b"clock-ticked.v2")) is None
    later = line.replace(b'"decisions":[', b'"decisions":[{"kind":"request-moved.v1"}')
    assert moves_of(later) is None


def test_a_line_that_no_owner_can_have_written_is_decoded_and_refused_there() -> None:
    ledger = Ledger()
    for fact in (profile("alpha"), ready("alpha", 0, "life")):
        ledger.tell(fact)
    line, _ = encode_entry(ledger.tell(arrived("a", "alpha")), GENESIS_CHAIN)
    assert moves_of(line) is not None
    broken = line.replace(b'"id":"a"', b'"id":"\xff"')
    for raw in (b"", b"{}", b'{"kind":"ledger-entry.v1"}', broken):
        assert moves_of(raw) is None
        with pytest.raises(CodecError):
            decode_line(raw)


@pytest.mark.parametrize("seed", range(4))
def test_a_fold_that_begins_from_a_snapshot_goes_on_alike(seed: int) -> None:
    ledger = Ledger()
    fold = DepthFold(cell=0)
    for number, entry in enumerate(RandomRun(seed, ledger).entries(1_200)):
        fold.fold(entry)
        if number % 300 == 299:
            fold = DepthFold.of_state(thaw(b"".join(encode_pieces(freeze(ledger.state)))))
        assert told_by_fold(fold) == told_by_state(ledger.state)


def folded(*facts: Fact) -> DepthFold:
    ledger = Ledger()
    fold = DepthFold(cell=0)
    for fact in (profile("alpha"), *facts):
        fold.fold(ledger.tell(fact))
    return fold


def test_a_model_without_requests_is_told_with_zeros() -> None:
    assert folded().models() == (ModelDepth(model="alpha", waiting=0, running=0),)


def test_what_waits_and_what_runs_is_counted_apart() -> None:
    # Three run at most on the one replica, each with 2 of its 8 blocks; the fourth waits.
    fold = folded(ready("alpha", 0, "L1"), *(arrived(f"r{n}", "alpha") for n in range(4)))
    assert fold.models() == (ModelDepth(model="alpha", waiting=1, running=3),)


def test_a_request_that_backs_off_neither_waits_nor_runs() -> None:
    fault = f.WorkFault(id="r0", attempt=1, reason="oom", retryable=True)
    lost = f.WorkFailed(at_us=5, model="alpha", slot=0, incarnation="L1", items=(fault,))
    fold = folded(ready("alpha", 0, "L1"), arrived("r0", "alpha"), lost)
    assert fold.models() == (ModelDepth(model="alpha", waiting=0, running=0),)
    assert fold.live_requests() == 1


def test_a_request_refused_at_the_door_is_never_counted() -> None:
    fold = folded(arrived("r0", "alpha", prompt=500), arrived("r1", "nobody-knows"))
    assert fold.models() == (ModelDepth(model="alpha", waiting=0, running=0),)


def test_a_model_of_another_cell_is_not_told() -> None:
    cells = 4
    own = next(f"m{n}" for n in range(99) if cell_of(f"m{n}", cells) == 0)
    other = next(f"m{n}" for n in range(99) if cell_of(f"m{n}", cells) == 1)
    ledger = Ledger(cells)
    fold = DepthFold(0)
    fold.fold(ledger.first)
    for name in (own, other):
        fold.fold(ledger.tell(profile(name)))
    assert [depth.model for depth in fold.models()] == [own]


def test_void_entries_are_not_counted() -> None:
    ledger = Ledger()
    entries = [ledger.tell(profile("alpha")), ledger.tell(arrived("r0", "alpha"))]
    entries = [replace(entry, seq=seq) for seq, entry in enumerate(entries)]
    first, chain = encode_entry(entries[0], GENESIS_CHAIN)
    # A superseded owner's record stands behind the takeover by epoch 2, at the same seq.
    winner, _ = encode_entry(replace(entries[0], seq=1, epoch=2), chain)
    void, _ = encode_entry(entries[1], chain)
    continuity, fold = Continuity(), DepthFold(0)
    for record in (first, winner, void):
        for line in continuity.admit(record):
            fold.fold(line.entry)
    assert continuity.void_entries == 1
    assert fold.models() == (ModelDepth(model="alpha", waiting=0, running=0),)


def test_an_altered_record_is_refused_before_anything_of_it_is_counted() -> None:
    raw, _ = encode_entry(Ledger().tell(profile("alpha")), GENESIS_CHAIN)
    with pytest.raises(CodecError, match="altered at seq 0"):
        Continuity().admit(raw.replace(b"alpha", b"alphb"))


def test_nothing_is_known_before_the_first_end_is_reached() -> None:
    fresh = Freshness(late_s=2.0)
    fresh.note(end=10, read_to=3, now_s=0.0)
    assert not fresh.known
    fresh.note(end=12, read_to=9, now_s=0.5)
    assert not fresh.known
    fresh.note(end=14, read_to=10, now_s=1.0)
    assert fresh.known


def test_an_empty_ledger_is_known_at_once() -> None:
    fresh = Freshness(late_s=2.0)
    fresh.note(end=0, read_to=0, now_s=0.0)
    assert fresh.known


def test_a_reader_close_behind_a_growing_end_stays_known() -> None:
    fresh = Freshness(late_s=2.0)
    for second in range(10):
        fresh.note(end=100 * (second + 1), read_to=100 * second, now_s=float(second))
        assert fresh.known == (second > 0)


def test_a_reader_that_stands_still_becomes_unknown_and_known_again() -> None:
    fresh = Freshness(late_s=2.0)
    fresh.note(end=5, read_to=5, now_s=0.0)
    assert fresh.known
    fresh.note(end=9, read_to=5, now_s=1.0)
    assert fresh.known
    fresh.note(end=9, read_to=5, now_s=3.5)
    assert fresh.late(3.5)
    assert not fresh.known
    fresh.note(end=9, read_to=9, now_s=4.0)
    assert fresh.known


def test_a_reader_without_news_stays_known() -> None:
    fresh = Freshness(late_s=2.0)
    for second in range(20):
        fresh.note(end=7, read_to=7, now_s=float(second))
        assert fresh.known
