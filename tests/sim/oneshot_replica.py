"""A one-shot replica as the core sees one: it runs whole batches, one after the other.

It waits until all members of a batch are there, holds the core to its promises (a batch fits, and
at most so many wait behind the one that runs), and reports each batch as one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schemas import decisions as d
from schemas import facts as f
from schemas.policy import Tier
from schemas.profile import Profile
from tests.sim.scheduler_world import World

ENCODER = Profile(
    model="e",
    serves="one-shot",
    layers=2,
    kv_heads=2,
    head_size=8,
    kv_dtype_bytes=2,
    max_sequence_tokens=256,
)


def submit_texts(
    world: World,
    request_id: str,
    *tokens: int,
    tier: Tier | None = None,
    tenant: str | None = None,
    deadline_ms: int | None = None,
    model: str = ENCODER.model,
) -> None:
    """Send an embedding request with a text of each of these lengths."""
    world.send(
        f.RequestArrived(
            at_us=0,
            id=request_id,
            model=model,
            tenant=tenant,
            tier=tier,
            arrived_us=world.now_us,
            offset=len(world.inputs),
            prompt_tokens=sum(tokens),
            deadline_ms=deadline_ms,
            body_digest="0123456789abcdef",
            body_bytes=100,
            embedding=f.EmbeddingSize(texts=len(tokens), longest_tokens=max(tokens)),
        )
    )


@dataclass
class OneShotReplica:
    """Takes `service_us(texts)` for a batch; `batches` are those that it ran, by their members."""

    world: World
    slot: int = 0
    life: str = "E1"
    kv_blocks: int = 1024
    max_batch: int = 16
    service_us: Callable[[int], int] = lambda _: 80_000
    ahead_max: int = 1
    model: str = ENCODER.model
    alive: bool = True
    queued: dict[int, list[d.RequestDispatched]] = field(
        default_factory=dict[int, list[d.RequestDispatched]]
    )
    batches: list[list[d.RequestDispatched]] = field(
        default_factory=list[list[d.RequestDispatched]]
    )
    busy_us: int = 0
    running: int | None = None
    left: list[str] = field(default_factory=list[str])

    def come(self) -> "OneShotReplica":
        """Become known to the world, and say ready."""
        self.world.replicas[self.slot] = self  # pyright: ignore[reportArgumentType] - it reads decisions as a replica does
        self.world.send(
            f.ReplicaReady(
                model=self.model,
                slot=self.slot,
                incarnation=self.life,
                engine="simulated",
                dtype="float32",
                device="cpu",
                kv_pool_bytes=self.kv_blocks * 1024,
                kv_blocks=self.kv_blocks,
                block_tokens=16,
                max_batch=self.max_batch,
                max_sequence_tokens=256,
                weights_bytes=1024,
            )
        )
        self.beat()
        return self

    def beat(self) -> None:
        if self.alive:
            self.world.after(1_000_000, self.beat)
            self.world.send(
                f.ReplicaHeartbeat(**self._who(), running=0, kv_blocks_used=0, output_tokens=0)
            )

    def read(self, decision: d.Decision) -> None:
        """Take one message of this replica's slot of the work topic."""
        if isinstance(decision, d.RequestDispatched) and decision.incarnation == self.life:
            assert decision.batch is not None
            self.queued.setdefault(decision.batch.batch, []).append(decision)
            assert len(self.queued) <= 1 + self.ahead_max
            held = sum(item.blocks for batch in self.queued.values() for item in batch)
            assert held <= self.kv_blocks
            self._begin()
        elif isinstance(decision, d.LeaveAsked) and decision.incarnation == self.life:
            for number, batch in list(self.queued.items()):
                leaving = [item for item in batch if item.id == decision.id]
                if leaving and number != self.running:
                    self._leave(number, leaving[0])

    def _leave(self, number: int, item: d.RequestDispatched) -> None:
        self.queued[number].remove(item)
        self.left.append(item.id)
        usage = f.Usage(prompt_tokens=0, output_tokens=0, queued_us=0, prefill_us=0, decode_us=0)
        gone = f.WorkDeparture(id=item.id, attempt=item.attempt, cause="cancelled", usage=usage)
        self.world.send(f.WorkLeft(**self._who(), offset=1, items=(gone,)))

    def _begin(self) -> None:
        if self.running is not None or not self.queued:
            return
        number, batch = next(iter(self.queued.items()))
        assert batch[0].batch is not None
        gone = sum(1 for _ in self.left)
        if len(batch) + gone < batch[0].batch.size:
            return  # the rest of it is on its way
        self.running = number
        took_us = self.service_us(len(batch))
        self.busy_us += took_us
        self.world.after(took_us, lambda: self._finish(number, took_us))

    def _finish(self, number: int, took_us: int) -> None:
        if not self.alive:
            return
        batch = self.queued.pop(number)
        self.batches.append(batch)
        self.running = None
        done = tuple(
            f.WorkDone(
                id=item.id,
                attempt=item.attempt,
                finish_reason="embedded",
                usage=f.Usage(
                    prompt_tokens=item.prompt_tokens,
                    output_tokens=0,
                    queued_us=0,
                    prefill_us=took_us,
                    decode_us=0,
                ),
                output_digest="0123456789abcdef",
            )
            for item in batch
        )
        self.world.send(f.WorkFinished(**self._who(), offset=1, items=done))
        self._begin()

    def _who(self) -> dict[str, Any]:
        return {"model": self.model, "slot": self.slot, "incarnation": self.life}
