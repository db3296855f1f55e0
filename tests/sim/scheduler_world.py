"""A small world around the pure core, on a clock that jumps.

It has a log, an owner that can be killed, and replicas that batch, leave, freeze and die; no bus
and no threads. A seed gives the same run again.

The owner is the shell's order in miniature: poll, step, append, publish. What it has appended
survives a kill; what it has published may be published again; readers drop what they have seen.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from schemas import decisions as d
from schemas import facts as f
from schemas.codec import encode_entry
from schemas.facts import Fact
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import Policy, Tier
from schemas.profile import Profile
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from services.scheduler.state import State
from services.scheduler.step import governing, next_due_us, recover, step

MS = 1000
SECOND = 1_000_000
BUS_US = 500
RESTART_US = 300 * MS
HEARTBEAT_US = SECOND
BATCH_FACTS_MAX = 8
PROFILE = Profile(
    model="m",
    layers=2,
    kv_heads=2,
    head_size=8,
    kv_dtype_bytes=2,
    max_sequence_tokens=8192,
)

DecisionId = tuple[int, int]
KILLS = ("before the append", "after the append", "amid the effects")


@dataclass
class Attempt:
    """One attempt at one request, in a replica's batch."""

    id: str
    attempt: int
    blocks: int
    prompt_tokens: int
    tokens_wanted: int
    read_us: int
    tokens: int = 0
    leaving: bool = False

    def usage(self, iteration_us: int) -> f.Usage:
        return f.Usage(
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.tokens,
            queued_us=0,
            prefill_us=iteration_us,
            decode_us=max(0, self.tokens - 1) * iteration_us,
            first_token_us=iteration_us if self.tokens else None,
        )


@dataclass
class Replica:
    """A replica that makes one token for each running request in each iteration."""

    world: "World"
    slot: int
    life: str
    kv_blocks: int
    max_batch: int
    iteration_us: int
    running: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    alive: bool = True
    frozen: bool = False
    iterating: bool = False

    def say_ready(self) -> None:
        self.world.send(
            f.ReplicaReady(
                model="m",
                slot=self.slot,
                incarnation=self.life,
                engine="simulated",
                dtype="float32",
                device="cpu",
                kv_pool_bytes=self.kv_blocks * 1024,
                kv_blocks=self.kv_blocks,
                block_tokens=16,
                max_batch=self.max_batch,
                max_sequence_tokens=8192,
                weights_bytes=1024,
            )
        )

    def beat(self) -> None:
        if not self.alive:
            return
        if not self.frozen:
            self.world.send(
                f.ReplicaHeartbeat(
                    model="m",
                    slot=self.slot,
                    incarnation=self.life,
                    running=len(self.running),
                    kv_blocks_used=sum(item.blocks for item in self.running.values()),
                    output_tokens=0,
                )
            )
        self.world.after(HEARTBEAT_US, self.beat)

    def read(self, decision: d.Decision) -> None:
        """Take one message of this replica's slot of the work topic."""
        if isinstance(decision, d.RequestDispatched) and decision.incarnation == self.life:
            self._join(decision)
        elif isinstance(decision, d.LeaveAsked) and decision.incarnation == self.life:
            item = self.running.get(decision.id)
            if item is not None and item.attempt == decision.attempt:
                item.leaving = True
        elif isinstance(decision, d.ReplicaTurnedAway) and decision.incarnation == self.life:
            self.running.clear()
            if decision.rejoin:
                self.say_ready()
            else:
                self.alive = False

    def _join(self, decision: d.RequestDispatched) -> None:
        self.running[decision.id] = Attempt(
            decision.id,
            decision.attempt,
            decision.blocks,
            decision.prompt_tokens,
            min(decision.max_output_tokens, self.world.tokens_of.get(decision.id, 1 << 30)),
            self.world.now_us,
        )
        # The core must never ask for more than there is, whatever it believes.
        assert sum(item.blocks for item in self.running.values()) <= self.kv_blocks
        assert len(self.running) <= self.max_batch
        self.world.started[decision.id] += 1
        self.world.send(
            f.WorkStarted(
                model="m",
                slot=self.slot,
                incarnation=self.life,
                items=(f.WorkRef(id=decision.id, attempt=decision.attempt),),
            )
        )
        if not self.iterating:
            self.iterating = True
            self.world.after(self.iteration_us, self.iterate)

    def iterate(self) -> None:
        if not self.alive or not self.running:
            self.iterating = False
            return
        self.world.after(self.iteration_us, self.iterate)
        if self.frozen:
            return
        left: list[f.WorkDeparture] = []
        done: list[f.WorkDone] = []
        for item in list(self.running.values()):
            if item.leaving:
                left.append(
                    f.WorkDeparture(
                        id=item.id,
                        attempt=item.attempt,
                        cause="cancelled",
                        usage=item.usage(self.iteration_us),
                    )
                )
                del self.running[item.id]
                continue
            item.tokens += 1
            if item.tokens >= item.tokens_wanted:
                done.append(
                    f.WorkDone(
                        id=item.id,
                        attempt=item.attempt,
                        finish_reason="length",
                        usage=item.usage(self.iteration_us),
                        output_digest="0123456789abcdef",
                    )
                )
                del self.running[item.id]
        who: dict[str, Any] = {"model": "m", "slot": self.slot, "incarnation": self.life}
        if left:
            self.world.send(f.WorkLeft(**who, offset=1, items=tuple(left)))
        if done:
            self.world.send(f.WorkFinished(**who, offset=1, items=tuple(done)))

    def fail(self, request_id: str, reason: str, *, retryable: bool) -> None:
        item = self.running.pop(request_id)
        fault = f.WorkFault(id=request_id, attempt=item.attempt, reason=reason, retryable=retryable)
        self.world.send(
            f.WorkFailed(model="m", slot=self.slot, incarnation=self.life, items=(fault,))
        )

    def stop(self) -> None:
        """Go away in order, work in hand or not."""
        self.alive = False
        self.world.send(
            f.ReplicaStopped(model="m", slot=self.slot, incarnation=self.life, reason="asked to")
        )


