"""Who leaves for whom, after the current iteration, and how it comes back with its tokens."""

from schemas import decisions as d
from schemas.policy import Override
from schemas.room import Preemption
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    asked,
    cancel,
    dispatched,
    draining,
    failed,
    finished,
    given,
    left,
    progressed,
    ready,
    stopped,
    tick,
    with_policy,
)

QUEUED = a(d.RequestQueued)


def four_batch_jobs() -> Story:
    """Four places, taken by four batch jobs that have generated 40, 30, 20 and 10 tokens."""
    jobs = [arrived(f"b{n}", tier="batch", output=64) for n in range(4)]
    story = given(ready(blocks=100), *jobs)
    return story.when(*[progressed(f"b{n}", at=1, output=40 - 10 * n) for n in range(4)])


def test_the_one_with_the_least_work_to_do_again_leaves_for_a_higher_tier() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"))
    story.then(QUEUED, a(d.LeaveAsked, id="b3", cause="preempted"), a(d.QueueBlocked, head="r"))
    leave = story.decisions[1]
    assert isinstance(leave, d.LeaveAsked)
    assert leave.preemption == Preemption(
        for_id="r",
        for_tier="realtime",
        lacks="slots",
        blocks_needed=2,
        blocks_free=80,  # of 100, less four times five: 16 + 64 tokens
        slots_free=0,
        tier="batch",
        blocks=5,
        tokens_lost=26,  # 16 of the prompt, 10 of the output
        preemptions=0,
        candidates=4,
        leaving=1,
    )
    story.when(left("b3", at=3, cause="preempted", output=11)).then(
        a(d.RequestPreempted, id="b3", attempt=1, output_tokens=11, preemptions=1),
        a(d.RequestDispatched, id="r", waits=(("slots", 1000),)),
    )
    story.when(finished("r", at=4)).then(
        a(d.RequestEnded, id="r"),
        a(
            d.RequestDispatched,
            id="b3",
            attempt=2,
            resume_tokens=11,
            resume_offset=600,
            waits=(("slots", 1000),),
        ),
    )


def test_nobody_leaves_for_one_of_the_same_or_a_lower_tier() -> None:
    story = given(ready(batch=1), arrived("c", tier="critical"))
    story.when(arrived("n", tier="normal"), arrived("c2", tier="critical"))
    assert asked(story) == []


def test_nobody_leaves_while_there_is_room() -> None:
    story = given(ready(batch=2), arrived("b", tier="batch"))
    story.when(arrived("r", tier="realtime")).then(QUEUED, a(d.RequestDispatched, id="r"))


def test_the_lowest_tier_leaves_first_whatever_it_has_done() -> None:
    story = given(ready(batch=2), arrived("n"), arrived("b", tier="batch"))
    story.when(progressed("b", output=16), arrived("r", tier="realtime"))
    assert asked(story) == ["b"]


def test_of_two_alike_the_younger_one_leaves() -> None:
    story = given(ready(batch=2), arrived("b0", tier="batch"), arrived("b1", tier="batch"))
    assert asked(story.when(arrived("r", tier="realtime"))) == ["b1"]


def test_no_more_leave_than_are_needed() -> None:
    sizes = {"b0": 16, "b1": 48, "b2": 80}  # 2, 4 and 6 blocks of 12
    jobs = [arrived(name, tier="batch", output=size) for name, size in sizes.items()]
    story = given(ready(blocks=12), *jobs)
    story.when(progressed("b0", output=3), progressed("b1", output=2), progressed("b2", output=1))
    # The cheapest is b2, and 6 blocks are enough.
    assert asked(story.when(arrived("r", tier="realtime", prompt=32, output=64))) == ["b2"]


def test_what_a_cheaper_one_gives_in_vain_is_not_asked_for() -> None:
    story = given(
        ready(blocks=12),
        arrived("small", tier="batch", prompt=1, output=15),  # 1 block
        arrived("large", tier="batch", prompt=16, output=144),  # 10 blocks
    )
    # 1 block is free; the small one would leave first, but the large one is needed anyhow.
    assert asked(story.when(arrived("r", tier="realtime", output=100))) == ["large"]


