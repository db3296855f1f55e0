"""What a tenant may have of a model: waiting, running, and tokens in a minute. Pure; reads only.

An item of an offline job is judged before it is released, and never refused at the door for what
will pass: of the tenant's requests that came in between, it may be the one too many.

Quotas count per model, and a model belongs to one cell, so they are exact however many cells there
are. The tokens of a minute are a bucket of one minute's worth that fills steadily, kept as the time
at which it will be full again (so nothing has to be filled while nothing happens): a request takes
its estimate at the door, and what it did not use comes back when it ends. A request larger than a
whole minute's worth is let in when the bucket is full, and those behind it wait the longer.
"""

from dataclasses import dataclass
from operator import attrgetter

from schemas import decisions as d
from schemas.batch_decisions import QuotaReason
from schemas.policy import Policy
from services.scheduler.accounts import MINUTE_US, Account
from services.scheduler.jobs import Job
from services.scheduler.state import Model, Request, State

_NO_ACCOUNT = Account()


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a request is not accepted now, and when to send it again."""

    reason: d.Reason
    detail: str
    retry_after_ms: int


def refusal(state: State, model: Model, tenant: str, tokens: int) -> Refusal | None:
    """Return why a request of the tenant for `tokens` tokens breaks a quota, or None."""
    policy = state.settings.at(model.profile.model, None, tenant)
    account = model.accounts.get(tenant, _NO_ACCOUNT)
    name = model.profile.model
    most = policy.quota_queued_requests
    if most is not None and account.waiting >= most:
        detail = _queued_detail(tenant, model, account)
        return _later(policy, model, account, "quota-queued-requests", detail)
    most = policy.quota_queued_tokens
    if most is not None and account.waiting_tokens + tokens > most:
        detail = (
            f"it asks for {tokens} tokens beside the {account.waiting_tokens} of {tenant} that wait"
            f" for {name}; the quota is {most}"
        )
        return _later(policy, model, account, "quota-queued-tokens", detail)
    per_minute = policy.quota_tokens_per_minute
    if per_minute is None:
        return None
    taken_us = minute_us(tokens, per_minute)
    full_us = max(account.minute_until_us, state.now_us)
    over_us = full_us + taken_us - state.now_us - max(MINUTE_US, taken_us)
    if over_us <= 0:
        return None
    after_ms = -(-over_us // 1000)
    detail = (
        f"it asks for {tokens} tokens, and {tenant} may use {per_minute} a minute of {name}: there"
        f" is room for them in {after_ms} ms"
    )
    return Refusal("quota-tokens-per-minute", detail, after_ms)


@dataclass(slots=True, frozen=True)
class ItemsRoom:
    """How many items of a job have room now, by all that its tenant may have of the model.

    Attributes:
        reason: the rule that leaves room for none, or None. detail: with the numbers compared.
        until_us: when there is room by the passing of time alone, or None.
    """

    count: int
    reason: QuotaReason | None = None
    detail: str = ""
    until_us: int | None = None


def items_room(state: State, model: Model, job: Job) -> ItemsRoom:
    """Return how many items of the job may be released now, or why none may.

    None of its model may be on its way here. An item is taken to be as large as they were on
    average; while none is known, one goes ahead and tells.
    """
    policy = state.settings.at(job.model, None, job.tenant)
    account = model.accounts.get(job.tenant, _NO_ACCOUNT)
    rooms = [_items_in_queue(policy, model, job, account)]
    if policy.quota_queued_tokens is not None:
        rooms.append(_items_in_queued_tokens(policy.quota_queued_tokens, job, account))
    if policy.quota_running_requests is not None:
        rooms.append(_items_to_run(policy.quota_running_requests, policy, job, account))
    if policy.quota_tokens_per_minute is not None:
        now_us, per_minute = state.now_us, policy.quota_tokens_per_minute
        rooms.append(_items_in_minute(per_minute, job, account, now_us))
    return min(rooms, key=attrgetter("count"))


def _items_in_queue(policy: Policy, model: Model, job: Job, account: Account) -> ItemsRoom:
    """Return how many items have room in the model's queue, and beside the tenant's that wait."""
    count = policy.queued_requests_max - model.queue.waiting
    if count <= 0:
        detail = _queue_full_detail(policy, model)
        return ItemsRoom(0, "queue-full", detail)
    most = policy.quota_queued_requests
    if most is None or most - account.waiting >= count:
        return ItemsRoom(count)
    if account.waiting < most:
        return ItemsRoom(most - account.waiting)
    return ItemsRoom(0, "quota-queued-requests", _queued_detail(job.tenant, model, account))


def _items_in_queued_tokens(most: int, job: Job, account: Account) -> ItemsRoom:
    """Return how many items fit beside the tokens that wait; a larger one goes alone."""
    tokens = max(1, job.item_tokens)
    count = (most - account.waiting_tokens) // tokens
    if count > 0 or not account.waiting_tokens:
        return ItemsRoom(max(1, count) if job.sized else 1)
    detail = (
        f"an item asks for about {tokens} tokens, and {account.waiting_tokens} of {job.tenant} wait"
        f" for {job.model}; the quota is {most}"
    )
    return ItemsRoom(0, "quota-queued-tokens", detail)


def _items_to_run(most: int, policy: Policy, job: Job, account: Account) -> ItemsRoom:
    """Return how many items may run or stand ready behind; more would fill others' places."""
    count = most + max(1, most // policy.offline_ready_share) - account.running - account.waiting
    if count > 0:
        return ItemsRoom(count)
    detail = (
        f"{account.running} requests of {job.tenant} run on {job.model} and {account.waiting} wait;"
        f" {most} may run"
    )
    return ItemsRoom(0, "quota-running-requests", detail)


def _items_in_minute(per_minute: int, job: Job, account: Account, now_us: int) -> ItemsRoom:
    tokens = max(1, job.item_tokens)
    taken_us = minute_us(tokens, per_minute)
    owed_us = max(0, account.minute_until_us - now_us)
    count = (MINUTE_US - owed_us) // taken_us
    if count > 0 or not owed_us:
        return ItemsRoom(max(1, count) if job.sized else 1)
    until_us = now_us + owed_us + taken_us - max(MINUTE_US, taken_us)
    detail = (
        f"an item asks for about {tokens} tokens, and {job.tenant} may use {per_minute} a minute of"
        f" {job.model}, which are used up"
    )
    return ItemsRoom(0, "quota-tokens-per-minute", detail, until_us)


def queue_full(state: State, model: Model, tenant: str) -> Refusal | None:
    """Return that too many requests of the model wait, or None."""
    policy = state.settings.at(model.profile.model, None, tenant)
    if model.queue.waiting < policy.queued_requests_max:
        return None
    detail = _queue_full_detail(policy, model)
    account = model.accounts.get(tenant, _NO_ACCOUNT)
    return _later(policy, model, account, "queue-full", detail)


def minute_us(tokens: int, per_minute: int) -> int:
    """Return how long `tokens` tokens take to come back."""
    return -(-tokens * MINUTE_US // per_minute)


def to_hold(state: State, model: Model, request: Request) -> d.TenantHeld | None:
    """Return that the request's tenant has as many running as it may, or None."""
    name, tenant = model.profile.model, request.tenant
    most = state.settings.at(name, None, tenant).quota_running_requests
    if most is None:
        return None
    running = model.accounts[tenant].running
    if running < most:
        return None
    return d.TenantHeld(
        model=name, tenant=tenant, running=running, running_max=most, head=request.id
    )


def places_left(state: State, model: Model, tenant: str) -> int | None:
    """Return how many more requests of the tenant may run, or None where no quota says so."""
    most = state.settings.at(model.profile.model, None, tenant).quota_running_requests
    return None if most is None else most - model.accounts[tenant].running


def _queue_full_detail(policy: Policy, model: Model) -> str:
    return (
        f"{model.queue.waiting} requests of {model.profile.model} wait already, the most that"
        f" policy {policy.name!r} allows"
    )


def _queued_detail(tenant: str, model: Model, account: Account) -> str:
    name = model.profile.model
    return f"{account.waiting} requests of {tenant} for {name} wait already, its quota"


def _later(
    policy: Policy, model: Model, account: Account, reason: d.Reason, detail: str
) -> Refusal:
    """Return a refusal that lasts until something has been served.

    The pause grows with each refusal in a row, and is never shorter than one request takes to be
    taken from the queue, where that is measured.
    """
    steps = policy.refusal_backoff_ms
    pause_ms = steps[min(account.refusals, len(steps) - 1)]
    measured_ms = -(-model.service.interval_ns // 1_000_000) if model.service.samples else 0
    return Refusal(reason, detail, max(pause_ms, measured_ms))
