"""The half of the core's machine that speaks for replicas, honest ones and hostile ones."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from schemas import facts as f
from schemas.facts import Fact
from schemas.profile import Profile
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


class WorkerRules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Watched()
        self.clock_us = 1_000_000

    def tell(self, fact: Fact) -> None:
        self.core.tell(fact)

    def after(self, pause_ms: int) -> int:
        self.clock_us = max(0, self.clock_us + pause_ms * 1000)
        return self.clock_us

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

    @rule(which=st.integers(0, 7), reach=st.integers(-2, 0), missing=st.integers(0, 2))
    def a_replica_tells_what_it_holds(self, which: int, reach: int, missing: int) -> None:
        busy = [
            (model.profile.model, replica)
            for model in self.core.state.models.values()
            for replica in model.replicas.values()
            if replica.running
        ]
        if not busy:
            return
        model, replica = busy[which % len(busy)]
        numbers = [self.core.state.requests[key].number for key in replica.running][missing:]
        self.tell(
            replace(
                self.heartbeat(model, replica.slot, replica.incarnation, self.after(1)),
                read=max(0, replica.dispatches + reach),
                held=tuple(sorted(numbers)),
            )
        )

    @rule(which=st.integers(0, 7), tokens=st.integers(0, 40))
    def a_replica_tells_how_far_it_is(self, which: int, tokens: int) -> None:
        running = [x for x in self.core.state.requests.values() if x.stage == "running"]
        if not running:
            return
        request = running[which % len(running)]
        self.tell(
            f.WorkProgressed(
                at_us=self.after(1),
                model=request.model,
                slot=request.slot,
                incarnation=request.incarnation,
                items=(f.WorkTokens(id=request.id, attempt=request.attempt, output_tokens=tokens),),
            )
        )

    @rule(which=st.integers(0, 7), off=st.sampled_from((0, 0, 0, 0, 1)), times=st.integers(1, 6))
    def running_requests_fill_their_blocks(self, which: int, off: int, times: int) -> None:
        for turn in range(times):
            running = [x for x in self.core.state.requests.values() if x.stage == "running"]
            if not running:
                return
            request = running[(which + turn) % len(running)]
            item = f.WorkBlocks(
                id=request.id,
                attempt=request.attempt,
                output_tokens=request.output_tokens + turn,
                blocks=request.blocks + off,
            )
            self.tell(
                f.WorkGrows(
                    at_us=self.after(1),
                    model=request.model,
                    slot=request.slot,
                    incarnation=request.incarnation,
                    items=(item,),
                )
            )

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
