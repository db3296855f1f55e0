"""Offline work takes what online work leaves, says why it waits, and wakes the cell in time."""

from dataclasses import replace

import pytest

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas.batch_facts import JobItemsArrived, JobSubmitted
from schemas.policy import Tier
from services.scheduler.step import next_due_us
from tests.spec.offline_story import control, item, items, submitted
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    draining,
    finished,
    given,
    left,
    ready,
    tick,
    us,
    with_policy,
)

# With 8 slots and 40 blocks, a quarter of each is kept free for online work: 2 slots, 10 blocks.
POLICY = with_policy(offline_idle_ms=100, offline_alone_ms=0, offline_slots_max_pct=100)


def _job(at: float, count: int = 100) -> tuple[JobSubmitted, JobItemsArrived]:
    return submitted(at=at, items=count), items(at=at, count=count)


def _beside_online(online: int = 1) -> Story:
    """Return a story at 1 s: 8 slots, 40 blocks, `online` requests of 2 blocks run, and a job."""
    story = given(ready(batch=8, blocks=40), policy=POLICY)
    story.when(*(arrived(f"online-{number}", at=900) for number in range(online)))
    return story.when(*_job(1000))


def test_an_idle_model_is_filled_and_a_little_more_waits_behind() -> None:
    story = given(ready(batch=8, blocks=40), policy=POLICY)
    story.when(*_job(1000))
    # 8 slots, and an eighth of them behind.
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ItemsReleased, count=9, why="idle"))


def test_nothing_more_is_released_before_the_last_release_is_here() -> None:
    story = given(ready(batch=8, blocks=40), policy=POLICY)
    story.when(*_job(1000)).when(*(item(number, at=1001) for number in range(8)))
    story.when(finished(*(f"batch/j/{number}" for number in range(4)), at=1002))
    assert not [one for one in story.decisions if isinstance(one, b.ItemsReleased)]
    story.when(item(8, at=1003))
    story.then(a(d.RequestQueued), a(d.RequestDispatched), a(b.ItemsReleased, first=9, count=4))


def test_an_idle_model_is_refilled_by_an_eighth_at_least() -> None:
    story = given(ready(batch=64, blocks=400), policy=POLICY)
    story.when(*_job(1000))
    assert story.decisions[-1] == replace(story.decisions[-1], count=64)
    story.when(*(item(number, at=1001) for number in range(64)))
    assert isinstance(story.decisions[-1], d.RequestDispatched)
    # 72 may be under way, so 8 more are released when 9 are wanted: an eighth.
    story.when(finished("batch/j/0", at=1002))
    story.then(a(d.RequestEnded), a(b.ItemsReleased, first=64, count=9))


def test_beside_online_work_one_item_goes_ahead_and_tells_its_size() -> None:
    story = _beside_online()
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ItemsReleased, count=1, why="spare"))
    # 1 online and 1 offline run: 6 slots are free, 2 are kept; 36 blocks are free, 10 are kept.
    story.when(item(0, at=1001))
    story.then(a(d.RequestQueued), a(d.RequestDispatched), a(b.ItemsReleased, first=1, count=4))
    released = story.decisions[-1]
    assert isinstance(released, b.ItemsReleased)
    assert released.room == b.Room(
        online=1,
        online_waiting=0,
        idle_us=0,
        idle_us_min=100_000,
        in_flight=1,
        in_flight_max=5,
        slots=8,
        slots_free=6,
        slots_kept=2,
        blocks=40,
        blocks_free=36,
        blocks_kept=10,
        item_blocks=2,
    )


def test_the_margin_of_kv_is_kept_as_the_one_of_slots_is() -> None:
    story = _beside_online()
    # An item takes 10 blocks: 38 − 10 are free, 10 are kept, so one more fits.
    story.when(item(0, at=1001, prompt=100, output=60))
    story.then(a(d.RequestQueued), a(d.RequestDispatched), a(b.ItemsReleased, count=1))


