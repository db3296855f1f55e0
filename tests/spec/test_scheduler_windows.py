"""The batch windows of one-shot models: when they open and close, and on which replica."""

from dataclasses import replace
from typing import Any

import pytest

from schemas import decisions as d
from schemas.batches import BatchFormed, BatchPlace, WindowOpened
from schemas.policy import Override
from services.scheduler.step import next_due_us
from tests.spec.oneshot_story import ENCODER, FREE, STILL, batch_of, embedded, encoder, texts
from tests.spec.scheduler_story import (
    a,
    cancel,
    draining,
    given,
    heartbeat,
    policy_is,
    ready,
    tick,
    us,
)

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
