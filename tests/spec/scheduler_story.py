"""Given facts, when a fact, then decisions: the sentences in which the core's rules are tested.

Times are in ms here, so that tables read well; the core's are in µs. Unless said otherwise there
is one model, "m", with a context of 1,000 tokens; a request asks for 16 + 16 tokens, which is two
blocks of 16; and a replica has 10 blocks and runs 4 requests at once.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from schemas import decisions as d
from schemas import facts as f
from schemas.decisions import Decision
from schemas.facts import Fact
from schemas.policy import Policy, Tier
from schemas.profile import Profile
from services.scheduler.state import State
from services.scheduler.step import governing, step

BLOCK_TOKENS = 16
PROFILE = Profile(
    model="m",
    layers=2,
    kv_heads=2,
    head_size=8,
    kv_dtype_bytes=2,
    max_sequence_tokens=1000,
    work_slots=4,
)


@dataclass(frozen=True)
class Expected:
    """One expected decision: its kind, and the fields that the test is about."""

    kind: type
    fields: dict[str, Any]

    def check(self, decision: Decision) -> None:
        assert isinstance(decision, self.kind), f"expected {self}, got {decision}"
        got = {name: getattr(decision, name) for name in self.fields}
        assert got == self.fields, f"in {decision}"


def a(kind: type, **fields: Any) -> Expected:
    """Return the expectation of a decision of `kind` with these fields."""
    return Expected(kind, fields)


@dataclass
class Story:
    """A state, the facts told so far, and what was decided at the last `when`."""

    state: State
    decisions: tuple[Decision, ...] = ()
    told: list[Fact] = field(default_factory=list[Fact])

    def when(self, *facts: Fact) -> "Story":
        self.decisions = ()
        for fact in facts:
            self.told.append(fact)
            self.decisions += step(governing(self.state, fact), self.state, fact)
        return self

    def then(self, *expected: Expected) -> "Story":
        kinds = [type(decision).__name__ for decision in self.decisions]
        assert kinds == [item.kind.__name__ for item in expected], self.decisions
        for item, decision in zip(expected, self.decisions, strict=True):
            item.check(decision)
        return self

    def then_nothing(self) -> "Story":
        return self.then()


def given(
    *facts: Fact,
    policy: Policy | None = None,
    profile: Profile | None = PROFILE,
    cell: int = 0,
    cells: int = 1,
) -> Story:
    """Return a story in which a cell took over at 0 ms, knows the model, and heard `facts`."""
    story = Story(State())
    story.when(f.OwnerTookOver(at_us=0, cell=cell, cells=cells, epoch=1, owner="test"))
    story.when(policy_is(policy or Policy()))
    if profile is not None:
        story.when(f.ProfileSet(at_us=0, profile=profile))
    return story.when(*facts)


def policy_is(policy: Policy, *, at: float = 0) -> f.PolicyActivated:
    return f.PolicyActivated(at_us=us(at), policy=policy, who="test", why="test")


def profile_is(profile: Profile, *, at: float = 0) -> f.ProfileSet:
    return f.ProfileSet(at_us=us(at), profile=profile)


def us(ms: float) -> int:
    return round(ms * 1000)


def tick(at: float) -> f.ClockTicked:
    return f.ClockTicked(at_us=us(at))


def arrived(
    request_id: str,
    *,
    at: float = 0,
    sent: float | None = None,
    model: str = "m",
    prompt: int = 16,
    output: int | None = 16,
    tier: Tier | None = None,
    tenant: str | None = None,
    deadline: int | None = None,
    body: str = "b0",
    offset: int = 7,
    routed_by: f.RoutedBy | None = None,
    metadata: f.Pairs = (),
) -> f.RequestArrived:
    """Return an arrival that the broker stamped at `sent` ms and the cell read at `at` ms."""
    return f.RequestArrived(
        at_us=us(at),
        id=request_id,
        model=model,
        tenant=tenant,
        tier=tier,
        arrived_us=us(at if sent is None else sent),
        offset=offset,
        prompt_tokens=prompt,
        max_output_tokens=output,
        deadline_ms=deadline,
        body_digest=body,
        body_bytes=100,
        metadata=metadata,
        routed_by=routed_by,
    )


def refused(
    request_id: str,
    *,
    at: float = 0,
    model: str = "m",
    body: str = "b0",
    routed_by: f.RoutedBy | None = None,
) -> f.RequestRefused:
    return f.RequestRefused(
        at_us=us(at),
        id=request_id,
        model=model,
        tenant=None,
        arrived_us=us(at),
        offset=7,
        body_digest=body,
        detail="temperature: should be at most 5",
        routed_by=routed_by,
    )


def cancel(
    request_id: str,
    *,
    at: float = 0,
    model: str | None = "m",
    routed_by: f.RoutedBy | None = None,
) -> f.CancelAsked:
    return f.CancelAsked(at_us=us(at), id=request_id, model=model, offset=9, routed_by=routed_by)


def starting(slot: int = 0, *, at: float = 0, life: str = "L1") -> f.ReplicaStarting:
    return f.ReplicaStarting(at_us=us(at), model="m", slot=slot, incarnation=life)


def ready(
    slot: int = 0,
    *,
    at: float = 0,
    life: str = "L1",
    blocks: int = 10,
    batch: int = 4,
    block_tokens: int = BLOCK_TOKENS,
    model: str = "m",
) -> f.ReplicaReady:
    return f.ReplicaReady(
        at_us=us(at),
        model=model,
        slot=slot,
        incarnation=life,
        engine="simulated",
        dtype="float32",
        device="cpu",
        kv_pool_bytes=blocks * 1024,
        kv_blocks=blocks,
        block_tokens=block_tokens,
        max_batch=batch,
        max_sequence_tokens=1000,
        weights_bytes=1024,
    )


def heartbeat(
    slot: int = 0,
    *,
    at: float = 0,
    life: str = "L1",
    model: str = "m",
    read: int = 0,
    held: tuple[int, ...] | None = None,
) -> f.ReplicaHeartbeat:
    return f.ReplicaHeartbeat(
        at_us=us(at),
        model=model,
        slot=slot,
        incarnation=life,
        running=0,
        kv_blocks_used=0,
        output_tokens=0,
        read=read,
        held=held,
    )


def draining(slot: int = 0, *, at: float = 0, life: str = "L1") -> f.ReplicaDraining:
    return f.ReplicaDraining(at_us=us(at), model="m", slot=slot, incarnation=life)


def stopped(
    slot: int = 0, *, at: float = 0, life: str = "L1", model: str = "m"
) -> f.ReplicaStopped:
    return f.ReplicaStopped(
        at_us=us(at), model=model, slot=slot, incarnation=life, reason="asked to"
    )


def started(
    *ids: str, at: float = 0, slot: int = 0, life: str = "L1", attempt: int = 1
) -> f.WorkStarted:
    items = tuple(f.WorkRef(id=item, attempt=attempt) for item in ids)
    return f.WorkStarted(at_us=us(at), model="m", slot=slot, incarnation=life, items=items)


def progressed(
    *ids: str, at: float = 0, slot: int = 0, life: str = "L1", attempt: int = 1, output: int = 5
) -> f.WorkProgressed:
    items = tuple(f.WorkTokens(id=item, attempt=attempt, output_tokens=output) for item in ids)
    return f.WorkProgressed(at_us=us(at), model="m", slot=slot, incarnation=life, items=items)


def usage(*, output: int = 12, first_token_ms: float | None = 3) -> f.Usage:
    return f.Usage(
        prompt_tokens=16,
        output_tokens=output,
        queued_us=0,
        prefill_us=0 if first_token_ms is None else us(first_token_ms),
        decode_us=1000,
        first_token_us=None if first_token_ms is None else us(first_token_ms),
    )


def finished(
    *ids: str,
    at: float = 0,
    slot: int = 0,
    life: str = "L1",
    attempt: int = 1,
    reason: Literal["stop", "length"] = "stop",
    offset: int = 500,
    model: str = "m",
) -> f.WorkFinished:
    items = tuple(
        f.WorkDone(
            id=item, attempt=attempt, finish_reason=reason, usage=usage(), output_digest="0d"
        )
        for item in ids
    )
    return f.WorkFinished(
        at_us=us(at), model=model, slot=slot, incarnation=life, offset=offset, items=items
    )


def failed(
    *ids: str,
    at: float = 0,
    slot: int = 0,
    life: str = "L1",
    attempt: int = 1,
    retryable: bool = True,
) -> f.WorkFailed:
    items = tuple(
        f.WorkFault(id=item, attempt=attempt, reason="out of memory", retryable=retryable)
        for item in ids
    )
    return f.WorkFailed(at_us=us(at), model="m", slot=slot, incarnation=life, items=items)


def left(
    *ids: str,
    at: float = 0,
    slot: int = 0,
    life: str = "L1",
    attempt: int = 1,
    cause: Literal["cancelled", "preempted"] = "cancelled",
    output: int = 5,
    first_token_ms: float | None = 3,
    offset: int = 600,
) -> f.WorkLeft:
    used = usage(output=output, first_token_ms=first_token_ms)
    items = tuple(
        f.WorkDeparture(id=item, attempt=attempt, cause=cause, usage=used) for item in ids
    )
    return f.WorkLeft(
        at_us=us(at), model="m", slot=slot, incarnation=life, offset=offset, items=items
    )


def with_policy(**changes: Any) -> Policy:
    """Return the default policy with these fields changed."""
    return replace(Policy(), name="changed", **changes)


def asked(story: Story) -> list[str]:
    """Return who was asked to leave for another at the last `when`."""
    return [
        item.id
        for item in story.decisions
        if isinstance(item, d.LeaveAsked) and item.cause == "preempted"
    ]


def dispatched(story: Story) -> list[str]:
    """Return who was dispatched at the last `when`."""
    return [item.id for item in story.decisions if isinstance(item, d.RequestDispatched)]
