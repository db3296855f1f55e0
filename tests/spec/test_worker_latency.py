"""Latency models and clocks of the simulated engine."""

import pytest

from services.worker.latency import (
    INSTANT,
    LLAMA_3_1_8B_ON_H100,
    LatencyModel,
    RealClock,
    VirtualClock,
)


def test_a_step_takes_base_plus_a_part_per_sequence_and_per_prompt_token() -> None:
    # 6.37 + 0.0798 x 100 = 14.35 ms; with 10 prompt tokens of 0.06 ms, 14.95 ms.
    assert LLAMA_3_1_8B_ON_H100.step_us(100, 0) == 14_350
    assert LLAMA_3_1_8B_ON_H100.step_us(100, 10) == 14_950


def test_a_step_of_nothing_takes_nothing() -> None:
    assert LLAMA_3_1_8B_ON_H100.step_us(0, 0) == 0


def test_speed_divides_the_time_and_instant_takes_none() -> None:
    assert LatencyModel(10.0, 1.0, 0.0, speed=4.0).step_us(2, 0) == 3_000
    assert INSTANT.step_us(500, 10_000) == 0


@pytest.mark.parametrize("parts", [(-1.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0)])
def test_a_model_under_which_time_stands_still_is_refused(
    parts: tuple[float, float, float, float],
) -> None:
    with pytest.raises(ValueError, match="speed above 0"):
        LatencyModel(*parts)


def test_a_virtual_clock_moves_only_when_slept_on() -> None:
    clock = VirtualClock(start_us=5)
    clock.sleep_us(10)
    clock.sleep_us(-3)
    assert clock.now_us() == 15


def test_the_real_clock_never_goes_back() -> None:
    clock = RealClock()
    before = clock.now_us()
    clock.sleep_us(0)
    clock.sleep_us(200)
    assert clock.now_us() >= before + 200
