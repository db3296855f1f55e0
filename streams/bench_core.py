"""Measures the request-level core: facts per second at a constant depth. No bus, no files.

The mix of facts is that of a real run: arrivals of four tiers and many tenants, each with a queue
of its own per model, some with deadlines; started, progress and finish reports of several requests
each; heartbeats and ticks. A warm-up run over the same core makes the facts, because a report names
what was dispatched; then the facts alone are stepped again from a copy of the warm state, all their
decisions in the time.
"""

import gc
import random
from collections import deque
from time import process_time

from schemas import facts as f
from schemas.decisions import RequestDispatched
from schemas.facts import Fact
from schemas.figures import Figure
from schemas.policy import TIERS, Policy
from schemas.profile import Profile
from schemas.room import LeaveAsked
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.state import State
from services.scheduler.step import governing, step
from streams.cells import GC_THRESHOLDS

# By depth: models, and tenants of each; a tenant's requests are of one tier, so a queue for each.
_QUEUES = {1_000: (5, 10), 10_000: (10, 50)}
_SLOTS = 2
_BATCH = 32
_PER_REPORT = 4
_KV_BLOCKS = 2048
_BLOCK_TOKENS = 16
_FACTS = 60_000
_ROUNDS = 3
_STEP_US = 100
_SHARE_WITH_DEADLINE = 0.1
_USAGE = f.Usage(
    prompt_tokens=100,
    output_tokens=64,
    queued_us=10,
    prefill_us=900,
    decode_us=9000,
    first_token_us=910,
)


def core_figures() -> list[Figure]:
    """Return core.facts_per_s at 1,000 waiting in 50 queues and 10,000 in 500, the best of three.

    The time is that of the processor, which for one thread without I/O is the time of one core, and
    the best is reported: machines are shared, and what others do only ever adds to it.
    """
    return [
        Figure(f"core.facts_per_s.waiting_{depth}", round(facts_per_s(depth)), "facts/s")
        for depth in _QUEUES
    ]


def facts_per_s(depth: int, *, facts_count: int = _FACTS) -> float:
    """Return the facts a second that the core steps with `depth` requests waiting.

    Raises:
        KeyError: for that depth the number of queues is not laid down.
    """
    models, tenants = _QUEUES[depth]
    run = Traffic(depth, models=models, tenants=tenants)
    warm = b"".join(encode_pieces(freeze(run.state)))
    facts = run.facts(facts_count)
    return len(facts) / min(_seconds(warm, facts) for _ in range(_ROUNDS))


def _seconds(warm: bytes, facts: list[Fact]) -> float:
    """Return the time that the facts take from the warm state on."""
    state = thaw(warm)
    before = gc.get_threshold()
    gc.collect()
    # As in a cell's process.
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        start_s = process_time()
        for fact in facts:
            step(governing(state, fact), state, fact)
        return process_time() - start_s
    finally:
        gc.set_threshold(*before)


