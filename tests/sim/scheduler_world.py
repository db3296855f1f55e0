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

from schemas import batch_decisions as b
from schemas import decisions as d
from schemas import facts as f
from schemas.batch import Action, request_id
from schemas.batch_facts import JobControlAsked, JobItemsArrived, JobSubmitted
from schemas.codec import encode_entry
from schemas.facts import Fact
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import Policy, Tier
from schemas.profile import Profile
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from services.scheduler.state import State
from services.scheduler.step import governing, next_due_us, recover, step
from tests.sim.scheduler_replica import HEARTBEAT_US, MS, SECOND, Replica

BUS_US = 500
RESTART_US = 300 * MS
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
ForReplica = d.RequestDispatched | d.ReservationGrown | d.LeaveAsked | d.ReplicaTurnedAway
KILLS = ("before the append", "after the append", "amid the effects")


@dataclass
class World:
    """Everything outside the core, and the ledger.

    Attributes:
        inputs: the merged input topics; the place in the list is the offset.
        tokens_of: how many tokens a request's answer has; its limit when it is not named.
        generated: how many tokens were generated for each request, by all attempts.
        kept: how many of them the attempt that was preempted last left on record.
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
    jobs_finished: list[b.JobFinished] = field(default_factory=list[b.JobFinished])
    started: Counter[str] = field(default_factory=Counter[str])
    generated: Counter[str] = field(default_factory=Counter[str])
    kept: dict[str, int] = field(default_factory=dict[str, int])
    tokens_of: dict[str, int] = field(default_factory=dict[str, int])
    replicas: dict[int, Replica] = field(default_factory=dict[int, Replica])
    kills: int = 0

    def __post_init__(self) -> None:
        print(f"seed {self.seed}")  # noqa: T201 - shown by the test runner when the run fails
        self.random = Random(self.seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._polling = False
        self._read = 0
        self._timer_us = 0
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

    def submit_job(
        self,
        job: str,
        count: int,
        *,
        model: str = "m",
        tenant: str | None = None,
        chunk: int = 50,
    ) -> None:
        """Send a job of `count` items, in records of `chunk` items."""
        self.send(
            JobSubmitted(
                at_us=0,
                job=job,
                model=model,
                tenant=tenant,
                endpoint="/v1/completions",
                items=count,
                offset=0,
            )
        )
        for first in range(0, count, chunk):
            self.send(
                JobItemsArrived(
                    at_us=0,
                    job=job,
                    model=model,
                    first=first,
                    count=min(chunk, count - first),
                    digest="0" * 16,
                    offset=first,
                    body_bytes=100,
                )
            )

    def steer(self, job: str, action: Action) -> None:
        self.send(
            JobControlAsked(
                at_us=0, job=job, model="m", action=action, who="ops", why="sim", offset=0
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
        read = self._read
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
        if due_us is not None and not self.now_us < self._timer_us <= due_us:
            self._timer_us = max(due_us, self.now_us)
            self.after(self._timer_us - self.now_us, self._poll)

    def _die(self) -> None:
        self.kills += 1
        self.state = None
        self.after(RESTART_US, self.take_over)

    def _record(self, fact: Fact, source: tuple[str, int, int] | None) -> None:
        state = self.state
        assert state is not None
        fact = replace(fact, at_us=self.now_us)
        decisions = step(governing(state, fact), state, fact)
        if source is not None:
            # Positions come from the ledger: everything up to the last recorded source was read.
            self._read = source[2] + 1
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
            elif isinstance(decision, b.ItemsReleased):
                for number in range(decision.first, decision.first + decision.count):
                    name = request_id(decision.job, number)
                    self.submit(
                        name, tier="batch", tenant=decision.report.tenant, output=4 + number % 9
                    )
            elif isinstance(decision, b.JobFinished):
                self.jobs_finished.append(decision)
            elif isinstance(decision, ForReplica):
                self.after(BUS_US, lambda decision=decision: self._deliver(decision))

    def _deliver(self, decision: ForReplica) -> None:
        replica = self.replicas.get(decision.slot)
        if replica is not None and replica.alive:
            replica.read(decision)
