"""Every microsecond of a wait has a cause, and time alone makes the right things due."""

from schemas import decisions as d
from schemas import facts as f
from services.scheduler.step import next_due_us
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    cancel,
    draining,
    failed,
    finished,
    given,
    policy_is,
    ready,
    starting,
    stopped,
    tick,
    with_policy,
)


def due_ms(story: Story) -> float | None:
    due_us = next_due_us(story.state.policy, story.state)
    return None if due_us is None else due_us / 1000


def test_one_wait_through_every_cause() -> None:
    story = given(
        arrived("a", at=10, sent=7, prompt=64, output=64),  # 3 ms on the way; 8 blocks
        starting(at=14),  # 4 ms without a replica
        ready(at=19),  # 5 ms of cold start; runs at once
        failed("a", at=25),  # 6 ms of run
        arrived("x", at=30, prompt=64, output=64),  # takes the replica
        tick(125),  # 100 ms of back-off; then the KV pool is full
    )
    story.when(arrived("y", at=126, prompt=1, output=1, tier="realtime")).then(
        a(d.RequestQueued), a(d.RequestDispatched, id="y")
    )
    story.when(arrived("z1", at=127, prompt=1, output=1, tier="realtime")).then(
        a(d.RequestQueued), a(d.RequestDispatched, id="z1", blocks_free=1)
    )
    story.when(policy_is(with_policy(look_ahead_requests=1), at=128)).then_nothing()
    # The pool is full to the last block; "a" waits for KV from 125 on.
    story.when(finished("x", at=165)).then(
        a(d.RequestEnded, id="x"),
        a(
            d.RequestDispatched,
            id="a",
            attempt=2,
            wait_us=152_000,
            waits=(
                ("transit", 3000),
                ("kv", 40_000),
                ("no-replica", 4000),
                ("cold-start", 5000),
                ("backoff", 100_000),
            ),
        ),
    )
    story.when(finished("a", at=170, attempt=2)).then(
        a(d.RequestEnded, wait_us=152_000, run_us=11_000, e2e_us=163_000)
    )


def test_full_batches_are_another_cause_than_a_full_pool() -> None:
    story = given(ready(batch=1), arrived("a", at=1), arrived("b", at=2))
    story.when(finished("a", at=9)).then(
        a(d.RequestEnded), a(d.RequestDispatched, id="b", waits=(("slots", 7000),))
    )


def test_the_cause_is_on_record_when_it_changes_and_only_then() -> None:
    story = given(ready(batch=1), arrived("a"))
    story.when(arrived("b", at=1)).then(a(d.RequestQueued), a(d.QueueBlocked, cause="slots"))
    story.when(arrived("c", at=2)).then(a(d.RequestQueued))
    story.when(draining(at=3)).then(
        a(d.QueueBlocked, cause="no-replica", head="b", waiting=2, replicas_ready=0)
    )
    story.when(starting(1, at=5)).then(a(d.QueueBlocked, cause="cold-start"))
    story.when(stopped(1, at=9)).then(a(d.QueueBlocked, cause="no-replica"))
    story.when(cancel("b", at=12)).then(
        a(
            d.RequestEnded,
            wait_us=11_000,
            waits=(("slots", 2000), ("no-replica", 5000), ("cold-start", 4000)),
        )
    )


def test_a_request_that_joins_later_waits_only_for_what_it_saw() -> None:
    story = given(arrived("a", at=0), starting(at=10), arrived("b", at=15), ready(at=20, batch=1))
    assert [item.id for item in story.decisions if isinstance(item, d.RequestDispatched)] == ["a"]
    story.when(finished("a", at=50)).then(
        a(d.RequestEnded, waits=(("no-replica", 10_000), ("cold-start", 10_000))),
        a(d.RequestDispatched, id="b", waits=(("slots", 30_000), ("cold-start", 5000))),
    )


def test_an_empty_queue_has_no_cause() -> None:
    story = given(arrived("a"), cancel("a", at=5))
    assert story.state.models["m"].cause is None
    story.when(arrived("b", at=100)).then(a(d.RequestQueued), a(d.QueueBlocked))
    story.when(cancel("b", at=101)).then(a(d.RequestEnded, waits=(("no-replica", 1000),)))


def test_a_clock_that_goes_back_gives_no_negative_wait() -> None:
    story = given(ready(batch=1), arrived("a", at=100), arrived("b", at=50, sent=40))
    assert story.state.now_us == 100_000
    story.when(finished("a", at=60)).then(
        a(d.RequestEnded, run_us=0),
        a(d.RequestDispatched, id="b", wait_us=60_000, waits=(("transit", 60_000),)),
    )


# Deadlines


def test_a_waiting_request_expires_at_its_deadline_and_not_before() -> None:
    story = given(arrived("a", at=5, deadline=100))
    story.when(tick(104.999)).then_nothing()
    story.when(tick(105)).then(
        a(
            d.RequestEnded,
            outcome="expired",
            reason="deadline",
            detail="still waiting when its deadline of 100 ms came",
            wait_us=100_000,
            attempts=0,
            slot=None,
        )
    )


