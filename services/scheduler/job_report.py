"""How far an offline job is, as it is recorded and published. Pure; reads only, decides nothing."""

from schemas.batch import HOLDS, Held, JobReport
from services.scheduler.jobs import HOLD_INDEX, OUTCOMES, Job
from services.scheduler.state import State


def report(state: State, job: Job) -> JobReport:
    """Return how far a job is now."""
    held_us = job.held_us.copy()
    own = job.own_hold
    if own is not None:
        held_us[own] += state.now_us - job.since_us
    if job.mark:
        offline = state.models[job.model].offline
        for index, (total_us, mark_us) in enumerate(zip(offline.totals_us, job.mark, strict=True)):
            held_us[index] += total_us - mark_us
        if offline.cause is not None:
            held_us[HOLD_INDEX[offline.cause]] += state.now_us - offline.cause_since_us
    ended = dict(zip(OUTCOMES, job.ended, strict=True))
    return JobReport(
        tenant=job.tenant,
        endpoint=job.endpoint,
        label=job.label,
        digest=job.digest,
        offset=job.offset,
        submitted_us=job.submitted_us,
        state=job.state,
        items=job.items,
        arrived=job.arrived,
        released=job.released,
        completed=ended["completed"],
        rejected=ended["rejected"],
        expired=ended["expired"],
        failed=ended["failed"],
        cancelled=ended["cancelled"],
        not_run=0,
        held=_held(held_us),
        ended_us=job.ended_us,
        detail=job.detail,
        waits_for=job.waits_for,
    )


def _held(held_us: list[int]) -> Held:
    return tuple([(cause, us) for cause, us in zip(HOLDS, held_us, strict=True) if us])
