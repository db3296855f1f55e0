"""The invariants of the core, checked from outside after every step and every decision.

`Watched` steps facts by hand, so that it sees the state between two decisions too. Beside it a
second state runs through `step` and is stored and thawed after every fact, and a third one only
remembers what is recorded: all three must stay the same.
"""

from dataclasses import dataclass, field

from schemas import decisions as d
from schemas import facts as f
from schemas.codec import encode_decisions
from schemas.decisions import CAUSES, Decision
from schemas.facts import Fact
from schemas.policy import TIERS, Policy
from schemas.room import Preemption
from services.scheduler.decide import decide
from services.scheduler.evolve import evolve
from services.scheduler.queue import LINES
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from services.scheduler.state import Model, Request, State
from services.scheduler.step import governing, next_due_us, recover, step
from tests.properties.overlooked_invariants import (
    check_kept_room_is_used,
    check_nothing_fits,
    check_nothing_was_overlooked,
)
from tests.properties.windows_invariants import check_batches, check_window

DECISIONS_MAX = 2000


@dataclass
class Watched:
    """A core under watch, and the ledger of what it was told and decided."""

    state: State = field(default_factory=State)
    thawed: State = field(default_factory=State)
    recovered: State = field(default_factory=State)
    entries: list[tuple[Fact, tuple[Decision, ...]]] = field(
        default_factory=list[tuple[Fact, tuple[Decision, ...]]]
    )
    accepted: set[str] = field(default_factory=set[str])

    def tell(self, fact: Fact) -> tuple[Decision, ...]:
        """Step `fact` in all three states and check everything that must hold."""
        policy = governing(self.state, fact)
        before_us = self.state.now_us
        evolve(self.state, fact)
        assert self.state.now_us == max(before_us, fact.at_us)
        decisions: list[Decision] = []
        while (decision := self._decide(policy)) is not None:
            assert len(decisions) < DECISIONS_MAX, "the step does not come to rest"
            self._check_decision(fact, decision)
            decisions.append(decision)
            evolve(self.state, decision)
            check_memory(self.state)
        self.entries.append((fact, tuple(decisions)))
        check_rest(policy, self.state)
        assert self.accepted == set(self.state.requests)
        self._check_twins(policy, fact, tuple(decisions))
        return tuple(decisions)

    def replay(self) -> None:
        """Decide all facts again from nothing: the decisions are the same, byte for byte."""
        state = State()
        for fact, decisions in self.entries:
            again = step(governing(state, fact), state, fact)
            assert encode_decisions(again) == encode_decisions(decisions)
        assert state_digest(state) == state_digest(self.state)

    def _decide(self, policy: Policy) -> Decision | None:
        before = repr(self.state)
        decision = decide(policy, self.state)
        assert repr(self.state) == before, "decide changed the state"
        return decision

    def _check_twins(self, policy: Policy, fact: Fact, decisions: tuple[Decision, ...]) -> None:
        expected = encode_decisions(decisions)
        assert encode_decisions(step(policy, self.thawed, fact)) == expected
        recover(self.recovered, fact, decisions)
        digest = state_digest(self.state)
        assert state_digest(self.thawed) == digest
        assert state_digest(self.recovered) == digest
        self.thawed = thaw(b"".join(encode_pieces(freeze(self.thawed))))
        assert state_digest(self.thawed) == digest

    def _check_decision(self, fact: Fact, decision: Decision) -> None:
        if isinstance(decision, d.RequestQueued):
            assert decision.id not in self.accepted, "the same id runs twice"
            self.accepted.add(decision.id)
        elif isinstance(decision, d.RequestDispatched):
            self._check_dispatch(decision)
        elif isinstance(decision, d.RequestEnded):
            self._check_end(fact, decision)
        elif isinstance(decision, d.AttemptLost):
            request = self.state.requests[decision.id]
            attempts_max = self._settings(request).attempts_max
            assert decision.losses == request.losses + 1 < attempts_max
            assert request.stage == "running"
            assert request.attempt == decision.attempt
            assert request.leaving != "cancelled", "a cancelled request would be tried again"
        elif isinstance(decision, d.ReservationGrown):
            request = self.state.requests[decision.id]
            assert request.stage == "running"
            assert decision.blocks_before == request.blocks < decision.blocks
            assert decision.blocks <= request.blocks_full
            assert decision.blocks - decision.blocks_before <= decision.blocks_free
        elif isinstance(decision, d.RequestPreempted):
            request = self.state.requests[decision.id]
            assert request.stage == "running"
            assert decision.output_tokens >= request.kept_tokens
            assert decision.preemptions == request.preemptions + 1
        elif isinstance(decision, d.LeaveAsked) and decision.preemption is not None:
            if self.state.requests[decision.preemption.for_id].stage == "running":
                self._check_growth(decision, decision.preemption)
            else:
                self._check_preemption(decision, decision.preemption)

    def _settings(self, request: Request) -> Policy:
        return self.state.settings.at(request.model, request.tier, request.tenant)

    def _check_dispatch(self, decision: d.RequestDispatched) -> None:
        request = self.state.requests[decision.id]
        assert request.stage == "waiting"
        assert decision.attempt == request.attempt + 1
        now_us = self.state.now_us
        assert request.deadline_us is None or now_us < request.deadline_us
        assert sum(us for _, us in decision.waits) == decision.wait_us
        assert decision.wait_us + request.run_us == now_us - request.arrived_us
        replica = self.state.models[decision.model].replicas[decision.slot]
        assert not replica.draining
        assert decision.blocks <= decision.blocks_free
        if decision.batch is not None:
            return
        tokens = decision.prompt_tokens + decision.max_output_tokens
        assert (decision.blocks_full - 1) * replica.block_tokens < tokens
        assert tokens <= decision.blocks_full * replica.block_tokens
        assert decision.blocks <= decision.blocks_full <= replica.kv_blocks
        begins = decision.prompt_tokens + decision.resume_tokens + 1
        assert begins <= decision.blocks * replica.block_tokens or decision.blocks == (
            decision.blocks_full
        )
        assert decision.blocks <= decision.blocks_free
        limits = self.state.settings.at(request.model, request.tier, request.tenant)
        if limits.reservation == "full" or not request.preemptible:
            assert decision.blocks == decision.blocks_full

    def _check_growth(self, decision: d.LeaveAsked, why: Preemption) -> None:
        """Check that nobody leaves for one that is younger or of a lower tier."""
        victim, asking = self.state.requests[decision.id], self.state.requests[why.for_id]
        assert asking.growing
        assert victim.stage == "running"
        assert victim.leaving is None
        assert (victim.slot, victim.model) == (asking.slot, asking.model)
        key = (TIERS.index(victim.tier), victim.order)
        assert key >= (TIERS.index(asking.tier), asking.order)

    def _check_preemption(self, decision: d.LeaveAsked, why: Preemption) -> None:
        """Check that the right one leaves, that it must, and that it is not in vain."""
        victim, head = self.state.requests[decision.id], self.state.requests[why.for_id]
        assert victim.stage == "running"
        assert victim.leaving is None
        assert victim.preemptible
        assert TIERS.index(victim.tier) > TIERS.index(head.tier)
        limits = self.state.settings.at(victim.model, victim.tier, victim.tenant)
        assert victim.preemptions < limits.preemptions_max
        replica = self.state.models[decision.model].replicas[decision.slot]
        assert head.stage == "waiting"
        assert not replica.draining
        free = replica.kv_blocks - sum(replica.running.values())
        leaving = [
            self.state.requests[key].blocks
            for key in replica.running
            if self.state.requests[key].leaving is not None
        ]
        claimed = [
            claim.blocks
            for key, claim in self.state.models[decision.model].claims.items()
            if claim.slot == decision.slot
            and key != head.id
            and TIERS.index(self.state.requests[key].tier) <= TIERS.index(head.tier)
        ]
        places = replica.max_batch - len(replica.running) + len(leaving) - len(claimed)
        blocks = free + sum(leaving) - sum(claimed)
        assert places < 1 or blocks < why.blocks_needed, "enough leave already"
        lower = [
            self.state.requests[key].blocks
            for key in replica.running
            if TIERS.index(self.state.requests[key].tier) > TIERS.index(head.tier)
            and self.state.requests[key].leaving is None
        ]
        assert places + len(lower) >= 1
        assert blocks + sum(lower) >= why.blocks_needed, "it would leave in vain"

    def _check_end(self, fact: Fact, decision: d.RequestEnded) -> None:
        if decision.id in self.accepted:
            self.accepted.remove(decision.id)
        else:
            assert isinstance(fact, f.RequestArrived | f.RequestRefused)
            assert fact.id == decision.id
            assert decision.outcome in {"rejected", "expired"}
        assert decision.detail
        assert decision.id not in self.state.ended, "a second outcome"
        if decision.retry_after_ms is not None:
            assert decision.outcome == "rejected"
            assert decision.retry_after_ms > 0
        causes = [cause for cause, _ in decision.waits]
        assert causes == [cause for cause in CAUSES if cause in causes]
        assert all(us > 0 for _, us in decision.waits)
        assert sum(us for _, us in decision.waits) == decision.wait_us
        assert decision.wait_us + decision.run_us == decision.e2e_us
        assert decision.e2e_us == self.state.now_us - decision.arrived_us
        if decision.outcome == "expired":
            request = self.state.requests.get(decision.id)
            assert request is None or request.stage != "running"


