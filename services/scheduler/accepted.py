"""The request that an arrival becomes once it is accepted. Pure; part of evolve."""

from schemas.decisions import RequestQueued
from schemas.facts import RequestArrived
from services.scheduler import offline_memory
from services.scheduler.state import CAUSE_INDEX, Request, State

_TRANSIT = CAUSE_INDEX["transit"]


def request_of(state: State, fact: RequestArrived, decision: RequestQueued) -> Request:
    """Return the request, with the way to the cell as its first wait."""
    waited = [0] * len(CAUSE_INDEX)
    waited[_TRANSIT] = state.now_us - fact.arrived_us
    request = Request(
        decision.id,
        state.next_order,
        decision.model,
        decision.tenant,
        decision.tier,
        fact.arrived_us,
        fact.offset,
        decision.prompt_tokens,
        decision.max_output_tokens,
        decision.deadline_us,
        fact.body_digest,
        fact.metadata,
        decision.preemptible,
        "waiting",
        state.now_us,
        (),
        waited,
        "offline" if offline_memory.of_job(state, decision.id) else decision.tier,
        decision.quota_us,
    )
    size = fact.embedding
    if size is None:
        request.longest_tokens = decision.prompt_tokens
    else:
        request.texts, request.longest_tokens = size.texts, size.longest_tokens
    return request
