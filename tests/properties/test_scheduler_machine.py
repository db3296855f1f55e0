"""A machine that tells the core anything, in any order, and checks every invariant after it."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from schemas import facts as f
from schemas.policy import TIERS, Override, Policy
from services.scheduler.step import next_due_us
from tests.properties.scheduler_worker_rules import (
    MODELS,
    WorkerRules,
    ids,
    models,
    pauses_ms,
    profile,
    routes,
)


class CoreMachine(WorkerRules):
    # Of three cells "m" belongs to 2 and "n" to 0.
    @initialize(cells=st.sampled_from((1, 1, 1, 3)), cell=st.sampled_from((2, 0, 1)))
    def takes_over(self, cells: int, cell: int) -> None:
        self.tell(
            f.OwnerTookOver(at_us=self.clock_us, cell=cell % cells, cells=cells, epoch=1, owner="o")
        )
        for model in MODELS[:2]:
            self.tell(f.ProfileSet(at_us=self.clock_us, profile=profile(model)))
            policy = Policy(
                reservation="quantile", reservation_samples_min=1, reservation_growth_blocks=1
            )
            self.tell(
                f.PolicyActivated(at_us=self.clock_us, policy=policy, who="w", why="at first")
            )
            self.tell(self.ready_fact(model, 0, "L1", 12, 2, 16))

    # Producers

    @rule(
        request_id=ids,
        model=models,
        prompt=st.integers(1, 150),
        output=st.one_of(st.none(), st.integers(1, 150)),
        tier=st.sampled_from((None, *TIERS)),
        tenant=st.sampled_from((None, "x", "y", "z")),
        deadline_ms=st.sampled_from((None, None, None, 0, 5, 100, 700, 5000)),
        on_the_way_us=st.sampled_from((0, 1, 2500)),
        body=st.sampled_from(("b0", "b0", "b1")),
        routed_by=routes,
        pause_ms=pauses_ms,
    )
    def request_arrives(  # noqa: PLR0917 - Hypothesis passes by name
        self,
        request_id: str,
        model: str,
        prompt: int,
        output: int | None,
        tier: Any,
        tenant: str | None,
        deadline_ms: int | None,
        on_the_way_us: int,
        body: str,
        routed_by: f.RoutedBy | None,
        pause_ms: int,
    ) -> None:
        at_us = self.after(pause_ms)
        self.tell(
            f.RequestArrived(
                at_us=at_us,
                id=request_id,
                model=model,
                tenant=tenant,
                tier=tier,
                arrived_us=max(0, at_us - on_the_way_us),
                offset=3,
                prompt_tokens=prompt,
                max_output_tokens=output,
                deadline_ms=deadline_ms,
                body_digest=body,
                body_bytes=10,
                routed_by=routed_by,
            )
        )

    @rule(
        count=st.integers(2, 8),
        model=st.sampled_from(MODELS[:2]),
        size=st.integers(1, 60),
        tier=st.sampled_from((None, *TIERS)),
        pause_ms=pauses_ms,
    )
    def burst_arrives(
        self, count: int, model: str, size: int, pause_ms: int, tier: Any = None
    ) -> None:
        at_us = self.after(pause_ms)
        for number in range(count):
            self.tell(
                f.RequestArrived(
                    at_us=at_us,
                    id=f"burst-{len(self.core.entries)}",
                    model=model,
                    tenant="xyz"[number % 3],
                    tier=tier,
                    arrived_us=at_us,
                    offset=3,
                    prompt_tokens=size,
                    max_output_tokens=size,
                    body_digest="b0",
                    body_bytes=10,
                )
            )

    @rule(
        request_id=ids, model=st.sampled_from((*MODELS, "")), routed_by=routes, pause_ms=pauses_ms
    )
    def request_is_refused(
        self, request_id: str, model: str, routed_by: f.RoutedBy | None, pause_ms: int
    ) -> None:
        at_us = self.after(pause_ms)
        self.tell(
            f.RequestRefused(
                at_us=at_us,
                id=request_id,
                model=model,
                arrived_us=at_us,
                offset=3,
                body_digest="b0",
                detail="no",
                routed_by=routed_by,
            )
        )

    @rule(
        request_id=ids,
        model=st.sampled_from((None, *MODELS)),
        routed_by=routes,
        pause_ms=pauses_ms,
    )
    def cancel_is_asked(
        self, request_id: str, model: str | None, routed_by: f.RoutedBy | None, pause_ms: int
    ) -> None:
        self.tell(
            f.CancelAsked(
                at_us=self.after(pause_ms),
                id=request_id,
                model=model,
                offset=4,
                routed_by=routed_by,
            )
        )

    @rule(which=st.integers(0, 50), pause_ms=pauses_ms)
    def cancel_of_a_live_request(self, which: int, pause_ms: int) -> None:
        if self.core.accepted:
            request_id = sorted(self.core.accepted)[which % len(self.core.accepted)]
            at_us = self.after(pause_ms)
            self.tell(f.CancelAsked(at_us=at_us, id=request_id, model=None, offset=4))

    @rule(pause_ms=pauses_ms)
    def unreadable_record(self, pause_ms: int) -> None:
        at_us = self.after(pause_ms)
        self.tell(
            f.MessageUnreadable(
                at_us=at_us, topic="t", partition=0, offset=5, reason="r", body_bytes=6
            )
        )

    @rule(model=st.sampled_from(MODELS[:2]), rounds=st.integers(1, 5), size=st.integers(1, 30))
    def a_busy_while(self, model: str, rounds: int, size: int) -> None:
        for turn in range(rounds):
            self.burst_arrives(4, model, size, 3)
            self.replica_reports_what_it_runs("finished", turn, 4, 0, mild=True, pause_ms=5)
            self.every_replica_lives(1)

    # Operators, owners and time

    @rule(
        look_ahead=st.integers(1, 4),
        queued_max=st.sampled_from((1000, 1000, 3, 1)),
        window_ms=st.sampled_from((1, 500, 600_000)),
        ids_max=st.sampled_from((1, 5, 1000)),
        attempts_max=st.sampled_from((3, 3, 4, 2, 1)),
        backoff=st.sampled_from(((100, 200, 400), (1,), (3000, 1))),
        lost_ms=st.sampled_from((3000, 3000, 500, 1)),
        preemptible=st.sampled_from((True, True, True, False)),
        preemptions_max=st.sampled_from((0, 1, 2, 1000)),
        reservation=st.sampled_from(("full", "quantile", "quantile")),
        samples_min=st.sampled_from((1, 2, 5)),
        cap_ms=st.sampled_from((5000, 100, 7, 1)),
        quantum=st.sampled_from((64, 1, 1000)),
        weight=st.integers(1, 3),
        quotas=st.tuples(*[st.sampled_from((None, None, 1, 2, 90))] * 4),
        hopeless=st.booleans(),
        start_ms=st.sampled_from((600_000, 100)),
        pause_ms=pauses_ms,
    )
    def policy_changes(  # noqa: PLR0917 - Hypothesis passes by name
        self,
        look_ahead: int,
        queued_max: int,
        window_ms: int,
        ids_max: int,
        attempts_max: int,
        backoff: tuple[int, ...],
        lost_ms: int,
        cap_ms: int,
        quantum: int,
        weight: int,
        quotas: tuple[int | None, ...],
        *,
        hopeless: bool,
        start_ms: int,
        preemptible: bool,
        preemptions_max: int,
        reservation: Any,
        samples_min: int,
        pause_ms: int,
    ) -> None:
        # Tenant "x" weighs more, has quotas, and batch work of "m" starves sooner.
        keys = ("queued_requests", "queued_tokens", "running_requests", "tokens_per_minute")
        overrides = (
            Override(tenant="x", key="fair_weight", value=weight),
            Override(model="m", tier="batch", key="starvation_cap_ms", value=cap_ms),
            *(
                Override(tenant="x", key=f"quota_{key}", value=value)
                for key, value in zip(keys, quotas, strict=True)
            ),
        )
        policy = Policy(
            overrides=overrides,
            starvation_cap_ms=cap_ms * 2,
            fair_quantum=quantum,
            quota_running_requests=quotas[0],
            refuse_hopeless=hopeless,
            service_samples_min=1,
            idle_tenants_max=1,
            cold_start_max_ms=start_ms,
            look_ahead_requests=look_ahead,
            queued_requests_max=queued_max,
            dedupe_window_ms=window_ms,
            dedupe_ids_max=ids_max,
            attempts_max=attempts_max,
            retry_backoff_ms=backoff,
            replica_lost_ms=lost_ms,
            preemptible=preemptible,
            preemptions_max=preemptions_max,
            reservation=reservation,
            reservation_samples_min=samples_min,
            reservation_samples_max=8,
            reservation_growth_blocks=1,
            reservation_tenants_max=2,
            default_output_tokens_max=40,
        )
        at_us = self.after(pause_ms)
        self.tell(f.PolicyActivated(at_us=at_us, policy=policy, who="w", why="y"))

    @rule(
        model=models,
        context=st.sampled_from((50, 400)),
        work_slots=st.integers(1, 4),
        pause_ms=pauses_ms,
    )
    def profile_changes(self, model: str, context: int, work_slots: int, pause_ms: int) -> None:
        if model == MODELS[-1]:
            return
        changed = profile(model, context=context, work_slots=work_slots)
        self.tell(f.ProfileSet(at_us=self.after(pause_ms), profile=changed))

    @rule(cells=st.sampled_from((1, 3)), pause_ms=pauses_ms)
    def another_owner_takes_over(self, cells: int, pause_ms: int) -> None:
        at_us = self.after(pause_ms)
        self.tell(f.OwnerTookOver(at_us=at_us, cell=0, cells=cells, epoch=2, owner="p"))

    @rule(pause_ms=pauses_ms)
    def time_passes(self, pause_ms: int) -> None:
        self.tell(f.ClockTicked(at_us=self.after(pause_ms)))

    @rule(times=st.integers(1, 6))
    def time_passes_to_what_is_due(self, times: int) -> None:
        for _ in range(times):
            due_us = next_due_us(self.core.state.policy, self.core.state)
            if due_us is None:
                return
            self.clock_us = due_us
            self.tell(f.ClockTicked(at_us=due_us))

    def teardown(self) -> None:
        self.core.replay()


CoreMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTheCoreKeepsItsInvariants = CoreMachine.TestCase
