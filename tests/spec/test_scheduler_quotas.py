"""What a tenant may have of a model, and what it is told when it asks for more."""

from dataclasses import replace
from typing import Any

from schemas import decisions as d
from schemas.policy import Override, Policy
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.step import step
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    cancel,
    failed,
    finished,
    given,
    left,
    policy_is,
    ready,
    tick,
    with_policy,
)


def quota(**values: int) -> Policy:
    """Return a policy with these quotas for the tenant "x"; all others have none."""
    return with_policy(
        overrides=tuple(
            Override(tenant="x", key=f"quota_{key}", value=value) for key, value in values.items()
        )
    )


def accepted(story: Story, **fields: Any) -> None:
    """Check that the last fact's request was let in, whatever became of it then."""
    a(d.RequestQueued, **fields).check(story.decisions[0])


def rejected(reason: str, **more: Any) -> Any:
    return a(d.RequestEnded, outcome="rejected", reason=reason, **more)


def test_waiting_requests_beyond_the_quota_are_rejected_with_when_to_come_back() -> None:
    story = given(
        arrived("x0", tenant="x"), arrived("x1", tenant="x"), policy=quota(queued_requests=2)
    )
    story.when(arrived("x2", tenant="x")).then(
        rejected(
            "quota-queued-requests",
            retry_after_ms=100,
            detail="2 requests of x for m wait already, its quota",
        )
    )
    accepted(story.when(arrived("y0", tenant="y")))


def test_waiting_tokens_beyond_the_quota_are_rejected() -> None:
    story = given(arrived("x0", tenant="x"), policy=quota(queued_tokens=63))
    story.when(arrived("x1", tenant="x")).then(
        rejected(
            "quota-queued-tokens",
            detail="it asks for 32 tokens beside the 32 of x that wait for m; the quota is 63",
        )
    )
    accepted(story.when(arrived("x2", tenant="x", output=15)))


def test_the_hints_grow_with_each_refusal_in_a_row_and_begin_anew_after_an_acceptance() -> None:
    story = given(arrived("x0", tenant="x"), policy=quota(queued_requests=1))
    for number, hint_ms in enumerate((100, 200, 400, 400)):
        story.when(arrived(f"no{number}", tenant="x")).then(
            rejected("quota-queued-requests", retry_after_ms=hint_ms)
        )
    story.when(cancel("x0"), arrived("x1", tenant="x"))
    story.when(arrived("no", tenant="x")).then(
        rejected("quota-queued-requests", retry_after_ms=100)
    )


def test_the_hint_is_no_shorter_than_a_request_takes_to_be_served() -> None:
    story = given(
        ready(batch=1, at=0),
        *[arrived(f"x{n}", tenant="x") for n in range(4)],
        policy=quota(queued_requests=1_000),
    )
    # The third is dispatched 900 ms after the second one, out of a backlog.
    story.when(finished("x0", at=900), finished("x1", at=1800))
    story.when(policy_is(quota(queued_requests=1), at=1801))
    story.when(arrived("no", tenant="x", at=1802)).then(
        rejected("quota-queued-requests", retry_after_ms=900)
    )


def test_a_refusal_that_will_pass_is_not_remembered_so_the_same_id_may_come_again() -> None:
    story = given(arrived("x0", tenant="x"), policy=quota(queued_requests=1))
    story.when(arrived("x1", tenant="x"), cancel("x0", at=1))
    accepted(story.when(arrived("x1", tenant="x", at=2)), id="x1")


# Running


def held(**more: Any) -> Story:
    """Return a story with one of x running, its quota, and one waiting since 10 ms."""
    story = given(ready(), arrived("x0", tenant="x"), policy=quota(running_requests=1), **more)
    return story.when(arrived("x1", tenant="x", at=10))


def test_a_tenant_with_as_many_running_as_it_may_is_held_back_and_the_others_go_on() -> None:
    story = held().then(
        a(d.RequestQueued),
        a(d.TenantHeld, tenant="x", running=1, running_max=1, head="x1"),
        a(d.QueueBlocked, cause="quota", head="x1"),
    )
    story.when(arrived("y0", tenant="y", at=11)).then(
        a(d.RequestQueued), a(d.RequestDispatched, id="y0")
    )
    story.when(finished("x0", at=30)).then(
        a(d.RequestEnded),
        a(d.RequestDispatched, id="x1", waits=(("quota", 20_000),)),
    )


def test_a_tenant_for_whose_request_others_left_is_held_back_once_and_told_so_once() -> None:
    story = given(ready(batch=2), policy=quota(running_requests=1))
    story.when(arrived("y0", tenant="y", tier="batch"), arrived("y1", tenant="y", tier="batch"))
    # Both may run as far as the quota goes, so one of y is asked to leave for each of them.
    story.when(arrived("x0", tenant="x", tier="realtime", at=1))
    story.then(a(d.RequestQueued), a(d.LeaveAsked), a(d.QueueBlocked))
    story.when(arrived("x1", tenant="x", tier="critical", at=2))
    story.then(a(d.RequestQueued), a(d.LeaveAsked))
    story.when(left("y1", at=3, cause="preempted"))
    story.then(a(d.RequestPreempted), a(d.RequestDispatched, id="x0"))
    story.when(left("y0", at=4, cause="preempted")).then(
        a(d.RequestPreempted),
        a(d.TenantHeld, head="x1"),
        # The room that was made does not stand empty meanwhile.
        a(d.RequestDispatched, id="y0"),
    )
    story.when(arrived("y2", tenant="y", tier="batch", at=5)).then(a(d.RequestQueued))
    story.when(finished("x0", at=6)).then(a(d.RequestEnded), a(d.RequestDispatched, id="x1"))