class Traffic:
    """A seeded stream of facts that keeps `depth` requests waiting over models × tenants queues."""

    def __init__(self, depth: int, *, models: int, tenants: int) -> None:
        self.state = State()
        self._random = random.Random(depth)  # noqa: S311 - a repeatable load, not a secret
        self._now_us = 1_000_000
        self._next_id = 0
        self._tenants = tenants
        self._recorded: list[Fact] = []
        self._names = [f"model-{number}" for number in range(models)]
        # What each replica runs, oldest first, as (id, attempt), and what was asked to leave.
        self._running: dict[tuple[str, int], deque[tuple[str, int]]] = {}
        self._leaving: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._tell(f.OwnerTookOver(at_us=self._now_us, cell=0, cells=1, epoch=1, owner="bench"))
        # Most replicas stay silent while the queues fill: that shall not count as their loss.
        policy = Policy(name="bench", queued_requests_max=1_000_000, replica_lost_ms=86_400_000)
        self._tell(f.PolicyActivated(at_us=self._now_us, policy=policy, who="bench", why="bench"))
        for name in self._names:
            self._tell(f.ProfileSet(at_us=self._now_us, profile=_profile(name)))
            for slot in range(_SLOTS):
                self._running[name, slot] = deque()
                self._leaving[name, slot] = []
                self._tell(_ready(name, slot, self._now_us))
        while self._waiting() < depth:
            self._arrive(self._names[self._next_id % models])

    def facts(self, count: int) -> list[Fact]:
        """Return `count` facts that go on from the present state, which moves on with them."""
        self._recorded = []
        replicas = list(self._running)
        turn = 0
        while len(self._recorded) < count:
            self._round(*replicas[turn % len(replicas)], turn)
            turn += 1
        return self._recorded[:count]

    def _round(self, model: str, slot: int, turn: int) -> None:
        """Tell of those of one replica that leave or finish, and of as many that arrive."""
        running = self._running[model, slot]
        self._leave(model, slot)
        done = [running.popleft() for _ in range(min(_PER_REPORT, len(running)))]
        self._finish(model, slot, done)
        joined = list(running)[-len(done) :]
        self._tell(
            f.WorkStarted(
                at_us=self._later_us(),
                model=model,
                slot=slot,
                incarnation="L1",
                items=tuple(f.WorkRef(id=key, attempt=attempt) for key, attempt in joined),
            )
        )
        for _ in done:
            self._arrive(model)
        if turn % 2 == 0:
            self._progress(model, slot)
        if turn % 8 == 0:
            self._tell(f.ClockTicked(at_us=self._later_us()))
        if turn % 10 == 0:
            self._tell(_heartbeat(model, slot, self._later_us()))

    def _arrive(self, model: str) -> None:
        number, self._next_id = self._next_id, self._next_id + 1
        draw = self._random
        at_us = self._later_us()
        tenant = draw.randrange(self._tenants)
        self._tell(
            f.RequestArrived(
                at_us=at_us,
                id=f"request-{number}",
                model=model,
                tenant=f"tenant-{tenant}",
                tier=TIERS[tenant % len(TIERS)],
                arrived_us=at_us - draw.randrange(1000),
                offset=number,
                prompt_tokens=draw.randrange(16, 600),
                max_output_tokens=draw.randrange(8, 512),
                deadline_ms=3_600_000 if draw.random() < _SHARE_WITH_DEADLINE else None,
                body_digest="0123456789abcdef",
                body_bytes=900,
            )
        )

    def _finish(self, model: str, slot: int, done: list[tuple[str, int]]) -> None:
        items = tuple(
            f.WorkDone(
                id=key,
                attempt=attempt,
                finish_reason="stop",
                usage=_USAGE,
                output_digest="0123456789abcdef",
            )
            for key, attempt in done
        )
        self._tell(
            f.WorkFinished(
                at_us=self._later_us(),
                model=model,
                slot=slot,
                incarnation="L1",
                offset=self._next_id,
                items=items,
            )
        )

    def _leave(self, model: str, slot: int) -> None:
        """Tell that those which were asked to leave have left, at the end of their iteration."""
        running = self._running[model, slot]
        # One may have finished before it was reached.
        leaving = [asked for asked in self._leaving[model, slot] if asked in running]
        self._leaving[model, slot] = []
        if not leaving:
            return
        for gone in leaving:
            running.remove(gone)
        self._tell(
            f.WorkLeft(
                at_us=self._later_us(),
                model=model,
                slot=slot,
                incarnation="L1",
                offset=self._next_id,
                items=tuple(
                    f.WorkDeparture(id=key, attempt=attempt, cause="preempted", usage=_USAGE)
                    for key, attempt in leaving
                ),
            )
        )

    def _progress(self, model: str, slot: int) -> None:
        items = tuple(
            f.WorkTokens(id=key, attempt=attempt, output_tokens=8)
            for key, attempt in self._running[model, slot]
        )
        self._tell(
            f.WorkProgressed(
                at_us=self._later_us(), model=model, slot=slot, incarnation="L1", items=items
            )
        )

    def _later_us(self) -> int:
        self._now_us += _STEP_US
        return self._now_us

    def _tell(self, fact: Fact) -> None:
        self._recorded.append(fact)
        for decision in step(governing(self.state, fact), self.state, fact):
            if isinstance(decision, RequestDispatched):
                self._running[decision.model, decision.slot].append((decision.id, decision.attempt))
            elif isinstance(decision, LeaveAsked):
                self._leaving[decision.model, decision.slot].append((decision.id, decision.attempt))

    def _waiting(self) -> int:
        return sum(model.queue.waiting for model in self.state.models.values())


def _profile(model: str) -> Profile:
    return Profile(
        model=model,
        layers=30,
        kv_heads=3,
        head_size=64,
        kv_dtype_bytes=4,
        max_sequence_tokens=8192,
    )


def _ready(model: str, slot: int, at_us: int) -> f.ReplicaReady:
    return f.ReplicaReady(
        at_us=at_us,
        model=model,
        slot=slot,
        incarnation="L1",
        engine="simulated",
        dtype="float32",
        device="cpu",
        kv_pool_bytes=1 << 30,
        kv_blocks=_KV_BLOCKS,
        block_tokens=_BLOCK_TOKENS,
        max_batch=_BATCH,
        max_sequence_tokens=8192,
        weights_bytes=1 << 28,
    )


def _heartbeat(model: str, slot: int, at_us: int) -> f.ReplicaHeartbeat:
    return f.ReplicaHeartbeat(
        at_us=at_us,
        model=model,
        slot=slot,
        incarnation="L1",
        running=_BATCH,
        kv_blocks_used=_KV_BLOCKS // 2,
        output_tokens=1000,
    )