def test_one_that_is_enough_leaves_rather_than_several_that_cost_more() -> None:
    story = given(
        ready(blocks=10),
        arrived("b0", tier="batch", prompt=20, output=40),  # 4 blocks, 20 to do again
        arrived("b1", tier="batch", prompt=20, output=12),  # 2 blocks, 20
        arrived("b2", tier="batch", prompt=30, output=30),  # 4 blocks, 30
    )
    assert asked(story.when(arrived("r", tier="realtime", prompt=30, output=34))) == ["b0"]


def test_several_leave_when_one_is_not_enough() -> None:
    story = four_batch_jobs()
    story.when(finished("b0", at=2), finished("b1", at=2))  # 90 of 100 blocks are free
    story.when(arrived("n", at=3, prompt=100, output=860))  # it takes 60
    story.when(arrived("r", at=4, tier="realtime", prompt=16, output=544))  # it needs 35 of 30
    assert asked(story) == ["b3"]
    story = given(ready(blocks=20), *[arrived(f"b{n}", tier="batch", output=64) for n in range(4)])
    story.when(arrived("r", tier="realtime", prompt=16, output=128))  # 9 blocks: two of five each
    assert asked(story) == ["b3", "b2"]
    leaves = [item.preemption for item in story.decisions if isinstance(item, d.LeaveAsked)]
    assert [item and item.leaving for item in leaves] == [2, 1]
    story.when(left("b3", at=1, cause="preempted"))
    assert dispatched(story) == []
    assert dispatched(story.when(left("b2", at=2, cause="preempted"))) == ["r"]


def test_each_of_several_high_requests_gets_a_place() -> None:
    story = four_batch_jobs()
    story.when(arrived("r0", tier="realtime"), arrived("r1", tier="realtime"))
    assert asked(story) == ["b3", "b2"]


def test_the_replica_where_the_least_is_lost_is_chosen() -> None:
    story = given(
        ready(0, batch=1),
        ready(1, batch=1),
        arrived("b0", tier="batch"),
        arrived("b1", tier="batch"),
        progressed("b1", slot=1, output=3),
        progressed("b0", slot=0, output=9),
    )
    story.when(arrived("r", tier="realtime"))
    assert asked(story) == ["b1"]


def test_a_replica_too_small_for_it_is_left_alone() -> None:
    story = given(
        ready(0, blocks=5, batch=1),
        ready(1, blocks=20, batch=1),
        arrived("b0", tier="batch"),
        arrived("b1", tier="batch"),
        progressed("b1", slot=1, output=9),
    )
    assert asked(story.when(arrived("r", tier="realtime", output=128))) == ["b1"]


def test_nobody_leaves_in_vain() -> None:
    story = given(
        ready(blocks=10),
        arrived("r0", tier="realtime", output=112),  # 8 blocks, and stays
        arrived("b", tier="batch"),
    )
    assert asked(story.when(arrived("r1", tier="realtime", output=48))) == []  # 4 of 2 blocks


def test_work_that_is_not_marked_preemptible_stays() -> None:
    keep = Override(tenant="paid", tier="batch", key="preemptible", value=False)
    story = given(
        ready(batch=2),
        arrived("b0", tier="batch", tenant="paid"),
        arrived("b1", tier="batch", tenant="other"),
        policy=with_policy(overrides=(keep,)),
    )
    assert [story.state.requests[key].preemptible for key in ("b0", "b1")] == [False, True]
    assert asked(story.when(arrived("r0", tier="realtime"))) == ["b1"]
    assert asked(story.when(arrived("r1", tier="realtime"))) == []


def test_a_request_leaves_only_so_often() -> None:
    story = given(ready(batch=1), arrived("b", tier="batch"), policy=with_policy(preemptions_max=2))
    for n in range(2):
        assert asked(story.when(arrived(f"r{n}", tier="realtime"))) == ["b"]
        story.when(left("b", attempt=n + 1, cause="preempted"), finished(f"r{n}"))
    assert asked(story.when(arrived("r2", tier="realtime"))) == []
    assert story.state.requests["b"].preemptions == 2
    assert dispatched(story.when(finished("b", attempt=3))) == ["r2"]


def test_the_room_is_kept_for_whom_it_was_asked() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"), arrived("b9", tier="batch"))
    # One of the others finishes first: its place goes to r, and then b3's to the batch tier.
    story.when(finished("b0", at=3))
    assert dispatched(story) == ["r"]
    story.when(left("b3", at=4, cause="preempted"))
    assert dispatched(story) == ["b3"]  # ahead of the younger b9


