"""How full the replicas were: follows a ledger's decisions and adds up over time. Pure.

Fed the entries of any cells in the order of each ledger. A request is in a replica's batch from its
dispatch to its end; its KV blocks are reserved as long.
"""

from dataclasses import dataclass, field

from schemas import decisions as d
from schemas import facts as f
from schemas.ledger import Entry

US_PER_S = 1_000_000
Replica = tuple[str, int]


@dataclass(slots=True)
class _Pool:
    """One replica: its KV pool, the blocks of each request that it has, and their sum."""

    kv_blocks: int
    blocks: dict[str, int] = field(default_factory=dict[str, int])
    reserved: int = 0

    def give(self, request_id: str, blocks: int) -> None:
        """Take a request in."""
        self.reserved += blocks - self.blocks.get(request_id, 0)
        self.blocks[request_id] = blocks

    def take_back(self, request_id: str) -> None:
        """Let a request go."""
        self.reserved -= self.blocks.pop(request_id, 0)


@dataclass(slots=True)
class Occupancy:
    """What the replicas hold now, and how full they were.

    Attributes:
        model: only its replicas count; None counts all.
        waiting, running: ids of the requests that wait, and the replica of those that run.
        ended: how often each id was given an outcome.
        last_seq: the last entry of each cell.
        output_tokens: generated so far, as far as workers have reported.
        kv_use_peak: most blocks reserved at once, over those of all replicas.
    """

    model: str | None = None
    waiting: set[str] = field(default_factory=set[str])
    running: dict[str, Replica] = field(default_factory=dict[str, Replica])
    ended: dict[str, int] = field(default_factory=dict[str, int])
    last_seq: dict[int, int] = field(default_factory=dict[int, int])
    output_tokens: int = 0
    kv_use_peak: float = 0.0
    _tokens: dict[str, int] = field(default_factory=dict[str, int])
    _pools: dict[Replica, _Pool] = field(default_factory=dict[Replica, _Pool])
    _now_us: dict[int, int] = field(default_factory=dict[int, int])
    _busy_replica_us: int = 0
    _sequence_us: int = 0
    _kv_us: float = 0.0
    _running_us: int = 0

    def read(self, entry: Entry) -> None:
        """Take the next entry of its cell."""
        before_us = self._now_us.get(entry.cell, entry.fact.at_us)
        now_us = max(before_us, entry.fact.at_us)
        self._now_us[entry.cell] = now_us
        self.last_seq[entry.cell] = entry.seq
        self._pass(now_us - before_us)
        self._count_tokens(entry.fact)
        for decision in entry.decisions:
            self._take(decision)
        self.kv_use_peak = max(self.kv_use_peak, self.kv_use)

    def without_requests(self) -> "Occupancy":
        """Return the same replicas, as if they had held nothing so far."""
        pools = {replica: _Pool(pool.kv_blocks) for replica, pool in self._pools.items()}
        return Occupancy(self.model, last_seq=self.last_seq, _pools=pools, _now_us=self._now_us)

    @property
    def kv_use(self) -> float:
        """The share of all replicas' KV blocks that is reserved now, 0 to 1."""
        total = sum(pool.kv_blocks for pool in self._pools.values())
        reserved = sum(pool.reserved for pool in self._pools.values())
        return reserved / total if total else 0.0

    @property
    def mean_batch(self) -> float | None:
        """Requests on a replica, over the time in which it had any; None if none ever had."""
        return self._sequence_us / self._busy_replica_us if self._busy_replica_us else None

    @property
    def kv_use_mean(self) -> float | None:
        """The share of reserved blocks, over the time in which any request ran."""
        return self._kv_us / self._running_us if self._running_us else None

    def _pass(self, us: int) -> None:
        if us and any(pool.blocks for pool in self._pools.values()):
            self._running_us += us
            self._kv_us += us * self.kv_use
            for pool in self._pools.values():
                self._busy_replica_us += us if pool.blocks else 0
                self._sequence_us += us * len(pool.blocks)

    def _count_tokens(self, fact: f.Fact) -> None:
        match fact:
            case f.WorkProgressed():
                for item in fact.items:
                    self._grow(item.id, item.output_tokens)
            case f.WorkFinished() | f.WorkLeft():
                for item in fact.items:
                    self._grow(item.id, item.usage.output_tokens)
            case _:
                pass

    def _grow(self, request_id: str, output_tokens: int) -> None:
        more = output_tokens - self._tokens.get(request_id, 0)
        if more > 0:
            self._tokens[request_id] = output_tokens
            self.output_tokens += more

    def _take(self, decision: d.Decision) -> None:
        match decision:
            case d.RequestQueued() | d.RequestReturned():
                self.waiting.add(decision.id)
            case d.RequestDispatched():
                self.waiting.discard(decision.id)
                replica = (decision.model, decision.slot)
                self.running[decision.id] = replica
                if replica in self._pools:
                    self._pools[replica].give(decision.id, decision.blocks)
            case d.ReservationGrown():
                self._give_more(decision)
            case d.AttemptLost():
                self._leave(decision.id)
            case d.RequestPreempted():
                self._leave(decision.id)
                self.waiting.add(decision.id)
            case d.RequestEnded():
                self.waiting.discard(decision.id)
                self._leave(decision.id)
                self.ended[decision.id] = self.ended.get(decision.id, 0) + 1
            case d.ReplicaAdmitted():
                self._admit(decision)
            case d.ReplicaLost():
                self._pools.pop((decision.model, decision.slot), None)
            case _:
                pass

    def _admit(self, decision: d.ReplicaAdmitted) -> None:
        if self.model in {None, decision.model}:
            self._pools[decision.model, decision.slot] = _Pool(decision.kv_blocks)

    def _give_more(self, decision: d.ReservationGrown) -> None:
        replica = (decision.model, decision.slot)
        if replica in self._pools:
            self._pools[replica].give(decision.id, decision.blocks)

    def _leave(self, request_id: str) -> None:
        replica = self.running.pop(request_id, None)
        if replica is not None and replica in self._pools:
            self._pools[replica].take_back(request_id)
