"""What workers report of attempts: ends, losses, retries, and reports that come too late."""

from dataclasses import replace

from schemas import decisions as d
from schemas import facts as f
from tests.spec.scheduler_story import (
    a,
    arrived,
    failed,
    finished,
    given,
    left,
    policy_is,
    ready,
    started,
    stopped,
    tick,
    usage,
    with_policy,
)


def test_a_finished_request_is_completed_with_all_its_numbers() -> None:
    asked = arrived("a", at=10, sent=8, tier="critical", tenant="t", metadata=(("k", "v"),))
    story = given(ready(), asked, started("a", at=11))
    story.when(finished("a", at=31, offset=500)).then(a(d.RequestEnded))
    assert story.decisions[0] == d.RequestEnded(
        id="a",
        model="m",
        tenant="t",
        tier="critical",
        outcome="completed",
        reason="stop",
        detail="generated 12 tokens and stopped by itself",
        attempts=1,
        slot=0,
        arrived_us=8000,
        wait_us=2000,
        waits=(("transit", 2000),),
        run_us=21_000,
        e2e_us=23_000,
        ttft_us=5000,  # 2 ms on the way, and 3 ms in the worker
        usage=usage(),
        prompt_tokens=16,
        max_output_tokens=16,
        blocks=2,
        request_offset=7,
        output_offset=500,
        body_digest="b0",
        output_digest="0d",
        metadata=(("k", "v"),),
        cost=16 + 4 * 12,
        retry_after_ms=None,
        keep_until_us=31_000 + 600_000_000,
    )


def test_a_request_that_ran_into_its_limit_says_so() -> None:
    given(ready(), arrived("a")).when(finished("a", reason="length")).then(
        a(d.RequestEnded, reason="length", detail="generated 12 tokens, its limit")
    )


def test_one_report_ends_several_requests_in_its_order() -> None:
    story = given(ready(), arrived("a"), arrived("b"), arrived("c"))
    story.when(finished("c", "a")).then(a(d.RequestEnded, id="c"), a(d.RequestEnded, id="a"))
    assert list(story.state.models["m"].replicas[0].running) == ["b"]


def test_an_item_that_a_report_names_twice_counts_once() -> None:
    story = given(ready(), arrived("a"))
    story.when(finished("a", "a")).then(a(d.RequestEnded, id="a"))


def test_of_two_items_about_one_attempt_the_first_counts() -> None:
    story = given(ready(), arrived("a"))
    first, second = finished("a", reason="length"), finished("a", reason="stop")
    story.when(replace(first, items=first.items + second.items)).then(
        a(d.RequestEnded, reason="length")
    )


def test_freed_blocks_go_to_the_next_request_in_the_same_step() -> None:
    story = given(ready(blocks=2), arrived("a"), arrived("b"))
    story.when(finished("a", at=5)).then(
        a(d.RequestEnded, id="a"),
        a(d.RequestDispatched, id="b", waits=(("kv", 5000),), blocks_free=2, running=0),
    )


def test_a_late_finish_is_ignored() -> None:
    story = given(ready(), arrived("a"), finished("a"))
    story.when(finished("a")).then_nothing()
    story.when(finished("never seen")).then_nothing()


def test_a_finish_of_a_waiting_request_is_ignored() -> None:
    given(ready(batch=1), arrived("a"), arrived("b")).when(finished("b")).then_nothing()


def test_a_report_of_an_older_attempt_changes_nothing() -> None:
    story = given(ready(), arrived("a"), failed("a"), tick(100))
    assert story.state.requests["a"].attempt == 2
    story.when(finished("a", at=101, attempt=1)).then_nothing()
    story.when(failed("a", at=101, attempt=1)).then_nothing()
    story.when(left("a", at=101, attempt=1)).then_nothing()
    story.when(finished("a", at=102, attempt=2)).then(a(d.RequestEnded, attempts=2))


def test_a_report_from_another_slot_changes_nothing() -> None:
    story = given(ready(0), ready(1), arrived("a"))
    story.when(finished("a", slot=1)).then_nothing()


def test_a_report_under_another_model_changes_nothing() -> None:
    story = given(ready(), arrived("a"))
    other = replace(story.state.models["m"].profile, model="other")
    story.when(f.ProfileSet(at_us=0, profile=other), ready(model="other"))
    story.when(finished("a", model="other")).then_nothing()


def test_a_fault_that_another_replica_could_mend_is_tried_again() -> None:
    story = given(ready(), arrived("a", at=1))
    story.when(failed("a", at=3)).then(
        a(
            d.AttemptLost,
            id="a",
            attempt=1,
            slot=0,
            why="out of memory",
            losses=1,
            backoff_ms=100,
            retry_at_us=103_000,
        )
    )
    assert story.state.models["m"].replicas[0].blocks_used == 0


def test_a_fault_that_no_replica_could_mend_ends_the_request() -> None:
    story = given(ready(), arrived("a", at=1))
    story.when(failed("a", at=3, retryable=False)).then(
        a(
            d.RequestEnded,
            outcome="failed",
            reason="worker-error",
            detail="out of memory",
            run_us=2000,
            usage=None,
            ttft_us=None,
            output_digest=None,
        )
    )


