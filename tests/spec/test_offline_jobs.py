"""Offline jobs are received once, whole, and steered; every message about them has one answer."""

from dataclasses import replace
from typing import Any

import pytest

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas.batch import Action, add_sums, item_of, item_sum, items_prefix, request_id, sum_text
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from tests.spec.offline_story import control, item, items, submitted
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    finished,
    given,
    left,
    policy_is,
    ready,
    refused,
    with_policy,
)

SUM = "00000000000000a1"


def _report(story: Story, index: int = -1) -> Any:
    decision = story.decisions[index]
    assert not isinstance(decision, b.ReleaseHeld)
    return getattr(decision, "report")  # noqa: B009 - each of the kinds here has one


def _running(**policy: int) -> Story:
    """Return a story at 1 s in which job j of four items runs, the first item released."""
    story = given(ready(), policy=with_policy(offline_idle_ms=0, offline_alone_ms=0, **policy))
    return story.when(submitted(at=1000), items(at=1000))


def test_a_job_is_accepted_and_runs_when_all_its_items_are_here() -> None:
    story = given(submitted(at=5, items=6, tenant="acme"))
    story.then(a(b.JobAccepted, job="j", model="m", forgotten=()))
    assert _report(story).state == "receiving"
    assert (_report(story).tenant, _report(story).submitted_us) == ("acme", 5_000)
    story.when(items(at=7, count=4)).then(a(b.JobItemsTaken, first=0, count=4))
    assert (_report(story).state, _report(story).arrived) == ("receiving", 4)
    story.when(items(at=9, first=4, count=2, offset=42))
    story.then(
        a(b.JobItemsTaken, first=4, count=2),
        a(b.ReleaseHeld, model="m", cause="no-replica", jobs=1),
    )
    assert _report(story, 0).state == "running"
    assert _report(story, 0).held == (("receiving", 4_000),)


def test_a_job_without_a_tenant_is_the_default_tenants() -> None:
    story = given(submitted(), policy=with_policy(default_tenant="house"))
    assert _report(story).tenant == "house"


def test_a_repeated_header_changes_nothing_and_another_one_is_another_job() -> None:
    story = given(submitted())
    story.when(submitted(at=1)).then(a(b.JobMessageIgnored, what="header", why="repeated"))
    story.when(submitted(at=2, items=5))
    story.then(a(b.JobMessageIgnored, what="header", why="another-job"))


def test_items_that_come_again_or_too_early_change_nothing() -> None:
    story = given(submitted(items=6), items(count=4))
    story.when(items(at=1, count=4)).then(a(b.JobMessageIgnored, what="items", why="repeated"))
    story.when(items(at=2, first=5, count=1))
    story.then(a(b.JobMessageIgnored, what="items", why="out-of-order"))
    story.when(items(at=3, first=4, count=3))
    story.then(a(b.JobMessageIgnored, what="items", why="out-of-order"))
    story.when(items(at=4, first=4, count=2)).then(
        a(b.JobItemsTaken, count=2), a(b.ReleaseHeld, cause="no-replica")
    )


def test_items_in_too_many_records_are_not_taken() -> None:
    story = given(submitted(items=3), policy=with_policy(offline_job_chunks_max=1))
    story.when(items(count=1)).then(a(b.JobItemsTaken, count=1))
    story.when(items(first=1, count=1))
    story.then(a(b.JobMessageIgnored, what="items", why="too-many-chunks"))


def test_a_message_about_no_job_or_a_job_of_another_model_changes_nothing() -> None:
    given(items()).then(a(b.JobMessageIgnored, what="items", why="unknown-job"))
    given(control("pause")).then(a(b.JobMessageIgnored, what="control", why="unknown-job"))
    story = given(submitted()).when(control("pause", model="n"))
    story.then(a(b.JobMessageIgnored, job="j", what="control", why="another-model"))


def test_a_job_whose_items_do_not_add_up_is_rejected() -> None:
    story = given(submitted(digest="00000000000000a2")).when(items(at=3))
    story.then(a(b.JobItemsTaken, digest_sum=SUM))
    assert (_report(story).state, _report(story).not_run) == ("rejected", 4)
    assert SUM in _report(story).detail
    story.when(control("cancel", at=4)).then(a(b.JobMessageIgnored, why="wrong-state"))
    story.when(items(at=5, first=4)).then(a(b.JobMessageIgnored, why="wrong-state"))


def test_the_sums_of_two_records_add_up_to_the_jobs() -> None:
    half = "8000000000000001"
    story = given(submitted(digest="0000000000000002", items=2), items(count=1, digest=half))
    story.when(items(first=1, count=1, digest=half))
    assert _report(story, 0).state == "running"


def test_a_job_of_an_unknown_model_or_with_too_many_items_is_rejected() -> None:
    story = given(submitted(model="nowhere"))
    story.then(a(b.JobRejected, reason="unknown-model"))
    assert (_report(story).state, _report(story).not_run) == ("rejected", 4)
    given(submitted(), profile=None).then(a(b.JobRejected, reason="unknown-model"))
    few = with_policy(offline_job_items_max=3)
    given(submitted(), policy=few).then(a(b.JobRejected, reason="too-many-items"))


