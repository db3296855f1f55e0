"""Random but repeatable ledgers of one cell, for the tests of what is derived from ledgers.

The facts are of every kind that moves a request, late and foreign reports among them; what the
core decides of them is the core's own.
"""

import random
from collections.abc import Iterator

from schemas import facts as f
from schemas.facts import Fact
from schemas.ledger import Entry
from schemas.policy import Policy
from schemas.profile import Profile
from services.scheduler.state import State
from services.scheduler.step import governing, step

MODELS = ("alpha", "beta")
BLOCK_TOKENS = 16


class Ledger:
    """A cell that is told facts, and the entries that come of it."""

    def __init__(self, cells: int = 1, cell: int = 0) -> None:
        self.state = State()
        self.seq = 0
        self.now_us = 0
        self._cell = cell
        took_over = f.OwnerTookOver(at_us=0, cell=cell, cells=cells, epoch=1, owner="test")
        self.first = self.tell(took_over)

    def tell(self, fact: Fact) -> Entry:
        decisions = step(governing(self.state, fact), self.state, fact)
        entry = Entry(
            cell=self._cell,
            seq=self.seq,
            epoch=self.state.epoch,
            source=None,
            policy_version=1,
            policy_digest="0" * 16,
            fact=fact,
            decisions=decisions,
        )
        self.seq += 1
        return entry


def profile(model: str) -> f.ProfileSet:
    return f.ProfileSet(
        at_us=0,
        profile=Profile(
            model=model,
            layers=2,
            kv_heads=2,
            head_size=8,
            kv_dtype_bytes=2,
            max_sequence_tokens=200,
            work_slots=2,
        ),
    )


def ready(model: str, slot: int, life: str, at_us: int = 0) -> f.ReplicaReady:
    return f.ReplicaReady(
        at_us=at_us,
        model=model,
        slot=slot,
        incarnation=life,
        engine="simulated",
        dtype="float32",
        device="cpu",
        kv_pool_bytes=1,
        kv_blocks=8,
        block_tokens=BLOCK_TOKENS,
        max_batch=3,
        max_sequence_tokens=200,
        weights_bytes=1,
    )


def arrived(
    request_id: str, model: str, at_us: int = 0, deadline_ms: int | None = None, prompt: int = 16
) -> f.RequestArrived:
    return f.RequestArrived(
        at_us=at_us,
        id=request_id,
        model=model,
        arrived_us=at_us,
        offset=1,
        prompt_tokens=prompt,
        max_output_tokens=16,
        deadline_ms=deadline_ms,
        body_digest="b",
        body_bytes=10,
    )


def usage() -> f.Usage:
    return f.Usage(
        prompt_tokens=16, output_tokens=3, queued_us=0, prefill_us=1, decode_us=1, first_token_us=1
    )


class RandomRun:
    """Seeded facts of every kind that moves a request, among them late and foreign reports."""

    def __init__(self, seed: int, ledger: Ledger, models: tuple[str, ...] = MODELS) -> None:
        self._random = random.Random(seed)
        self._ledger = ledger
        self._models = models
        self._made = 0
        self._lives: dict[tuple[str, int], int] = {}

    def entries(self, count: int) -> Iterator[Entry]:
        policy = Policy(name="t", replica_lost_ms=400, queued_requests_max=40, dedupe_ids_max=20)
        yield self._ledger.tell(f.PolicyActivated(at_us=0, policy=policy, who="t", why="t"))
        for model in self._models:
            yield self._ledger.tell(profile(model))
        for _ in range(count):
            self._ledger.now_us += self._random.randrange(0, 60_000)
            yield self._ledger.tell(self._fact(self._ledger.now_us))

    def _fact(self, at_us: int) -> Fact:
        pick = self._random.random()
        if pick < 0.4:
            return self._arrival(at_us)
        if pick < 0.7:
            return self._report(at_us)
        if pick < 0.8:
            return self._replica(at_us)
        if pick < 0.88:
            return f.CancelAsked(at_us=at_us, id=self._any_id(), model=None, offset=2)
        return f.ClockTicked(at_us=at_us)

    def _arrival(self, at_us: int) -> Fact:
        model = self._random.choice([*self._models, *self._models, "unknown"])
        resent = self._random.random() < 0.15
        request_id = self._any_id() if resent else f"r{self._made}"
        self._made += not resent
        deadline_ms = self._random.choice([None, None, 1, 100, 2_000])
        return arrived(request_id, model, at_us, deadline_ms, self._random.choice([16, 60, 500]))

    def _any_id(self) -> str:
        live = list(self._ledger.state.requests)
        return self._random.choice(live) if live else "nobody"

    def _replica(self, at_us: int) -> Fact:
        model, slot = self._random.choice(self._models), self._random.randrange(2)
        life = self._lives.get((model, slot), 0)
        pick = self._random.random()
        if pick < 0.6 or not life:
            self._lives[model, slot] = life + 1
            return ready(model, slot, f"L{life + 1}", at_us)
        where = {"at_us": at_us, "model": model, "slot": slot, "incarnation": f"L{life}"}
        if pick < 0.8:
            return f.ReplicaHeartbeat(running=0, kv_blocks_used=0, output_tokens=0, **where)  # type: ignore[arg-type]
        if pick < 0.9:
            return f.ReplicaDraining(**where)  # type: ignore[arg-type]
        return f.ReplicaStopped(reason="asked", **where)  # type: ignore[arg-type]

    def _report(self, at_us: int) -> Fact:
        running = [r for r in self._ledger.state.requests.values() if r.stage == "running"]
        if not running:
            return f.ClockTicked(at_us=at_us)
        first = self._random.choice(running)
        same = [r for r in running if (r.model, r.slot) == (first.model, first.slot)]
        some = self._random.sample(same, self._random.randint(1, len(same)))
        stale = self._random.random() < 0.1
        pairs = [(r.id, r.attempt - stale) for r in some]
        pick = self._random.random()
        model, slot, life = first.model, first.slot, first.incarnation
        if pick < 0.6:
            done = tuple(
                f.WorkDone(id=i, attempt=a, finish_reason="stop", usage=usage(), output_digest="d")
                for i, a in pairs
            )
            return f.WorkFinished(
                at_us=at_us, model=model, slot=slot, incarnation=life, offset=1, items=done
            )
        if pick < 0.8:
            retryable = self._random.random() < 0.8
            faults = tuple(
                f.WorkFault(id=i, attempt=a, reason="oom", retryable=retryable) for i, a in pairs
            )
            return f.WorkFailed(at_us=at_us, model=model, slot=slot, incarnation=life, items=faults)
        gone = tuple(
            f.WorkDeparture(
                id=i,
                attempt=a,
                cause=self._random.choice(["cancelled", "preempted"]),
                usage=usage(),
            )
            for i, a in pairs
        )
        return f.WorkLeft(
            at_us=at_us, model=model, slot=slot, incarnation=life, offset=1, items=gone
        )
