"""Which items of offline jobs become requests now, and what holds them back. Pure; reads only.

Offline work takes what online work leaves. While there has been no online request of a model for
`offline_idle_ms`, its jobs may take `offline_slots_max_pct` of the slots; once it has been gone for
`offline_alone_ms` they may fill every slot, and a little more waits behind. Else items leave
only as far as a margin of slots and of KV stays free, and none while an online request waits. What
was released is an ordinary request of the batch tier that stands below every tier: if online work
needs the room of one that runs, it is asked to leave, so nothing here takes anything back.

A job of a tenant that may have no more of the model waits by itself, and the other tenants' go on.

Released items come back to the cell over the bus. Until those of the last release are here, a
model releases no more: that bounds the decisions of a step and the messages on their way.
"""

from dataclasses import replace
from typing import Any

from schemas import batch_decisions as b
from schemas.batch import HoldCause, JobState
from schemas.decisions import Decision
from schemas.policy import Policy
from services.scheduler import quotas
from services.scheduler.job_report import report
from services.scheduler.jobs import Job, Offline
from services.scheduler.state import Model, State


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
    """Return when online work will have been idle for long enough, or a quota is free, or None."""
    due: list[int] = []
    for name in state.jobs.waiting:
        offline = state.models[name].offline
        if not offline.online:
            policy = state.settings.at(name)
            for wait_ms in (policy.offline_idle_ms, policy.offline_alone_ms):
                at_us = offline.online_until_us + wait_ms * 1000
                if at_us > state.now_us:
                    due.append(at_us)
        for job in _longest_held(state, offline):
            until_us = quotas.items_room(state, state.models[name], job).until_us
            if until_us is not None:
                due.append(until_us)
    return min(due, default=None)


# Inside


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
    freed = _freed(state, model)
    if freed is not None or not offline.turns:
        return freed
    job = _next_job(policy, state, model)
    room = _room(policy, state, model, job or state.jobs.by_id[next(iter(offline.turns))])
    count = room.in_flight_max - offline.in_flight
    cause = _hold(room, count, window_open=job is not None)
    if cause is not None or job is None:
        known = offline.cause == cause or (cause == "in-flight" and offline.cause is None)
        return None if known or cause is None else _held_back(model, cause, room)
    idle = _is_idle(room)
    if idle and room.in_flight and count * policy.offline_ready_share < room.in_flight_max:
        return None
    allowed = quotas.items_room(state, model, job)
    if allowed.reason is not None:
        return _held_by_quota(state, job, allowed, allowed.reason)
    first, items, offset = job.chunks[0]
    skip = job.released - first
    window = policy.offline_window_items - (job.released - _oldest(job))
    count = min(count, allowed.count, policy.offline_release_max, items - skip, window)
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
        report=replace(told, released=told.released + count, **_behind(state, job)),
    )


def _is_idle(room: b.Room) -> bool:
    return not room.online and room.idle_us >= room.idle_us_min


def _held_back(model: Model, cause: HoldCause, room: b.Room) -> b.ReleaseHeld:
    return b.ReleaseHeld(
        model=model.profile.model, cause=cause, jobs=len(model.offline.turns), room=room
    )


def _freed(state: State, model: Model) -> b.JobFreed | None:
    """Return that a job has room by its tenant's quota again, or None.

    One of a tenant at a time: what there is room for may be all that the first one releases.
    """
    offline = model.offline
    for job in _longest_held(state, offline):
        items = quotas.items_room(state, model, job).count
        if items and all(state.jobs.by_id[one].tenant != job.tenant for one in offline.turns):
            return b.JobFreed(
                job=job.id,
                model=job.model,
                tenant=job.tenant,
                items=items,
                report=replace(report(state, job), detail="", waits_for=None),
            )
    return None


def _behind(state: State, job: Job) -> dict[str, Any]:
    """Return behind which job of its tenant a job waits after a release, and for which rule."""
    first = next(iter(state.models[job.model].offline.held.get(job.tenant, ())), None)
    if first is None:
        return {}
    detail = f"its next items wait behind the job {first}, for the same quota"
    return {"detail": detail, "waits_for": state.jobs.by_id[first].waits_for}


def _held_by_quota(
    state: State, job: Job, room: quotas.ItemsRoom, reason: b.QuotaReason
) -> b.JobHeld:
    return b.JobHeld(
        job=job.id,
        model=job.model,
        tenant=job.tenant,
        reason=reason,
        item_tokens=job.item_tokens,
        until_us=room.until_us,
        report=replace(report(state, job), detail=room.detail, waits_for=reason),
    )


def _longest_held(state: State, offline: Offline) -> list[Job]:
    """Return of each tenant the job that has waited longest for its quota."""
    return [state.jobs.by_id[next(iter(jobs))] for jobs in offline.held.values()]


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
    share = max(1, slots * policy.offline_slots_max_pct // 100)
    if not offline.online and idle_us >= max(idle_us_min, policy.offline_alone_ms * 1000):
        most = slots + max(1, slots // policy.offline_ready_share)
    elif not offline.online and idle_us >= idle_us_min:
        most = share
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
        most = min(offline.in_flight + max(0, fitting), share)
    return b.Room(
        online=offline.online,
        online_waiting=model.queue.waiting - model.queue.tiers["offline"].waiting,
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