def check_memory(state: State) -> None:
    """Check what must hold at every moment, between two decisions of a step too."""
    for model in state.models.values():
        for slot, replica in model.replicas.items():
            assert slot == replica.slot
            assert replica.blocks_used == sum(replica.running.values()) <= replica.kv_blocks
            if model.batching is None:
                assert not replica.batches
                # A one-shot model that became generative still has whole batches there.
                batched = any(state.requests[key].batch is not None for key in replica.running)
                assert batched or len(replica.running) <= replica.max_batch
            else:
                check_batches(state, replica)
            leaving = [
                blocks
                for key, blocks in replica.running.items()
                if state.requests[key].leaving is not None
            ]
            assert (replica.leaving, replica.leaving_blocks) == (len(leaving), sum(leaving))
        assert list(model.replicas) == sorted(model.replicas)
        assert model.pool_tokens_max == max(model.pool_tokens.values(), default=0)
        assert sorted(model.growing) == sorted(
            x.id for x in state.requests.values() if x.growing and x.model == model.profile.model
        )
        for request_id in model.growing:
            growing = state.requests[request_id]
            assert growing.stage == "running"
            assert growing.leaving is None
            assert growing.blocks < growing.blocks_full
        for request_id, claim in model.claims.items():
            assert state.requests[request_id].stage == "waiting"
            assert not model.replicas[claim.slot].draining
        running = [
            request
            for request in state.requests.values()
            if request.model == model.profile.model and request.stage == "running"
        ]
        assert model.yielding == [
            sum(x.yielding and x.line == line for x in running) for line in LINES
        ]
        for request in running:
            most = state.settings.at(request.model, request.tier, request.tenant).preemptions_max
            assert request.yielding == (
                request.preemptible
                and not request.starved
                and request.leaving is None
                and (request.of_job or request.preemptions < most)
            )
        _check_queue(state, model)
    _check_heaps(state)
    starts = [
        (model.profile.model, slot) for model in state.models.values() for slot in model.starting
    ]
    assert sorted(state.starts) == sorted(starts)
    assert list(state.starts.values()) == sorted(state.starts.values())
    known = [
        (model.profile.model, slot) for model in state.models.values() for slot in model.replicas
    ]
    assert sorted(state.heard) == sorted(known)
    assert list(state.heard.values()) == sorted(state.heard.values())


