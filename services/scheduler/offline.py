"""Which items of offline jobs leave, and what answers a message about a job. Pure; reads only.

Offline work takes what online work leaves. While there has been no online request of a model for
`offline_idle_ms`, its jobs may fill every slot, and a little more waits behind. Else items leave
only as far as a margin of slots and of KV stays free, and none while an online request waits. What
was released is an ordinary request of the batch tier: if online work needs the room of one that
runs, it is preempted as any lower tier is, so nothing here takes anything back.

Released items come back to the cell over the bus. Until those of the last release are here, a
model releases no more: that bounds the decisions of a step and the messages on their way.
"""

from dataclasses import replace

from schemas import batch_decisions as b
from schemas import facts as f
from schemas.batch import HOLDS, Held, HoldCause, JobReport, JobState, add_sums, item_of, sum_text
from schemas.batch_facts import JobControlAsked, JobFact, JobItemsArrived, JobSubmitted
from schemas.decisions import Decision
from schemas.ids import cell_of
from schemas.policy import Policy
from services.scheduler.jobs import HOLD_INDEX, OUTCOMES, STATE_HOLDS, Job
from services.scheduler.state import Model, State

# Beyond what runs, an eighth of the slots waits behind, so that none stands empty while a released
# item is on its way; and as much is released at once, so that a decision is worth its entry.
_AHEAD_SHARE = 8


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
    item = item_of(request)
    job = state.jobs.by_id.get(item[0]) if item else None
    return job is not None and job.state == "cancelling"


def decide(state: State) -> Decision | None:
    """Return the next decision about jobs that no fact asks for: an end, a release, a report."""
    jobs = state.jobs
    if jobs.settled:
        return _finished(state, jobs.by_id[next(iter(jobs.settled))])
    for name in jobs.waiting:
        decision = _release(state.settings.at(name), state, state.models[name])
        if decision is not None:
            return decision
    for job_id in jobs.moved:
        job = jobs.by_id[job_id]
        share = state.settings.at(job.model).offline_report_pct
        if job.unreported and job.unreported * 100 >= share * job.items:
            return b.JobProgressed(job=job.id, model=job.model, report=report(state, job))
    return None


def due_us(state: State) -> int | None:
    """Return when online work will have been idle for long enough, or None if it is not."""
    due: list[int] = []
    for name in state.jobs.waiting:
        offline = state.models[name].offline
        idle_ms = state.settings.at(name).offline_idle_ms
        idle_at_us = offline.online_until_us + idle_ms * 1000
        if not offline.online and idle_at_us > state.now_us:
            due.append(idle_at_us)
    return min(due, default=None)


def report(state: State, job: Job) -> JobReport:
    """Return how far a job is now."""
    held_us = job.held_us.copy()
    state_itself = STATE_HOLDS.get(job.state)
    if state_itself is not None:
        held_us[state_itself] += state.now_us - job.since_us
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
    )


def _held(held_us: list[int]) -> Held:
    return tuple([(cause, us) for cause, us in zip(HOLDS, held_us, strict=True) if us])


# Answers


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
        report=replace(report(state, job), state=following),
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


# By itself


def _finished(state: State, job: Job) -> b.JobFinished:
    final: JobState = "cancelled" if job.state == "cancelling" else "completed"
    told = replace(
        report(state, job),
        state=final,
        ended_us=state.now_us,
        not_run=job.items - job.released,
    )
    return b.JobFinished(
        job=job.id, model=job.model, e2e_us=state.now_us - job.submitted_us, report=told
    )


