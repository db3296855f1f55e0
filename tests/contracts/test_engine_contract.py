"""One suite for every engine: what services/worker/engine.py promises, seen from outside.

Runs over SmolLM2 in torch (float32, a small pool) and over the simulated engine.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from services.worker.batching import BatchingEngine, Slice
from services.worker.engine import Engine, Finished, Message, StepResult, Token, Work
from services.worker.latency import LatencyModel, VirtualClock
from services.worker.plan import Bounds
from services.worker.simulated import SimulatedConfig, SimulatedEngine

if TYPE_CHECKING:
    from services.worker.smollm2 import SmolLM2
    from services.worker.smollm2_engine import SmolLM2Config

POOL_BLOCKS = 24
CHUNK = 16
BATCH = 4
KV_BYTES = 2 * 30 * 3 * 64 * 4

Make = Callable[[], Engine]


def simulated() -> Engine:
    return SimulatedEngine(
        SimulatedConfig(
            model="made-up",
            kv_pool_bytes=POOL_BLOCKS * 16 * KV_BYTES,
            kv_bytes_per_token=KV_BYTES,
            max_sequence_tokens=512,
            bounds=Bounds(max_batch=BATCH, prefill_tokens=CHUNK),
            latency=LatencyModel(6.0, 0.1, 0.05),
        ),
        VirtualClock(),
    )


def smollm2_config() -> "SmolLM2Config":
    from services.worker.smollm2_engine import SmolLM2Config  # noqa: PLC0415 - torch

    return SmolLM2Config(
        kv_pool_bytes=POOL_BLOCKS * 16 * KV_BYTES,
        bounds=Bounds(max_batch=BATCH, prefill_tokens=CHUNK),
        max_sequence_tokens=512,
    )


@functools.cache
def loaded_model() -> "SmolLM2":
    from services.worker.smollm2_engine import load_model  # noqa: PLC0415 - torch

    return load_model(smollm2_config())


def smollm2() -> Engine:
    from services.worker.smollm2_engine import SmolLM2Engine  # noqa: PLC0415 - torch

    return SmolLM2Engine(smollm2_config(), loaded_model())


@pytest.fixture(
    params=[
        pytest.param(simulated, id="simulated"),
        pytest.param(smollm2, id="smollm2", marks=pytest.mark.torch),
    ]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    make: Make = request.param
    engine = make()
    yield engine
    drain(engine)
    assert engine.step().kv_blocks_used == 0


def work(id_: str, prompt: str = "The sky is", output: int = 6, **more: object) -> Work:
    fields: dict[str, object] = {
        "id": id_,
        "attempt": 1,
        "prompt": prompt,
        "max_output_tokens": output,
        "reserved_blocks": 4,
        "output_tokens": output,
    }
    return Work(**(fields | more))  # pyright: ignore[reportArgumentType] - a test's shorthand


def drain(engine: Engine, steps_max: int = 2000) -> list[StepResult]:
    """Step until nothing is left; the pool and the batch must agree after every step."""
    results: list[StepResult] = []
    for _ in range(steps_max):
        if not engine.has_work:
            return results
        results.append(engine.step())
        engine.check_integrity()
        assert results[-1].kv_blocks_used <= engine.info.kv_blocks
    pytest.fail(f"The engine still has work after {steps_max} steps.")


def finished(results: list[StepResult]) -> dict[str, Finished]:
    return {done.key.id: done for result in results for done in result.finished}


def tokens_of(results: list[StepResult], id_: str) -> list[Token]:
    return [token for result in results for token in result.tokens if token.key.id == id_]


def test_the_engine_says_how_many_whole_blocks_its_budget_holds(engine: Engine) -> None:
    info = engine.info
    assert info.kv_blocks == POOL_BLOCKS
    assert info.kv_bytes_per_token == 46_080  # 2 x 30 layers x 3 heads x 64 x 4 bytes
    assert info.block_tokens == 16
    assert info.max_batch == BATCH


def test_nothing_to_do_is_a_step_of_nothing(engine: Engine) -> None:
    assert not engine.has_work
    result = engine.step()
    assert (result.batch, result.tokens, result.finished) == (0, (), ())


def test_a_request_starts_streams_and_finishes_with_its_usage(engine: Engine) -> None:
    assert engine.add(work("a", output=5))
    results = drain(engine)
    assert [started.key.id for started in results[0].started] == ["a"]
    done = finished(results)["a"]
    assert (done.reason, done.output_tokens) == ("length", 5)
    assert done.prompt_tokens == results[0].started[0].prompt_tokens > 0
    assert [token.index for token in tokens_of(results, "a")] == [0, 1, 2, 3, 4]
    timings = done.timings
    assert timings.first_token_us == timings.queued_us + timings.prefill_us


def test_the_pieces_of_a_stream_add_up_to_its_text(engine: Engine) -> None:
    for seed in range(3):
        engine.add(work(str(seed), "Emoji: 😀😃 日本語", output=24, temperature=1.5, seed=seed))
    results = drain(engine)
    for id_, done in finished(results).items():
        pieces = [token.text for token in tokens_of(results, id_)]
        assert "".join(pieces) + done.trailing_text == done.text
        done.text.encode()  # valid UTF-8


def test_a_request_that_does_not_stream_gets_the_same_text(engine: Engine) -> None:
    engine.add(work("loud"))
    engine.add(work("quiet", stream=False))
    texts = finished(drain(engine))
    assert texts["loud"].text == texts["quiet"].text


def test_a_chat_is_served_as_well_as_a_prompt(engine: Engine) -> None:
    chat = (Message("user", "Say hello."),)
    engine.add(work("chat", prompt=None, messages=chat, reserved_blocks=8))  # pyright: ignore[reportArgumentType]
    assert finished(drain(engine))["chat"].output_tokens == 6


def test_requests_join_and_leave_a_running_batch(engine: Engine) -> None:
    engine.add(work("long", output=30))
    engine.step()
    engine.add(work("short", output=3))
    results = drain(engine)
    assert max(result.batch for result in results) == 2
    order = [done.key.id for result in results for done in result.finished]
    assert order == ["short", "long"]


def test_waiting_requests_join_in_order_when_blocks_come_free(engine: Engine) -> None:
    for number in range(8):
        engine.add(work(str(number), output=4 + number, reserved_blocks=10))
    results = drain(engine)
    assert max(result.batch for result in results) == 2  # two of ten blocks fit into 24
    joined = [started.key.id for result in results for started in result.started]
    assert joined == [str(number) for number in range(8)]
    assert len(finished(results)) == 8


def test_the_batch_never_exceeds_its_bound(engine: Engine) -> None:
    for number in range(7):
        engine.add(work(str(number), reserved_blocks=3))
    results = drain(engine)
    assert max(result.batch for result in results) == BATCH
    assert len(finished(results)) == 7


def test_the_same_attempt_is_taken_once(engine: Engine) -> None:
    assert engine.add(work("a"))
    assert not engine.add(work("a"))
    engine.step()
    assert not engine.add(work("a"))
    assert len(finished(drain(engine))) == 1


def test_a_cancel_frees_its_blocks_by_the_next_iteration(engine: Engine) -> None:
    engine.add(work("gone", output=200, reserved_blocks=20))
    engine.add(work("next", reserved_blocks=20))
    produced: list[Token] = []
    while len(produced) < 5:
        produced += engine.step().tokens
    assert engine.cancel("gone")
    result = engine.step()
    engine.check_integrity()
    (left,) = result.left
    assert (left.key.id, left.cause) == ("gone", "cancelled")
    assert left.token_ids == tuple(token.token_id for token in produced)
    assert left.text == "".join(token.text for token in produced)
    assert [started.key.id for started in result.started] == ["next"]
    assert result.kv_blocks_used == 20


def test_a_waiting_request_can_be_cancelled(engine: Engine) -> None:
    engine.add(work("first", reserved_blocks=24, output=30))
    engine.add(work("second", reserved_blocks=24))
    engine.step()
    engine.cancel("second")
    (left,) = engine.step().left
    assert (left.key.id, left.token_ids, left.timings.first_token_us) == ("second", (), None)


def test_cancelling_what_is_not_here_changes_nothing(engine: Engine) -> None:
    assert not engine.cancel("never-seen")
    engine.add(work("a"))
    assert not engine.cancel("a", attempt=2)
    assert set(finished(drain(engine))) == {"a"}


def test_a_preempted_request_resumes_with_the_same_text(engine: Engine) -> None:
    def sampled(id_: str, **more: object) -> Work:
        return work(id_, "Once upon a time", output=20, temperature=0.8, seed=7, **more)

    engine.add(sampled("whole"))
    whole = finished(drain(engine))["whole"]

    engine.add(sampled("split"))
    pieces: list[Token] = []
    while len(pieces) < 7:
        pieces += engine.step().tokens
    engine.preempt("split")
    (left,) = engine.step().left
    assert (left.cause, len(left.token_ids)) == ("preempted", 7)

    engine.add(sampled("split", attempt=2, resume_tokens=left.token_ids))
    results = drain(engine)
    resumed = finished(results)["split"]
    assert tokens_of(results, "split")[0].index == 7
    assert (resumed.text, resumed.output_tokens) == (whole.text, 20)
    pieces += tokens_of(results, "split")
    assert "".join(token.text for token in pieces) + resumed.trailing_text == whole.text


def test_work_that_was_already_complete_finishes_without_running(engine: Engine) -> None:
    engine.add(work("a", output=3, resume_tokens=(1, 2, 3)))
    result = engine.step()
    (done,) = result.finished
    assert (done.output_tokens, result.batch) == (3, 0)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"reserved_blocks": 1, "max_output_tokens": 100}, "1 are reserved"),
        ({"reserved_blocks": 25}, "the pool has 24"),
        ({"max_output_tokens": 5000, "reserved_blocks": 400}, "takes 512 together"),
        ({"max_output_tokens": 0}, "at least 1"),
        ({"prompt": ""}, "empty"),
        ({"prompt": None}, "exactly one"),
        ({"messages": (Message("user", "hi"),)}, "exactly one"),
        ({"prompt": "lone surrogate \ud800"}, "no usable prompt"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"resume_tokens": (10**9,)}, "vocabulary"),
    ],
)
def test_unusable_work_fails_alone_and_says_why(
    engine: Engine, bad: dict[str, object], says: str
) -> None:
    engine.add(work("good"))
    engine.step()
    assert engine.add(work("bad", **bad))  # pyright: ignore[reportArgumentType] - a table of bad values
    result = engine.step()
    (failed,) = result.failed
    assert failed.key.id == "bad"
    assert says in failed.reason
    assert not failed.retryable
    assert result.batch == 1
    assert set(finished(drain(engine))) == {"good"}


def test_s7_a_running_stream_gets_a_token_in_every_iteration_however_long_prompts_come_in(
    engine: Engine,
) -> None:
    engine.add(work("stream", output=60))
    while not engine.step().tokens:
        pass
    for number in range(2):
        engine.add(work(str(number), "word " * 110, reserved_blocks=9, output=1))
    beside = 0
    while engine.has_work:
        result = engine.step()
        # The bound: one iteration, which holds at most so many prompt tokens.
        assert result.prefill_tokens <= CHUNK
        if result.prefill_tokens:
            beside += 1
            assert len([x for x in result.tokens if x.key.id == "stream"]) == 1
    assert beside >= 2 * 110 // CHUNK


def test_a_request_pauses_when_its_blocks_are_full_and_goes_on_with_more(engine: Engine) -> None:
    engine.add(work("whole", output=40))
    whole = finished(drain(engine))["whole"]
    engine.add(work("grows", output=40, reserved_blocks=1, grows=True))
    asked: list[int] = []
    produced = 0
    while not asked or engine.has_work:
        result = engine.step()
        engine.check_integrity()
        asked += [growing.blocks for growing in result.growing]
        produced += len(result.tokens)
    # It asked once, and stands still: no step would do anything for it.
    assert asked == [1]
    assert produced == 16 - whole.prompt_tokens + 1
    assert not engine.grant("grows", 1, 1)
    assert not engine.grant("never seen", 1, 9)
    assert engine.grant("grows", 1, 3)
    done = finished(drain(engine))["grows"]
    assert (done.text, done.output_tokens) == (whole.text, 40)


def test_a_request_is_never_given_a_block_that_is_not_there(engine: Engine) -> None:
    engine.add(work("holds", output=40, reserved_blocks=POOL_BLOCKS - 1))
    engine.add(work("grows", output=40, reserved_blocks=1, grows=True))
    engine.step()
    assert not engine.grant("grows", 1, 2)
    (left,) = engine.step().left
    assert (left.key.id, left.cause) == ("grows", "preempted")


def test_text_depends_on_the_seed_and_not_on_the_batch(engine: Engine) -> None:
    def sampled(id_: str, seed: int) -> Work:
        return work(id_, "My favourite animal is", output=12, temperature=1.0, seed=seed)

    engine.add(sampled("alone", 1))
    alone = finished(drain(engine))["alone"].text
    engine.add(work("other", "word " * 40, reserved_blocks=8, output=30))
    engine.step()
    for seed in (1, 2):
        engine.add(sampled(str(seed), seed))
    together = finished(drain(engine))
    assert together["1"].text == alone
    assert together["2"].text != alone


def test_progress_names_every_request_in_the_order_of_adding(engine: Engine) -> None:
    for id_ in ("a", "b", "c"):
        engine.add(work(id_, reserved_blocks=10, output=40))
    engine.step()
    engine.step()
    progress = engine.progress()
    assert [(p.key.id, p.joined) for p in progress] == [("a", True), ("b", True), ("c", False)]
    assert progress[0].output_tokens >= 1
    assert progress[2].output_tokens == 0


def out_of_memory(slices: Sequence[Slice]) -> list[list[int]]:
    raise MemoryError(f"no room for {len(slices)} slices")


def test_a_fault_of_the_model_fails_its_iteration_and_nothing_after(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(engine, BatchingEngine)
    engine.add(work("struck"))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._executor, "run", out_of_memory)  # pyright: ignore[reportPrivateUsage]
        (failed,) = engine.step().failed
    assert failed.retryable
    engine.check_integrity()
    engine.add(work("after"))
    assert set(finished(drain(engine))) == {"after"}


def test_warm_up_leaves_no_trace(engine: Engine) -> None:
    engine.add(work("before"))
    before = finished(drain(engine))["before"].text
    engine.warm_up()
    assert not engine.has_work
    engine.check_integrity()
    engine.add(work("after"))
    assert finished(drain(engine))["after"].text == before
