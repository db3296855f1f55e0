"""One suite for every one-shot engine: what services/worker/oneshot.py promises, from outside.

Runs over the sentence encoder in torch and over the simulated one.
"""

import functools
from collections.abc import Callable, Sequence

import pytest

from services.gateway.vectors import vectors_of
from services.worker.engine import Engine, Finished, StepResult, Work
from services.worker.latency import VirtualClock
from services.worker.oneshot import OneShotEngine
from services.worker.oneshot_engines import SimulatedOneShot, minilm, simulated

BATCH = 4
Make = Callable[[], OneShotEngine]


def made_up() -> OneShotEngine:
    return simulated(SimulatedOneShot(model="made-up", max_batch=BATCH), VirtualClock())


@functools.cache
def encoder() -> OneShotEngine:
    return minilm(max_batch=BATCH, clock=VirtualClock(), device="cpu")


@pytest.fixture(
    params=[
        pytest.param(made_up, id="simulated"),
        pytest.param(encoder, id="minilm", marks=pytest.mark.torch),
    ]
)
def engine(request: pytest.FixtureRequest) -> OneShotEngine:
    make: Make = request.param
    engine = make()
    assert not engine.has_work
    return engine


def work(
    id_: str, *texts: str, batch: tuple[int, int] | None = None, attempt: int = 1, blocks: int = 2
) -> Work:
    return Work(
        id=id_,
        attempt=attempt,
        max_output_tokens=0,
        reserved_blocks=blocks,
        texts=texts or ("a text",),
        batch=batch,
    )


def drain(engine: Engine) -> list[StepResult]:
    results: list[StepResult] = []
    for _ in range(500):
        if not engine.has_work:
            return results
        results.append(engine.step())
        engine.check_integrity()
    pytest.fail("the engine still has work after 500 steps")


def finished(results: list[StepResult]) -> dict[str, Finished]:
    return {done.key.id: done for result in results for done in result.finished}


def test_a_batch_runs_in_one_step_and_each_member_gets_its_vectors(engine: OneShotEngine) -> None:
    for name in ("a", "b", "c"):
        assert engine.add(work(name, f"text of {name}", batch=(7, 3)))
    (result,) = drain(engine)
    assert [item.key.id for item in result.started] == ["a", "b", "c"]
    assert result.batch == 3
    assert result.kv_blocks_used == 0
    for done in result.finished:
        assert done.reason == "embedded"
        assert done.embedding is not None
        assert done.prompt_tokens == sum(done.embedding.text_tokens) > 0
        (vector,) = vectors_of(done.embedding)
        assert len(vector) == done.embedding.dimension == 384
        assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-5)


def test_a_batch_waits_for_its_members_and_runs_once_they_are_there(engine: OneShotEngine) -> None:
    engine.add(work("a", batch=(1, 2)))
    assert engine.step().started == ()
    assert engine.has_work
    engine.add(work("b", batch=(1, 2)))
    assert {item.key.id for item in engine.step().finished} == {"a", "b"}


def test_a_member_that_never_comes_holds_nobody_up_for_long(engine: OneShotEngine) -> None:
    engine.add(work("a", batch=(1, 2)))
    results = drain(engine)
    assert list(finished(results)) == ["a"]
    assert len(results) > 2


def test_a_later_batch_tells_that_the_one_before_is_complete(engine: OneShotEngine) -> None:
    engine.add(work("a", batch=(1, 2)))
    engine.add(work("b", batch=(2, 1)))
    assert [item.key.id for item in engine.step().finished] == ["a"]
    assert [item.key.id for item in engine.step().finished] == ["b"]
    assert not engine.has_work


def test_texts_come_back_in_their_order_whatever_their_lengths(engine: OneShotEngine) -> None:
    texts = ("a much longer text than the others, by far", "short", "of middle length", "x", "yy")
    engine.add(work("many", *texts))
    for text in texts:
        engine.add(work(text, text))
    done = finished(drain(engine))
    many = done["many"].embedding
    assert many is not None
    vectors = vectors_of(many)
    for at, text in enumerate(texts):
        alone = done[text].embedding
        assert alone is not None
        assert vectors[at] == pytest.approx(vectors_of(alone)[0], abs=1e-6)
        assert many.text_tokens[at] == alone.text_tokens[0]


def test_a_cancel_before_the_batch_runs_lets_the_others_run(engine: OneShotEngine) -> None:
    engine.add(work("a", batch=(1, 2)))
    engine.add(work("b", batch=(1, 2)))
    assert engine.cancel("a")
    result = engine.step()
    assert [(item.key.id, item.cause) for item in result.left] == [("a", "cancelled")]
    assert [item.key.id for item in result.finished] == ["b"]
    assert not engine.cancel("a")
    engine.add(work("c"))
    assert engine.preempt("c", 1)
    assert engine.cancel("c")
    assert engine.preempt("c")
    assert [item.cause for item in drain(engine)[0].left] == ["cancelled"]


def test_the_same_attempt_is_taken_once(engine: OneShotEngine) -> None:
    assert engine.add(work("a"))
    assert not engine.add(work("a"))
    assert engine.add(work("a", attempt=2))
    drain(engine)


def test_unusable_work_fails_alone_and_says_why(engine: OneShotEngine) -> None:
    engine.add(Work(id="chat", attempt=1, max_output_tokens=5, reserved_blocks=1, prompt="hi"))
    engine.add(work("long", "word " * 1000, batch=(1, 2)))
    engine.add(work("good", batch=(1, 2)))
    results = drain(engine)
    reasons = {item.key.id: item.reason for result in results for item in result.failed}
    assert "no texts" in reasons["chat"]
    assert "256" in reasons["long"]
    assert list(finished(results)) == ["good"]
    assert len(results) == 1, "a refused member was waited for"


class Faulty:
    """An encoder that fails at the text "poison", and gives no number for "void"."""

    dimension = 2

    def ids(self, text: str) -> list[int]:
        return [{"poison": 13, "void": 0}.get(text, 7)]

    def encode(self, rows: Sequence[Sequence[int]]) -> list[bytes]:
        if [13] in rows:
            raise RuntimeError("out of memory")
        return [b"\0\0\xc0\x7f" * 2 if row == [0] else b"\0\0\x80\x3f" * 2 for row in rows]


def faulty() -> OneShotEngine:
    return OneShotEngine(made_up().info, Faulty(), VirtualClock())


def test_a_fault_of_the_encoder_fails_the_text_that_brings_it_about_and_no_other() -> None:
    engine = faulty()
    for name in ("a", "poison", "b"):
        engine.add(work(name, name, batch=(1, 3)))
    (result,) = drain(engine)
    assert [item.key.id for item in result.finished] == ["a", "b"]
    (fault,) = result.failed
    assert (fault.key.id, fault.retryable) == ("poison", True)
    assert "out of memory" in fault.reason


def test_a_vector_that_is_not_finite_fails_its_request() -> None:
    engine = faulty()
    engine.add(work("a", "fine", "void", "fine"))
    (result,) = drain(engine)
    assert "not finite" in result.failed[0].reason


def test_what_waits_is_told_and_counted(engine: OneShotEngine) -> None:
    engine.add(work("a", batch=(1, 2), blocks=3))
    assert engine.step().kv_blocks_used == 3
    (progress,) = engine.progress()
    assert (progress.key.id, progress.joined) == ("a", False)
    drain(engine)


def test_warm_up_leaves_no_trace(engine: OneShotEngine) -> None:
    engine.warm_up()
    assert not engine.has_work
    assert engine.info.kv_blocks == engine.info.kv_pool_bytes // (
        16 * engine.info.kv_bytes_per_token
    )
