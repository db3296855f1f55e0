"""A replica as the core sees one: it batches, makes a token an iteration, leaves, freezes and dies.

It keeps its own books of its KV blocks and its batch, and refuses more than there is.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas import decisions as d
from schemas import facts as f
from schemas.facts import Fact

MS = 1000
SECOND = 1_000_000
HEARTBEAT_US = SECOND


class Around(Protocol):
    """What a replica needs of the world around it."""

    now_us: int
    tokens_of: dict[str, int]
    started: Counter[str]
    generated: Counter[str]
    kept: dict[str, int]

    def send(self, fact: Fact) -> None: ...

    def after(self, delay_us: int, call: Callable[[], None]) -> None: ...


@dataclass
class Attempt:
    """One attempt at one request, in a replica's batch."""

    id: str
    attempt: int
    blocks: int
    prompt_tokens: int
    tokens_wanted: int
    read_us: int
    number: int
    grows: bool
    asked_blocks: int = 0
    tokens: int = 0
    fresh: int = 0
    leaving: d.LeaveAsked | None = None

    def usage(self, iteration_us: int) -> f.Usage:
        return f.Usage(
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.tokens,
            queued_us=0,
            prefill_us=iteration_us,
            decode_us=max(0, self.fresh - 1) * iteration_us,
            first_token_us=iteration_us if self.fresh else None,
        )


@dataclass
class Replica:
    """A replica that makes one token for each running request in each iteration.

    What is in `deaf_to` it reads once and cannot make out.
    """

    world: Around
    slot: int
    life: str
    kv_blocks: int
    max_batch: int
    iteration_us: int
    running: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    read_number: int = 0
    pauses: int = 0
    alive: bool = True
    frozen: bool = False
    deaf_to: dict[str, bool] = field(default_factory=dict[str, bool])
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
                    read=self.read_number,
                    held=tuple(sorted(item.number for item in self.running.values())),
                )
            )
            self.progress()
        self.world.after(HEARTBEAT_US, self.beat)

    def progress(self) -> None:
        items = tuple(
            f.WorkTokens(id=item.id, attempt=item.attempt, output_tokens=item.tokens)
            for item in self.running.values()
            if item.tokens
        )
        if items:
            self.world.send(
                f.WorkProgressed(model="m", slot=self.slot, incarnation=self.life, items=items)
            )

    def read(self, decision: d.Decision) -> None:
        """Take one message of this replica's slot of the work topic."""
        if isinstance(decision, d.RequestDispatched) and decision.incarnation == self.life:
            self._join(decision)
        elif isinstance(decision, d.LeaveAsked) and decision.incarnation == self.life:
            item = self.running.get(decision.id)
            if item is not None and item.attempt == decision.attempt:
                item.leaving = decision
        elif isinstance(decision, d.ReservationGrown) and decision.incarnation == self.life:
            item = self.running.get(decision.id)
            if item is not None and item.attempt == decision.attempt:
                item.blocks = decision.blocks
                assert sum(item.blocks for item in self.running.values()) <= self.kv_blocks
        elif isinstance(decision, d.ReplicaTurnedAway) and decision.incarnation == self.life:
            self.running.clear()
            if decision.rejoin:
                self.say_ready()
            else:
                self.alive = False

    def _join(self, decision: d.RequestDispatched) -> None:
        self.read_number = decision.number
        if self.deaf_to.pop(decision.id, None):
            return
        # What an earlier attempt generated is on record: none of it is generated again.
        assert decision.resume_tokens == self.world.kept.get(decision.id, 0)
        self.running[decision.id] = Attempt(
            decision.id,
            decision.attempt,
            decision.blocks,
            decision.prompt_tokens,
            min(decision.max_output_tokens, self.world.tokens_of.get(decision.id, 1 << 30)),
            self.world.now_us,
            decision.number,
            decision.blocks < decision.blocks_full,
            tokens=decision.resume_tokens,
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
                cause = item.leaving.cause
                left.append(
                    f.WorkDeparture(
                        id=item.id,
                        attempt=item.attempt,
                        cause=cause,
                        usage=item.usage(self.iteration_us),
                    )
                )
                if cause == "preempted":
                    self.world.kept[item.id] = item.tokens
                del self.running[item.id]
                continue
            if self._generate(item) and item.tokens >= item.tokens_wanted:
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
        growing = tuple(self._growing())
        if growing:
            self.world.send(f.WorkGrows(**who, items=growing))
        if left:
            self.world.send(f.WorkLeft(**who, offset=1, items=tuple(left)))
        if done:
            self.world.send(f.WorkFinished(**who, offset=1, items=tuple(done)))

    def _generate(self, item: Attempt) -> bool:
        """Generate a token, unless its blocks are full; return whether there was one."""
        if item.prompt_tokens + item.tokens > item.blocks * 16:
            self.pauses += 1
            return False
        item.tokens += 1
        item.fresh += 1
        self.world.generated[item.id] += 1
        return True

    def _growing(self) -> Iterator[f.WorkBlocks]:
        for item in self.running.values():
            near = item.prompt_tokens + item.tokens + 16 > item.blocks * 16
            if item.grows and near and item.asked_blocks != item.blocks:
                item.asked_blocks = item.blocks
                yield f.WorkBlocks(
                    id=item.id,
                    attempt=item.attempt,
                    output_tokens=item.tokens,
                    blocks=item.blocks,
                )

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
