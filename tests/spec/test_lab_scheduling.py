"""Who gave way to whom, told from the decisions alone."""

from collections import Counter
from pathlib import Path

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas.batch import HoldCause, JobReport, JobState
from schemas.batches import BatchFormed
from schemas.codec import decode_line
from schemas.ledger import Entry
from schemas.policy import TIERS, Tier
from schemas.room import Preemption, RequestPreempted
from services.cli import _demo_words as words
from services.lab.scheduling import JOBS_ENDED_MAX, LINES, Scheduling
from tests.golden.scheduler_ledger_maker import RECORDED
from tests.spec.test_lab_summary import ended, entry, queued


def asked(name: str, for_id: str, for_tier: Tier) -> d.LeaveAsked:
    return d.LeaveAsked(
        id=name,
        model="m",
        slot=0,
        incarnation="i",
        attempt=1,
        cause="preempted",
        preemption=Preemption(
            for_id=for_id,
            for_tier=for_tier,
            lacks="kv",
            blocks_needed=3,
            blocks_free=0,
            slots_free=1,
            tier="normal",
            blocks=4,
            tokens_lost=40,
            preemptions=0,
            candidates=2,
            leaving=1,
        ),
    )


def preempted(name: str, tokens: int) -> RequestPreempted:
    return RequestPreempted(
        id=name, model="m", attempt=1, slot=0, output_tokens=tokens, output_offset=7, preemptions=1
    )


def test_who_left_for_whom_is_counted_with_the_tokens_kept() -> None:
    seen = Scheduling()
    seen.read(entry(0, 0, queued("a"), queued("b"), asked("a", "urgent", "realtime")))
    assert (seen.preemptions, seen.last) == (0, None)
    seen.read(entry(1, 5, preempted("a", 2), asked("b", "urgent-2", "realtime")))
    seen.read(entry(2, 6, preempted("b", 11), asked("a", "other", "critical"), preempted("a", 5)))
    assert dict(seen.left) == {("normal", "realtime"): 2, ("normal", "critical"): 1}
    assert (seen.preemptions, seen.tokens_kept) == (3, 18)
    told = words.left(seen.examples["normal", "realtime"])
    assert told == (
        "b (normal, t) left m/0 for urgent-2 (realtime), which lacked 3 KV blocks; 11 tokens kept"
    )


def test_a_request_that_ended_instead_or_left_by_itself_gave_way_to_nobody() -> None:
    seen = Scheduling()
    seen.read(entry(0, 0, queued("a"), queued("b"), asked("a", "urgent", "realtime")))
    seen.read(entry(1, 1, ended("a"), preempted("b", 3)))
    assert seen.preemptions == 0
    assert (list(seen.lines), list(seen.tenants)) == (["b"], ["b"])


def lost(name: str) -> d.AttemptLost:
    return d.AttemptLost(
        id=name, model="m", attempt=1, slot=0, why="", losses=1, backoff_ms=1, retry_at_us=1
    )


def report(state: JobState, released: int, items: int = 4) -> JobReport:
    return JobReport(
        tenant="t",
        endpoint="/v1/completions",
        label="",
        digest=None,
        offset=0,
        submitted_us=0,
        state=state,
        items=items,
        arrived=items,
        released=released,
        completed=0,
        rejected=0,
        expired=0,
        failed=0,
        cancelled=0,
        not_run=0,
        held=(),
        ended_us=None,
        detail="",
    )


def accepted(job: str) -> b.JobAccepted:
    return b.JobAccepted(job=job, model="m", report=report("receiving", 0), forgotten=())


def progressed(job: str, released: int) -> b.JobProgressed:
    return b.JobProgressed(job=job, model="m", report=report("running", released))


def finished(job: str) -> b.JobFinished:
    return b.JobFinished(job=job, model="m", e2e_us=0, report=report("completed", 4))


def test_a_departure_after_a_lost_attempt_is_not_told_as_one_for_what_was_asked_before() -> None:
    seen = Scheduling()
    seen.read(entry(0, 0, queued("a"), asked("a", "urgent", "realtime")))
    seen.read(entry(1, 1, lost("a")))
    # It runs again, and leaves because its replica has no KV block left.
    seen.read(entry(2, 2, preempted("a", 9)))
    assert (seen.preemptions, seen.tokens_kept, seen.last) == (0, 0, None)


def test_only_released_items_of_a_known_job_are_offline_whatever_an_id_looks_like() -> None:
    seen = Scheduling()
    seen.read(entry(0, 0, accepted("night"), progressed("night", released=2)))
    names = ("batch/night/0", "batch/night/1", "batch/night/2", "batch/other/0", "a")
    seen.read(entry(1, 1, *map(queued, names)))
    assert seen.lines == dict.fromkeys(names[:2], "offline") | dict.fromkeys(names[2:], "normal")
    leaving = [asked(name, "urgent", "realtime") for name in names]
    seen.read(entry(2, 2, *leaving, *(preempted(name, 1) for name in names)))
    assert dict(seen.left) == {("offline", "realtime"): 2, ("normal", "realtime"): 3}
    assert seen.jobs["night"].items_left == 2


def test_a_job_without_items_to_release_is_not_held() -> None:
    seen = Scheduling()
    seen.read(entry(0, 0, accepted("all"), progressed("all", 4), progressed("some", 3)))
    held = batch_hold("online-waits")
    seen.read(entry(1, 1, held, held, batch_hold("no-replica")))
    assert dict(seen.jobs["some"].holds) == {"online-waits": 2, "no-replica": 1}
    assert (seen.jobs["some"].yields, dict(seen.jobs["all"].holds)) == (2, {})


