"""Any mix of work, cancels and preemptions: every request ends once, the pool is never exceeded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engine import Work
from services.worker.latency import LatencyModel, VirtualClock
from services.worker.plan import Bounds
from services.worker.simulated import SimulatedConfig, SimulatedEngine

Action = tuple[str, int, int, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "step", "step", "cancel", "preempt"]),
        st.integers(0, 12),
        st.integers(1, 90),
        st.integers(1, 40),
    ),
    max_size=60,
)


class Watched:
    """An engine, and what came out of it: checked at every step."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.engine = SimulatedEngine(
            SimulatedConfig("m", 10 * 16, 1, 160, bounds, LatencyModel(1.0, 0.1, 0.01)),
            VirtualClock(),
        )
        self.ends: list[str] = []
        self.emitted: dict[str, int] = {}

    def step(self) -> None:
        result = self.engine.step()
        self.engine.check_integrity()
        assert result.kv_blocks_used <= 10
        assert result.batch <= self.bounds.max_batch
        assert result.prefill_tokens <= self.bounds.prefill_tokens
        for token in result.tokens:
            assert token.index == self.emitted.get(token.key.id, 0)
            self.emitted[token.key.id] = token.index + 1
        for done in result.finished:
            assert done.output_tokens == self.emitted[done.key.id]
        for left in result.left:
            assert len(left.token_ids) == self.emitted.get(left.key.id, 0)
        ended = (*result.finished, *result.left, *result.failed)
        self.ends.extend(end.key.id for end in ended)


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, batch=st.integers(1, 5), chunk=st.integers(1, 40))
def test_every_request_ends_exactly_once(actions: list[Action], batch: int, chunk: int) -> None:
    watched = Watched(Bounds(batch, chunk))
    engine = watched.engine
    added: set[str] = set()
    for action, number, prompt, output in actions:
        id_ = str(number)
        if action == "add" and id_ not in added:
            added.add(id_)
            # Some reserve more than they need, and one too little.
            blocks = -(-(prompt + output) // 16) + number % 3 - (number == 7)
            engine.add(Work(id_, 1, output, blocks, prompt="made up", prompt_tokens=prompt))
        elif action == "cancel":
            engine.cancel(id_)
        elif action == "preempt":
            engine.preempt(id_)
        else:
            watched.step()
    for _ in range(20_000):
        if not engine.has_work:
            break
        watched.step()
    assert sorted(watched.ends) == sorted(added)
