"""The batch windows of one-shot models: when they open and close, and who rides together.

One encoder, "e": a text has 16 tokens unless said otherwise, so one block, and a replica has 100
blocks, of which 85 may be used, and runs 16 texts at once. The tier is batch, whose target of 60 s
leaves a window of 150 ms as it is.
"""

from dataclasses import replace
from typing import Any

import pytest

from schemas import decisions as d
from schemas import facts as f
from schemas.batches import BatchFormed, BatchPlace, WindowOpened, WindowTuned
from schemas.policy import Override, Policy
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from services.scheduler.step import next_due_us, step
from tests.spec.scheduler_story import (
    PROFILE,
    Story,
    a,
    arrived,
    cancel,
    draining,
    given,
    heartbeat,
    policy_is,
    profile_is,
    ready,
    tick,
    us,
)

ENCODER = replace(PROFILE, serves="one-shot")
STILL = Policy(name="still", default_tier="batch", window_tunes=False)
FREE = replace(STILL, window_mode="when_free")


def texts(request_id: str, *lengths: int, at: float = 0, **more: Any) -> f.RequestArrived:
    """Return the arrival of an embedding request with texts of these lengths."""
    lengths = lengths or (16,)
    fact = arrived(request_id, at=at, prompt=sum(lengths), output=None, **more)
    size = f.EmbeddingSize(texts=len(lengths), longest_tokens=max(lengths))
    return replace(fact, embedding=size)


def encoder(policy: Policy = STILL, *, blocks: int = 100, batch: int = 16) -> Story:
    return given(ready(blocks=blocks, batch=batch), policy=policy, profile=ENCODER)


def embedded(*ids: str, at: float, took: float = 80, attempt: int = 1) -> f.WorkFinished:
    usage = f.Usage(
        prompt_tokens=16, output_tokens=0, queued_us=0, prefill_us=us(took), decode_us=0
    )
    items = tuple(
        f.WorkDone(
            id=item, attempt=attempt, finish_reason="embedded", usage=usage, output_digest="0d"
        )
        for item in ids
    )
    return f.WorkFinished(
        at_us=us(at), model="m", slot=0, incarnation="L1", offset=500, items=items
    )


def batch_of(story: Story) -> BatchFormed:
    (formed,) = [item for item in story.decisions if isinstance(item, BatchFormed)]
    return formed


# Opening and closing


def test_the_first_request_opens_a_window_and_the_queue_says_that_it_waits_for_it() -> None:
    story = (
        encoder()
        .when(texts("a", at=10))
        .then(
            a(d.RequestQueued, id="a", max_output_tokens=0),
            a(WindowOpened, opened_us=us(10), due_us=us(160), allowed_us=us(150), tier="batch"),
            a(d.QueueBlocked, cause="window", waiting=1),
        )
    )
    assert next_due_us(story.state.policy, story.state) == us(160)
    story.when(texts("b", at=20)).then(a(d.RequestQueued, id="b"))


def test_a_window_closes_when_it_is_due_and_its_members_leave_as_one_batch() -> None:
    story = encoder().when(texts("a"), texts("b", 12, at=20), tick(149.9))
    assert not [item for item in story.decisions if isinstance(item, BatchFormed)]
    place = BatchPlace(batch=0, size=2)
    story.when(tick(150)).then(
        a(BatchFormed, why="due", members=("a", "b"), texts=2, blocks=2, blocks_allowed=85),
        a(d.RequestDispatched, id="a", blocks=1, batch=place, waits=(("window", us(150)),)),
        a(d.RequestDispatched, id="b", blocks=1, batch=place, waits=(("window", us(130)),)),
    )
    assert batch_of(story).padding_pct == 12  # 4 of 32 tokens
    story.when(embedded("a", "b", at=230)).then(
        a(d.RequestEnded, id="a", outcome="completed", reason="embedded", run_us=us(80)),
        a(d.RequestEnded, id="b", detail="embedded 1 texts of 16 tokens"),
    )


def test_a_window_closes_when_a_batch_is_full_whatever_it_has_left() -> None:
    story = encoder(replace(STILL, batch_texts_max=3, window_backlog_closes=None))
    story.when(texts("a", 16, 16), texts("b", at=1))
    assert batch_of(story).why == "full"
    assert (batch_of(story).texts, batch_of(story).texts_max) == (3, 3)