def test_no_item_leaves_while_an_online_request_waits() -> None:
    story = _beside_online(online=9)
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ReleaseHeld, cause="online-waits", jobs=1))
    story.when(finished("online-0", at=1010))
    story.then(a(d.RequestEnded), a(d.RequestDispatched), a(b.ReleaseHeld, cause="online-busy"))
    story.when(finished("online-1", at=1020)).then(a(d.RequestEnded))
    story.when(finished("online-2", at=1030)).then(a(d.RequestEnded))
    story.when(finished("online-3", at=1040))
    story.then(a(d.RequestEnded), a(b.ItemsReleased, count=1, held="online-busy"))
    released = story.decisions[-1]
    assert isinstance(released, b.ItemsReleased)
    assert released.report.held == (("online-waits", 10_000), ("online-busy", 30_000))


def test_the_cell_wakes_when_online_work_has_been_idle_for_long_enough() -> None:
    story = _beside_online(online=6)
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ReleaseHeld, cause="online-busy"))
    assert next_due_us(POLICY, story.state) != us(1150)
    story.when(finished(*(f"online-{number}" for number in range(6)), at=1050))
    assert isinstance(story.decisions[-1], b.ItemsReleased)
    story.when(item(0, at=1051))
    assert next_due_us(POLICY, story.state) == us(1150)
    story.when(*(item(number, at=1052) for number in range(1, 6)))
    story.when(tick(1150)).then(a(b.ItemsReleased, why="idle", first=6, count=3))


def test_while_online_work_comes_and_goes_a_job_takes_its_share_and_all_once_it_is_alone() -> None:
    policy = with_policy(offline_idle_ms=100, offline_alone_ms=1000, offline_slots_max_pct=50)
    story = given(ready(batch=8, blocks=40), arrived("online", at=900), policy=policy)
    story.when(finished("online", at=950)).when(*_job(1060))
    # Half of the 8 slots, and nothing waits behind them: it would take the others.
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ItemsReleased, count=4, why="idle"))
    story.when(*(item(number, at=1070) for number in range(4)))
    assert next_due_us(policy, story.state) == us(1950)
    story.when(tick(1950)).then(a(b.ItemsReleased, first=4, count=5, why="idle"))


def test_beside_online_work_a_job_takes_no_more_than_its_share_either() -> None:
    policy = with_policy(offline_slots_max_pct=25)
    story = given(ready(batch=8, blocks=40), arrived("online", at=900), policy=policy)
    story.when(*_job(1000)).when(item(0, at=1001))
    story.then(
        a(d.RequestQueued),
        a(d.RequestDispatched),
        a(b.ItemsReleased, first=1, count=1, why="spare"),
    )


def test_a_model_without_a_ready_replica_holds_its_jobs() -> None:
    story = given(ready(), draining(), policy=POLICY)
    story.when(*_job(1000))
    story.then(a(b.JobAccepted), a(b.JobItemsTaken), a(b.ReleaseHeld, cause="no-replica"))
    story.when(ready(1, at=1010)).then(
        a(d.ReplicaAdmitted), a(b.ItemsReleased, held="no-replica", why="idle")
    )


def test_a_full_model_holds_nothing_back_by_itself_but_ends_another_hold() -> None:
    story = given(ready(batch=1, blocks=40), policy=POLICY)
    story.when(*_job(1000))
    story.when(item(0, at=1001), item(1, at=1001))
    assert isinstance(story.decisions[-1], d.QueueBlocked)
    story.when(arrived("online", at=1002, tier="realtime"))
    assert story.decisions[-1] == replace(story.decisions[-1], cause="online-waits")
    story.when(finished("batch/j/0", at=1003))
    story.then(
        a(d.RequestEnded),
        a(d.RequestDispatched),
        a(b.ReleaseHeld, cause="in-flight"),
        a(b.JobProgressed),
    )