@dataclass
class World:
    """Everything outside the core, and the ledger.

    Attributes:
        inputs: the merged input topics; the place in the list is the offset.
        tokens_of: how many tokens a request's answer has; its limit when it is not named.
        published: what readers saw, each decision once; `seen` counts every copy that was sent.
        kill: returns where the owner dies in this poll, or None.
    """

    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    profile: Profile = field(default_factory=lambda: PROFILE)
    kill: Callable[[], str | None] = lambda: None
    cell: int = 0
    cells: int = 1
    now_us: int = 1_000 * SECOND
    inputs: list[Fact] = field(default_factory=list[Fact])
    ledger: list[Entry] = field(default_factory=list[Entry])
    published: dict[DecisionId, d.Decision] = field(default_factory=dict[DecisionId, d.Decision])
    seen: Counter[DecisionId] = field(default_factory=Counter[DecisionId])
    outcomes: dict[str, list[d.RequestEnded]] = field(
        default_factory=dict[str, list[d.RequestEnded]]
    )
    started: Counter[str] = field(default_factory=Counter[str])
    tokens_of: dict[str, int] = field(default_factory=dict[str, int])
    replicas: dict[int, Replica] = field(default_factory=dict[int, Replica])
    kills: int = 0

    def __post_init__(self) -> None:
        print(f"seed {self.seed}")  # noqa: T201 - shown by the test runner when the run fails
        self.random = Random(self.seed)  # noqa: S311 - a repeatable world, not a secret
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._polling = False
        self.state: State | None = None
        self.send(f.PolicyActivated(at_us=0, policy=self.policy, who="sim", why="sim"))
        self.send(f.ProfileSet(at_us=0, profile=self.profile))
        self.take_over()

    # Time

    def after(self, delay_us: int, call: Callable[[], None]) -> None:
        self._event_count += 1
        heappush(self._events, (self.now_us + delay_us, self._event_count, call))

    def run(self, *, for_us: int) -> None:
        """Let `for_us` µs of virtual time pass."""
        end_us = self.now_us + for_us
        while self._events and self._events[0][0] <= end_us:
            at_us, _, call = heappop(self._events)
            self.now_us = at_us
            call()
        self.now_us = end_us

    def run_until_all_ended(self, *, limit_us: int = 600 * SECOND) -> None:
        end_us = self.now_us + limit_us
        while self.open_requests():
            assert self.now_us < end_us, f"never ended: {sorted(self.open_requests())[:5]}"
            self.run(for_us=100 * MS)

    # Producers and replicas

    def send(self, fact: Fact) -> None:
        """Append a fact to the inputs; the owner stamps it when it reads it."""
        self.inputs.append(fact)
        self._wake(BUS_US)

    def submit(
        self,
        request_id: str,
        *,
        model: str = "m",
        prompt: int = 16,
        output: int | None = 16,
        deadline_ms: int | None = None,
        tier: Tier | None = None,
        tenant: str | None = None,
        metadata: f.Pairs = (),
    ) -> None:
        self.send(
            f.RequestArrived(
                at_us=0,
                id=request_id,
                model=model,
                tenant=tenant,
                tier=tier,
                arrived_us=self.now_us,
                offset=len(self.inputs),
                prompt_tokens=prompt,
                max_output_tokens=output,
                deadline_ms=deadline_ms,
                body_digest="0123456789abcdef",
                body_bytes=100,
                metadata=metadata,
            )
        )

    def cancel(self, request_id: str) -> None:
        self.send(f.CancelAsked(at_us=0, id=request_id, model="m", offset=len(self.inputs)))

    def add_replica(
        self,
        slot: int = 0,
        *,
        life: str = "L1",
        kv_blocks: int = 64,
        max_batch: int = 8,
        iteration_us: int = 10 * MS,
    ) -> Replica:
        replica = Replica(self, slot, life, kv_blocks, max_batch, iteration_us)
        self.replicas[slot] = replica
        replica.say_ready()
        self.after(HEARTBEAT_US, replica.beat)
        return replica

    # The owner

    def take_over(self) -> None:
        """Start an owner: recover what was recorded, then publish what nobody has seen."""
        start, self.state = 0, State()
        if self._snapshot is not None and self.random.random() < 0.5:
            start, raw = self._snapshot
            self.state = thaw(raw)
        for entry in self.ledger[start:]:
            recover(self.state, entry.fact, entry.decisions)
        self._publish(self.ledger)
        epoch = self.state.epoch + 1
        owner = f.OwnerTookOver(
            at_us=0, cell=self.cell, cells=self.cells, epoch=epoch, owner=f"owner-{epoch}"
        )
        self._record(owner, None)
        self._publish(self.ledger[-1:])
        self._wake(BUS_US)

    def open_requests(self) -> set[str]:
        """Return the ids of requests that belong to this cell and have no outcome yet."""
        sent = {fact.id for fact in self.inputs if isinstance(fact, f.RequestArrived)}
        routed = {x.id for x in self.published.values() if isinstance(x, d.RequestRouted)}
        return sent - routed - set(self.outcomes)

    def lines(self) -> list[bytes]:
        """Return the ledger as the lines in which it would be recorded."""
        chain, lines = GENESIS_CHAIN, list[bytes]()
        for entry in self.ledger:
            raw, chain = encode_entry(entry, chain)
            lines.append(raw)
        return lines

    def check(self) -> None:
        """Check what must hold at the end of any run."""
        assert not self.open_requests()
        assert all(len(ends) == 1 for ends in self.outcomes.values())
        ids = [(entry.seq, index) for entry in self.ledger for index in range(len(entry.decisions))]
        assert sorted(self.published) == ids, "a decision was never seen"
        again = State()
        for entry in self.ledger:
            assert step(governing(again, entry.fact), again, entry.fact) == entry.decisions
        assert self.state is not None
        assert state_digest(again) == state_digest(self.state)

    def _wake(self, delay_us: int) -> None:
        if not self._polling:
            self._polling = True
            self.after(delay_us, self._poll)

    def _poll(self) -> None:
        self._polling = False
        if self.state is None:
            return
        where = self.kill()
        # Positions come from the ledger: everything up to the last recorded source was read.
        read = max((e.source[2] + 1 for e in self.ledger if e.source is not None), default=0)
        batch = self.inputs[read : read + BATCH_FACTS_MAX]
        if where == KILLS[0]:
            for fact in batch:  # stepped, and forgotten with the process
                step(governing(self.state, fact), self.state, replace(fact, at_us=self.now_us))
            self._die()
            return
        first_new = len(self.ledger)
        for offset, fact in enumerate(batch, start=read):
            self._record(fact, ("inputs", 0, offset))
        due_us = next_due_us(self.state.policy, self.state)
        if due_us is not None and due_us <= self.now_us:
            self._record(f.ClockTicked(at_us=0), None)
        if where is not None:
            most = 0 if where == KILLS[1] else self.random.randrange(4)
            self._publish(self.ledger[first_new:], most=most)
            self._die()
            return
        self._publish(self.ledger[first_new:])
        if len(self.inputs) > read + len(batch):
            self._wake(BUS_US)
        self._rest(self.state)

    def _rest(self, state: State) -> None:
        """Store a snapshot now and then, and set the timer."""
        if self.random.random() < 0.02:
            self._snapshot = (len(self.ledger), b"".join(encode_pieces(freeze(state))))
        due_us = next_due_us(state.policy, state)
        if due_us is not None:
            self.after(max(0, due_us - self.now_us), self._poll)

    def _die(self) -> None:
        self.kills += 1
        self.state = None
        self.after(RESTART_US, self.take_over)

    def _record(self, fact: Fact, source: tuple[str, int, int] | None) -> None:
        state = self.state
        assert state is not None
        fact = replace(fact, at_us=self.now_us)
        decisions = step(governing(state, fact), state, fact)
        self.ledger.append(
            Entry(
                cell=self.cell,
                seq=len(self.ledger),
                epoch=state.epoch,
                source=source,
                policy_version=state.policy.version,
                policy_digest=state.policy_digest,
                fact=fact,
                decisions=decisions,
            )
        )

    def _publish(self, entries: list[Entry], *, most: int | None = None) -> None:
        effects = [
            ((entry.seq, index), decision)
            for entry in entries
            for index, decision in enumerate(entry.decisions)
        ]
        for decision_id, decision in effects[:most]:
            self.seen[decision_id] += 1
            if decision_id in self.published:
                continue  # the reader drops what it has seen
            self.published[decision_id] = decision
            if isinstance(decision, d.RequestEnded):
                self.outcomes.setdefault(decision.id, []).append(decision)
            elif isinstance(decision, d.RequestDispatched | d.LeaveAsked | d.ReplicaTurnedAway):
                self.after(BUS_US, lambda decision=decision: self._deliver(decision))

    def _deliver(self, decision: d.RequestDispatched | d.LeaveAsked | d.ReplicaTurnedAway) -> None:
        replica = self.replicas.get(decision.slot)
        if replica is not None and replica.alive:
            replica.read(decision)
