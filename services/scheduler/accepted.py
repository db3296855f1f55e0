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
    return Request(
        id=decision.id,
        order=state.next_order,
        model=decision.model,
        tenant=decision.tenant,
        tier=decision.tier,
        arrived_us=fact.arrived_us,
        offset=fact.offset,
        prompt_tokens=decision.prompt_tokens,
        max_output_tokens=decision.max_output_tokens,
        deadline_us=decision.deadline_us,
        body_digest=fact.body_digest,
        metadata=fact.metadata,
        preemptible=decision.preemptible,
        stage="waiting",
        since_us=state.now_us,
        mark=(),
        waited_us=waited,
        quota_us=decision.quota_us,
        line="offline" if offline_memory.of_job(state, decision.id) else decision.tier,
        texts=fact.embedding.texts if fact.embedding else 1,
        longest_tokens=fact.embedding.longest_tokens if fact.embedding else decision.prompt_tokens,
    )
