"""A job waits for its tenant's quota instead of losing items to it, says so, and goes on."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas.policy import Override, Policy
from services.scheduler.job_report import report
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from services.scheduler.step import next_due_us
from tests.spec.offline_story import control, item, items, submitted
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    cancel,
    finished,
    given,
    policy_is,
    ready,
    tick,
    us,
    with_policy,
)


def quota(**values: int) -> Policy:
    """Return a policy in which offline work is idle at once, with these quotas for the tenant x."""
    return with_policy(
        offline_idle_ms=0,
        offline_alone_ms=0,
        replica_lost_ms=1_000_000,
        overrides=tuple(
            Override(tenant="x", key=f"quota_{key}", value=value) for key, value in values.items()
        ),
    )


def job(policy: Policy, *, blocks: int = 100) -> Story:
    """Return a story at 1 s: a replica of 8 slots, and a job of ten items of the tenant x."""
    story = given(ready(batch=8, blocks=blocks), policy=policy)
    return story.when(submitted(at=1000, items=10, tenant="x"), items(at=1000, count=10))


of_x = partial(item, tenant="x")


def only(kind: type[Any], story: Story) -> Any:
    """Return the one decision of a kind that the last facts led to."""
    (found,) = [one for one in story.decisions if isinstance(one, kind)]
    return found


def held_by_one_that_waits(**more: int) -> Story:
    """Return a story in which an item of x runs, a second waits for KV, and a third may not.

    An item takes two blocks, and there are two.
    """
    story = job(replace(quota(queued_requests=1), **more), blocks=2)
    return story.when(of_x(0, at=1001)).when(of_x(1, at=1002))


# Held and freed


def test_no_more_items_leave_than_the_tokens_of_a_minute_are_enough_for() -> None:
    # An item asks for 32 tokens; 100 a minute are enough for three of them, and 4 are left over.
    story = job(quota(tokens_per_minute=100))
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ItemsReleased, first=0, count=1))
    story.when(of_x(0, at=1000))
    story.then(a(d.RequestQueued), a(d.RequestDispatched), a(b.ItemsReleased, first=1, count=2))
    story.when(of_x(1, at=1000), of_x(2, at=1000))
    held = only(b.JobHeld, story)
    # 28 more tokens come back at 100 in 60 s: in 16.8 s.
    a(b.JobHeld, reason="quota-tokens-per-minute", item_tokens=32, until_us=us(17_800)).check(held)
    assert (held.tenant, held.report.state, held.report.released) == ("x", "running", 3)
    assert held.report.detail == (
        "an item asks for about 32 tokens, and x may use 100 a minute of m, which are used up"
    )


def test_the_cell_wakes_when_the_tokens_of_a_minute_have_come_back() -> None:
    policy = quota(tokens_per_minute=100)
    story = job(policy).when(of_x(0, at=1000)).when(of_x(1, at=1000), of_x(2, at=1000))
    assert next_due_us(policy, story.state) == us(17_800)
    story.when(tick(17_799)).then_nothing()
    story.when(tick(17_800)).then(a(b.JobFreed, items=1), a(b.ItemsReleased, first=3, count=1))
    released = story.decisions[-1]
    assert isinstance(released, b.ItemsReleased)
    assert released.report.held == (("quota", 16_800_000),)
    assert released.report.detail == ""


def test_what_an_item_did_not_use_frees_the_next_one() -> None:
    story = job(quota(tokens_per_minute=100)).when(of_x(0, at=1000, output=64))
    # Another of 80 tokens would need 60 more than the 20 that are left.
    assert only(b.JobHeld, story).until_us == us(37_000)
    # It used 28 of them; after 5 s, 19.7 are owed, and there is room for 80.
    story.when(finished("batch/j/0", at=6000))
    story.then(a(d.RequestEnded), a(b.JobFreed, items=1), a(b.ItemsReleased, count=1))


def test_an_item_larger_than_a_minute_goes_when_nothing_is_owed() -> None:
    # The 32 tokens of an item take 192 s to come back, 168 s when it used only 28 of them.
    story = job(quota(tokens_per_minute=10)).when(of_x(0, at=1000))
    assert only(b.JobHeld, story).until_us == us(193_000)
    story.when(finished("batch/j/0", at=1001))
    story.when(tick(168_999)).then_nothing()
    story.when(tick(169_000)).then(a(b.JobFreed), a(b.ItemsReleased, count=1))


@pytest.mark.parametrize(
    ("policy", "reason", "detail"),
    [
        (
            quota(queued_requests=1),
            "quota-queued-requests",
            "1 requests of x for m wait already, its quota",
        ),
        (
            quota(queued_tokens=40),
            "quota-queued-tokens",
            "an item asks for about 32 tokens, and 32 of x wait for m; the quota is 40",
        ),
        (
            # One item alone is more than the quota: it goes when nothing else waits.
            quota(queued_tokens=8),
            "quota-queued-tokens",
            "an item asks for about 32 tokens, and 32 of x wait for m; the quota is 8",
        ),
        (
            quota(running_requests=1),
            "quota-running-requests",
            "1 requests of x run on m and 1 wait; 1 may run",
        ),
        (
            replace(quota(), queued_requests_max=1),
            "queue-full",
            "1 requests of m wait already, the most that policy 'changed' allows",
        ),
    ],
)
def test_a_job_waits_while_as_much_of_its_tenant_waits_or_runs_as_may(
    policy: Policy, reason: str, detail: str
) -> None:
    story = job(policy, blocks=2).when(of_x(0, at=1001)).when(of_x(1, at=1002))
    held = only(b.JobHeld, story)
    assert (held.reason, held.report.detail, held.until_us) == (reason, detail, None)
    assert held.report.waits_for == report(story.state, story.state.jobs.by_id["j"]).waits_for
    assert held.report.waits_for == reason
    # Time alone does not free it: the cell wakes to listen, 0.4 of what makes a replica lost.
    assert next_due_us(policy, story.state) == us(401_002)
    story.when(finished("batch/j/0", at=1003))
    story.then(
        a(d.RequestEnded),
        a(d.RequestDispatched, id="batch/j/1"),
        a(b.JobFreed, items=1),
        a(b.ItemsReleased, first=2, count=1),
    )
    assert only(b.JobFreed, story).report.waits_for is None
    assert only(b.ItemsReleased, story).report.waits_for is None


def test_a_quota_that_leaves_room_lets_as_many_go_as_it_says() -> None:
    story = job(quota(queued_requests=3, queued_tokens=1_000, running_requests=7))
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ItemsReleased, count=1))
    story.when(of_x(0, at=1001))
    story.then(a(d.RequestQueued), a(d.RequestDispatched), a(b.ItemsReleased, count=3))
    # While nothing runs, three may wait; the tokens of an item are not known then, only its count.
    a(b.ItemsReleased, count=3).check(job(quota(queued_requests=3)).decisions[-1])


def test_a_new_policy_frees_a_job() -> None:
    story = held_by_one_that_waits()
    story.when(policy_is(quota(queued_requests=5), at=1003))
    story.then(a(b.JobFreed, items=4), a(b.ItemsReleased, first=2, count=4))


# Beside others


def test_a_job_of_another_tenant_goes_on_meanwhile() -> None:
    story = held_by_one_that_waits()
    story.when(submitted("k", at=1003, items=4, tenant="y"), items("k", at=1003))
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ItemsReleased, job="k", count=4))


def test_of_two_jobs_of_a_tenant_the_one_that_has_waited_longest_goes_first() -> None:
    story = held_by_one_that_waits()
    story.when(submitted("k", at=1010, items=4, tenant="x"), items("k", at=1010))
    only(b.JobHeld, story)
    story.when(finished("batch/j/0", at=1011))
    assert only(b.JobFreed, story).job == "j"
    released = only(b.ItemsReleased, story)
    assert released.report.detail == "its next items wait behind the job k, for the same quota"
    assert released.report.waits_for == "quota-queued-requests"
    story.when(of_x(2, at=1012)).then(a(d.RequestQueued), a(d.QueueBlocked))
    # That released what there was room for: its turn comes again after the other one's.
    story.when(finished("batch/j/1", at=1013))
    assert (only(b.JobFreed, story).job, only(b.ItemsReleased, story).job) == ("k", "k")
    story.when(of_x(0, "k", at=1014), finished("batch/j/2", at=1015))
    assert (only(b.JobFreed, story).job, only(b.ItemsReleased, story).job) == ("j", "j")


def test_a_job_that_has_released_its_last_items_waits_for_nothing() -> None:
    story = held_by_one_that_waits()
    story.when(submitted("k", at=1010, items=1, tenant="x"), items("k", at=1010, count=1))
    story.when(control("pause", at=1011)).when(finished("batch/j/0", at=1012))
    assert only(b.JobFreed, story).job == "k"
    story.when(control("resume", at=1013))
    assert not story.state.models["m"].offline.held
    assert list(story.state.models["m"].offline.turns) == ["j"]


def test_an_item_that_was_released_is_let_in_though_others_used_the_quota_up_meanwhile() -> None:
    story = job(quota(queued_requests=1), blocks=2)
    story.when(arrived("runs", tenant="x", at=1001), arrived("waits", tenant="x", at=1001))
    story.when(of_x(0, at=1002)).then(a(d.RequestQueued, id="batch/j/0"), a(b.ReleaseHeld))
    story.when(arrived("refused", tenant="x", at=1003))
    story.then(a(d.RequestEnded, outcome="rejected", reason="quota-queued-requests"))


def test_an_item_that_can_never_run_ends_though_its_job_waits_for_a_quota() -> None:
    story = job(quota(queued_requests=1), blocks=2)
    story.when(of_x(0, at=1001, prompt=900, output=900))
    a(d.RequestEnded, outcome="rejected", reason="over-context").check(story.decisions[0])


# Steered


def test_a_held_job_is_paused_and_resumed_and_each_time_has_its_cause() -> None:
    story = held_by_one_that_waits()
    story.when(control("pause", at=1010)).then(a(b.JobSteered))
    paused = story.decisions[0]
    assert isinstance(paused, b.JobSteered)
    assert (paused.report.state, paused.report.detail) == ("paused", "")
    assert not story.state.jobs.waiting
    story.when(control("resume", at=1030)).then(a(b.JobSteered), a(b.JobHeld))
    assert only(b.JobHeld, story).report.held == (("paused", 20_000), ("quota", 8_000))


def test_a_held_job_can_be_cancelled() -> None:
    story = held_by_one_that_waits()
    story.when(control("cancel", at=1010), cancel("batch/j/0", at=1010))
    story.when(finished("batch/j/0", at=1011))
    ended = only(b.JobFinished, story)
    assert (ended.report.state, ended.report.not_run) == ("cancelled", 8)
    assert ended.report.held == (("quota", 8_000),)
    assert not story.state.models["m"].offline.held


def test_a_held_job_survives_a_snapshot() -> None:
    story = held_by_one_that_waits()
    again = thaw(b"".join(encode_pieces(freeze(story.state))))
    assert again.models["m"].offline == story.state.models["m"].offline
    assert state_digest(again) == state_digest(story.state)
    other = Story(again)
    for one in (story, other):
        one.when(finished("batch/j/0", at=1003))
    assert other.decisions == story.decisions