def test_a_window_closes_when_more_wait_than_the_backlog_allows() -> None:
    story = encoder(replace(STILL, window_backlog_closes=2)).when(texts("a"), texts("b"))
    assert story.state.models["m"].queue.waiting == 2
    story.when(texts("c", at=1))
    assert batch_of(story).why == "backlog"
    assert (batch_of(story).waiting, batch_of(story).backlog_closes) == (3, 2)


def test_a_window_closes_when_a_deadline_demands_it_by_the_measured_service_time() -> None:
    story = encoder().when(texts("first"), tick(150), embedded("first", at=190))
    # 40 ms measured: to be done by 300 it must leave at 260.
    story.when(texts("a", at=200, deadline=100)).then(
        a(d.RequestQueued, id="a"),
        a(WindowOpened, due_us=us(260), deadline_us=us(300), service_us=us(40)),
        a(d.QueueBlocked, cause="window"),
    )
    story.when(tick(260))
    assert batch_of(story).why == "deadline"


def test_a_deadline_ends_the_window_at_once_while_no_service_time_is_known() -> None:
    story = encoder().when(texts("a"), texts("b", at=10, deadline=140))
    assert (batch_of(story).why, batch_of(story).service_us) == ("deadline", 0)


def test_a_nearer_deadline_moves_the_window_that_is_open() -> None:
    story = encoder().when(texts("first"), tick(150), embedded("first", at=190))
    story.when(texts("a", at=200))
    story.when(texts("b", at=210, deadline=100)).then(
        a(d.RequestQueued, id="b"), a(WindowOpened, opened_us=us(200), due_us=us(270), waiting=2)
    )
    # It goes away, so the window runs on: that is told when the moved one is due.
    story.when(cancel("b", at=220)).then(a(d.RequestEnded, id="b"))
    story.when(tick(270)).then(a(WindowOpened, due_us=us(350), deadline_us=None))


def test_far_deadlines_that_were_given_up_take_no_memory() -> None:
    story = encoder(replace(STILL, window_backlog_closes=None, batch_texts_max=1024), batch=1024)
    story.when(texts("first"), tick(150), embedded("first", at=190))
    for number in range(200):
        name = f"t-{number}"
        story.when(texts(name, at=200, deadline=10_000 + number))
        if number:
            story.when(cancel(name, at=200))
    batching = story.state.models["m"].batching
    assert batching is not None
    assert len(batching.deadlines) < 100


@pytest.mark.parametrize(
    ("tier", "allowed_ms"), [("realtime", 25), ("critical", 125), ("normal", 150), ("batch", 150)]
)
def test_a_window_takes_at_most_a_quarter_of_its_tier_s_target(tier: Any, allowed_ms: int) -> None:
    encoder().when(texts("a", tier=tier)).then(
        a(d.RequestQueued),
        a(WindowOpened, allowed_us=us(allowed_ms), tier=tier, share_pct=25, window_ms=150),
        a(d.QueueBlocked, cause="window"),
    )


def test_a_higher_tier_shortens_the_window_and_all_leave_together() -> None:
    story = encoder().when(texts("slow"))
    story.when(texts("quick", at=10, tier="realtime")).then(
        a(d.RequestQueued), a(WindowOpened, due_us=us(35), tier="realtime", target_ms=100)
    )
    story.when(tick(35))
    assert batch_of(story).members == ("quick", "slow")


def test_when_a_policy_changes_the_window_follows() -> None:
    story = encoder().when(texts("a"))
    shorter = replace(STILL, version=2, window_ms=50)
    story.when(policy_is(shorter, at=10)).then(a(WindowOpened, due_us=us(50), window_ms=50))
    story.when(policy_is(replace(FREE, version=3), at=20))
    assert batch_of(story).why == "free"


def test_keys_hold_per_model() -> None:
    override = Override(model="m", key="window_ms", value=20)
    story = encoder(replace(STILL, overrides=(override,))).when(texts("a"))
    assert isinstance(story.decisions[1], WindowOpened)
    assert story.decisions[1].due_us == us(20)


