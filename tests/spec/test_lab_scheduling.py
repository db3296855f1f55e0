"""Who gave way to whom, told from the decisions alone."""

from pathlib import Path

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas.batch import JobReport
from schemas.batches import BatchFormed
from schemas.codec import decode_line
from schemas.policy import Tier
from schemas.room import Preemption, RequestPreempted
from services.cli import _demo_words as words
from services.lab.scheduling import Scheduling
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


def test_the_recorded_ledger_is_told_as_its_decisions_add_up() -> None:
    entries = [decode_line(line).entry for line in Path(RECORDED).read_bytes().splitlines()]
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
    told_to_leave = [one for one in decisions if isinstance(one, d.LeaveAsked) and one.preemption]
    left = [one for one in decisions if isinstance(one, RequestPreempted)]
    assert 0 < seen.preemptions <= min(len(told_to_leave), len(left))
    # All has ended, so nothing is remembered of single requests.
    assert (seen.lines, seen.tenants) == ({}, {})


def test_a_job_that_took_nobody_s_room_never_gave_way() -> None:
    entries = [decode_line(line).entry for line in Path(RECORDED).read_bytes().splitlines()]
    seen = Scheduling()
    for one in entries:
        seen.read(one)
    quiet = next(job for job in seen.jobs.values() if not job.yields)
    assert words.yields_sentence(quiet).startswith("never")
    night = seen.jobs["night"]
    assert (
        night.yields == night.items_left + night.holds["online-waits"] + night.holds["online-busy"]
    )
    assert words.yields_sentence(night).startswith(f"{night.yields} ×")
