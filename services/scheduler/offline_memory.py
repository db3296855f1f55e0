"""Remember what happened to offline jobs and what was decided about them. Pure; part of evolve.

Like all of evolve it never judges: what is remembered depends on the event and the state alone.
Every job is in exactly one place: receiving its items, taking turns in its model's `turns`, waiting
for its tenant's quota in `held`, paused, all released and waiting for the last ends, or ended.
"""

from collections.abc import Callable
from typing import Any

from schemas import batch_decisions as b
from schemas import facts as f
from schemas.batch import ENDED, HoldCause, JobReport, JobState, item_of, request_id
from schemas.batch_facts import JobControlAsked, JobItemsArrived, JobSubmitted
from schemas.decisions import Outcome
from services.scheduler.hearing import time_passed
from services.scheduler.jobs import HOLD_INDEX, OUTCOME_INDEX, Job, Offline
from services.scheduler.state import Model, Request, State

# Requests


def of_job(state: State, request: str) -> bool:
    """Return whether a request of this id is an item that was released and has not ended."""
    if not state.jobs.by_id:
        return False
    item = item_of(request)
    job = state.jobs.by_id.get(item[0]) if item else None
    return item is not None and job is not None and item[1] in job.open


def accepted(state: State, model: Model, request: Request) -> None:
    """Count a request that was accepted."""
    if not request.of_job:
        model.offline.online += 1
        return
    model.offline.accepted += 1
    job, _ = _item(state, request.id)
    job.tokens += request.prompt_tokens + request.max_output_tokens
    job.sized += 1


def ended(state: State, decision_id: str, outcome: Outcome, request: Request | None) -> None:
    """Count the end of a request, whether it was accepted (`request`) or ended at the door."""
    if request is not None:
        offline = state.models[request.model].offline
        if request.of_job:
            offline.accepted -= 1
        else:
            offline.online -= 1
            offline.online_until_us = state.now_us
    if not of_job(state, decision_id):
        return
    job, number = _item(state, decision_id)
    del job.open[number]
    job.ended[OUTCOME_INDEX[outcome]] += 1
    job.unreported += 1
    state.jobs.moved[job.id] = None
    state.models[job.model].offline.in_flight -= 1
    _note_settled(state, job)


def _item(state: State, request: str) -> tuple[Job, int]:
    item = item_of(request)
    assert item is not None, "an item's request has an item's id"  # noqa: S101 - ledger and code belong together
    return state.jobs.by_id[item[0]], item[1]


# Facts and decisions


def _asked(state: State, fact: JobSubmitted | JobItemsArrived | JobControlAsked) -> None:
    time_passed(state, fact.at_us)
    state.pending.append(fact)


def _answered(state: State, _decision: b.JobDecision) -> None:
    state.pending.popleft()


def _job_accepted(state: State, decision: b.JobAccepted) -> None:
    """Begin to receive a job, and forget the ended ones that make room for it."""
    state.pending.popleft()
    for job_id in decision.forgotten:
        del state.jobs.by_id[job_id]
        del state.jobs.ended[job_id]
    report = decision.report
    state.jobs.by_id[decision.job] = Job(
        id=decision.job,
        model=decision.model,
        tenant=report.tenant,
        endpoint=report.endpoint,
        label=report.label,
        digest=report.digest,
        offset=report.offset,
        submitted_us=report.submitted_us,
        items=report.items,
        since_us=state.now_us,
    )


def _items_taken(state: State, decision: b.JobItemsTaken) -> None:
    """Note where items of a job lie; with the last of them it takes turns, or has ended."""
    fact = state.pending.popleft()
    assert isinstance(fact, JobItemsArrived), "only items are taken"  # noqa: S101 - ledger and code belong together
    job = state.jobs.by_id[decision.job]
    job.arrived += decision.count
    job.digest_sum = decision.digest_sum
    job.chunks.append((decision.first, decision.count, decision.offset))
    if decision.report.state == "running":
        _leave_state(state, job)
        job.state = "running"
        _take_turns(state, job)
    elif decision.report.state in ENDED:
        _end(state, job, decision.report.state, decision.report.detail)


def _items_released(state: State, decision: b.ItemsReleased) -> None:
    """Note that items are requests from now on."""
    job = state.jobs.by_id[decision.job]
    offline = state.models[decision.model].offline
    _settle_hold(offline, state.now_us)
    offline.cause = None
    offline.in_flight += decision.count
    job.released += decision.count
    job.unreported = 0
    job.open.update(dict.fromkeys(range(decision.first, job.released)))
    first, count, _ = job.chunks[0]
    if job.released == first + count:
        job.chunks.popleft()
    if job.released == job.items:
        _leave_turns(state, job)
    elif job.tenant in offline.held:
        # Its tenant's jobs take turns for what the quota gives; the others have waited longer.
        _wait_for_quota(state, job, decision.report)
    else:
        offline.turns.move_to_end(job.id)


def _release_held(state: State, decision: b.ReleaseHeld) -> None:
    """Note what holds the jobs of a model back."""
    offline = state.models[decision.model].offline
    _settle_hold(offline, state.now_us)
    offline.cause = decision.cause


