"""A machine that tells the core of one-shot models anything, and checks every invariant after it.

Windows, free batches, memory bounds, tiers and deadlines, replicas that come, go and report
anything, a model that changes what it serves, and policies that change under way.
"""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from schemas import facts as f
from schemas.policy import TIERS, Policy
from services.scheduler.step import next_due_us
from tests.properties.scheduler_worker_rules import MODELS, WorkerRules, ids, pauses_ms, profile

SERVED = MODELS[:2]


class WindowsMachine(WorkerRules):
    @initialize()
    def takes_over(self) -> None:
        self.tell(f.OwnerTookOver(at_us=self.clock_us, cell=0, cells=1, epoch=1, owner="o"))
        for model in SERVED:
            one_shot = replace(profile(model), serves="one-shot")
            self.tell(f.ProfileSet(at_us=self.clock_us, profile=one_shot))
            self.tell(self.ready_fact(model, 0, "L1", 20, 4, 16))

    @rule(
        request_id=ids,
        model=st.sampled_from(SERVED),
        lengths=st.lists(st.integers(1, 120), min_size=1, max_size=6),
        tier=st.sampled_from((None, *TIERS)),
        tenant=st.sampled_from((None, "x", "y")),
        deadline_ms=st.sampled_from((None, None, 5, 100, 700)),
        pause_ms=pauses_ms,
    )
    def texts_arrive(  # noqa: PLR0917 - Hypothesis passes by name
        self,
        request_id: str,
        model: str,
        lengths: list[int],
        tier: Any,
        tenant: str | None,
        deadline_ms: int | None,
        pause_ms: int,
    ) -> None:
        at_us = self.after(pause_ms)
        self.tell(self.arrival(request_id, model, lengths, at_us, tier, tenant, deadline_ms))

    @rule(count=st.integers(2, 9), model=st.sampled_from(SERVED), pause_ms=pauses_ms)
    def burst_arrives(self, count: int, model: str, pause_ms: int) -> None:
        at_us = self.after(pause_ms)
        for number in range(count):
            name = f"burst-{len(self.core.entries)}"
            self.tell(self.arrival(name, model, [4 + 30 * (number % 3)], at_us))

    def arrival(  # noqa: PLR0917 - the order is that of the rule above
        self,
        request_id: str,
        model: str,
        lengths: list[int],
        at_us: int,
        tier: Any = None,
        tenant: str | None = None,
        deadline_ms: int | None = None,
    ) -> f.RequestArrived:
        return f.RequestArrived(
            at_us=at_us,
            id=request_id,
            model=model,
            tenant=tenant,
            tier=tier,
            arrived_us=at_us,
            offset=3,
            prompt_tokens=sum(lengths),
            deadline_ms=deadline_ms,
            body_digest="b0",
            body_bytes=10,
            embedding=f.EmbeddingSize(texts=len(lengths), longest_tokens=max(lengths)),
        )

    @rule(request_id=ids, pause_ms=pauses_ms)
    def cancel_is_asked(self, request_id: str, pause_ms: int) -> None:
        at_us = self.after(pause_ms)
        self.tell(f.CancelAsked(at_us=at_us, id=request_id, model="m", offset=4))

    @rule(which=st.integers(0, 7), pause_ms=st.sampled_from((1, 7, 40)))
    def a_batch_ends(self, which: int, pause_ms: int) -> None:
        busy = [
            (model.profile.model, replica)
            for model in self.core.state.models.values()
            for replica in model.replicas.values()
            if replica.running
        ]
        if not busy:
            return
        model, replica = busy[which % len(busy)]
        usage = f.Usage(prompt_tokens=3, output_tokens=0, queued_us=900, prefill_us=6, decode_us=0)
        done = tuple(
            f.WorkDone(
                id=key,
                attempt=self.core.state.requests[key].attempt,
                finish_reason="embedded",
                usage=usage,
                output_digest="d",
            )
            for key in replica.running
        )
        self.tell(
            f.WorkFinished(
                at_us=self.after(pause_ms),
                model=model,
                slot=replica.slot,
                incarnation=replica.incarnation,
                offset=8,
                items=done,
            )
        )

    @rule()
    def the_next_due_time_comes(self) -> None:
        due_us = next_due_us(self.core.state.policy, self.core.state)
        if due_us is not None:
            self.clock_us = max(self.clock_us, due_us)
            self.tell(f.ClockTicked(at_us=self.clock_us))

    @rule(
        mode=st.sampled_from(("window", "window", "when_free")),
        batch=st.integers(1, 6),
        window_ms=st.sampled_from((1, 20, 150)),
        backlog=st.sampled_from((None, 0, 2, 5)),
        tunes=st.booleans(),
        padding=st.sampled_from((0, 25, 100)),
        ahead=st.integers(0, 2),
        look_ahead=st.sampled_from((1, 3, 64)),
    )
    def policy_changes(  # noqa: PLR0917 - Hypothesis passes by name
        self,
        mode: Any,
        batch: int,
        window_ms: int,
        backlog: int | None,
        tunes: bool,  # noqa: FBT001 - as above
        padding: int,
        ahead: int,
        look_ahead: int,
    ) -> None:
        policy = Policy(
            window_mode=mode,
            batch_texts_max=batch,
            window_ms=window_ms,
            window_backlog_closes=backlog,
            window_tunes=tunes,
            window_tune_pause_ms=5,
            batch_padding_pct_max=padding,
            batches_ahead_max=ahead,
            batch_look_ahead_requests=look_ahead,
            retry_backoff_ms=(100, 200, 400),
        )
        self.tell(f.PolicyActivated(at_us=self.clock_us, policy=policy, who="w", why="y"))

    @rule(serves=st.sampled_from(("one-shot", "one-shot", "generative")))
    def a_model_changes_what_it_serves(self, serves: Any) -> None:
        changed = replace(profile("n"), serves=serves)
        self.tell(f.ProfileSet(at_us=self.clock_us, profile=changed))


WindowsMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWindows = WindowsMachine.TestCase