def check_rest(policy: Policy, state: State) -> None:
    """Check what must hold between two facts."""
    assert not state.pending
    check_memory(state)
    running: dict[tuple[str, int, str], dict[str, int]] = {}
    for model in state.models.values():
        for replica in model.replicas.values():
            running[model.profile.model, replica.slot, replica.incarnation] = replica.running
        assert (model.cause is None) == (model.queue.waiting == 0)
        if model.batching is None:
            check_nothing_fits(state, model)
            check_kept_room_is_used(state, model)
        else:
            check_window(state, model, model.batching)
    assert state.forming is None
    check_nothing_was_overlooked(policy, state)
    for request in state.requests.values():
        assert (request.deadline_us is None or request.deadline_us > state.now_us) or (
            request.stage == "running"
        )
        if request.stage == "running":
            blocks = running[request.model, request.slot, request.incarnation][request.id]
            assert blocks == request.blocks
        if request.stage == "backoff":
            assert request.retry_at_us > state.now_us
    of_requests = sum(request.stage == "running" for request in state.requests.values())
    assert sum(len(ids) for ids in running.values()) == of_requests
    due_us = next_due_us(policy, state)
    assert due_us is None or due_us > state.now_us


def _check_queue(state: State, model: Model) -> None:
    waiting = [
        request
        for request in state.requests.values()
        if request.model == model.profile.model and request.stage == "waiting"
    ]
    held = {tenant for tenant, account in model.accounts.items() if account.held}
    in_turn = list(model.queue.first(10_000))
    assert sorted(in_turn) == sorted(item.id for item in waiting if item.tenant not in held)
    assert model.queue.waiting == len(waiting)
    for line, of_tier in model.queue.tiers.items():
        assert of_tier.waiting == sum(item.line == line for item in waiting)
        assert all(lane for lane in of_tier.lanes.values())
        assert of_tier.turns == sorted(of_tier.turns)
        assert {turn[2] for turn in of_tier.turns} == set(of_tier.lanes) - held
        joined = [x.since_us for x in waiting if x.line == line and x.tenant not in held]
        assert of_tier.oldest_us == min(joined, default=None)
    _check_accounts(state, model, waiting)


