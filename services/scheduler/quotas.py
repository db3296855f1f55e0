"""What a tenant may have of a model: waiting, running, and tokens in a minute. Pure; reads only.

Quotas count per model, and a model belongs to one cell, so they are exact however many cells there
are. The tokens of a minute are a bucket of one minute's worth that fills steadily, kept as the time
at which it will be full again (so nothing has to be filled while nothing happens): a request takes
its estimate at the door, and what it did not use comes back when it ends. A request larger than a
whole minute's worth is let in when the bucket is full, and those behind it wait the longer.
"""

from dataclasses import dataclass

from schemas import decisions as d
from schemas.policy import Policy
from services.scheduler.accounts import MINUTE_US, Account
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
        detail = f"{account.waiting} requests of {tenant} for {name} wait already, its quota"
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


def queue_full(state: State, model: Model, tenant: str) -> Refusal | None:
    """Return that too many requests of the model wait, or None."""
    policy = state.settings.at(model.profile.model, None, tenant)
    if model.queue.waiting < policy.queued_requests_max:
        return None
    detail = (
        f"{model.queue.waiting} requests of {model.profile.model} wait already, the most that"
        f" policy {policy.name!r} allows"
    )
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