def test_a_request_that_started_in_time_does_not_expire() -> None:
    story = given(ready(), arrived("a", deadline=100))
    story.when(tick(500)).then_nothing()
    story.when(finished("a", at=600)).then(a(d.RequestEnded, outcome="completed"))


def test_a_request_whose_deadline_passes_in_back_off_expires() -> None:
    story = given(ready(), arrived("a", deadline=100), failed("a", at=50))
    assert due_ms(story) == 100
    story.when(tick(100)).then(
        a(
            d.RequestEnded,
            outcome="expired",
            attempts=1,
            slot=0,
            waits=(("backoff", 50_000),),
            run_us=50_000,
        )
    )


def test_a_request_that_returns_at_its_deadline_expires_and_is_not_dispatched() -> None:
    story = given(ready(), arrived("a", deadline=150), failed("a", at=50))
    story.when(tick(150)).then(
        a(d.RequestReturned), a(d.RequestEnded, outcome="expired", wait_us=100_000)
    )


def test_room_that_comes_at_the_deadline_comes_too_late() -> None:
    story = given(ready(batch=1), arrived("a"), arrived("b", deadline=100))
    story.when(finished("a", at=100)).then(
        a(d.RequestEnded, id="a", outcome="completed"),
        a(d.RequestEnded, id="b", outcome="expired"),
    )


def test_deadlines_come_in_their_own_order() -> None:
    story = given(arrived("late", deadline=90), arrived("soon", deadline=80))
    story.when(tick(200)).then(a(d.RequestEnded, id="soon"), a(d.RequestEnded, id="late"))


def test_an_id_that_is_used_again_does_not_inherit_its_old_deadline() -> None:
    story = given(
        ready(batch=2),
        arrived("runs", prompt=40, output=40),
        # It does not fit beside, and its deadline keeps that of "a" off the top of the heap.
        arrived("large", prompt=80, output=64, deadline=400),
        arrived("a", deadline=500),
        finished("a", at=1),
        arrived("b", at=5),
        policy=with_policy(dedupe_window_ms=1),
    )
    story.when(arrived("a", at=5)).then(a(d.RequestQueued, id="a", deadline_us=None))
    story.when(cancel("large", at=6)).then(a(d.RequestEnded))
    assert due_ms(story) == 6 + 1200
    story.when(tick(500)).then_nothing()


def test_far_deadlines_of_requests_that_are_over_are_forgotten() -> None:
    # One that waits with a near deadline keeps the dead ones from the top of the heap.
    story = given(ready(), draining(), ready(1, blocks=4))
    story.when(arrived("waits", prompt=80, output=80, deadline=1000))
    for number in range(1000):
        name = f"r{number}"
        story.when(arrived(name, deadline=600_000_000), finished(name, slot=1))
        assert len(story.state.deadlines) <= 64 + 2 * 2
    assert due_ms(story) == 1000


def test_many_preemptions_leave_no_heap_behind() -> None:
    story = given(ready(), arrived("first"), arrived("a", deadline=600_000_000), failed("first"))
    for attempt in range(1, 500):
        lost = f.WorkDeparture(id="a", attempt=attempt, cause="preempted", usage=USAGE)
        story.when(
            f.WorkLeft(at_us=0, model="m", slot=0, incarnation="L1", offset=1, items=(lost,))
        )
        assert len(story.state.deadlines) + len(story.state.retries) <= 2 * (64 + 2 * 2)


def test_many_cancelled_back_offs_leave_no_heap_behind() -> None:
    story = given(ready(), arrived("first"), failed("first"))
    for number in range(200):
        name = f"r{number}"
        story.when(arrived(name, at=1), failed(name, at=1), cancel(name, at=1))
        assert len(story.state.retries) <= 64 + 2 * 2
    story.when(tick(100)).then(a(d.RequestReturned, id="first"), a(d.RequestDispatched))


USAGE = f.Usage(prompt_tokens=1, output_tokens=1, queued_us=0, prefill_us=0, decode_us=0)


# What is due next


def test_nothing_is_due_where_nothing_waits_and_no_replica_is_known() -> None:
    assert due_ms(given()) is None
    assert due_ms(given(arrived("a"))) is None


def test_the_next_deadline_is_due() -> None:
    assert due_ms(given(arrived("a", at=5, deadline=100), arrived("b", deadline=90))) == 90


def test_the_deadline_of_a_running_request_is_not_due() -> None:
    story = given(ready(), arrived("a", deadline=100), policy=with_policy(replica_lost_ms=10_000))
    assert due_ms(story) == 4000


def test_the_next_return_is_due() -> None:
    assert due_ms(given(ready(), arrived("a"), failed("a", at=50))) == 150


def test_a_back_off_that_was_cancelled_is_not_due() -> None:
    story = given(ready(), arrived("a"), failed("a", at=50), cancel("a", at=60))
    assert due_ms(story) == 60 + 1200


def test_while_a_replica_is_known_the_cell_goes_on_listening() -> None:
    story = given(ready(at=100))
    assert due_ms(story) == 100 + 1200  # 0.4 of the 3,000 ms
    story.when(tick(1300))
    assert due_ms(story) == 2500
    story.when(tick(2500))
    assert due_ms(story) == 3100  # now it counts as lost
    story.when(tick(3100)).then(a(d.ReplicaLost))
    assert due_ms(story) is None