def batch_hold(cause: HoldCause) -> b.ReleaseHeld:
    room = b.Room(
        online=1,
        online_waiting=1,
        idle_us=0,
        idle_us_min=0,
        in_flight=0,
        in_flight_max=0,
        slots=1,
        slots_free=0,
        slots_kept=0,
        blocks=1,
        blocks_free=0,
        blocks_kept=0,
        item_blocks=0,
    )
    return b.ReleaseHeld(model="m", cause=cause, jobs=1, room=room)


def test_of_jobs_that_ended_the_last_ones_are_kept_and_of_those_that_live_all() -> None:
    seen = Scheduling()
    names = [f"j{number}" for number in range(JOBS_ENDED_MAX + 3)]
    seen.read(entry(0, 0, accepted("lives"), *(accepted(name) for name in names)))
    for number, name in enumerate(names):
        seen.read(entry(1 + number, 0, finished(name)))
    assert list(seen.jobs) == ["lives", *names[3:]]
    # The oldest that is kept has its id taken by a new job, which begins anew.
    seen.read(entry(9_999, 0, accepted(names[3]), finished("another")))
    assert list(seen.jobs)[1:] == [*names[3:], "another"]
    assert seen.jobs[names[3]].report.state == "receiving"
    seen.read(entry(10_000, 0, finished("one more")))
    assert names[3] in seen.jobs
    assert names[4] not in seen.jobs


def test_the_recorded_ledger_is_told_as_its_decisions_add_up() -> None:
    entries = recorded()
    seen = Scheduling()
    for one in entries:
        seen.read(one)
    decisions = [decision for one in entries for decision in one.decisions]
    formed = [one for one in decisions if isinstance(one, BatchFormed)]
    windows = seen.windows["e"]
    assert (windows.batches, windows.texts) == (len(formed), sum(one.texts for one in formed))
    assert sum(windows.closed_by.values()) == len(formed)
    reports: dict[str, JobReport] = {
        one.job: one.report for one in decisions if isinstance(one, b.JobFinished)
    }
    assert reports
    for job, report in reports.items():
        assert seen.jobs[job].report == report
        assert sum(seen.jobs[job].released.values()) == report.released
        assert words.progress(job, seen.jobs[job]).startswith(
            f"{job.rpartition('-')[2]} {report.completed}/{report.items}, gave way "
        )
        assert f"{report.completed} of {report.items} items done" in words.job_sentence(
            job, seen.jobs[job]
        )
    # All has ended, so nothing is remembered of single requests.
    assert (seen.lines, seen.tenants) == ({}, {})


def recorded() -> list[Entry]:
    return [decode_line(line).entry for line in Path(RECORDED).read_bytes().splitlines()]


def test_the_departures_of_the_recorded_ledger_are_those_whose_attempt_was_asked_to_leave() -> None:
    decisions = [decision for one in recorded() for decision in one.decisions]
    asked_for = {
        (one.id, one.attempt): one.preemption.for_tier
        for one in decisions
        if isinstance(one, d.LeaveAsked) and one.preemption is not None
    }
    departures = [one for one in decisions if isinstance(one, RequestPreempted)]
    for_others = [one for one in departures if (one.id, one.attempt) in asked_for]
    seen = Scheduling()
    for one in recorded():
        seen.read(one)
    # Some were asked and were lost or done before they left; some left with nobody asking.
    assert 0 < len(for_others) < min(len(asked_for), len(departures))
    assert seen.preemptions == len(for_others)
    assert seen.tokens_kept == sum(one.output_tokens for one in for_others)
    tiers = Counter(asked_for[one.id, one.attempt] for one in for_others)
    for tier in TIERS:
        assert sum(seen.left[line, tier] for line in LINES) == tiers[tier]


def test_a_job_of_the_recorded_ledger_gave_way_as_often_as_its_decisions_say() -> None:
    seen = Scheduling()
    for one in recorded():
        seen.read(one)
    decisions = [decision for one in recorded() for decision in one.decisions]
    began = next(
        number
        for number, one in enumerate(decisions)
        if isinstance(one, b.JobItemsTaken) and (one.job, one.report.state) == ("night", "running")
    )
    released = next(
        number
        for number, one in enumerate(decisions)
        if isinstance(one, b.ItemsReleased) and one.job == "night"
    )
    # From when its items were there until the first one left, and never after.
    held = [one for one in decisions[began:released] if isinstance(one, b.ReleaseHeld)]
    assert not any(isinstance(one, b.ReleaseHeld) for one in decisions[released:])
    assert [one.cause for one in held] == ["online-waits"]
    night = seen.jobs["night"]
    assert (night.items_left, dict(night.holds), night.yields) == (0, {"online-waits": 1}, 1)
    waited_us = dict(night.report.held)["online-waits"]
    assert words.yields_sentence(night) == (
        "1 ×: 0 × a running item left after its iteration, 1 × the release of more was held"
        f" (online-waits {waited_us / 1e6:.1f} s)"
    )
    # This one came when all online work had ended.
    quiet = seen.jobs["one-at-a-time"]
    assert (quiet.items_left, dict(quiet.holds), quiet.yields) == (0, {}, 0)
    assert words.yields_sentence(quiet).startswith("never")
