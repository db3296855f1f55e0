"""The one outcome of a request, in each way in which it can end. Pure; reads only.

Every end says why, in a code for programs and in a sentence with the numbers for people.
"""

from zlib import crc32

from schemas.decisions import Outcome, Reason, RequestEnded
from schemas.facts import Pairs, RequestArrived, RequestRefused, Usage, WorkDeparture, WorkDone
from schemas.policy import Policy
from services.scheduler import carried, windows
from services.scheduler.state import Request, State
from services.scheduler.waits import as_waits, waited_us


def seed_of(request_id: str) -> int:
    """Return the sampling seed of a request: CRC-32 of its id, the same in every attempt."""
    return crc32(request_id.encode())


def at_the_door(
    policy: Policy,
    state: State,
    fact: RequestArrived | RequestRefused,
    *,
    outcome: Outcome,
    reason: Reason,
    detail: str,
    retry_after_ms: int | None = None,
) -> RequestEnded:
    """Return the end of a request that was never accepted: `rejected`, or `expired` on arrival.

    One that may come again (`retry_after_ms`) is not remembered: its resend is not a duplicate.
    """
    waited_us = state.now_us - fact.arrived_us
    arrived = fact if isinstance(fact, RequestArrived) else None
    metadata: Pairs = arrived.metadata if arrived else ()
    return RequestEnded(
        id=fact.id,
        model=fact.model,
        tenant=fact.tenant or policy.default_tenant,
        tier=(arrived and arrived.tier) or policy.default_tier,
        outcome=outcome,
        reason=reason,
        detail=detail,
        attempts=0,
        slot=None,
        arrived_us=fact.arrived_us,
        wait_us=waited_us,
        waits=(("transit", waited_us),) if waited_us else (),
        run_us=0,
        e2e_us=waited_us,
        ttft_us=None,
        usage=None,
        prompt_tokens=arrived.prompt_tokens if arrived else 0,
        max_output_tokens=(arrived and arrived.max_output_tokens) or 0,
        blocks=0,
        request_offset=fact.offset,
        output_offset=-1,
        body_digest=fact.body_digest,
        output_digest=None,
        metadata=metadata,
        cost=0,
        retry_after_ms=retry_after_ms,
        keep_until_us=state.now_us if retry_after_ms is not None else _keep_until_us(policy, state),
    )


def completed(
    policy: Policy, state: State, request: Request, item: WorkDone, offset: int
) -> RequestEnded:
    """Return the end of a request that ran to its end."""
    if item.finish_reason == "embedded":
        detail = f"embedded {request.texts} texts of {item.usage.prompt_tokens} tokens"
    elif item.finish_reason == "stop":
        detail = f"generated {item.usage.output_tokens} tokens and stopped by itself"
    else:
        detail = f"generated {item.usage.output_tokens} tokens, its limit"
    return _end(
        policy,
        state,
        request,
        outcome="completed",
        reason=item.finish_reason,
        detail=detail,
        usage=item.usage,
        output_offset=offset,
        output_digest=item.output_digest,
    )


def expired(policy: Policy, state: State, request: Request) -> RequestEnded:
    """Return the end of a request whose deadline came while it waited."""
    assert request.deadline_us is not None, "only a deadline expires"  # noqa: S101 - a bound of the algorithm, not input
    allowed_ms = (request.deadline_us - request.arrived_us) // 1000
    return _end(
        policy,
        state,
        request,
        outcome="expired",
        reason="deadline",
        detail=f"still waiting when its deadline of {allowed_ms} ms came",
    )


def over_pool(policy: Policy, state: State, request: Request) -> RequestEnded:
    """Return the end of a waiting request that no replica of its model can hold."""
    model = state.models[request.model]
    if model.batching is not None:
        keys = state.settings.at(request.model)
        detail = windows.over_pool_detail(keys, model, request.texts, request.longest_tokens)
    else:
        largest = model.pool_tokens_max
        detail = over_pool_detail(request.prompt_tokens, request.max_output_tokens, largest)
    return _end(
        policy,
        state,
        request,
        outcome="rejected",
        reason="over-pool",
        detail=detail,
    )


def over_pool_detail(prompt_tokens: int, max_output_tokens: int, largest_tokens: int) -> str:
    """Return the sentence that says which limit a too large request meets."""
    return (
        f"needs KV for {prompt_tokens + max_output_tokens} tokens ({prompt_tokens} prompt and"
        f" {max_output_tokens} output), but the largest KV pool holds {largest_tokens}"
    )


def failed(
    policy: Policy, state: State, request: Request, reason: Reason, detail: str
) -> RequestEnded:
    """Return the end of a request that could not be run."""
    return _end(policy, state, request, outcome="failed", reason=reason, detail=detail)


def cancelled(
    policy: Policy,
    state: State,
    request: Request,
    item: WorkDeparture | None = None,
    offset: int = -1,
) -> RequestEnded:
    """Return the end of a request that its producer cancelled, with the tokens done so far."""
    usage = item.usage if item else None
    done, _ = carried.output_of(request, usage, offset)
    return _end(
        policy,
        state,
        request,
        outcome="cancelled",
        reason="cancel-asked",
        detail=f"cancelled while {request.stage}, with {done} tokens generated",
        usage=usage,
        output_offset=offset,
    )


def _end(
    policy: Policy,
    state: State,
    request: Request,
    *,
    outcome: Outcome,
    reason: Reason,
    detail: str,
    usage: Usage | None = None,
    output_offset: int = -1,
    output_digest: str | None = None,
) -> RequestEnded:
    now_us = state.now_us
    if request.stage == "running":
        waited = request.waited_us
        run_us = request.run_us + now_us - request.since_us
    else:
        waited = waited_us(request, state.models[request.model], now_us)
        run_us = request.run_us
    _, kept_offset = carried.output_of(request, usage, output_offset)
    return RequestEnded(
        request.id,
        request.model,
        request.tenant,
        request.tier,
        outcome,
        reason,
        detail,
        request.attempt,
        request.slot if request.attempt else None,
        request.arrived_us,
        sum(waited),
        as_waits(waited),
        run_us,
        now_us - request.arrived_us,
        carried.ttft_us(request, usage),
        carried.whole_usage(request, usage),
        request.prompt_tokens,
        request.max_output_tokens,
        request.blocks,
        request.offset,
        kept_offset,
        request.body_digest,
        output_digest,
        request.metadata,
        _cost(state, request, usage),
        None,
        _keep_until_us(policy, state),
    )


def _cost(state: State, request: Request, usage: Usage | None) -> int:
    """Return what a request did cost its tenant: nothing, when no replica says what it used."""
    if usage is None:
        return 0
    settings = state.settings.at(request.model, request.tier, request.tenant)
    prompt_cost = request.prompt_tokens * settings.fair_prompt_token_cost
    return prompt_cost + usage.output_tokens * settings.fair_output_token_cost


def _keep_until_us(policy: Policy, state: State) -> int:
    return state.now_us + policy.dedupe_window_ms * 1000
