"""A request has its outcome: what is remembered of it, and of whom it stood beside. Pure.

Part of evolve. One that was accepted leaves its queue or replica and settles its account; each is
kept by its id for as long as the decision says, to answer a resend.
"""

from schemas import decisions as d
from services.scheduler import due, gathering, offline_memory, service_times, waiting
from services.scheduler.state import Ended, Request, State

# About how long a character of a producer's metadata is in the ledger at worst.
_METADATA_CHAR_BYTES = 6


def request_ended(state: State, decision: d.RequestEnded) -> None:
    """Remember that a request has its outcome, accepted or refused at the door."""
    if state.pending:
        # What the fact brought is answered before anything ends by itself (a deadline, say).
        state.pending.popleft()
    request = state.requests.pop(decision.id, None)
    if request is not None:
        _accepted_ended(state, request, decision)
    elif decision.retry_after_ms is not None:
        model = state.models[decision.model]
        waiting.account_of(state, model, decision.tenant).refusals += 1
    offline_memory.ended(state, decision.id, decision.outcome, request)
    if decision.keep_until_us > state.now_us:
        state.ended[decision.id] = Ended(
            decision.keep_until_us,
            decision.body_digest,
            decision.outcome,
            decision.reason,
            state.now_us,
            decision.output_offset,
        )
    if decision.metadata:
        metadata_chars = sum(len(name) + len(value) for name, value in decision.metadata)
        state.step_bytes += _METADATA_CHAR_BYTES * metadata_chars


def _accepted_ended(state: State, request: Request, decision: d.RequestEnded) -> None:
    model = state.models[request.model]
    if request.quota_us:
        tokens = request.prompt_tokens + request.max_output_tokens
        usage = decision.usage
        used = 0 if usage is None else usage.prompt_tokens + usage.output_tokens
        account = waiting.account_of(state, model, request.tenant)
        account.give_minute_back(request.quota_us * (tokens - used) // tokens)
    if decision.usage is not None:
        service_times.note_usage(model.service, decision.usage)
    if request.stage == "running":
        gathering.measured(state, model, decision, request)
        waiting.stop(state, request, decision.cost)
    elif request.stage == "waiting":
        waiting.leave(state, request)
    model.claims.pop(request.id, None)
    if decision.outcome == "completed" and decision.usage is not None:
        model.lengths.add(
            request.tenant,
            decision.usage.output_tokens,
            samples_max=state.policy.reservation_samples_max,
            tenants_max=state.policy.reservation_tenants_max,
        )
    state.touched[request.model] = None
    due.drop_dead(state)