def test_a_small_one_of_the_same_tier_does_not_take_what_was_asked_for_a_large_one() -> None:
    story = given(
        ready(blocks=10),
        arrived("b0", tier="batch", output=64),  # 5 blocks
        arrived("b1", tier="batch", output=64),  # 5 blocks
    )
    story.when(arrived("large", output=128))  # 9 blocks
    assert asked(story) == ["b1", "b0"]
    story.when(arrived("small", at=1), left("b1", at=2, cause="preempted"))
    assert dispatched(story) == []
    assert dispatched(story.when(left("b0", at=3, cause="preempted"))) == ["large"]


def test_a_still_higher_one_goes_first_and_more_are_asked_for_the_one_that_waited() -> None:
    story = four_batch_jobs().when(arrived("n", at=2))
    assert asked(story) == ["b3"]
    # The room that b3 leaves goes to the realtime request, and b2 is asked for n.
    story.when(arrived("r", at=3, tier="realtime"))
    assert asked(story) == []
    story.when(left("b3", at=4, cause="preempted"))
    assert dispatched(story) == ["r"]
    assert asked(story) == ["b2"]
    assert dispatched(story.when(left("b2", at=5, cause="preempted"))) == ["n"]


def test_the_one_that_left_returns_when_its_beneficiary_is_cancelled() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"))
    story.when(cancel("r", at=3)).then(a(d.RequestEnded, id="r"))
    story.when(left("b3", at=4, cause="preempted")).then(
        a(d.RequestPreempted, id="b3"),
        a(d.RequestDispatched, id="b3", attempt=2, resume_tokens=5, waits=()),
    )
    assert story.state.models["m"].claims == {}


def test_the_one_that_left_returns_when_its_beneficiary_expires() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime", deadline=5))
    story.when(tick(7)).then(a(d.RequestEnded, id="r", outcome="expired"))
    story.when(left("b3", at=8, cause="preempted"))
    assert dispatched(story) == ["b3"]


def test_a_finish_before_the_leave_arrives_gives_the_room_as_well() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"))
    story.when(finished("b3", at=3)).then(
        a(d.RequestEnded, id="b3", outcome="completed"), a(d.RequestDispatched, id="r")
    )
    story.when(left("b3", at=4, cause="preempted")).then_nothing()


def test_a_cancel_while_it_leaves_outranks_the_preemption() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"))
    story.when(cancel("b3", at=3)).then(a(d.LeaveAsked, id="b3", cause="cancelled"))
    story.when(left("b3", at=4, cause="preempted", output=11)).then(
        a(d.RequestEnded, id="b3", outcome="cancelled", output_offset=600),
        a(d.RequestDispatched, id="r"),
    )


def test_one_that_leaves_for_a_cancel_is_not_asked_again() -> None:
    story = given(ready(batch=1), arrived("b", tier="batch"), cancel("b"))
    # Its place comes free anyhow.
    assert asked(story.when(arrived("r", tier="realtime"))) == []


def test_a_replica_lost_with_one_that_leaves_is_a_loss_as_any_other() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"))
    story.when(stopped(at=3))
    lost = [item for item in story.decisions if isinstance(item, d.AttemptLost)]
    assert [(item.id, item.losses) for item in lost] == [(f"b{n}", 1) for n in range(4)]
    assert story.state.models["m"].claims == {}
    assert dispatched(story.when(ready(at=4, life="L2"))) == ["r"]


def test_a_draining_replica_keeps_no_room() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"), draining(at=3))
    story.when(left("b3", at=4, cause="preempted")).then(a(d.RequestPreempted, id="b3"))
    story.when(ready(1, at=5))
    assert dispatched(story) == ["r", "b3"]


def test_tokens_kept_survive_the_loss_of_a_later_attempt() -> None:
    story = given(ready(), arrived("b", output=64))
    story.when(left("b", at=1, cause="preempted", output=20))
    story.when(progressed("b", at=2, attempt=2, output=30), failed("b", at=3, attempt=2))
    assert story.state.requests["b"].output_tokens == 20
    story.when(tick(103))
    story.then(
        a(d.RequestReturned), a(d.RequestDispatched, attempt=3, resume_tokens=20, resume_offset=600)
    )