def _release(policy: Policy, state: State, model: Model) -> Decision | None:
    """Return the release of a model's next items, or what newly holds them back, or None."""
    offline = model.offline
    if offline.in_flight > offline.accepted:
        return None
    job = _next_job(policy, state, model)
    room = _room(policy, state, model, job or state.jobs.by_id[next(iter(offline.turns))])
    count = room.in_flight_max - offline.in_flight
    cause = _hold(room, count, window_open=job is not None)
    if cause is not None or job is None:
        known = offline.cause == cause or (cause == "in-flight" and offline.cause is None)
        return None if known or cause is None else _held_back(model, cause, room)
    idle = _is_idle(room)
    if idle and room.in_flight and count * _AHEAD_SHARE < room.in_flight_max:
        return None
    first, items, offset = job.chunks[0]
    skip = job.released - first
    window = policy.offline_window_items - (job.released - _oldest(job))
    count = min(count, policy.offline_release_max, items - skip, window)
    told = report(state, job)
    return b.ItemsReleased(
        job=job.id,
        model=job.model,
        first=job.released,
        count=count,
        offset=offset,
        skip=skip,
        why="idle" if idle else "spare",
        held=offline.cause,
        room=room,
        report=replace(told, released=told.released + count),
    )


def _is_idle(room: b.Room) -> bool:
    return not room.online and room.idle_us >= room.idle_us_min


def _held_back(model: Model, cause: HoldCause, room: b.Room) -> b.ReleaseHeld:
    return b.ReleaseHeld(
        model=model.profile.model, cause=cause, jobs=len(model.offline.turns), room=room
    )


def _oldest(job: Job) -> int:
    return next(iter(job.open), job.released)


def _next_job(policy: Policy, state: State, model: Model) -> Job | None:
    """Return the first job in turn that is not too far ahead of its oldest open item."""
    for job_id in model.offline.turns:
        job = state.jobs.by_id[job_id]
        if job.released - _oldest(job) < policy.offline_window_items:
            return job
    return None


def _hold(room: b.Room, count: int, *, window_open: bool) -> HoldCause | None:
    if not room.slots:
        return "no-replica"
    if room.online_waiting:
        return "online-waits"
    if not window_open:
        return "window"
    if count > 0:
        return None
    return "in-flight" if _is_idle(room) or room.in_flight else "online-busy"


def _room(policy: Policy, state: State, model: Model, job: Job) -> b.Room:
    """Return the numbers by which a release of this job is judged."""
    offline = model.offline
    ready = [replica for replica in model.replicas.values() if not replica.draining]
    slots = sum(replica.max_batch for replica in ready)
    slots_free = slots - sum(len(replica.running) for replica in ready)
    blocks = sum(replica.kv_blocks for replica in ready)
    blocks_free = blocks - sum(replica.blocks_used for replica in ready)
    item_blocks = 0
    if job.sized and ready:
        item_blocks = -(-job.tokens // (job.sized * ready[0].block_tokens))
    idle_us = 0 if offline.online else state.now_us - offline.online_until_us
    idle_us_min = policy.offline_idle_ms * 1000
    slots_kept = blocks_kept = 0
    if not offline.online and idle_us >= idle_us_min:
        most = slots + max(1, slots // _AHEAD_SHARE)
    else:
        slots_kept = -(-slots * policy.offline_slots_margin_pct // 100)
        blocks_kept = -(-blocks * policy.offline_kv_margin_pct // 100)
        behind = offline.in_flight - offline.running
        fitting = slots_free - slots_kept - behind
        if item_blocks:
            fitting = min(fitting, (blocks_free - blocks_kept) // item_blocks - behind)
        else:
            # The size of the job's items is not known yet: one goes ahead and tells.
            fitting = min(fitting, 1 - offline.in_flight)
        most = offline.in_flight + max(0, fitting)
    return b.Room(
        online=offline.online,
        online_waiting=model.queue.waiting - offline.queued,
        idle_us=idle_us,
        idle_us_min=idle_us_min,
        in_flight=offline.in_flight,
        in_flight_max=min(most, policy.offline_inflight_max),
        slots=slots,
        slots_free=slots_free,
        slots_kept=slots_kept,
        blocks=blocks,
        blocks_free=blocks_free,
        blocks_kept=blocks_kept,
        item_blocks=item_blocks,
    )