def test_a_tier_goes_next_for_one_that_was_held_back_past_its_cap_once_its_tenant_is_free() -> None:
    policy = replace(
        quota(running_requests=1),
        preemptible=False,
        starvation_cap_ms=100,
        starved_share_pct=100,
    )
    story = given(ready(batch=3), arrived("x0", tenant="x"), arrived("y0"), policy=policy)
    story.when(arrived("x1", tenant="x", tier="batch", at=1), arrived("z0", tenant="z", at=2))
    # One of its tier that is younger, and one of a tier above, which comes due later.
    story.when(arrived("z1", tenant="z", tier="batch", at=50))
    story.when(arrived("urgent", tier="realtime", at=60))
    story.when(finished("x0", at=120))
    dispatched = [one for one in story.decisions if isinstance(one, d.RequestDispatched)]
    # The tier goes next; within it the tenants take turns.
    assert [(one.tier, one.starved) for one in dispatched] == [("batch", True)]


def test_a_wait_in_which_the_tenant_was_held_back_for_a_while_adds_up() -> None:
    story = given(
        ready(batch=2),
        arrived("x0", tenant="x"),
        arrived("y0", tenant="y"),
        arrived("x1", tenant="x", at=5),  # the slots are full
        policy=quota(running_requests=1),
    )
    # From 20 ms on there is a slot, and its tenant may not have it.
    story.when(finished("y0", at=20)).then(
        a(d.RequestEnded), a(d.TenantHeld), a(d.QueueBlocked, cause="quota")
    )
    story.when(arrived("x2", tenant="x", at=22), arrived("y1", tenant="y", at=24))
    story.when(finished("x0", at=50)).then(
        a(d.RequestEnded),
        a(d.RequestDispatched, id="x1", waits=(("slots", 15_000), ("quota", 30_000))),
    )
    # It was held back already when it came, and then the slots were full.
    story.when(cancel("x2", at=60)).then(
        a(d.RequestEnded, waits=(("slots", 10_000), ("quota", 28_000)))
    )


def test_a_quota_that_grows_lets_them_run_at_once() -> None:
    story = held().when(policy_is(quota(running_requests=2), at=20))
    story.then(a(d.RequestDispatched, id="x1", waits=(("quota", 10_000),)))


def test_a_lost_attempt_gives_its_place_to_the_next() -> None:
    held().when(failed("x0", at=20)).then(a(d.AttemptLost), a(d.RequestDispatched, id="x1"))


def test_what_comes_while_its_tenant_is_held_back_waits_for_the_quota_too() -> None:
    story = held()
    accepted(story.when(arrived("xb", tenant="x", tier="batch", at=15)))
    story.when(cancel("xb", at=18)).then(a(d.RequestEnded, waits=(("quota", 3000),)))


def test_a_tenant_that_is_held_back_is_so_after_a_restart_too() -> None:
    story = held()
    again = thaw(b"".join(encode_pieces(freeze(story.state))))
    assert again.models == story.state.models
    assert step(again.policy, again, finished("x0", at=30)) == (
        story.when(finished("x0", at=30)).decisions
    )


# Tokens in a minute


def test_the_tokens_of_a_minute_are_taken_at_the_door_and_come_back_steadily() -> None:
    # 64 tokens a minute are two requests of 32; one of them comes back in 30 s.
    story = given(policy=quota(tokens_per_minute=64))
    accepted(story.when(arrived("x0", tenant="x")), quota_us=30_000_000)
    accepted(story.when(arrived("x1", tenant="x")))
    story.when(arrived("x2", tenant="x", at=1000)).then(
        rejected(
            "quota-tokens-per-minute",
            retry_after_ms=29_000,
            detail="it asks for 32 tokens, and x may use 64 a minute of m: there is room for them"
            " in 29000 ms",
        )
    )
    story.when(arrived("x2", tenant="x", at=29_999)).then(rejected("quota-tokens-per-minute"))
    accepted(story.when(arrived("x2", tenant="x", at=30_000)))


def test_what_was_not_used_comes_back_when_the_request_ends() -> None:
    story = given(ready(batch=1), policy=quota(tokens_per_minute=64))
    story.when(arrived("x0", tenant="x"), arrived("x1", tenant="x"))
    # It used 16 + 12 of its 32 tokens: 4 of them are 3.75 s. The other one used none.
    account = story.state.models["m"].accounts["x"]
    story.when(cancel("x1", at=1))
    assert account.minute_until_us == 30_000_000
    story.when(finished("x0", at=2))
    assert account.minute_until_us == 30_000_000 - 3_750_000


def test_an_idle_tenant_has_saved_up_no_more_than_its_minute() -> None:
    story = given(policy=quota(tokens_per_minute=64))
    story.when(tick(3_600_000))
    for number in range(2):
        accepted(story.when(arrived(f"x{number}", tenant="x", at=3_600_000)))
    story.when(arrived("x2", tenant="x", at=3_600_000)).then(rejected("quota-tokens-per-minute"))


def test_a_request_of_more_than_a_minutes_tokens_is_let_in_when_the_minute_is_whole() -> None:
    story = given(policy=quota(tokens_per_minute=16))
    accepted(story.when(arrived("x0", tenant="x")))
    story.when(arrived("x1", tenant="x", prompt=1, output=1)).then(
        rejected("quota-tokens-per-minute", retry_after_ms=67_500)
    )
