"""Bursty traffic whose shape is fitted to the Azure code trace. Pure; every number is written down.

The trace is AzurePublicDataset's "Azure LLM inference trace 2023, code" (CC-BY-4.0): 8,819 requests
in 57 minutes. No data of it is in here, only what was fitted:

A burst is a run of arrivals with no gap above `split_ms`. Its size is lognormal. It has a pace of
its own, lognormal too, and the gaps within it are gamma distributed around that pace. Between two
bursts lies either a short pause (exponential above `split_ms`) or, with `long_share`, a long one
(lognormal). `fit_bursts` derives AZURE_CODE from the trace by moments.

How good it is, over seeds 0 to 19 with 8,819 arrivals each (median, and the range of all but the
two outermost on each side), against the trace itself: interarrival CV 12.1 (10.7-13.4) against
13.2; seconds without an arrival 72% (67-77%) against 73%; most arrivals in a second 47 (41-58)
against 67; mean gap 370 ms (324-458) against 390; arrivals in a second that has some 9.4 (9.1-9.8)
against 9.6. The trace's own gaps, shuffled, reach 25-32 in a second only: the pace of each burst is
needed.
"""

import math
import random
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MS_PER_S = 1000.0
# Bursts with fewer gaps say little about their pace.
PACED_GAPS_MIN = 10
WINDOW_TRIES = 200


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: when it came, and how long its prompt and its output were."""

    t_ms: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class BurstShape:
    """The fitted numbers; see the module's docstring. `ln` ones are of the natural logarithm.

    Attributes:
        split_ms: gaps above it part bursts.
        size_ln_mean, size_ln_sd, size_max: arrivals of a burst.
        pace_ms, pace_ln_sd: the median over the arrivals of their burst's mean gap; its spread.
        gap_shape: of the gamma distribution of the gaps within a burst; 1 would be exponential.
        long_share: of the pauses between bursts that are longer than `long_from_ms`.
        long_ms, long_ln_sd, long_ms_max: the median long pause, its spread, the longest.
        short_ms_mean: of the other pauses.
    """

    split_ms: float
    size_ln_mean: float
    size_ln_sd: float
    size_max: int
    pace_ms: float
    pace_ln_sd: float
    gap_shape: float
    long_share: float
    long_from_ms: float
    long_ms: float
    long_ln_sd: float
    long_ms_max: float
    short_ms_mean: float


AZURE_CODE = BurstShape(
    split_ms=300.0,
    size_ln_mean=1.824,
    size_ln_sd=1.120,
    size_max=318,
    pace_ms=53.6,
    pace_ln_sd=0.474,
    gap_shape=0.876,
    long_share=0.134,
    long_from_ms=2000.0,
    long_ms=10733.0,
    long_ln_sd=1.351,
    long_ms_max=217_169.0,
    short_ms_mean=538.8,
)
AZURE_CODE_PER_S = 2.566
AZURE_CODE_EMPTY_SHARE = 0.734

QUANTILES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1)
# The trace's tokens at these quantiles. Prompt and output are independent there: the correlation of
# their logarithms is -0.005. Means drawn from the tables: 2,065 and 30, against 2,048 and 28.
PROMPT_TOKENS = (
    *(3, 75, 147, 386, 770, 1075, 1469, 1909, 2433, 3192, 5186, 7302, 7436, 7437, 7437),
)
OUTPUT_TOKENS = (6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 252, 824, 1899)


@dataclass(frozen=True, slots=True)
class Burstiness:
    """How bursty a series of arrivals is.

    Attributes:
        gap_cv: standard deviation of the gaps over their mean; 1 for a Poisson process.
        empty_share: of the seconds from the first arrival to the last that have none.
        peak_per_s: most arrivals in one of these seconds.
    """

    arrivals: int
    seconds: float
    gap_cv: float
    empty_share: float
    peak_per_s: int


def burstiness(times_ms: Sequence[float]) -> Burstiness:
    """Return how bursty arrivals at `times_ms`, in order, are; two at least.

    Raises:
        ValueError: there are fewer than two, or all come at once.
    """
    gaps = [later - earlier for earlier, later in pairwise(times_ms)]
    mean = statistics.fmean(gaps) if gaps else 0.0
    if mean <= 0:
        raise ValueError("burstiness needs two arrivals at different times at least")
    per_second = Counter(int((at - times_ms[0]) // MS_PER_S) for at in times_ms)
    seconds = int((times_ms[-1] - times_ms[0]) // MS_PER_S) + 1
    return Burstiness(
        arrivals=len(times_ms),
        seconds=(times_ms[-1] - times_ms[0]) / MS_PER_S,
        gap_cv=statistics.pstdev(gaps) / mean,
        empty_share=1 - len(per_second) / seconds,
        peak_per_s=max(per_second.values()),
    )


def fit_bursts(times_ms: Sequence[float], split_ms: float, long_from_ms: float) -> BurstShape:
    """Fit the shape to arrivals at `times_ms`, in order, by the moments of each part.

    Paces are weighted by the arrivals that have them. The gamma's shape is 1 / CV², with the mean
    CV of the gaps within a burst.

    Raises:
        ValueError: there is no burst of ten gaps, no long or no short pause, or no spread.
    """
    bursts: list[list[float]] = [[]]
    pauses: list[float] = []
    for earlier, later in pairwise(times_ms):
        if later - earlier > split_ms:
            pauses.append(later - earlier)
            bursts.append([])
        else:
            bursts[-1].append(later - earlier)
    paced = [gaps for gaps in bursts if len(gaps) >= PACED_GAPS_MIN and sum(gaps) > 0]
    long = [math.log(pause) for pause in pauses if pause > long_from_ms]
    short = [pause for pause in pauses if pause <= long_from_ms]
    if not (paced and long and short):
        raise ValueError("too few arrivals, bursts or pauses to fit a shape to")
    sizes = [math.log(len(gaps) + 1) for gaps in bursts]
    weights = [len(gaps) for gaps in paced]
    paces = [math.log(statistics.fmean(gaps)) for gaps in paced]
    pace = statistics.fmean(paces, weights)
    spread = statistics.fmean([(value - pace) ** 2 for value in paces], weights)
    cv = statistics.fmean(statistics.pstdev(gaps) / statistics.fmean(gaps) for gaps in paced)
    if cv == 0:
        raise ValueError("the gaps within bursts are all equal: there is no spread to fit")
    return BurstShape(
        split_ms=split_ms,
        size_ln_mean=statistics.fmean(sizes),
        size_ln_sd=statistics.pstdev(sizes),
        size_max=max(len(gaps) + 1 for gaps in bursts),
        pace_ms=math.exp(pace),
        pace_ln_sd=math.sqrt(spread),
        gap_shape=1 / cv**2,
        long_share=len(long) / len(pauses),
        long_from_ms=long_from_ms,
        long_ms=math.exp(statistics.fmean(long)),
        long_ln_sd=statistics.pstdev(long),
        long_ms_max=max(pauses),
        short_ms_mean=statistics.fmean(short),
    )


def arrival_times_ms(shape: BurstShape, chance: random.Random) -> Iterator[float]:
    """Yield arrival times without end, from the first arrival of a burst at 0 on."""
    at_ms = 0.0
    while True:
        size = round(chance.lognormvariate(shape.size_ln_mean, shape.size_ln_sd))
        pace_ms = chance.lognormvariate(math.log(shape.pace_ms), shape.pace_ln_sd)
        yield at_ms
        for _ in range(min(max(size, 1), shape.size_max) - 1):
            at_ms += chance.gammavariate(shape.gap_shape, pace_ms / shape.gap_shape)
            yield at_ms
        at_ms += _pause_ms(shape, chance)


def _pause_ms(shape: BurstShape, chance: random.Random) -> float:
    if chance.random() < shape.long_share:
        pause_ms = chance.lognormvariate(math.log(shape.long_ms), shape.long_ln_sd)
        return min(pause_ms, shape.long_ms_max)
    return shape.split_ms + chance.expovariate(1 / (shape.short_ms_mean - shape.split_ms))


def length(quantile_tokens: Sequence[int], chance: random.Random) -> int:
    """Draw a length: the table at QUANTILES, inverted, geometrically between its points."""
    at = chance.random()
    place = bisect_right(QUANTILES, at) - 1
    within = (at - QUANTILES[place]) / (QUANTILES[place + 1] - QUANTILES[place])
    low, high = math.log(quantile_tokens[place]), math.log(quantile_tokens[place + 1])
    return round(math.exp(low + (high - low) * within))


def typical_window(
    seconds: float,
    per_s: float = AZURE_CODE_PER_S,
    seed: int = 0,
    shape: BurstShape = AZURE_CODE,
) -> list[Arrival]:
    """Return `seconds` of traffic that is as the whole trace is on average.

    A minute of such traffic may hold 5 requests or 500. So of 200 windows the one is taken whose
    number of arrivals and share of empty seconds come closest to the trace's, and which is not over
    early. `per_s` compresses or stretches time.
    """
    stretch = AZURE_CODE_PER_S / per_s
    expected = max(1.0, per_s * seconds)
    best: list[float] = [0.0]
    best_off = math.inf
    for number in range(WINDOW_TRIES):
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - traffic, not secrets
        times: list[float] = []
        for at_ms in arrival_times_ms(shape, chance):
            if at_ms * stretch >= seconds * MS_PER_S:
                break
            times.append(at_ms * stretch)
        seen = len({int(at // (MS_PER_S * stretch)) for at in times})
        empty_share = 1 - seen / max(1.0, seconds / stretch)
        off = (
            abs(len(times) / expected - 1)
            + abs(empty_share - AZURE_CODE_EMPTY_SHARE)
            + abs(times[-1] / (seconds * MS_PER_S) - 1)
        )
        if off < best_off:
            best, best_off = times, off
    chance = random.Random(f"{seed}/lengths")  # noqa: S311 - traffic, not secrets
    return [
        Arrival(at, length(PROMPT_TOKENS, chance), length(OUTPUT_TOKENS, chance)) for at in best
    ]


def scaled(arrivals: Sequence[Arrival], prompt_scale: float, output_scale: float) -> list[Arrival]:
    """Return the arrivals with their lengths times the scales, 1 token at least."""
    return [
        replace(
            arrival,
            prompt_tokens=max(1, round(arrival.prompt_tokens * prompt_scale)),
            output_tokens=max(1, round(arrival.output_tokens * output_scale)),
        )
        for arrival in arrivals
    ]
