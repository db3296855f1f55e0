"""Continuous over static batching of the same model on the same bursty trace. No bus, no torch.

Both run the latency model that the simulated engine runs (Llama-3.1-8B on an H100, fitted to public
measurements), on a clock that jumps, so the figures are those of the batching alone and the same on
every machine. A static batch takes what waits, up to the same number of sequences, pads prompts to
the longest, and ends with its longest output; nobody joins meanwhile. It is favoured in one way:
each of its requests counts as answered at its own last token, not at the end of the batch.

Throughput is that under a standing backlog. Latency is that of the trace played so fast that it
offers `_LOAD` of what continuous batching can serve, which is more than static batching can.
"""

import csv
import gzip
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import mean, quantiles
from typing import Final, NamedTuple

from schemas.figures import Figure
from services.worker.bench import TRACES_ENVIRONMENT, fitted_code_output
from services.worker.engine import BLOCK_TOKENS, Work
from services.worker.latency import VirtualClock
from services.worker.plan import Bounds
from services.worker.simulated import SimulatedConfig, SimulatedEngine, llama_on_h100

_CODE_TRACE: Final = "azure2023_code.csv.gz"
_MAX_BATCH: Final = 32
_PREFILL_TOKENS: Final = 512
_PROMPT_TOKENS: Final = 32
_LOAD: Final = 0.8
_REQUESTS: Final = 4_000
_SEED: Final = 1
_US_PER_S: Final = 1_000_000


class Asked(NamedTuple):
    """One request of the trace; `at_us` from its beginning."""

    at_us: int
    prompt_tokens: int
    output_tokens: int


class Served(NamedTuple):
    """How long each request took, µs, and when the last one ended."""

    took_us: list[int]
    end_us: int


def continuous_figures(*, quick: bool = False) -> list[Figure]:
    """`continuous.throughput_ratio` and `continuous.p95_ratio`."""
    trace = bursty_trace(_REQUESTS // 8 if quick else _REQUESTS)
    tokens = sum(asked.output_tokens for asked in trace)
    at_once = [asked._replace(at_us=0) for asked in trace]
    backlog_us = continuous(at_once).end_us
    throughput = static(at_once).end_us / backlog_us
    rate = tokens / backlog_us
    stretch = tokens / (rate * _LOAD) / max(asked.at_us for asked in trace)
    played = [asked._replace(at_us=round(asked.at_us * stretch)) for asked in trace]
    p95 = _p95(continuous(played).took_us) / _p95(static(played).took_us)
    return [
        Figure("continuous.throughput_ratio", throughput, "ratio"),
        Figure("continuous.p95_ratio", p95, "ratio"),
    ]


def bursty_trace(count: int) -> list[Asked]:
    """The first requests of the Azure code trace, or a fit to it where the trace is not named.

    Output lengths and gaps are the trace's own; prompts have the same short length, as in the other
    comparison with a static batcher, or the prompts' own time would hide that of the batching.
    """
    folder = os.environ.get(TRACES_ENVIRONMENT)
    if folder is None:
        draw = Random(_SEED)  # noqa: S311 - a bench's load, not a secret
        # Interarrival CV 13: all but one gap in 85 is nothing.
        gaps = [draw.expovariate(1 / 85) if draw.random() < 1 / 85 else 0.0 for _ in range(count)]
        outputs = [fitted_code_output(draw.random()) for _ in range(count)]
        times = list(accumulate(gaps))
    else:
        with gzip.open(Path(folder) / _CODE_TRACE, "rt", newline="") as file:
            rows = sorted(
                (float(row["t_ms"]), int(row["output_tokens"])) for row in csv.DictReader(file)
            )[:count]
        times = [t_ms - rows[0][0] for t_ms, _ in rows]
        outputs = [tokens for _, tokens in rows]
    pairs = zip(times, outputs, strict=True)
    return [Asked(round(t_ms * 1000), _PROMPT_TOKENS, max(1, tokens)) for t_ms, tokens in pairs]


def config() -> SimulatedConfig:
    """The engine that both are measured on."""
    return replace(llama_on_h100("bench"), bounds=Bounds(_MAX_BATCH, _PREFILL_TOKENS))


def continuous(trace: Sequence[Asked]) -> Served:
    """Run the trace through the engine as a worker does: what has come joins at each iteration."""
    clock = VirtualClock()
    engine = SimulatedEngine(config(), clock)
    took_us: list[int] = []
    number = 0
    while number < len(trace) or engine.has_work:
        if not engine.has_work:
            clock.sleep_us(max(0, trace[number].at_us - clock.now_us()))
        while number < len(trace) and trace[number].at_us <= clock.now_us():
            engine.add(_work(number, trace[number]))
            number += 1
        ended = engine.step().finished
        took_us += [clock.now_us() - trace[int(done.key.id)].at_us for done in ended]
    return Served(took_us, clock.now_us())


def _work(number: int, asked: Asked) -> Work:
    whole = asked.prompt_tokens + asked.output_tokens
    return Work(
        id=str(number),
        attempt=1,
        max_output_tokens=asked.output_tokens,
        reserved_blocks=-(-whole // BLOCK_TOKENS),
        prompt="-",
        prompt_tokens=asked.prompt_tokens,
        stream=False,
    )


def static(trace: Sequence[Asked]) -> Served:
    """Run the trace in static batches of what waits when the one before has ended."""
    latency = config().latency
    took_us: list[int] = []
    now_us = 0
    number = 0
    while number < len(trace):
        now_us = max(now_us, trace[number].at_us)
        batch: list[Asked] = []
        while number < len(trace) and len(batch) < _MAX_BATCH and trace[number].at_us <= now_us:
            batch.append(trace[number])
            number += 1
        size = len(batch)
        padded_tokens = size * max(asked.prompt_tokens for asked in batch)
        first_us = now_us + latency.step_us(size, padded_tokens)
        step_us = latency.step_us(size, 0)
        took_us += [first_us + (asked.output_tokens - 1) * step_us - asked.at_us for asked in batch]
        longest = max(asked.output_tokens for asked in batch)
        now_us = first_us + (longest - 1) * step_us
    return Served(took_us, now_us)


def _p95(values: Sequence[int]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else mean(values)