def test_a_cancelled_only_member_closes_its_window_without_a_batch() -> None:
    story = encoder().when(texts("a"), cancel("a", at=10))
    assert story.state.windows == []
    story.when(tick(150)).then_nothing()


# Replicas


def test_a_busy_replica_takes_no_second_batch_and_the_queue_says_slots() -> None:
    story = encoder().when(texts("a"), tick(150), texts("b", at=160))
    story.when(tick(310)).then(a(d.QueueBlocked, cause="slots", replicas_ready=1, slots_free=0))
    story.when(embedded("a", at=400)).then(
        a(d.RequestEnded, id="a"),
        a(BatchFormed, why="due", members=("b",), opened_us=None),
        a(d.RequestDispatched, id="b", waits=(("slots", us(90)), ("window", us(150)))),
    )


def test_a_full_batch_may_wait_behind_the_one_that_runs_and_no_third_one() -> None:
    story = encoder(replace(FREE, batch_texts_max=2)).when(texts("a"))
    assert batch_of(story).why == "free"
    story.when(texts("b", at=1)).then(a(d.RequestQueued), a(d.QueueBlocked, cause="slots"))
    story.when(texts("c", at=2))
    assert (batch_of(story).members, batch_of(story).why) == (("b", "c"), "full")
    assert batch_of(story).ahead == 1
    story.when(texts("d", at=3), texts("e", at=4))
    assert not [item for item in story.decisions if isinstance(item, BatchFormed)]
    story.when(embedded("a", at=5))
    assert batch_of(story).members == ("d", "e")


def test_with_no_batch_allowed_ahead_a_full_one_waits_in_the_cell() -> None:
    story = encoder(replace(FREE, batch_texts_max=2, batches_ahead_max=0)).when(texts("a"))
    story.when(texts("b"), texts("c"), texts("d")).then(
        a(d.RequestQueued), a(d.QueueBlocked, cause="slots"), a(d.RequestQueued), a(d.RequestQueued)
    )


def test_when_free_a_batch_forms_while_the_replica_is_busy_and_leaves_when_it_frees() -> None:
    story = encoder(FREE).when(texts("a"))
    assert not [item for item in story.decisions if isinstance(item, WindowOpened)]
    story.when(texts("b", at=1), texts("c", at=2), embedded("a", at=5))
    assert (batch_of(story).members, batch_of(story).why) == (("b", "c"), "free")


def test_without_a_replica_no_window_opens_and_the_cause_is_told() -> None:
    story = (
        given(policy=STILL, profile=ENCODER)
        .when(texts("a"))
        .then(a(d.RequestQueued), a(d.QueueBlocked, cause="no-replica"))
    )
    story.when(ready(at=10)).then(
        a(d.ReplicaAdmitted), a(WindowOpened, due_us=us(150)), a(d.QueueBlocked, cause="window")
    )
    story.when(draining(at=20)).then(a(d.QueueBlocked, cause="no-replica"))
    assert story.state.windows == []


def test_a_lost_replica_s_batch_runs_again_on_another() -> None:
    story = encoder(FREE).when(texts("a"), texts("b"))
    story.when(ready(1, at=10, life="L9"))
    assert batch_of(story).members == ("b",)
    story.when(*(heartbeat(1, at=at, life="L9") for at in (1000, 2000, 2900)))
    story.when(heartbeat(1, at=3001, life="L9"), tick(3101))
    assert not [item for item in story.decisions if isinstance(item, BatchFormed)]
    assert story.state.requests["a"].stage == "waiting"


# Who rides together


def test_the_head_rides_with_those_whose_length_costs_little_padding() -> None:
    story = encoder(replace(STILL, batch_padding_pct_max=25))
    story.when(texts("a", 20), texts("long", 200), texts("b", 18), texts("c", 16), tick(150))
    formed = [item for item in story.decisions if isinstance(item, BatchFormed)]
    assert [item.members for item in formed] == [("a", "b", "c")]
    assert (formed[0].passed_over, formed[0].padding_pct) == (1, 10)  # 6 of 60
    story.when(embedded("a", "b", "c", at=200))
    assert batch_of(story).members == ("long",)


