"""Depth folded from entries: by hand for each rule, and against the core's own state."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from schemas import facts as f
from schemas.bus import ModelDepth
from schemas.codec import CodecError, encode_entry
from schemas.continuity import Continuity
from schemas.facts import Fact
from schemas.ids import cell_of
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import Policy
from schemas.profile import Profile
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.state import State
from services.scheduler.step import governing, step
from streams.depth import DepthFold, Freshness

MODELS = ("alpha", "beta")
BLOCK_TOKENS = 16


class Ledger:
    """A cell that is told facts, and the entries that come of it."""

    def __init__(self, cells: int = 1) -> None:
        self.state = State()
        self.seq = 0
        self.now_us = 0
        self.tell(f.OwnerTookOver(at_us=0, cell=0, cells=cells, epoch=1, owner="test"))

    def tell(self, fact: Fact) -> Entry:
        decisions = step(governing(self.state, fact), self.state, fact)
        entry = Entry(
            cell=0,
            seq=self.seq,
            epoch=self.state.epoch,
            source=None,
            policy_version=1,
            policy_digest="0" * 16,
            fact=fact,
            decisions=decisions,
        )
        self.seq += 1
        return entry


def profile(model: str) -> f.ProfileSet:
    return f.ProfileSet(
        at_us=0,
        profile=Profile(
            model=model,
            layers=2,
            kv_heads=2,
            head_size=8,
            kv_dtype_bytes=2,
            max_sequence_tokens=200,
            work_slots=2,
        ),
    )


def ready(model: str, slot: int, life: str, at_us: int = 0) -> f.ReplicaReady:
    return f.ReplicaReady(
        at_us=at_us,
        model=model,
        slot=slot,
        incarnation=life,
        engine="simulated",
        dtype="float32",
        device="cpu",
        kv_pool_bytes=1,
        kv_blocks=8,
        block_tokens=BLOCK_TOKENS,
        max_batch=3,
        max_sequence_tokens=200,
        weights_bytes=1,
    )


def arrived(
    request_id: str, model: str, at_us: int = 0, deadline_ms: int | None = None, prompt: int = 16
) -> f.RequestArrived:
    return f.RequestArrived(
        at_us=at_us,
        id=request_id,
        model=model,
        arrived_us=at_us,
        offset=1,
        prompt_tokens=prompt,
        max_output_tokens=16,
        deadline_ms=deadline_ms,
        body_digest="b",
        body_bytes=10,
    )


def usage() -> f.Usage:
    return f.Usage(
        prompt_tokens=16, output_tokens=3, queued_us=0, prefill_us=1, decode_us=1, first_token_us=1
    )


class RandomRun:
    """Seeded facts of every kind that moves a request, among them late and foreign reports."""

    def __init__(self, seed: int, ledger: Ledger) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a repeatable run, not a secret
        self._ledger = ledger
        self._made = 0
        self._lives: dict[tuple[str, int], int] = {}

    def entries(self, count: int) -> Iterator[Entry]:
        policy = Policy(name="t", replica_lost_ms=400, queued_requests_max=40, dedupe_ids_max=20)
        yield self._ledger.tell(f.PolicyActivated(at_us=0, policy=policy, who="t", why="t"))
        for model in MODELS:
            yield self._ledger.tell(profile(model))
        for _ in range(count):
            self._ledger.now_us += self._random.randrange(0, 60_000)
            yield self._ledger.tell(self._fact(self._ledger.now_us))

    def _fact(self, at_us: int) -> Fact:
        pick = self._random.random()
        if pick < 0.4:
            return self._arrival(at_us)
        if pick < 0.7:
            return self._report(at_us)
        if pick < 0.8:
            return self._replica(at_us)
        if pick < 0.88:
            return f.CancelAsked(at_us=at_us, id=self._any_id(), model=None, offset=2)
        return f.ClockTicked(at_us=at_us)

    def _arrival(self, at_us: int) -> Fact:
        model = self._random.choice([*MODELS, *MODELS, "unknown"])
        resent = self._random.random() < 0.15
        request_id = self._any_id() if resent else f"r{self._made}"
        self._made += not resent
        deadline_ms = self._random.choice([None, None, 1, 100, 2_000])
        return arrived(request_id, model, at_us, deadline_ms, self._random.choice([16, 60, 500]))

    def _any_id(self) -> str:
        live = list(self._ledger.state.requests)
        return self._random.choice(live) if live else "nobody"

    def _replica(self, at_us: int) -> Fact:
        model, slot = self._random.choice(MODELS), self._random.randrange(2)
        life = self._lives.get((model, slot), 0)
        pick = self._random.random()
        if pick < 0.6 or not life:
            self._lives[model, slot] = life + 1
            return ready(model, slot, f"L{life + 1}", at_us)
        where = {"at_us": at_us, "model": model, "slot": slot, "incarnation": f"L{life}"}
        if pick < 0.8:
            return f.ReplicaHeartbeat(running=0, kv_blocks_used=0, output_tokens=0, **where)  # type: ignore[arg-type]
        if pick < 0.9:
            return f.ReplicaDraining(**where)  # type: ignore[arg-type]
        return f.ReplicaStopped(reason="asked", **where)  # type: ignore[arg-type]

    def _report(self, at_us: int) -> Fact:
        running = [r for r in self._ledger.state.requests.values() if r.stage == "running"]
        if not running:
            return f.ClockTicked(at_us=at_us)
        first = self._random.choice(running)
        same = [r for r in running if (r.model, r.slot) == (first.model, first.slot)]
        some = self._random.sample(same, self._random.randint(1, len(same)))
        stale = self._random.random() < 0.1
        pairs = [(r.id, r.attempt - stale) for r in some]
        pick = self._random.random()
        model, slot, life = first.model, first.slot, first.incarnation
        if pick < 0.6:
            done = tuple(
                f.WorkDone(id=i, attempt=a, finish_reason="stop", usage=usage(), output_digest="d")
                for i, a in pairs
            )
            return f.WorkFinished(
                at_us=at_us, model=model, slot=slot, incarnation=life, offset=1, items=done
            )
        if pick < 0.8:
            retryable = self._random.random() < 0.8
            faults = tuple(
                f.WorkFault(id=i, attempt=a, reason="oom", retryable=retryable) for i, a in pairs
            )
            return f.WorkFailed(at_us=at_us, model=model, slot=slot, incarnation=life, items=faults)
        gone = tuple(
            f.WorkDeparture(
                id=i,
                attempt=a,
                cause=self._random.choice(["cancelled", "preempted"]),
                usage=usage(),
            )
            for i, a in pairs
        )
        return f.WorkLeft(
            at_us=at_us, model=model, slot=slot, incarnation=life, offset=1, items=gone
        )


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
    fold.fold(replace(ledger.tell(f.ClockTicked(at_us=0)), fact=_took_over(cells)))
    for name in (own, other):
        fold.fold(ledger.tell(profile(name)))
    assert [depth.model for depth in fold.models()] == [own]


def _took_over(cells: int) -> f.OwnerTookOver:
    return f.OwnerTookOver(at_us=0, cell=0, cells=cells, epoch=1, owner="test")


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