def _job_held(state: State, decision: b.JobHeld) -> None:
    """Note that a job waits for its tenant's quota; it takes no turns meanwhile."""
    job = state.jobs.by_id[decision.job]
    _wait_for_quota(state, job, decision.report)
    job.unreported = 0


def _job_freed(state: State, decision: b.JobFreed) -> None:
    """Note that a job takes turns again."""
    job = state.jobs.by_id[decision.job]
    _leave_held(state, job)
    _take_turns(state, job)
    job.unreported = 0


def _job_steered(state: State, decision: b.JobSteered) -> None:
    """Pause, resume or cancel a job; the requests of a cancelled one are to be cancelled next."""
    state.pending.popleft()
    job = state.jobs.by_id[decision.job]
    job.unreported = 0
    if decision.action == "resume":
        _leave_state(state, job)
        job.state = "running"
        if job.released < job.items:
            _take_turns(state, job)
        return
    if job.id in state.models[job.model].offline.turns:
        _leave_turns(state, job)
    elif job.by_quota:
        _leave_held(state, job)
    else:
        _leave_state(state, job)
    job.since_us = state.now_us
    if decision.action == "pause":
        job.state = "paused"
        return
    job.state = "cancelling"
    job.chunks.clear()
    for number in job.open:
        name = request_id(job.id, number)
        if name in state.requests:
            state.pending.append(
                f.CancelAsked(at_us=state.now_us, id=name, model=job.model, offset=decision.offset)
            )
    _note_settled(state, job)


def _job_progressed(state: State, decision: b.JobProgressed) -> None:
    """Note that the job's progress was told."""
    state.jobs.by_id[decision.job].unreported = 0


def _job_finished(state: State, decision: b.JobFinished) -> None:
    """Note the end of a job; it is remembered until another needs its place."""
    job = state.jobs.by_id[decision.job]
    del state.jobs.settled[job.id]
    _end(state, job, decision.report.state, decision.report.detail)


# Inside


def _end(state: State, job: Job, final: JobState, detail: str) -> None:
    _leave_state(state, job)
    job.state = final
    job.detail = detail
    job.ended_us = state.now_us
    job.unreported = 0
    job.chunks.clear()
    state.jobs.ended[job.id] = None


def _note_settled(state: State, job: Job) -> None:
    if not job.open and (job.state == "cancelling" or job.released == job.items):
        state.jobs.settled[job.id] = None


def _leave_state(state: State, job: Job) -> None:
    """Add the time of a state that is a hold by itself to what the job was held for."""
    own = job.own_hold
    if own is not None:
        job.held_us[own] += state.now_us - job.since_us
    job.since_us = state.now_us


def _take_turns(state: State, job: Job) -> None:
    offline = state.models[job.model].offline
    _settle_hold(offline, state.now_us)
    job.mark = tuple(offline.totals_us)
    offline.turns[job.id] = None
    state.jobs.waiting[job.model] = None


def _leave_turns(state: State, job: Job) -> None:
    offline = state.models[job.model].offline
    _settle_hold(offline, state.now_us)
    for index, (total_us, mark_us) in enumerate(zip(offline.totals_us, job.mark, strict=True)):
        job.held_us[index] += total_us - mark_us
    job.mark = ()
    del offline.turns[job.id]
    if not offline.turns and not offline.held:
        # What holds the model back stays on record: it holds the next job back too.
        del state.jobs.waiting[job.model]


def _wait_for_quota(state: State, job: Job, told: JobReport) -> None:
    held = state.models[job.model].offline.held
    held.setdefault(job.tenant, {})[job.id] = None
    _leave_turns(state, job)
    job.by_quota = True
    job.since_us = state.now_us
    job.detail = told.detail
    job.waits_for = told.waits_for


def _leave_held(state: State, job: Job) -> None:
    offline = state.models[job.model].offline
    _leave_state(state, job)
    job.by_quota = False
    job.detail = ""
    job.waits_for = None
    of_tenant = offline.held[job.tenant]
    del of_tenant[job.id]
    if not of_tenant:
        del offline.held[job.tenant]
    if not offline.turns and not offline.held:
        del state.jobs.waiting[job.model]


def _settle_hold(offline: Offline, now_us: int) -> None:
    cause: HoldCause | None = offline.cause
    if cause is not None:
        offline.totals_us[HOLD_INDEX[cause]] += now_us - offline.cause_since_us
    offline.cause_since_us = now_us


REMEMBER: dict[type, Callable[[State, Any], None]] = {
    JobSubmitted: _asked,
    JobItemsArrived: _asked,
    JobControlAsked: _asked,
    b.JobAccepted: _job_accepted,
    b.JobRejected: _answered,
    b.JobMessageIgnored: _answered,
    b.JobMessageRouted: _answered,
    b.JobItemsTaken: _items_taken,
    b.ItemsReleased: _items_released,
    b.ReleaseHeld: _release_held,
    b.JobHeld: _job_held,
    b.JobFreed: _job_freed,
    b.JobSteered: _job_steered,
    b.JobProgressed: _job_progressed,
    b.JobFinished: _job_finished,
}