def test_the_oldest_ended_job_makes_room_for_a_new_one() -> None:
    story = given(policy=with_policy(offline_jobs_max=2))
    story.when(submitted("one"), submitted("two"))
    story.when(submitted("three")).then(a(b.JobRejected, reason="too-many-jobs"))
    story.when(control("cancel", "two")).then(a(b.JobSteered), a(b.JobFinished, job="two"))
    story.when(submitted("three")).then(a(b.JobAccepted, forgotten=("two",)))
    assert list(story.state.jobs.by_id) == ["one", "three"]
    assert not story.state.jobs.ended


def test_a_message_of_another_cells_model_is_sent_on_once() -> None:
    story = given(submitted(model="other"), cell=2, cells=3)
    story.then(a(b.JobMessageRouted, job="j", model="other", to_cell=1, offset=40))
    story.when(submitted(model="other", routed_by=(0, 4, 0)))
    story.then(a(b.JobRejected, reason="unknown-model"))


def test_each_item_ends_once_and_the_job_with_the_last() -> None:
    story = _running()
    story.then(
        a(b.JobAccepted),
        a(b.JobItemsTaken),
        a(b.ItemsReleased, first=0, count=4, skip=0, offset=41, why="idle", held=None),
    )
    assert (_report(story).released, _report(story).completed) == (4, 0)
    story.when(*(item(number, at=1001) for number in range(4)))
    story.then(*[a(d.RequestQueued, tier="batch"), a(d.RequestDispatched)] * 4)
    story.when(finished("batch/j/1", "batch/j/0", at=1002))
    story.then(a(d.RequestEnded), a(d.RequestEnded), a(b.JobProgressed))
    assert (_report(story).completed, _report(story).released) == (2, 4)
    story.when(finished("batch/j/2", "batch/j/3", at=1009))
    story.then(a(d.RequestEnded), a(d.RequestEnded), a(b.JobFinished, e2e_us=9_000))
    report = _report(story)
    assert (report.state, report.completed, report.not_run) == ("completed", 4, 0)
    assert (report.ended_us, report.held) == (1_009_000, ())
    story.when(finished("batch/j/2", at=1010)).then_nothing()


def test_progress_is_told_once_its_share_of_the_items_has_ended() -> None:
    story = _running(offline_report_pct=50)
    story.when(*(item(number, at=1001) for number in range(4)))
    story.when(finished("batch/j/0", at=1002)).then(a(d.RequestEnded))
    story.when(finished("batch/j/1", at=1003)).then(a(d.RequestEnded), a(b.JobProgressed))
    story.when(finished("batch/j/2", at=1004)).then(a(d.RequestEnded))


def test_the_request_of_an_item_runs_once_however_often_it_comes() -> None:
    story = _running()
    story.when(item(0, at=1001)).then(a(d.RequestQueued), a(d.RequestDispatched))
    story.when(item(0, at=1002)).then(a(b.JobMessageIgnored, what="item", why="repeated"))
    story.when(finished("batch/j/0", at=1003))
    story.when(item(0, at=1004)).then(a(b.JobMessageIgnored, what="item", why="repeated"))
    # Nobody can run ahead of the job, or run an item as another model's.
    story.when(item(4, at=1005)).then(a(b.JobMessageIgnored, what="item", why="not-released"))
    other = arrived("batch/j/1", at=1006, model="n")
    story.when(other).then(a(b.JobMessageIgnored, what="item", why="another-model"))


def test_an_id_like_an_items_of_no_known_job_is_a_request_like_any_other() -> None:
    story = given(item(0, "nobody"))
    story.then(a(d.RequestQueued, id="batch/nobody/0"), a(d.QueueBlocked))
    assert story.state.models["m"].offline.online == 1


def test_an_item_runs_though_a_request_of_its_id_ended_before_its_job_began() -> None:
    story = given(ready(), item(0), policy=with_policy(offline_idle_ms=0, offline_alone_ms=0))
    story.when(finished("batch/j/0", at=1)).then(a(d.RequestEnded))
    story.when(submitted(at=2), items(at=2), item(0, at=3))
    assert isinstance(story.decisions[-2], d.RequestQueued)
    story.when(finished("batch/j/0", at=4)).then(a(d.RequestEnded), a(b.JobProgressed))


def test_a_refused_item_is_an_item_that_ended() -> None:
    story = _running()
    story.when(refused("batch/j/0", at=1001))
    story.then(a(d.RequestEnded, outcome="rejected"), a(b.JobProgressed))
    assert (_report(story).rejected, story.state.models["m"].offline.in_flight) == (1, 3)