def test_two_replicas_take_the_short_and_the_long_ones_at_once() -> None:
    story = encoder().when(ready(1, life="L2", blocks=100))
    story.when(texts("a", 20), texts("long", 200), texts("b", 20), tick(150))
    formed = [item for item in story.decisions if isinstance(item, BatchFormed)]
    assert [(item.slot, item.members) for item in formed] == [(0, ("a", "b")), (1, ("long",))]


def test_a_batch_stays_within_the_memory_less_its_margin() -> None:
    # 10 blocks less 15% are 8: texts of 40 tokens take 3 blocks each.
    story = encoder(blocks=10).when(*(texts(name, 40) for name in "abc"), tick(150))
    formed = batch_of(story)
    assert (formed.members, formed.blocks, formed.blocks_allowed) == (("a", "b"), 6, 8)


def test_members_reserve_what_they_take_once_padded() -> None:
    story = encoder().when(texts("a", 30), texts("b", 40, 36), tick(150))
    assert batch_of(story).blocks == 9
    assert story.state.models["m"].replicas[0].running == {"a": 3, "b": 6}


def test_a_request_with_more_texts_than_a_batch_rides_alone_and_reserves_one_pass() -> None:
    story = encoder(replace(STILL, batch_texts_max=2)).when(texts("many", 16, 16, 16))
    formed = batch_of(story)
    assert (formed.why, formed.members, formed.texts, formed.blocks) == ("full", ("many",), 3, 2)


def test_texts_that_one_pass_can_never_hold_are_rejected_with_the_numbers() -> None:
    story = (
        encoder(blocks=10)
        .when(texts("big", 100, 100))
        .then(a(d.RequestEnded, outcome="rejected", reason="over-pool"))
    )
    (end,) = story.decisions
    assert isinstance(end, d.RequestEnded)
    # 7 blocks of 16 for each text; the pool of 160 tokens keeps 15% free.
    assert "224 tokens (2 texts padded to 100)" in end.detail
    assert "160" in end.detail
    assert "15%" in end.detail


def test_texts_that_came_before_the_replica_are_rejected_when_it_proves_too_small() -> None:
    story = given(texts("big", 100, 100), policy=FREE, profile=ENCODER).when(ready(blocks=10))
    end = story.decisions[-1]
    assert isinstance(end, d.RequestEnded)
    assert (end.outcome, end.reason) == ("rejected", "over-pool")
    assert "224 tokens" in end.detail


def test_a_batch_too_large_for_the_idle_replica_waits_for_the_larger_one() -> None:
    story = encoder(FREE, blocks=40).when(texts("first"))
    story.when(ready(1, life="L2", blocks=4))
    story.when(texts("wide", 100, 100, at=1)).then(
        a(d.RequestQueued),
        a(d.QueueBlocked, cause="kv", blocks_needed=14, blocks_free_max=3),
    )
    story.when(embedded("first", at=10))
    assert (batch_of(story).slot, batch_of(story).members) == (0, ("wide",))


# The door


def test_a_chat_to_an_encoder_and_texts_to_a_chat_model_are_the_wrong_kind() -> None:
    story = (
        encoder()
        .when(arrived("chat"))
        .then(a(d.RequestEnded, outcome="rejected", reason="wrong-kind"))
    )
    story.when(profile_is(replace(PROFILE, model="chatty")), texts("t", model="chatty"))
    end = story.decisions[-1]
    assert isinstance(end, d.RequestEnded)
    assert end.reason == "wrong-kind"
    assert "inference-request.v1" in end.detail


def test_a_text_beyond_the_context_is_refused_and_never_cut() -> None:
    encoder().when(texts("long", 5, 1001)).then(a(d.RequestEnded, reason="over-context"))


def test_the_same_id_again_adds_no_work() -> None:
    story = encoder().when(texts("a"), texts("a", at=1))
    assert isinstance(story.decisions[-1], d.DuplicateIgnored)
    story.when(tick(150))
    assert batch_of(story).texts == 1


# Tuning