def _check_accounts(state: State, model: Model, waiting: list[Request]) -> None:
    for tenant, account in model.accounts.items():
        own = [request for request in waiting if request.tenant == tenant]
        assert account.waiting == len(own)
        tokens = sum(request.prompt_tokens + request.max_output_tokens for request in own)
        assert account.waiting_tokens == tokens
        assert account.running == sum(
            request.model == model.profile.model
            and request.tenant == tenant
            and request.stage == "running"
            for request in state.requests.values()
        )
        assert (tenant in model.idle) == (account.waiting == account.running == 0)
        assert not account.held or account.running
    if model.room is not None:
        assert state.requests[model.room.id].stage == "waiting"
        assert not model.replicas[model.room.slot].draining


def _check_heaps(state: State) -> None:
    def awaits(request: Request | None, stages: set[str], order: int) -> bool:
        return request is not None and request.stage in stages and request.order == order

    if state.deadlines:
        due_us, order, request_id = state.deadlines[0]
        request = state.requests.get(request_id)
        assert awaits(request, {"waiting", "backoff"}, order), "a dead deadline is next"
        assert request is not None
        assert request.deadline_us == due_us
    if state.retries:
        due_us, order, request_id = state.retries[0]
        request = state.requests.get(request_id)
        assert awaits(request, {"backoff"}, order), "a dead return is next"
        assert request is not None
        assert request.retry_at_us == due_us
    deadlines, retries = set(state.deadlines), set(state.retries)
    for request in state.requests.values():
        if request.stage != "running" and request.deadline_us is not None:
            assert (request.deadline_us, request.order, request.id) in deadlines
        if request.stage == "backoff":
            assert (request.retry_at_us, request.order, request.id) in retries