def test_a_paused_job_releases_nothing_until_it_is_resumed() -> None:
    story = given(submitted(), items(), policy=with_policy(offline_idle_ms=0, offline_alone_ms=0))
    story.when(control("pause", at=10)).then(a(b.JobSteered, action="pause", who="ops"))
    story.when(ready(at=20)).then(a(d.ReplicaAdmitted))
    story.when(control("pause", at=25)).then(a(b.JobMessageIgnored, why="wrong-state"))
    story.when(control("resume", at=30))
    story.then(a(b.JobSteered, action="resume"), a(b.ItemsReleased, held="no-replica"))
    assert _report(story).held == (("paused", 20_000), ("no-replica", 10_000))
    story.when(control("resume", at=31)).then(a(b.JobMessageIgnored, why="wrong-state"))


def test_a_job_that_has_released_all_may_still_be_paused_and_ends_all_the_same() -> None:
    story = _running()
    story.when(control("pause", at=1001)).then(a(b.JobSteered))
    story.when(control("resume", at=1002)).then(a(b.JobSteered))
    assert not story.state.models["m"].offline.turns
    story.when(control("pause", at=1003))
    story.when(*(item(number, at=1004) for number in range(4)))
    story.when(finished(*(f"batch/j/{number}" for number in range(4)), at=1005))
    assert isinstance(story.decisions[-1], b.JobFinished)
    assert _report(story).held == (("paused", 3_000),)


@pytest.mark.parametrize("before", ["receiving", "running", "paused"])
def test_a_job_can_be_cancelled_at_any_stage(before: str) -> None:
    story = given(submitted())
    if before != "receiving":
        story.when(items())
    if before == "paused":
        story.when(control("pause"))
    story.when(control("cancel", at=5)).then(a(b.JobSteered), a(b.JobFinished))
    assert (_report(story).state, _report(story).not_run) == ("cancelled", 4)
    story.when(control("cancel", at=6)).then(a(b.JobMessageIgnored, why="wrong-state"))
    story.when(items(at=7, first=4, count=1)).then(a(b.JobMessageIgnored, why="wrong-state"))


def test_the_items_under_way_of_a_cancelled_job_are_cancelled_where_they_are() -> None:
    story = _running()
    story.when(item(0, at=1001), item(1, at=1001))
    story.when(control("cancel", at=1002))
    story.then(a(b.JobSteered), a(d.LeaveAsked, id="batch/j/0"), a(d.LeaveAsked, id="batch/j/1"))
    assert _report(story, 0).state == "cancelling"
    story.when(item(2, at=1003)).then(
        a(d.RequestEnded, id="batch/j/2", outcome="cancelled"), a(b.JobProgressed)
    )
    story.when(refused("batch/j/3", at=1003))
    story.when(left("batch/j/0", at=1004))
    story.when(finished("batch/j/1", at=1005)).then(a(d.RequestEnded), a(b.JobFinished))
    report = _report(story)
    assert (report.state, report.completed, report.cancelled) == ("cancelled", 1, 3)
    assert report.not_run == 0


def test_a_job_in_the_midst_of_everything_survives_a_snapshot() -> None:
    story = _running(offline_inflight_max=2)
    story.when(item(0, at=1001), control("pause", at=1002), submitted("k", at=1003))
    again = thaw(b"".join(encode_pieces(freeze(story.state))))
    assert again.jobs == replace(story.state.jobs)
    assert again.models["m"].offline == story.state.models["m"].offline
    assert state_digest(again) == state_digest(story.state)
    other = Story(again)
    for one in (story, other):
        one.when(control("resume", at=1004), item(1, at=1005), finished("batch/j/0", at=1006))
    assert other.decisions == story.decisions


def test_a_new_policy_changes_nothing_that_a_job_was_told() -> None:
    story = _running()
    story.when(policy_is(with_policy(offline_job_items_max=1), at=1001)).then_nothing()


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_an_ended_job_is_not_steered(action: Action) -> None:
    story = given(submitted(), control("cancel"))
    story.when(control(action, at=1)).then(a(b.JobMessageIgnored, why="wrong-state"))


def test_an_items_request_is_known_by_its_id() -> None:
    assert request_id("night-1", 12) == "batch/night-1/12"
    assert request_id("night-1", 12).startswith(items_prefix("night-1"))
    assert not request_id("night-1", 12).startswith(items_prefix("night"))
    assert item_of("batch/night-1/12") == ("night-1", 12)
    assert item_of("batch/night-1/012") is None
    assert item_of("batch/night-1/") is None
    assert item_of("batch/12") is None
    assert item_of("batch/a/123456789") is None
    assert item_of("batch/a/²") is None
    assert item_of("other/night-1/12") is None


def test_a_jobs_digest_is_the_sum_of_its_items_and_does_not_depend_on_their_records() -> None:
    # BLAKE2b of 8 bytes over [0,"a",{"prompt":"é"}], worked out with b2sum -l 64.
    one = item_sum(0, "a", {"prompt": "é"})
    assert sum_text(one) == "06971e3480a77cbd"
    assert item_sum(1, "a", {"prompt": "é"}) != one
    assert add_sums(2**64 - 1, 2) == 1
