"""Tenants share a tier by what they use: deficit round robin over cost, corrected when it is known.

The bound that is tested is the one that services/scheduler/queue.py states: what two tenants that
both wait all the time have used, over their weights, differs by at most one quantum, one request,
and what the requests that run now are estimated wrong.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given as with_any
from hypothesis import settings
from hypothesis import strategies as st

from schemas import decisions as d
from schemas import facts as f
from schemas.policy import Override, Policy
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    cancel,
    failed,
    finished,
    given,
    ready,
    tick,
    with_policy,
)

QUANTUM = 64


@dataclass
class Backlog:
    """One replica that runs `batch` at a time, and tenants that always have `depth` waiting."""

    seed: int
    weights: dict[str, int]
    sizes: dict[str, tuple[int, int]]
    batch: int = 1
    depth: int = 3
    used: dict[str, int] = field(default_factory=dict[str, int])
    running: list[d.RequestDispatched] = field(default_factory=list[d.RequestDispatched])
    sent: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        overrides = tuple(
            Override(tenant=name, key="fair_weight", value=weight)
            for name, weight in self.weights.items()
        )
        policy = with_policy(fair_quantum=QUANTUM, overrides=overrides, replica_lost_ms=80_000_000)
        self.story: Story = given(ready(blocks=1000, batch=self.batch), policy=policy)
        self.used = dict.fromkeys(self.weights, 0)
        for name in self.weights:
            for _ in range(self.depth):
                self.send(name)

    def send(self, tenant: str) -> None:
        low, high = self.sizes[tenant]
        size = self.random.randint(low, high)
        self.sent += 1
        fact = arrived(f"{tenant}{self.sent}", tenant=tenant, prompt=size, output=size)
        self.take(self.story.when(fact).decisions)

    def take(self, decisions: tuple[d.Decision, ...]) -> None:
        self.running.extend(x for x in decisions if isinstance(x, d.RequestDispatched))

    def end_one(self) -> None:
        """End a running request with any number of its tokens, and send another of its tenant."""
        ended = self.running.pop(self.random.randrange(len(self.running)))
        output = self.random.randint(1, ended.max_output_tokens)
        usage = f.Usage(
            prompt_tokens=ended.prompt_tokens,
            output_tokens=output,
            queued_us=0,
            prefill_us=1,
            decode_us=1,
        )
        done = f.WorkDone(
            id=ended.id, attempt=1, finish_reason="stop", usage=usage, output_digest="0d"
        )
        self.used[ended.tenant] += ended.prompt_tokens + 4 * output
        self.send(ended.tenant)
        fact = f.WorkFinished(at_us=0, model="m", slot=0, incarnation="L1", offset=1, items=(done,))
        self.take(self.story.when(fact).decisions)

    def spread(self) -> float:
        """Return the largest difference of what two tenants have used over their weights."""
        shares = [self.used[name] / weight for name, weight in self.weights.items()]
        return max(shares) - min(shares)

    def bound(self) -> float:
        """Return what it may be: a quantum, a request, and what runs now."""
        largest = max(5 * high for _, high in self.sizes.values())
        return QUANTUM + largest + self.batch * largest


sizes = st.tuples(st.integers(1, 20), st.integers(20, 400))


@settings(max_examples=15, deadline=None)
@with_any(
    seed=st.integers(0, 1000),
    weights=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    of_each=st.lists(sizes, min_size=4, max_size=4),
    batch=st.integers(1, 4),
)
def test_tenants_that_always_wait_use_the_same_over_their_weights(
    seed: int, weights: list[int], of_each: list[tuple[int, int]], batch: int
) -> None:
    names = "wxyz"[: len(weights)]
    backlog = Backlog(
        seed,
        dict(zip(names, weights, strict=True)),
        dict(zip(names, of_each, strict=False)),
        batch=batch,
        depth=batch + 2,
    )
    for _ in range(150):
        backlog.end_one()
        assert backlog.spread() <= backlog.bound()


def test_over_several_cells_the_errors_of_the_cells_add_up_and_no_more() -> None:
    cells = [
        Backlog(seed, {"x": 1, "y": 1}, {"x": (300, 400), "y": (1, 20)}, depth=3)
        for seed in range(3)
    ]
    for _ in range(200):
        for cell in cells:
            cell.end_one()
    used = [sum(cell.used[name] for cell in cells) for name in ("x", "y")]
    assert abs(used[0] - used[1]) <= sum(cell.bound() for cell in cells)


def order(story: Story, *, count: int) -> list[str]:
    """Return who runs next, when each one ends at once with its whole output."""
    ids: list[str] = []
    running = next(iter(story.state.models["m"].replicas[0].running))
    for _ in range(count):
        story.when(finished(running, at=5))
        (dispatch,) = [x for x in story.decisions if isinstance(x, d.RequestDispatched)]
        running = dispatch.id
        ids.append(running[0])
    return ids


def two_tenants(policy: Policy | None = None, *, prompt: int = 16, output: int = 16) -> Story:
    """Return a story with a full replica, and eight requests of x and of y in that order."""
    return given(
        ready(batch=1, blocks=100),
        arrived("runs", tenant="z"),
        *[arrived(f"x{n}", tenant="x", at=1, prompt=prompt, output=output) for n in range(8)],
        *[arrived(f"y{n}", tenant="y", at=2) for n in range(8)],
        policy=policy or with_policy(),
    )


def test_equal_requests_of_equal_tenants_alternate() -> None:
    assert order(two_tenants(), count=6) == ["x", "y", "x", "y", "x", "y"]


def test_what_counts_is_what_a_request_did_cost_and_not_what_it_asked_for() -> None:
    # Each generates 12 tokens: one of x costs 48 + 48, one of y 16 + 48. Estimated was 240 and 80.
    ran = order(two_tenants(prompt=48, output=48), count=10)
    assert (ran.count("x"), ran.count("y")) == (4, 6)


def test_a_weight_of_two_is_worth_twice_as_many() -> None:
    policy = with_policy(overrides=(Override(tenant="y", key="fair_weight", value=2),))
    ran = order(two_tenants(policy), count=9)
    assert (ran.count("x"), ran.count("y")) == (3, 6)


def test_a_longer_quantum_makes_longer_turns() -> None:
    ran = order(two_tenants(with_policy(fair_quantum=200)), count=8)
    assert "".join(ran).startswith(("xxxx", "xxx"))
    assert ran.count("y") >= 3


def test_an_idle_tenant_saves_nothing_up() -> None:
    story = given(ready(batch=1, blocks=100), arrived("x0", tenant="x"))
    for number in range(20):
        story.when(arrived(f"x{number + 1}", tenant="x"), finished(f"x{number}"))
    for number in range(4):
        story.when(arrived(f"x{number + 50}", tenant="x", at=3_600_000))
        story.when(arrived(f"y{number}", tenant="y", at=3_600_000))
    assert order(story, count=6).count("y") <= 4


def test_a_debt_is_not_lost_by_a_pause() -> None:
    story = given(
        ready(batch=1, blocks=100),
        arrived("runs", tenant="z"),
        arrived("x0", tenant="x", prompt=300, output=300),
        arrived("y0", tenant="y"),
        arrived("y1", tenant="y"),
        finished("runs"),
    )
    # x0 runs and costs 1,500; the tenant has nothing else for a while.
    story.when(arrived("x1", tenant="x", at=9)).when(finished("x0", at=10))
    assert [x.id for x in story.decisions if isinstance(x, d.RequestDispatched)] == ["y0"]


def test_a_lost_attempt_costs_its_tenant_nothing() -> None:
    story = given(ready(batch=1), arrived("x0", tenant="x"))
    paid = story.state.models["m"].accounts["x"].paid
    assert paid[2] > 0
    story.when(failed("x0", at=1))
    assert paid[2] == 0
    story.when(tick(101)).then(a(d.RequestReturned), a(d.RequestDispatched, cost=16 + 4 * 16))


def test_the_longest_idle_tenants_are_forgotten() -> None:
    story = given(policy=with_policy(idle_tenants_max=2))
    for number in range(5):
        story.when(arrived(f"r{number}", tenant=f"t{number}"), cancel(f"r{number}"))
    assert list(story.state.models["m"].accounts) == ["t3", "t4"]
