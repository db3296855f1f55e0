"""What answers a message about an offline job, and the request of an item. Pure; reads only.

Everything may come again, late, or from a stranger: a header is known by its job, items by their
numbers, an item's request by whether it is awaited. So each message has one answer, and none of
them can run an item twice or leave one without an end.
"""

from dataclasses import replace

from schemas import batch_decisions as b
from schemas import facts as f
from schemas.batch import JobReport, JobState, add_sums, item_of, sum_text
from schemas.batch_facts import JobControlAsked, JobFact, JobItemsArrived, JobSubmitted
from schemas.decisions import Decision
from schemas.ids import cell_of
from schemas.policy import Policy
from services.scheduler.job_report import report
from services.scheduler.jobs import Job
from services.scheduler.state import State


def answer(policy: Policy, state: State, fact: JobFact) -> Decision:
    """Return the decision that answers a message about a job."""
    owner = cell_of(fact.model, state.cells)
    if owner != state.cell and fact.routed_by is None:
        return b.JobMessageRouted(job=fact.job, model=fact.model, to_cell=owner, offset=fact.offset)
    if isinstance(fact, JobSubmitted):
        return _submitted(policy, state, fact)
    job = state.jobs.by_id.get(fact.job)
    what = "items" if isinstance(fact, JobItemsArrived) else "control"
    if job is None:
        return _ignored(fact, what, "unknown-job", f"no job {fact.job} is known here")
    if job.model != fact.model:
        return _ignored(fact, what, "another-model", f"the job {fact.job} is of {job.model}")
    if isinstance(fact, JobItemsArrived):
        return _items(state, fact, job)
    return _control(state, fact, job)


def answer_item(state: State, fact: f.RequestArrived | f.RequestRefused) -> Decision | None:
    """Return why the request of a job's item changes nothing, or None when it is awaited.

    None too for a request that is no item of a job known here: it is one like any other.
    """
    if not state.jobs.by_id:
        return None
    item = item_of(fact.id)
    job = state.jobs.by_id.get(item[0]) if item else None
    if item is None or job is None:
        return None
    if job.model != fact.model:
        return _ignored(fact, "item", "another-model", f"the job {job.id} is of {job.model}", job)
    if item[1] >= job.released:
        detail = f"{job.released} items of the job were released so far"
        return _ignored(fact, "item", "not-released", detail, job)
    if item[1] not in job.open or fact.id in state.requests:
        return _ignored(fact, "item", "repeated", "the item's request came before", job)
    return None


def is_cancelled_item(state: State, request: str) -> bool:
    """Return whether a request is an awaited item of a job that was cancelled meanwhile."""
    if not state.jobs.by_id:
        return False
    item = item_of(request)
    job = state.jobs.by_id.get(item[0]) if item else None
    return job is not None and job.state == "cancelling"


# Inside


def _submitted(policy: Policy, state: State, fact: JobSubmitted) -> Decision:
    known = state.jobs.by_id.get(fact.job)
    if known is not None:
        same = (known.model, known.items, known.digest) == (fact.model, fact.items, fact.digest)
        why = "repeated" if same else "another-job"
        detail = f"it is {known.state}, with {known.arrived} of {known.items} items here"
        return _ignored(fact, "header", why, detail)
    blank = Job(
        id=fact.job,
        model=fact.model,
        tenant=fact.tenant or policy.default_tenant,
        endpoint=fact.endpoint,
        label=fact.label,
        digest=fact.digest,
        offset=fact.offset,
        submitted_us=fact.at_us,
        items=fact.items,
        since_us=state.now_us,
    )
    begun = report(state, blank)
    forgotten: tuple[str, ...] = ()
    if len(state.jobs.by_id) >= policy.offline_jobs_max:
        forgotten = tuple(state.jobs.ended)[: len(state.jobs.by_id) - policy.offline_jobs_max + 1]
    refusal = _refusal(policy, state, fact, room_made=len(forgotten))
    if refusal is None:
        return b.JobAccepted(job=fact.job, model=fact.model, report=begun, forgotten=forgotten)
    reason, detail = refusal
    final = replace(
        begun, state="rejected", detail=detail, ended_us=state.now_us, not_run=fact.items
    )
    return b.JobRejected(job=fact.job, model=fact.model, reason=reason, report=final)