def test_a_window_follows_the_load_within_its_bounds_and_says_by_which_numbers() -> None:
    tuned = replace(STILL, window_tunes=True, batch_texts_max=10, window_backlog_closes=None)
    story = encoder(tuned).when(texts("a"), texts("b", at=4)).when(tick(150))
    story.when(embedded("a", "b", at=160))
    # A text each 4 ms fills a batch of 10 in 40 ms.
    story.when(texts("c", at=164))
    (change,) = [item for item in story.decisions if isinstance(item, WindowTuned)]
    assert (change.old_ms, change.base_ms) == (150, 150)
    # The average of gaps: 4 ms, then one of 160 ms that counts a 32nd.
    assert change.gap_us == 4000 + (160_000 - 4000) // 32
    assert change.fill_us == 10 * change.gap_us
    assert change.new_ms == 89  # 88.75 rounded up
    opened = next(item for item in story.decisions if isinstance(item, WindowOpened))
    assert opened.due_us == us(164 + 89)


def test_a_window_is_never_shorter_than_the_work_and_never_beyond_its_bounds() -> None:
    tuned = replace(STILL, window_tunes=True, window_max_ms=60, window_backlog_closes=None)
    story = encoder(tuned).when(texts("a"), texts("b", at=1), tick(151))
    story.when(embedded("a", "b", at=251))
    story.when(texts("c", at=252))
    (change,) = [item for item in story.decisions if isinstance(item, WindowTuned)]
    assert (change.service_us, change.new_ms, change.max_ms) == (us(100), 60, 60)


def test_a_window_does_not_flap() -> None:
    tuned = replace(STILL, window_tunes=True, batch_texts_max=10, window_tune_pause_ms=1000)
    story = encoder(replace(tuned, window_backlog_closes=None))
    changes: list[tuple[int, int]] = []
    at = 0.0
    for number in range(400):
        # A text each 12 ms, give or take 4: the window of 120 ms is left alone.
        at += 12 + (4 if number % 2 else -4)
        story.when(texts(f"t-{number}", at=at))
        changes += [(item.old_ms, item.new_ms) for item in _tuned(story)]
        running = list(story.state.models["m"].replicas[0].running)
        if running:
            story.when(embedded(*running, at=at + 1))
            changes += [(item.old_ms, item.new_ms) for item in _tuned(story)]
    assert len(changes) <= 1, changes


def _tuned(story: Story) -> list[WindowTuned]:
    return [item for item in story.decisions if isinstance(item, WindowTuned)]


def test_a_new_base_in_the_policy_begins_the_tuning_again() -> None:
    tuned = replace(STILL, window_tunes=True, window_backlog_closes=None, batch_texts_max=4)
    story = encoder(tuned).when(texts("a"), texts("b", at=4), tick(150))
    story.when(embedded("a", "b", at=160), texts("c", at=164))
    assert _tuned(story)
    story.when(tick(300), embedded("c", at=310))
    story.when(policy_is(replace(tuned, version=2, window_ms=100), at=320), texts("d", at=330))
    (change,) = _tuned(story)
    assert (change.base_ms, change.old_ms) == (100, 100)


# Kinds that change


def test_a_model_that_becomes_one_shot_and_back_keeps_its_requests_and_its_books() -> None:
    story = given(ready(batch=4), policy=STILL)
    story.when(*(arrived(name, at=1) for name in "abcdef"), profile_is(ENCODER, at=2))
    assert story.state.models["m"].batching is not None
    assert story.state.models["m"].batching.texts_waiting == 2
    story.when(texts("t", at=3))
    story.when(profile_is(PROFILE, at=4))
    assert story.state.models["m"].batching is None
    assert story.state.windows == []


def test_a_full_batch_looks_at_no_more_than_fits() -> None:
    story = encoder(replace(FREE, batch_texts_max=2, batches_ahead_max=0)).when(texts("first"))
    story.when(*(texts(name, at=1) for name in "abcd"), embedded("first", at=5))
    assert (batch_of(story).members, batch_of(story).passed_over) == (("a", "b"), 0)


def test_a_state_that_was_stored_amid_windows_and_batches_goes_on_as_the_one_that_was_not() -> None:
    story = encoder(replace(STILL, window_backlog_closes=None))
    story.when(texts("a"), texts("b"), tick(150), texts("c", at=160, deadline=900, tier="normal"))
    again = thaw(b"".join(encode_pieces(freeze(story.state))))
    assert again.windows == story.state.windows
    for fact in (embedded("a", "b", at=230), texts("d", at=240), tick(310), tick(400)):
        assert step(again.policy, again, fact) == story.when(fact).decisions
    assert state_digest(again) == state_digest(story.state)