def test_a_job_never_runs_too_far_ahead_of_its_oldest_item() -> None:
    policy = with_policy(offline_idle_ms=100, offline_alone_ms=0, offline_window_items=6)
    story = given(ready(batch=4, blocks=40), policy=policy)
    story.when(*_job(1000))
    story.when(*(item(number, at=1001) for number in range(5)))
    story.when(finished("batch/j/1", "batch/j/2", at=1002))
    assert story.decisions[-1] == replace(story.decisions[-1], first=5, count=1)
    story.when(item(5, at=1003))
    story.then(a(d.RequestQueued), a(d.RequestDispatched), a(b.ReleaseHeld, cause="window"))
    story.when(finished("batch/j/0", at=1004))
    story.then(a(d.RequestEnded), a(b.ItemsReleased, first=6, count=2, held="window"))


def test_jobs_of_a_model_take_turns() -> None:
    policy = with_policy(offline_idle_ms=100, offline_alone_ms=0, offline_release_max=3)
    story = given(ready(batch=8, blocks=40), policy=policy)
    story.when(*_job(1000))
    story.when(submitted("k", at=1000, items=5), items("k", at=1000, count=5))
    story.when(*(item(number, at=1001) for number in range(3)))
    assert story.decisions[-1] == replace(story.decisions[-1], job="j", first=3, count=3)
    story.when(finished(*(f"batch/j/{number}" for number in range(3)), at=1002))
    story.when(*(item(number, at=1003) for number in range(3, 6)))
    assert story.decisions[-1] == replace(story.decisions[-1], job="k", first=0, count=3)
    story.when(*(item(number, "k", at=1004) for number in range(3)))
    assert story.decisions[-1] == replace(story.decisions[-1], job="j", first=6, count=3)
    story.when(control("pause", at=1006)).then(a(b.JobSteered, job="j"))
    assert list(story.state.models["m"].offline.turns) == ["k"]
    assert list(story.state.jobs.waiting) == ["m"]


def test_a_release_never_reaches_over_the_record_that_holds_the_items() -> None:
    story = given(ready(batch=8, blocks=40), policy=POLICY)
    story.when(submitted(at=1000, items=5))
    story.when(items(at=1000, count=3), items(at=1000, first=3, count=2, offset=42))
    story.when(*(item(number, at=1001) for number in range(3)))
    assert story.decisions[-1] == replace(story.decisions[-1], first=3, count=2, offset=42, skip=0)


@pytest.mark.parametrize("most", [1, 2])
def test_the_policy_bounds_the_items_under_way(most: int) -> None:
    policy = with_policy(offline_idle_ms=0, offline_alone_ms=0, offline_inflight_max=most)
    story = given(ready(batch=8, blocks=40), policy=policy)
    story.when(*_job(1000))
    assert story.decisions[-1] == replace(story.decisions[-1], count=most)


def test_a_hold_lasts_over_the_time_in_which_no_job_waits() -> None:
    story = _beside_online(online=9)
    story.when(control("pause", at=1010)).then(a(b.JobSteered))
    assert not story.state.jobs.waiting
    story.when(control("resume", at=1030)).then(a(b.JobSteered))
    story.when(control("cancel", at=1040))
    finished_job = story.decisions[-1]
    assert isinstance(finished_job, b.JobFinished)
    assert finished_job.report.held == (("paused", 20_000), ("online-waits", 20_000))


@pytest.mark.parametrize("tier", ["realtime", "batch"])
def test_running_items_leave_for_any_online_request_that_lacks_their_room(tier: Tier) -> None:
    story = given(ready(batch=2, blocks=40), policy=POLICY)
    story.when(*_job(1000)).when(item(0, at=1001), item(1, at=1001), item(2, at=1001))
    story.when(arrived("online", at=1002, tier=tier))
    kinds = [type(decision) for decision in story.decisions]
    assert kinds[:2] == [d.RequestQueued, d.LeaveAsked]
    asked = story.decisions[1]
    assert isinstance(asked, d.LeaveAsked)
    assert (asked.id, asked.cause) == ("batch/j/1", "preempted")
    story.when(left("batch/j/1", at=1003, cause="preempted"))
    assert isinstance(story.decisions[1], d.RequestDispatched)
    assert story.decisions[1].id == "online"