def test_usage_counts_all_attempts_whose_tokens_were_kept() -> None:
    story = given(ready(), arrived("b", at=2, sent=0, output=64))
    story.when(left("b", at=12, cause="preempted", output=20))
    story.when(finished("b", at=22, attempt=2)).then(
        a(d.RequestEnded, ttft_us=5000, wait_us=2000, run_us=20_000, e2e_us=22_000)
    )
    end = story.decisions[0]
    assert isinstance(end, d.RequestEnded)
    assert end.usage is not None
    assert end.usage.first_token_us == 3000
    assert end.usage.decode_us == 2000
    assert end.usage.prefill_us == 6000


def test_the_first_token_may_come_in_a_later_attempt() -> None:
    story = given(ready(), arrived("b", at=2, sent=0))
    story.when(left("b", at=12, cause="preempted", output=0, first_token_ms=None)).then(
        a(d.RequestPreempted, output_tokens=0, output_offset=-1),
        a(d.RequestDispatched, resume_tokens=0, resume_offset=-1),
    )
    story.when(finished("b", at=22, attempt=2)).then(a(d.RequestEnded, ttft_us=15_000))


def test_a_departure_with_fewer_tokens_than_are_kept_takes_none_away() -> None:
    story = given(ready(), arrived("b", output=64), left("b", cause="preempted", output=20))
    story.when(left("b", at=1, attempt=2, cause="preempted", output=0, offset=700)).then(
        a(d.RequestPreempted, output_tokens=20, output_offset=600), a(d.RequestDispatched)
    )


def test_one_cancelled_after_it_left_ends_with_its_tokens() -> None:
    story = four_batch_jobs().when(arrived("r", at=2, tier="realtime"))
    story.when(left("b3", at=3, cause="preempted", output=11), cancel("b3", at=4))
    end = story.decisions[-1]
    assert isinstance(end, d.RequestEnded)
    assert (end.outcome, end.output_offset) == ("cancelled", 600)
    assert end.detail == "cancelled while waiting, with 11 tokens generated"
    assert end.usage is not None
    assert end.usage.output_tokens == 11


def test_one_that_has_started_does_not_expire_when_it_has_to_wait_again() -> None:
    story = given(ready(batch=1), arrived("b", tier="batch", deadline=10))
    story.when(arrived("r", at=1, tier="realtime"), left("b", at=2, cause="preempted"))
    story.when(tick(50)).then_nothing()
    assert dispatched(story.when(finished("r", at=60))) == ["b"]


def test_one_whose_room_is_under_way_is_tried_however_few_are_looked_at() -> None:
    story = given(
        ready(batch=1), arrived("b", tier="batch"), policy=with_policy(look_ahead_requests=1)
    )
    assert asked(story.when(arrived("n"))) == ["b"]
    # Only the realtime one is looked at, and its room is on its way too.
    assert asked(story.when(arrived("r", tier="realtime"))) == []
    assert dispatched(story.when(left("b", cause="preempted"))) == ["r"]
    assert dispatched(story.when(finished("r"))) == ["n"]


def test_work_that_may_not_be_preempted_leaves_when_it_is_cancelled() -> None:
    story = given(ready(), arrived("a"), policy=with_policy(preemptible=False))
    story.when(cancel("a")).then(a(d.LeaveAsked, cause="cancelled", preemption=None))
    story.when(left("a")).then(a(d.RequestEnded, outcome="cancelled"))


def test_nobody_leaves_for_a_tenant_that_has_as_many_running_as_it_may() -> None:
    story = given(
        ready(batch=2),
        arrived("x", tier="batch", tenant="x"),
        arrived("y", tier="batch", tenant="y"),
        policy=with_policy(quota_running_requests=1),
    )
    assert asked(story.when(arrived("x2", tier="realtime", tenant="x"))) == []
    assert asked(story.when(arrived("z", tier="realtime", tenant="z"))) == ["y"]


def test_one_that_runs_because_it_waited_past_its_cap_stays() -> None:
    policy = with_policy(starvation_cap_ms=10)
    story = given(ready(batch=1), arrived("r0", tier="realtime"), policy=policy)
    story.when(arrived("b", at=1, tier="batch"), arrived("r1", at=2, tier="realtime"))
    assert dispatched(story.when(finished("r0", at=12))) == ["b"]
    assert asked(story) == []
    assert not any(story.state.models["m"].yielding)
