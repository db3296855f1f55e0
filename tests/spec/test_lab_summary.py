"""Summaries of outcomes and of replicas' occupancy, worked out by hand."""

import random

import pytest

from schemas import decisions as d
from schemas import facts as f
from schemas.bus import Result
from schemas.decisions import Outcome, Reason
from schemas.facts import Usage
from schemas.ledger import Entry
from schemas.policy import Tier
from services.lab import prompts
from services.lab.occupancy import Occupancy
from services.lab.summary import percentile, spread, summarise


def result(
    name: str,
    e2e_ms: int,
    *,
    ttft_ms: int | None = None,
    outcome: Outcome = "completed",
    reason: Reason = "stop",
    tier: Tier = "normal",
    output_tokens: int | None = None,
) -> Result:
    usage = None
    if output_tokens is not None:
        usage = Usage(
            prompt_tokens=10, output_tokens=output_tokens, queued_us=0, prefill_us=0, decode_us=0
        )
    return Result(
        id=name,
        model="m",
        tenant="t",
        tier=tier,
        outcome=outcome,
        reason=reason,
        detail="",
        text=None,
        usage=usage,
        attempts=1,
        replica=None,
        wait_us=1000,
        waits=(("transit", 400), ("kv", 600)),
        run_us=0,
        ttft_us=None if ttft_ms is None else ttft_ms * 1000,
        e2e_us=e2e_ms * 1000,
        metadata={},
        retry_after_ms=None,
        cell=0,
        seq=0,
        policy_version=1,
        policy_digest="",
    )


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 15), (30, 20), (40, 20), (50, 35), (95, 50), (100, 50)]
)
def test_percentiles_are_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([15, 20, 35, 40, 50], percent) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    assert spread([]) is None
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 50)


def test_one_value_is_every_percentile() -> None:
    told = spread([7.0])
    assert told is not None
    assert (told.count, told.p50, told.p95, told.p99, told.max) == (1, 7.0, 7.0, 7.0, 7.0)


def test_a_summary_counts_what_was_measured_and_nothing_else() -> None:
    told = summarise(
        [
            result("a", 100, ttft_ms=10, output_tokens=20),
            result("b", 300, ttft_ms=30, output_tokens=40, tier="realtime"),
            result("c", 900, outcome="expired", reason="deadline"),
        ],
        seconds=2.0,
    )
    assert told.requests == 3
    assert dict(told.outcomes) == {"completed": 2, "expired": 1}
    assert dict(told.reasons) == {"stop": 2, "deadline": 1}
    assert told.ttft_ms is not None
    assert (told.ttft_ms.count, told.ttft_ms.p50, told.ttft_ms.p99) == (2, 10.0, 30.0)
    assert told.e2e_ms is not None
    assert (told.e2e_ms.count, told.e2e_ms.max) == (2, 300.0)
    assert (told.prompt_tokens, told.output_tokens, told.tokens_per_s) == (20, 60, 30.0)
    assert told.slowest == "b"
    assert told.waits_ms == (("kv", pytest.approx(1.8)), ("transit", pytest.approx(1.2)))
    by_tier = {tier.tier: (tier.requests, tier.completed) for tier in told.tiers}
    assert by_tier == {"realtime": (1, 1), "critical": (0, 0), "normal": (2, 1), "batch": (0, 0)}


def test_a_summary_of_nothing_has_no_figures() -> None:
    told = summarise([], seconds=0.0)
    assert (told.requests, told.ttft_ms, told.tokens_per_s, told.slowest) == (0, None, None, None)


def test_when_none_completed_the_slowest_of_the_others_is_named() -> None:
    told = summarise(
        [
            result("a", 5, outcome="rejected", reason="over-context"),
            result("b", 9, outcome="expired", reason="deadline"),
        ],
        seconds=1.0,
    )
    assert told.slowest == "b"


def entry(seq: int, at_ms: int, *decisions: d.AnyDecision) -> Entry:
    return Entry(
        cell=0,
        seq=seq,
        epoch=1,
        source=None,
        policy_version=1,
        policy_digest="",
        fact=f.ClockTicked(at_us=at_ms * 1000),
        decisions=decisions,
    )


def admitted(slot: int, kv_blocks: int) -> d.ReplicaAdmitted:
    return d.ReplicaAdmitted(
        model="m", slot=slot, incarnation="i", kv_blocks=kv_blocks, max_batch=4
    )