def test_each_pause_is_used_and_the_fourth_loss_is_the_end() -> None:
    story = given(ready(), arrived("a"))
    story.when(failed("a", at=10)).then(a(d.AttemptLost, losses=1, backoff_ms=100))
    story.when(tick(110)).then(a(d.RequestReturned), a(d.RequestDispatched, attempt=2))
    story.when(failed("a", at=120, attempt=2)).then(a(d.AttemptLost, losses=2, backoff_ms=200))
    story.when(tick(320)).then(a(d.RequestReturned), a(d.RequestDispatched, attempt=3))
    story.when(failed("a", at=330, attempt=3)).then(a(d.AttemptLost, losses=3, backoff_ms=400))
    story.when(tick(730)).then(a(d.RequestReturned), a(d.RequestDispatched, attempt=4))
    story.when(failed("a", at=740, attempt=4)).then(
        a(
            d.RequestEnded,
            outcome="failed",
            reason="attempts-exhausted",
            detail="lost all 4 attempts; the last one: out of memory",
            attempts=4,
            wait_us=700_000,
            waits=(("backoff", 700_000),),
            run_us=40_000,
            e2e_us=740_000,
        )
    )


def test_with_more_attempts_the_pauses_are_100_200_400_and_400_again() -> None:
    story = given(ready(), arrived("a"), policy=with_policy(attempts_max=9))
    pauses_ms: list[int] = []
    at = 0
    for attempt in range(1, 6):
        story.when(failed("a", at=at, attempt=attempt))
        lost = story.decisions[0]
        assert isinstance(lost, d.AttemptLost)
        pauses_ms.append(lost.backoff_ms)
        at += lost.backoff_ms
        story.when(tick(at)).then(a(d.RequestReturned), a(d.RequestDispatched))
    assert pauses_ms == [100, 200, 400, 400, 400]


def test_a_policy_with_fewer_attempts_counts_from_the_next_loss_on() -> None:
    story = given(ready(), arrived("a"), failed("a"), tick(100))
    story.when(policy_is(with_policy(attempts_max=1), at=100)).then_nothing()
    story.when(failed("a", at=101, attempt=2)).then(
        a(
            d.RequestEnded,
            reason="attempts-exhausted",
            detail="lost all 2 attempts; the last one: out of memory",
        )
    )


def test_a_preempted_request_returns_at_once_and_has_lost_nothing() -> None:
    story = given(ready(batch=1), arrived("a", at=1), arrived("b", at=2))
    story.when(left("a", at=4, cause="preempted")).then(
        a(d.RequestPreempted, id="a", attempt=1, slot=0, output_tokens=5, output_offset=600),
        # It came back ahead of the younger one, and a wait of nothing has no cause.
        a(d.RequestDispatched, id="a", attempt=2, wait_us=0, waits=()),
    )


def test_preemptions_do_not_use_up_the_attempts() -> None:
    story = given(ready(), arrived("a"))
    for attempt in range(1, 6):
        story.when(left("a", attempt=attempt, cause="preempted")).then(
            a(d.RequestPreempted, preemptions=attempt), a(d.RequestDispatched)
        )
    story.when(finished("a", attempt=6)).then(a(d.RequestEnded, attempts=6))


def test_a_preempted_request_goes_on_even_if_the_policy_now_allows_no_more_losses() -> None:
    story = given(ready(), arrived("a"), failed("a"), tick(100))
    story.when(policy_is(with_policy(attempts_max=1), at=100))
    story.when(left("a", at=101, attempt=2, cause="preempted")).then(
        a(d.RequestPreempted), a(d.RequestDispatched)
    )


def test_a_departure_that_was_not_asked_for_ends_the_request_as_cancelled() -> None:
    given(ready(), arrived("a")).when(left("a")).then(a(d.RequestEnded, outcome="cancelled"))


def test_every_attempt_of_a_request_has_the_same_seed() -> None:
    story = given(ready()).when(arrived("a"))
    # CRC-32 of the one byte "a", as any other program computes it.
    story.then(a(d.RequestQueued), a(d.RequestDispatched, seed=0xE8B7BE43, attempt=1))
    story.when(failed("a"), tick(100))
    story.then(
        a(d.AttemptLost), a(d.RequestReturned), a(d.RequestDispatched, seed=0xE8B7BE43, attempt=2)
    )


def test_time_to_first_token_counts_the_runs_that_were_lost() -> None:
    story = given(ready(), arrived("a", at=2, sent=0), failed("a", at=12), tick(112))
    # 2 ms transit, 10 ms lost run, 100 ms back-off, 3 ms in the worker.
    story.when(finished("a", at=120, attempt=2)).then(
        a(d.RequestEnded, ttft_us=115_000, wait_us=102_000, run_us=18_000, e2e_us=120_000)
    )


def test_a_finish_without_a_first_token_has_no_time_to_it() -> None:
    story = given(ready(), arrived("a"))
    item = f.WorkDone(
        id="a",
        attempt=1,
        finish_reason="stop",
        usage=usage(output=0, first_token_ms=None),
        output_digest="0d",
    )
    fact = finished(at=1)
    story.when(replace(fact, items=(item,))).then(a(d.RequestEnded, ttft_us=None))


def test_the_replica_that_took_the_slot_keeps_its_blocks_when_an_old_attempt_ends() -> None:
    story = given(ready(), arrived("a"), stopped(), ready(life="L2"), arrived("b"))
    story.when(finished("a", life="L2")).then_nothing()
    assert story.state.models["m"].replicas[0].running == {"b": 2}
