"""A machine that tells the core anything, in any order, and checks every invariant after it."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from schemas import facts as f
from schemas.facts import Fact
from schemas.policy import TIERS, Policy
from schemas.profile import Profile
from services.scheduler.step import next_due_us
from tests.properties.scheduler_invariants import Watched

MODELS = ("m", "n", "other", "nobody's")
IDS = tuple(f"r{number}" for number in range(24))
# Back, not at all, a little, past a back-off, past deafness, past a loss.
PAUSES_MS = (0, 0, 0, 0, 0, 1, 1, 3, 7, 7, 40, 120, -50, 1600, 4000)

ids = st.sampled_from(IDS)
models = st.sampled_from(MODELS[:2] * 6 + MODELS)
slots = st.integers(0, 3)
lives = st.sampled_from(("L1", "L2"))
pauses_ms = st.sampled_from(PAUSES_MS)
routes = st.sampled_from((None, None, None, (1, 5, 0)))
USAGE = f.Usage(
    prompt_tokens=3, output_tokens=4, queued_us=5, prefill_us=6, decode_us=7, first_token_us=11
)


def profile(model: str, *, context: int = 400, work_slots: int = 3) -> Profile:
    return Profile(
        model=model,
        layers=1,
        kv_heads=1,
        head_size=1,
        kv_dtype_bytes=1,
        max_sequence_tokens=context,
        work_slots=work_slots,
    )


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Watched()
        self.clock_us = 1_000_000

    # Of three cells "m" belongs to 2 and "n" to 0.
    @initialize(cells=st.sampled_from((1, 1, 1, 3)), cell=st.sampled_from((2, 0, 1)))
    def takes_over(self, cells: int, cell: int) -> None:
        self.tell(
            f.OwnerTookOver(at_us=self.clock_us, cell=cell % cells, cells=cells, epoch=1, owner="o")
        )
        for model in MODELS[:2]:
            self.tell(f.ProfileSet(at_us=self.clock_us, profile=profile(model)))
            self.tell(self.ready_fact(model, 0, "L1", 12, 2, 16))

    def tell(self, fact: Fact) -> None:
        self.core.tell(fact)

    def after(self, pause_ms: int) -> int:
        self.clock_us = max(0, self.clock_us + pause_ms * 1000)
        return self.clock_us

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
        pause_ms=pauses_ms,
    )
    def burst_arrives(self, count: int, model: str, size: int, pause_ms: int) -> None:
        at_us = self.after(pause_ms)
        for number in range(count):
            self.tell(
                f.RequestArrived(
                    at_us=at_us,
                    id=f"burst-{len(self.core.entries)}",
                    model=model,
                    tenant="xyz"[number % 3],
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

    # Replicas

    @rule(
        model=models,
        slot=slots,
        life=lives,
        blocks=st.integers(1, 20),
        batch=st.integers(1, 4),
        block_tokens=st.sampled_from((8, 16)),
        pause_ms=pauses_ms,
    )
    def replica_is_ready(  # noqa: PLR0917 - Hypothesis passes by name
        self,
        model: str,
        slot: int,
        life: str,
        blocks: int,
        batch: int,
        block_tokens: int,
        pause_ms: int,
    ) -> None:
        self.after(pause_ms)
        self.tell(self.ready_fact(model, slot, life, blocks, batch, block_tokens))

    @rule(slot=slots, life=st.sampled_from(("L1", "L2", "L3", "L4")), batch=st.integers(1, 4))
    def good_replicas_come(self, slot: int, life: str, batch: int) -> None:
        for model in MODELS[:2]:
            self.tell(self.ready_fact(model, slot, life, 20, batch, 16))

    def ready_fact(  # noqa: PLR0917 - the order is that of the rule above
        self, model: str, slot: int, life: str, blocks: int, batch: int, block_tokens: int
    ) -> f.ReplicaReady:
        return f.ReplicaReady(
            at_us=self.clock_us,
            model=model,
            slot=slot,
            incarnation=life,
            engine="simulated",
            dtype="float32",
            device="cpu",
            kv_pool_bytes=1,
            kv_blocks=blocks,
            block_tokens=block_tokens,
            max_batch=batch,
            max_sequence_tokens=400,
            weights_bytes=1,
        )

    @rule(
        kind=st.sampled_from((f.ReplicaStarting, f.ReplicaDraining, f.ReplicaStopped)),
        model=models,
        slot=slots,
        life=lives,
        pause_ms=pauses_ms,
    )
    def replica_speaks(
        self, kind: type[Any], model: str, slot: int, life: str, pause_ms: int
    ) -> None:
        more: dict[str, Any] = {"reason": "asked"} if kind is f.ReplicaStopped else {}
        at_us = self.after(pause_ms)
        self.tell(kind(at_us=at_us, model=model, slot=slot, incarnation=life, **more))

    @rule(model=models, slot=slots, life=lives, pause_ms=pauses_ms)
    def replica_lives(self, model: str, slot: int, life: str, pause_ms: int) -> None:
        self.tell(self.heartbeat(model, slot, life, self.after(pause_ms)))

    @rule(pause_ms=pauses_ms)
    def every_replica_lives(self, pause_ms: int) -> None:
        at_us = self.after(pause_ms)
        for model in list(self.core.state.models.values()):
            for replica in list(model.replicas.values()):
                self.tell(
                    self.heartbeat(model.profile.model, replica.slot, replica.incarnation, at_us)
                )

    @rule(times=st.integers(1, 8), pause_ms=st.sampled_from((110, 410, 700)))
    def time_passes_while_every_replica_lives(self, times: int, pause_ms: int) -> None:
        for _ in range(times):
            self.every_replica_lives(pause_ms)
            self.tell(f.ClockTicked(at_us=self.clock_us))

    def heartbeat(self, model: str, slot: int, life: str, at_us: int) -> f.ReplicaHeartbeat:
        return f.ReplicaHeartbeat(
            at_us=at_us,
            model=model,
            slot=slot,
            incarnation=life,
            running=0,
            kv_blocks_used=0,
            output_tokens=0,
        )

    # Work

    @rule(
        kind=st.sampled_from(("finished", "finished", "finished", "failed", "left", "noted")),
        which=st.integers(0, 7),
        count=st.integers(1, 4),
        age=st.sampled_from((0, 0, 0, 0, 0, 0, 0, 1, -1)),
        mild=st.booleans(),
        pause_ms=pauses_ms,
    )
    def replica_reports_what_it_runs(
        self,
        kind: str,
        which: int,
        count: int,
        age: int,
        *,
        mild: bool,
        pause_ms: int,
    ) -> None:
        busy = [
            (model.profile.model, replica)
            for model in self.core.state.models.values()
            for replica in model.replicas.values()
            if replica.running
        ]
        if not busy:
            return
        model, replica = busy[which % len(busy)]
        requests = [self.core.state.requests[key] for key in list(replica.running)[:count]]
        attempts = [(request.id, max(0, request.attempt - age)) for request in requests]
        self.report(
            kind, model, replica.slot, replica.incarnation, attempts, mild=mild, pause_ms=pause_ms
        )

    @rule(
        kind=st.sampled_from(("finished", "failed", "left", "noted")),
        model=models,
        slot=slots,
        life=lives,
        attempts=st.lists(st.tuples(ids, st.integers(0, 3)), max_size=4),
        mild=st.booleans(),
        pause_ms=pauses_ms,
    )
    def anyone_reports_anything(
        self,
        kind: str,
        model: str,
        slot: int,
        life: str,
        attempts: list[tuple[str, int]],
        *,
        mild: bool,
        pause_ms: int,
    ) -> None:
        self.report(kind, model, slot, life, attempts, mild=mild, pause_ms=pause_ms)

    def report(
        self,
        kind: str,
        model: str,
        slot: int,
        life: str,
        attempts: list[tuple[str, int]],
        *,
        mild: bool,
        pause_ms: int,
    ) -> None:
        who: dict[str, Any] = {
            "at_us": self.after(pause_ms),
            "model": model,
            "slot": slot,
            "incarnation": life,
        }
        if kind == "finished":
            done = tuple(
                f.WorkDone(
                    id=key,
                    attempt=attempt,
                    finish_reason="stop" if mild else "length",
                    usage=USAGE,
                    output_digest="d",
                )
                for key, attempt in attempts
            )
            self.tell(f.WorkFinished(**who, offset=8, items=done))
        elif kind == "failed":
            faults = tuple(
                f.WorkFault(id=key, attempt=attempt, reason="r", retryable=mild)
                for key, attempt in attempts
            )
            self.tell(f.WorkFailed(**who, items=faults))
        elif kind == "left":
            departures = tuple(
                f.WorkDeparture(
                    id=key,
                    attempt=attempt,
                    cause="preempted" if mild else "cancelled",
                    usage=USAGE,
                )
                for key, attempt in attempts
            )
            self.tell(f.WorkLeft(**who, offset=9, items=departures))
        else:
            refs = tuple(f.WorkRef(id=key, attempt=attempt) for key, attempt in attempts)
            self.tell(f.WorkStarted(**who, items=refs))

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
        pause_ms: int,
    ) -> None:
        policy = Policy(
            look_ahead_requests=look_ahead,
            queued_requests_max=queued_max,
            dedupe_window_ms=window_ms,
            dedupe_ids_max=ids_max,
            attempts_max=attempts_max,
            retry_backoff_ms=backoff,
            replica_lost_ms=lost_ms,
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
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTheCoreKeepsItsInvariants = CoreMachine.TestCase