def queued(name: str) -> d.RequestQueued:
    return d.RequestQueued(
        id=name,
        model="m",
        tenant="t",
        tier="normal",
        prompt_tokens=1,
        max_output_tokens=1,
        deadline_us=None,
        ahead=0,
        preemptible=True,
        quota_us=0,
    )


def dispatched(name: str, slot: int, blocks: int) -> d.RequestDispatched:
    return d.RequestDispatched(
        id=name,
        model="m",
        tenant="t",
        tier="normal",
        slot=slot,
        incarnation="i",
        attempt=1,
        blocks=blocks,
        blocks_free=10,
        running=0,
        wait_us=0,
        waits=(),
        passed_over=(),
        starved=False,
        cost=1,
        weight=1,
        quantum=1,
        offset=0,
        max_output_tokens=1,
        prompt_tokens=1,
        seed=0,
        blocks_full=blocks,
        samples=0,
        number=1,
        resume_tokens=0,
        resume_offset=-1,
    )


def ended(name: str) -> d.RequestEnded:
    return d.RequestEnded(
        id=name,
        model="m",
        tenant="t",
        tier="normal",
        outcome="completed",
        reason="stop",
        detail="",
        attempts=1,
        slot=0,
        arrived_us=0,
        wait_us=0,
        waits=(),
        run_us=0,
        e2e_us=0,
        ttft_us=None,
        usage=None,
        prompt_tokens=1,
        max_output_tokens=1,
        blocks=1,
        request_offset=0,
        output_offset=-1,
        body_digest="",
        output_digest=None,
        metadata=(),
        cost=0,
        retry_after_ms=None,
        keep_until_us=0,
    )


def test_batch_and_kv_are_averaged_over_the_time_in_which_there_was_work() -> None:
    seen = Occupancy()
    assert (seen.mean_batch, seen.kv_use_mean, seen.kv_use) == (None, None, 0.0)
    seen.read(entry(0, 0, admitted(0, 10), admitted(1, 10)))
    seen.read(entry(1, 1000, queued("a"), dispatched("a", 0, 4), queued("b")))
    assert (seen.waiting, seen.running) == ({"b"}, {"a": ("m", 0)})
    seen.read(entry(2, 2000, dispatched("b", 0, 6), queued("c"), dispatched("c", 1, 10)))
    assert seen.kv_use == 1.0
    seen.read(entry(3, 3000, ended("a"), ended("b")))
    seen.read(entry(4, 5000, ended("c")))
    seen.read(entry(5, 9000))
    # Second 1: one request on one replica. Second 2: two on one, one on the other. Then 2 s of one.
    assert seen.mean_batch == pytest.approx((1 + 2 + 1 + 2) / (1 + 2 + 2))
    # 4 of 20 blocks for 1 s, 20 for 1 s, 10 for 2 s; nothing ran afterwards.
    assert seen.kv_use_mean == pytest.approx((0.2 + 1.0 + 0.5 * 2) / 4)
    assert seen.kv_use_peak == 1.0
    assert seen.ended == {"a": 1, "b": 1, "c": 1}
    assert seen.last_seq == {0: 5}


def test_what_a_lost_replica_held_is_let_go() -> None:
    seen = Occupancy()
    seen.read(entry(0, 0, admitted(0, 10), queued("a"), dispatched("a", 0, 5)))
    lost = d.AttemptLost(
        id="a", model="m", attempt=1, slot=0, why="", losses=1, backoff_ms=1, retry_at_us=1
    )
    gone = d.ReplicaLost(model="m", slot=0, incarnation="i", why="silent", silent_us=1, running=1)
    seen.read(entry(1, 1, gone, lost))
    assert (seen.running, seen.kv_use) == ({}, 0.0)
    again = Occupancy()
    again.read(entry(0, 0, admitted(0, 10), queued("a"), dispatched("a", 0, 5)))
    anew = again.without_requests()
    assert (anew.running, anew.kv_use) == ({}, 0.0)
    anew.read(entry(1, 0, dispatched("b", 0, 5)))
    assert anew.kv_use == 0.5


def test_questions_have_about_the_wanted_length() -> None:
    chance = random.Random(0)
    for tokens in (1, 5, 12, 40, 200, 1000):
        text = prompts.question(tokens, chance)
        assert abs(prompts.about_tokens(text) - tokens) <= 20
        assert text.isascii()


def test_text_for_byte_counting_profiles_is_exact() -> None:
    chance = random.Random(0)
    for tokens in (1, 7, 5000):
        assert len(prompts.exactly(tokens, chance).encode()) == tokens * 4