_Refusal = tuple[b.RejectReason, str]


def _refusal(
    policy: Policy, state: State, fact: JobSubmitted, *, room_made: int
) -> _Refusal | None:
    if fact.model not in state.models:
        known = ", ".join(sorted(state.models)) or "none"
        return "unknown-model", f"no model is named {fact.model!r}; known models: {known}"
    items_max = state.settings.at(fact.model).offline_job_items_max
    if fact.items > items_max:
        return "too-many-items", (
            f"it has {fact.items} items, and policy {policy.name!r} allows {items_max}; split it"
        )
    jobs = len(state.jobs.by_id) - room_made
    if jobs >= policy.offline_jobs_max:
        return "too-many-jobs", (
            f"{jobs} jobs have not ended, the most that policy {policy.name!r} allows; submit it"
            " again when one has"
        )
    return None


def _items(state: State, fact: JobItemsArrived, job: Job) -> Decision:
    if fact.first < job.arrived:
        return _ignored(fact, "items", "repeated", f"items up to {job.arrived} are here already")
    if job.state != "receiving":
        return _ignored(fact, "items", "wrong-state", f"the job is {job.state}")
    if fact.first > job.arrived or fact.first + fact.count > job.items:
        detail = f"item {job.arrived} of {job.items} is the next, not {fact.first}"
        return _ignored(fact, "items", "out-of-order", detail)
    chunks_max = state.settings.at(job.model).offline_job_chunks_max
    if len(job.chunks) >= chunks_max:
        detail = f"its items stand in more than {chunks_max} records: put more into each"
        return _ignored(fact, "items", "too-many-chunks", detail)
    total = sum_text(add_sums(int(job.digest_sum, 16), int(fact.digest, 16)))
    told = replace(report(state, job), arrived=job.arrived + fact.count)
    if told.arrived == job.items:
        told = _complete(state, job, told, total)
    return b.JobItemsTaken(
        job=job.id,
        model=job.model,
        first=fact.first,
        count=fact.count,
        offset=fact.offset,
        digest_sum=total,
        report=told,
    )


def _complete(state: State, job: Job, told: JobReport, total: str) -> JobReport:
    if job.digest is None or job.digest == total:
        return replace(told, state="running")
    detail = (
        f"its items add up to {total}, and its header says {job.digest}: the file changed while it"
        " was submitted; submit it again as another job"
    )
    return replace(told, state="rejected", detail=detail, ended_us=state.now_us, not_run=job.items)


_NEXT_STATE: dict[tuple[str, str], JobState] = {
    ("running", "pause"): "paused",
    ("paused", "resume"): "running",
    ("receiving", "cancel"): "cancelling",
    ("running", "cancel"): "cancelling",
    ("paused", "cancel"): "cancelling",
}


def _control(state: State, fact: JobControlAsked, job: Job) -> Decision:
    following = _NEXT_STATE.get((job.state, fact.action))
    if following is None:
        return _ignored(fact, "control", "wrong-state", f"the job is {job.state}")
    return b.JobSteered(
        job=job.id,
        model=job.model,
        action=fact.action,
        who=fact.who,
        why=fact.why,
        offset=fact.offset,
        report=replace(report(state, job), state=following, detail="", waits_for=None),
    )


def _ignored(
    fact: JobFact | f.RequestArrived | f.RequestRefused,
    what: b.JobMessage,
    why: b.IgnoredWhy,
    detail: str,
    job: Job | None = None,
) -> b.JobMessageIgnored:
    name = fact.job if isinstance(fact, JobFact) else ""
    return b.JobMessageIgnored(
        job=job.id if job else name, model=fact.model, what=what, why=why, detail=detail
    )
