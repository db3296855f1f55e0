"""The simulated engine: time by its latency model, words by the seed, all at once if asked."""

from services.worker.engine import Work
from services.worker.latency import LatencyModel, VirtualClock
from services.worker.plan import Bounds
from services.worker.simulated import SimulatedConfig, SimulatedEngine, instant, llama_on_h100


def work(id_: str, output: int, prompt: int = 10, seed: int = 0) -> Work:
    return Work(
        id_, 1, output, -(-(prompt + output) // 16), prompt="-", prompt_tokens=prompt, seed=seed
    )


def test_a_step_takes_what_the_latency_model_says() -> None:
    clock = VirtualClock()
    engine = SimulatedEngine(
        SimulatedConfig("m", 1600, 1, 400, Bounds(8, 8), LatencyModel(5.0, 0.5, 0.25)), clock
    )
    engine.add(work("a", output=3, prompt=10))
    # 8 of 10 prompt tokens, the other 2 and the first token, then two more tokens.
    took_us = [engine.step().step_us for _ in range(4)]
    assert took_us == [7_500, 6_000, 5_500, 5_500]
    assert clock.now_us() == sum(took_us)


def test_the_timings_are_on_the_engines_own_clock() -> None:
    clock = VirtualClock(start_us=1_000_000)
    engine = SimulatedEngine(llama_on_h100("m"), clock)
    engine.add(work("a", output=3))
    (done,) = [done for _ in range(3) for done in engine.step().finished]
    # 6.37 + 0.0798 + 10 x 0.06 = 7.0498 ms, then twice 6.4498 ms; whole microseconds.
    assert done.timings.prefill_us == 7_050
    assert done.timings.decode_us == 12_900


def test_speed_makes_the_same_run_shorter() -> None:
    clock = VirtualClock()
    engine = SimulatedEngine(llama_on_h100("m", speed=10.0), clock)
    engine.add(work("a", output=1))
    assert engine.step().step_us == 705


def test_the_instant_engine_finishes_a_batch_in_one_step() -> None:
    engine = SimulatedEngine(instant("m", kv_bytes_per_token=1000), VirtualClock())
    for number in range(500):
        engine.add(work(str(number), output=50, prompt=900))
    result = engine.step()
    assert len(result.finished) == 500
    assert {done.output_tokens for done in result.finished} == {50}
    assert result.step_us == 0
    assert not engine.has_work


def test_the_words_depend_on_the_seed_alone() -> None:
    def texts(config: SimulatedConfig) -> list[str]:
        engine = SimulatedEngine(config, VirtualClock())
        for seed in (1, 1, 2):
            engine.add(work(str(len(engine.progress())), output=20, seed=seed))
        finished: dict[str, str] = {}
        while engine.has_work:
            finished |= {done.key.id: done.text for done in engine.step().finished}
        return [finished[id_] for id_ in sorted(finished)]

    at_once = texts(instant("m", 1000))
    assert at_once == texts(llama_on_h100("m"))
    assert at_once[0] == at_once[1] != at_once[2]


def test_without_a_count_a_prompt_is_a_token_per_four_bytes() -> None:
    engine = SimulatedEngine(instant("m", 1000), VirtualClock())
    engine.add(Work("a", 1, 1, 2, prompt="é" * 9))  # 18 bytes
    (done,) = engine.step().finished
    assert done.prompt_tokens == 5


def test_s7_prompts_of_3_to_6_thousand_tokens_hold_a_running_stream_up_by_one_iteration() -> None:
    clock = VirtualClock()
    config = llama_on_h100("m")  # at most 2,048 prompt tokens in an iteration
    engine = SimulatedEngine(config, clock)
    streams = {f"stream-{n}" for n in range(8)}
    for id_ in sorted(streams):
        engine.add(work(id_, output=4000))
    while len(engine.step().tokens) < len(streams):
        pass
    last_us = dict.fromkeys(streams, clock.now_us())
    gap_us = 0
    prompts = 0
    began_us = clock.now_us()
    while clock.now_us() < began_us + 20_000_000:
        # 360 a minute: one every 167 ms.
        if clock.now_us() >= began_us + prompts * 166_667:
            engine.add(work(f"long-{prompts}", output=2, prompt=3000 + prompts * 761 % 3001))
            prompts += 1
        result = engine.step()
        assert result.prefill_tokens <= config.bounds.prefill_tokens
        for token in result.tokens:
            if token.key.id in streams:
                gap_us = max(gap_us, clock.now_us() - last_us[token.key.id])
                last_us[token.key.id] = clock.now_us()
    assert prompts > 50
    # Between two tokens of a stream lies one iteration at most, and its prompt tokens are bounded.
    bounds = config.bounds
    assert gap_us <= config.latency.step_us(bounds.max_batch, bounds.prefill_tokens)
