"""Whether a request of a known model is let in. Pure; reads only.

First what can never run (too large), then what has no time left, then what may come again later:
the queue is full, a quota is used up, or the deadline cannot be met. A refusal that will pass says
when to come back. An item of an offline job was held back for that instead, before it was released:
here it is refused only for what can never pass.
"""

from dataclasses import dataclass
from typing import NamedTuple

from schemas import decisions as d
from schemas.decisions import Decision, Outcome, Reason
from schemas.facts import RequestArrived
from schemas.policy import Policy, Tier
from services.scheduler import ends, kinds, offline_memory, placement, quotas, service_times
from services.scheduler.state import Model, State


class Asked(NamedTuple):
    """What a request asks for, with the policy's values where it names none."""

    tier: Tier
    tenant: str
    prompt_tokens: int
    output_tokens: int
    deadline_us: int | None

    @property
    def tokens(self) -> int:
        """Return the KV that it needs at most."""
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True, frozen=True)
class _No:
    outcome: Outcome
    reason: Reason
    detail: str
    retry_after_ms: int | None = None


def answer(policy: Policy, state: State, model: Model, fact: RequestArrived) -> Decision:
    """Return that the request is queued, or the outcome with which it ends here."""
    asked = _asked(policy, state, model, fact)
    refused = (
        _never(state, model, fact, asked)
        or _too_late(state, fact, asked)
        or (None if offline_memory.of_job(state, fact.id) else _not_now(state, model, asked))
    )
    if refused is not None:
        return ends.at_the_door(
            policy,
            state,
            fact,
            outcome=refused.outcome,
            reason=refused.reason,
            detail=refused.detail,
            retry_after_ms=refused.retry_after_ms,
        )
    settings = state.settings.at(fact.model, asked.tier, asked.tenant)
    per_minute = state.settings.at(fact.model, None, asked.tenant).quota_tokens_per_minute
    return d.RequestQueued(
        fact.id,
        fact.model,
        asked.tenant,
        asked.tier,
        asked.prompt_tokens,
        asked.output_tokens,
        asked.deadline_us,
        model.queue.waiting,
        settings.preemptible,
        0 if per_minute is None else quotas.minute_us(asked.tokens, per_minute),
    )


def _asked(policy: Policy, state: State, model: Model, fact: RequestArrived) -> Asked:
    tier = fact.tier or policy.default_tier
    tenant = fact.tenant or policy.default_tenant
    wanted = 0 if fact.embedding is not None else fact.max_output_tokens
    if wanted is None:
        most = state.settings.at(fact.model, tier, tenant).default_output_tokens_max
        wanted = max(1, min(most, model.profile.max_sequence_tokens - fact.prompt_tokens))
    deadline_us = None if fact.deadline_ms is None else fact.arrived_us + fact.deadline_ms * 1000
    return Asked(tier, tenant, fact.prompt_tokens, wanted, deadline_us)


def _never(state: State, model: Model, fact: RequestArrived, asked: Asked) -> _No | None:
    """Return why the request can never run, or None."""
    refusal = kinds.wrong_kind(model, fact)
    if refusal is None and fact.embedding is not None:
        refusal = kinds.too_large(state.settings.at(fact.model), model, fact.embedding)
    if refusal is not None:
        return _No("rejected", *refusal)
    if fact.embedding is not None:
        return None
    context = model.profile.max_sequence_tokens
    if asked.tokens > context:
        detail = (
            f"asks for {asked.tokens} tokens ({asked.prompt_tokens} prompt and"
            f" {asked.output_tokens} output), but the context of {model.profile.model} holds"
            f" {context}"
        )
        return _No("rejected", "over-context", detail)
    if placement.over_every_pool(model, asked.tokens):
        largest = model.pool_tokens_max
        detail = ends.over_pool_detail(asked.prompt_tokens, asked.output_tokens, largest)
        return _No("rejected", "over-pool", detail)
    return None


def _too_late(state: State, fact: RequestArrived, asked: Asked) -> _No | None:
    if asked.deadline_us is None or asked.deadline_us > state.now_us:
        return None
    detail = f"its deadline of {fact.deadline_ms} ms had passed when it reached the cell"
    return _No("expired", "deadline", detail)


def _not_now(state: State, model: Model, asked: Asked) -> _No | None:
    """Return why a request that could run is not accepted now, and when it would be, or None."""
    later = quotas.queue_full(state, model, asked.tenant) or quotas.refusal(
        state, model, asked.tenant, asked.tokens
    )
    if later is not None:
        return _No("rejected", later.reason, later.detail, later.retry_after_ms)
    if asked.deadline_us is None:
        return None
    policy = state.settings.at(model.profile.model, asked.tier, asked.tenant)
    if not policy.refuse_hopeless or model.service.samples < policy.service_samples_min:
        return None
    estimate = service_times.estimate(model, asked.tier, asked.tenant)
    late_us = state.now_us + estimate.starts_us - asked.deadline_us
    if late_us < 0:
        return None
    detail = service_times.told(
        model, estimate, asked.prompt_tokens, asked.output_tokens, asked.deadline_us - state.now_us
    )
    return _No("rejected", "deadline-hopeless", detail, late_us // 1000 + 1)