def test_an_item_leaves_for_online_work_however_often_it_has_left() -> None:
    policy = with_policy(offline_idle_ms=100, offline_alone_ms=0, preemptions_max=1)
    story = given(ready(batch=1, blocks=40), policy=policy)
    story.when(*_job(1000, count=1)).when(item(0, at=1001))
    for turn in range(3):
        online = f"online-{turn}"
        story.when(arrived(online, at=1010 + turn, tier="normal"))
        assert isinstance(story.decisions[1], d.LeaveAsked)
        story.when(left("batch/j/0", at=1010 + turn, attempt=turn + 1, cause="preempted"))
        story.when(finished(online, at=1010 + turn))
        assert story.state.requests["batch/j/0"].stage == "running"


def test_an_item_never_leaves_for_another_item() -> None:
    story = given(ready(batch=1, blocks=40), policy=POLICY)
    story.when(*_job(1000)).when(item(0, at=1001), item(1, at=1001))
    assert not [one for one in story.decisions if isinstance(one, d.LeaveAsked)]


def test_an_item_waits_behind_every_online_request_however_long_it_has_waited() -> None:
    policy = with_policy(
        offline_idle_ms=100, offline_alone_ms=0, starvation_cap_ms=50, starved_share_pct=100
    )
    story = given(ready(batch=1, blocks=40), policy=policy)
    story.when(*_job(1000, count=2)).when(item(0, at=1001), item(1, at=1001))
    story.when(arrived("first", at=1002, tier="realtime"))
    story.when(left("batch/j/0", at=1003, cause="preempted"))
    # Online work of a tier has a cap beside others; items have none, so nothing comes due for them.
    assert not story.state.starving
    story.when(arrived("second", at=1900, tier="batch"))
    story.when(finished("first", at=1901))
    story.then(a(d.RequestEnded), a(d.RequestDispatched, id="second", starved=False))
    story.when(finished("second", at=1902))
    assert isinstance(story.decisions[1], d.RequestDispatched)
    assert (story.decisions[1].id, story.decisions[1].starved) == ("batch/j/0", False)


@pytest.mark.parametrize("of_job", [True, False])
def test_no_room_is_kept_for_an_item_as_it_is_for_another_request(*, of_job: bool) -> None:
    policy = with_policy(offline_idle_ms=100, offline_alone_ms=0, starvation_cap_ms=100)
    story = given(ready(batch=8, blocks=40), policy=policy)
    # 35 of 40 blocks are taken, and 10 are asked for.
    story.when(arrived("large", at=900, prompt=400, output=160)).when(*_job(1000, count=1))
    waits = item(0, at=1001, prompt=100, output=60)
    story.when(waits if of_job else replace(waits, id="another"))
    story.when(tick(1100))
    kept = [one for one in story.decisions if isinstance(one, d.RoomKept)]
    story.when(arrived("small", at=1110))
    kept += [one for one in story.decisions if isinstance(one, d.RoomKept)]
    assert [one.id for one in kept] == ([] if of_job else ["another"])


def test_an_item_leaves_before_a_request_of_the_batch_tier() -> None:
    story = given(ready(batch=2, blocks=40), policy=POLICY)
    story.when(*_job(1000)).when(item(0, at=1001))
    story.when(arrived("of batch", at=1002, tier="batch", prompt=8, output=8))
    story.when(arrived("online", at=1003, tier="normal"))
    # The other one would cost less to compute again, and stands above the item all the same.
    asked = story.decisions[1]
    assert isinstance(asked, d.LeaveAsked)
    assert asked.id == "batch/j/0"
