"""Bursty arrivals: the arithmetic by hand, and the fit against the trace where it is there."""

import os
import random
import statistics
from dataclasses import astuple
from itertools import islice
from pathlib import Path

import pytest

from services.lab.arrivals import (
    AZURE_CODE,
    AZURE_CODE_PER_S,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    Arrival,
    Burstiness,
    arrival_times_ms,
    burstiness,
    fit_bursts,
    length,
    scaled,
    typical_window,
)
from services.lab.traces import read_trace

SEEDS = 20
NAME = "azure2023_code.csv.gz"
# The directory of Azure's traces, of which no data is kept here.
TRACES = "HEADWAY_TRACES"


@pytest.fixture(scope="module")
def trace() -> list[Arrival]:
    directory = os.environ.get(TRACES)
    if directory is None:
        pytest.skip(f"name the directory of {NAME} in {TRACES} to hold the fit against the trace")
    return read_trace(Path(directory) / NAME)


@pytest.fixture(scope="module")
def generated() -> list[Burstiness]:
    return [
        burstiness(list(islice(arrival_times_ms(AZURE_CODE, random.Random(seed)), 8819)))
        for seed in range(SEEDS)
    ]


def test_burstiness_is_counted_by_hand() -> None:
    # Gaps 500, 100 and 3,400 ms: mean 4000/3; seconds 0 (three of them), 1, 2, 3 and 4.
    told = burstiness([0.0, 500.0, 600.0, 4000.0])
    assert (told.arrivals, told.seconds, told.peak_per_s) == (4, 4.0, 3)
    assert told.empty_share == pytest.approx(3 / 5)
    mean = 4000 / 3
    deviation = (((500 - mean) ** 2 + (100 - mean) ** 2 + (3400 - mean) ** 2) / 3) ** 0.5
    assert told.gap_cv == pytest.approx(deviation / mean)


def test_even_arrivals_have_no_variation() -> None:
    assert burstiness([0.0, 10.0, 20.0, 30.0]).gap_cv == 0.0


def test_burstiness_of_less_than_two_moments_is_refused() -> None:
    with pytest.raises(ValueError, match="two arrivals at different times"):
        burstiness([5.0])
    with pytest.raises(ValueError, match="two arrivals at different times"):
        burstiness([5.0, 5.0])


def test_a_fit_takes_bursts_and_pauses_apart() -> None:
    # Two bursts of eleven, by turns 5 and 15 ms apart: a mean gap of 10 and a CV of 1/2. Between
    # them a pause of 400 ms; then one of 5 s and a lone arrival.
    first = [0.0, *(20.0 * pair + part for pair in range(5) for part in (5.0, 20.0))]
    second = [500.0 + at for at in first]
    shape = fit_bursts([*first, *second, 5600.0], split_ms=300.0, long_from_ms=2000.0)
    assert shape.gap_shape == pytest.approx(4.0)
    assert shape.size_max == 11
    assert shape.pace_ms == pytest.approx(10.0)
    assert shape.pace_ln_sd == pytest.approx(0.0)
    assert (shape.long_share, shape.short_ms_mean) == (0.5, 400.0)
    assert shape.long_ms == pytest.approx(5000.0)


def test_too_few_arrivals_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="too few arrivals"):
        fit_bursts([0.0, 1.0], split_ms=300.0, long_from_ms=2000.0)
    even = [*(10.0 * number for number in range(11)), 500.0, 5600.0]
    with pytest.raises(ValueError, match="no spread to fit"):
        fit_bursts(even, split_ms=300.0, long_from_ms=2000.0)


def test_the_same_seed_gives_the_same_traffic_and_another_seed_another() -> None:
    assert typical_window(10.0, seed=3) == typical_window(10.0, seed=3)
    assert typical_window(10.0, seed=3) != typical_window(10.0, seed=4)


@pytest.mark.parametrize("seed", range(4))
def test_a_typical_minute_is_about_as_full_as_the_trace(seed: int) -> None:
    window = typical_window(60.0, seed=seed)
    told = burstiness([one.t_ms for one in window])
    assert len(window) == pytest.approx(60 * AZURE_CODE_PER_S, rel=0.15)
    assert told.empty_share == pytest.approx(0.734, abs=0.12)
    assert 54 <= told.seconds < 60
    assert told.peak_per_s >= 10
    assert window[0].t_ms == 0.0


def test_a_higher_rate_compresses_time() -> None:
    assert len(typical_window(10.0, per_s=30.0)) == pytest.approx(300, rel=0.2)


def test_lengths_stay_within_their_table_and_have_its_median() -> None:
    chance = random.Random(1)
    for table, median in ((PROMPT_TOKENS, 1469), (OUTPUT_TOKENS, 13)):
        drawn = [length(table, chance) for _ in range(4000)]
        assert table[0] <= min(drawn)
        assert max(drawn) <= table[-1]
        assert statistics.median(drawn) == pytest.approx(median, rel=0.1)


def test_scaled_lengths_are_one_token_at_least() -> None:
    assert scaled([Arrival(5.0, 1000, 10)], 0.1, 0.01) == [Arrival(5.0, 100, 1)]


def test_the_shape_is_what_a_fit_to_the_trace_gives(trace: list[Arrival]) -> None:
    times = [one.t_ms for one in trace]
    fitted = fit_bursts(times, AZURE_CODE.split_ms, AZURE_CODE.long_from_ms)
    assert astuple(fitted) == pytest.approx(astuple(AZURE_CODE), rel=0.002)
    told = burstiness(times)
    assert (told.arrivals, told.peak_per_s) == (8819, 67)
    assert told.gap_cv == pytest.approx(13.15, abs=0.01)
    assert told.empty_share == pytest.approx(0.734, abs=0.001)
    assert told.arrivals / told.seconds == pytest.approx(AZURE_CODE_PER_S, rel=0.001)


def test_generated_traffic_is_as_bursty_as_the_trace(
    trace: list[Arrival], generated: list[Burstiness]
) -> None:
    real = burstiness([one.t_ms for one in trace])
    cv = statistics.median(one.gap_cv for one in generated)
    empty = statistics.median(one.empty_share for one in generated)
    peak = statistics.median(one.peak_per_s for one in generated)
    gap_ms = statistics.median(one.seconds * 1000 / one.arrivals for one in generated)
    assert cv == pytest.approx(real.gap_cv, rel=0.15)
    assert empty == pytest.approx(real.empty_share, abs=0.05)
    assert peak == pytest.approx(real.peak_per_s, rel=0.35)
    assert gap_ms == pytest.approx(real.seconds * 1000 / real.arrivals, rel=0.15)


def test_the_length_tables_are_the_traces_quantiles(trace: list[Arrival]) -> None:
    for table, values in (
        (PROMPT_TOKENS, sorted(one.prompt_tokens for one in trace)),
        (OUTPUT_TOKENS, sorted(one.output_tokens for one in trace)),
    ):
        assert (table[0], table[6], table[-1]) == (values[0], values[4409], values[-1])
