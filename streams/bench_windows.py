"""Measures what a batch window costs: the pure core on a clock that jumps, beside one device.

Simulated: an encoder that takes 80 ms for a batch, whatever its size, and a bus that takes 0.5 ms
each way. Closed loop: a number of clients send their next text as soon as they have the answer, so
that a window which keeps the device idle costs throughput too. Compared are a window of 500 ms and
one of 150 ms that the backlog closes. What decides is the core itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from schemas import decisions as d
from schemas import facts as f
from schemas.facts import Fact
from schemas.figures import Figure
from schemas.policy import Policy
from schemas.profile import MINILM_L6
from services.scheduler.state import State
from services.scheduler.step import governing, next_due_us, step

WORK_US = 80_000
BUS_US = 500
CLIENTS = 10
SECONDS = 60
BACKLOG_CLOSES = 4
HEARTBEAT_US = 500_000
US_PER_S = 1_000_000
# Its latency target leaves a window of 500 ms as it is.
SLOW = Policy(
    name="window-500",
    default_tier="batch",
    window_ms=500,
    window_tunes=False,
    window_backlog_closes=None,
)
QUICK = replace(SLOW, name="window-150", window_ms=150, window_backlog_closes=BACKLOG_CLOSES)


@dataclass(slots=True)
class Run:
    """One policy under the clients: virtual time, one replica.

    Attributes:
        latencies_us: of each request, from send to outcome at the cell. busy_us: of the device.
    """

    policy: Policy
    now_us: int = 0
    state: State = field(default_factory=State)
    latencies_us: list[int] = field(default_factory=list[int])
    busy_us: int = 0
    _free_at_us: int = 0
    _sent: int = 0
    _timer_us: int = -1
    _calls: list[tuple[int, int, Callable[[], None]]] = field(
        default_factory=list[tuple[int, int, Callable[[], None]]]
    )
    _count: int = 0
    _gathered: dict[int, list[d.RequestDispatched]] = field(
        default_factory=dict[int, list[d.RequestDispatched]]
    )

    def go(self) -> "Run":
        """Run for SECONDS of virtual time."""
        self._tell(f.OwnerTookOver(at_us=0, cell=0, cells=1, epoch=1, owner="bench"))
        self._tell(f.PolicyActivated(at_us=0, policy=self.policy, who="bench", why="bench"))
        self._tell(f.ProfileSet(at_us=0, profile=MINILM_L6))
        self._tell(_ready())
        self._beat()
        for client in range(CLIENTS):
            # They begin apart, or they would wait in step for ever.
            self._after(client * 37_000, self._send)
        while self._calls and self._calls[0][0] <= SECONDS * US_PER_S:
            self.now_us, _, call = heappop(self._calls)
            call()
        return self

    def _after(self, us: int, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._calls, (self.now_us + us, self._count, call))

    def _beat(self) -> None:
        self._tell(
            f.ReplicaHeartbeat(
                at_us=0,
                model=MINILM_L6.model,
                slot=0,
                incarnation="r",
                running=0,
                kv_blocks_used=0,
                output_tokens=0,
            )
        )
        self._after(HEARTBEAT_US, self._beat)

    def _send(self) -> None:
        self._sent += 1
        fact = f.RequestArrived(
            at_us=0,
            id=f"r-{self._sent}",
            model=MINILM_L6.model,
            arrived_us=self.now_us,
            offset=self._sent,
            prompt_tokens=20,
            body_digest="0",
            body_bytes=100,
            embedding=f.EmbeddingSize(texts=1, longest_tokens=20),
        )
        self._after(BUS_US, lambda: self._tell(fact))

    def _tell(self, fact: Fact) -> None:
        """Step a fact, act on what follows, and set the timer."""
        fact = replace(fact, at_us=self.now_us)
        for decision in step(governing(self.state, fact), self.state, fact):
            if isinstance(decision, d.RequestDispatched):
                self._after(BUS_US, lambda decision=decision: self._take(decision))
            elif isinstance(decision, d.RequestEnded):
                self.latencies_us.append(decision.e2e_us)
                self._send()
        due_us = next_due_us(self.state.policy, self.state)
        if due_us is not None and due_us != self._timer_us:
            self._timer_us = due_us
            self._after(max(0, due_us - self.now_us), lambda: self._tick(due_us))

    def _tick(self, due_us: int) -> None:
        if due_us == self._timer_us:
            self._timer_us = -1
            self._tell(f.ClockTicked(at_us=0))

    def _take(self, decision: d.RequestDispatched) -> None:
        """The device: it runs a batch once all of it is there, one after the other."""
        assert decision.batch is not None  # noqa: S101 - a one-shot model's always has one
        members = self._gathered.setdefault(decision.batch.batch, [])
        members.append(decision)
        if len(members) < decision.batch.size:
            return
        begins_us = max(self.now_us, self._free_at_us)
        self._free_at_us = begins_us + WORK_US
        self.busy_us += WORK_US
        queued_us = begins_us - self.now_us
        fact = _finished(self._gathered.pop(decision.batch.batch), queued_us)
        self._after(queued_us + WORK_US + BUS_US, lambda: self._tell(fact))


def _ready() -> f.ReplicaReady:
    return f.ReplicaReady(
        model=MINILM_L6.model,
        slot=0,
        incarnation="r",
        engine="simulated",
        dtype="none",
        device="none",
        kv_pool_bytes=1 << 30,
        kv_blocks=1000,
        block_tokens=16,
        max_batch=16,
        max_sequence_tokens=256,
        weights_bytes=0,
    )


def _finished(members: list[d.RequestDispatched], queued_us: int) -> f.WorkFinished:
    usage = f.Usage(
        prompt_tokens=20, output_tokens=0, queued_us=queued_us, prefill_us=WORK_US, decode_us=0
    )
    items = tuple(
        f.WorkDone(
            id=item.id,
            attempt=item.attempt,
            finish_reason="embedded",
            usage=usage,
            output_digest="0",
        )
        for item in members
    )
    return f.WorkFinished(model=MINILM_L6.model, slot=0, incarnation="r", offset=1, items=items)


def window_figures() -> list[Figure]:
    """Return what closing a window earlier gains: P95, utilisation and throughput."""
    slow, quick = Run(SLOW).go(), Run(QUICK).go()
    return [
        Figure("window.p95_ratio", _p95_us(quick) / _p95_us(slow), "ratio"),
        Figure("window.utilisation_ratio", quick.busy_us / slow.busy_us, "ratio"),
        Figure("window.throughput_ratio", _done(quick) / _done(slow), "ratio"),
        Figure("window.p95_ms.window_500", _p95_us(slow) / 1000, "ms"),
        Figure("window.p95_ms.window_150", _p95_us(quick) / 1000, "ms"),
    ]


def _done(run: Run) -> int:
    return len(run.latencies_us)


def _p95_us(run: Run) -> int:
    ordered = sorted(run.latencies_us)
    return ordered[len(ordered) * 95 // 100]
