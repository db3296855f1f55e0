"""Figures of the worker: against a bare loop, against static batches, and on a mixed load.

Runs the real model on this machine; no bus. Everything that is compared runs in turns, so that a
noisy machine strikes both sides. Outputs have forced lengths: stop tokens are ignored.
"""

import csv
import gzip
import os
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Final

from schemas.figures import Figure
from services.worker.bench_baselines import BareLoop
from services.worker.engine import BLOCK_TOKENS, Work
from services.worker.plan import Bounds
from services.worker.smollm2 import SmolLM2
from services.worker.smollm2_engine import (
    DtypeName,
    SmolLM2Config,
    SmolLM2Engine,
    load_model,
)
from services.worker.tokenizer import smollm2_tokenizer

TRACES_ENVIRONMENT: Final = "HEADWAY_TRACES"
"""A folder that holds azure2023_code.csv.gz; without it the fit below is drawn from."""

_CODE_TRACE: Final = "azure2023_code.csv.gz"
_CODE_FIT: Final = (
    *((0.0, 6), (0.1, 7), (0.25, 9), (0.5, 13), (0.75, 24), (0.9, 55), (0.95, 90), (0.99, 251)),
    *((0.995, 359), (1.0, 1899)),
)
"""Quantiles of output tokens, fitted to the Azure 2023 code trace (8,819 requests, mean 27.9);
between them the logarithm is interpolated."""

_CODE_OUTPUT_MAX: Final = 256
"""Longer outputs are cut, for the bench's own run time; this favours the static batcher."""

_POOL_BYTES: Final = 768 * 1024**2
_PROMPT_TOKENS: Final = 32
_UNIFORM: Final = (8, 256)
_SEED: Final = 1
_TURN_STEPS: Final = 12
"""Steps of a static batch between two turns of the engine."""


def worker_figures(*, quick: bool = False) -> list[Figure]:
    """All of the group; about 4 minutes on 2 cores, or under one with `quick` (rougher)."""
    exact = load_model(_config("float32", 1))
    figures = decode_ratio(exact, quick=quick)
    figures += mixed_load(exact, "float32", quick=quick)
    del exact
    fast = load_model(_config("bfloat16", 1))
    figures += mixed_load(fast, "bfloat16", quick=quick)
    figures += over_static(fast, quick=quick)
    return figures + over_static_code(fast, quick=quick)


def _config(dtype: DtypeName, batch: int) -> SmolLM2Config:
    return SmolLM2Config(_POOL_BYTES, Bounds(batch, prefill_tokens=256), dtype=dtype)


def _prompt(tokens: int, number: int = 0) -> str:
    """A prompt of exactly so many tokens: each word is one, and so is each digit."""
    return f"{number % 10}" + " word" * (tokens - 1)


def _work(number: int, prompt_tokens: int, output_tokens: int, temperature: float = 0.0) -> Work:
    return Work(
        id=str(number),
        attempt=1,
        max_output_tokens=output_tokens,
        reserved_blocks=-(-(prompt_tokens + output_tokens) // BLOCK_TOKENS),
        prompt=_prompt(prompt_tokens, number),
        temperature=temperature,
        seed=number,
        output_tokens=output_tokens,
    )


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def decode_ratio(
    model: SmolLM2, *, quick: bool = False, batches: Sequence[int] = (1, 8, 16, 32)
) -> list[Figure]:
    """Decode tokens/s of the engine over those of a bare loop: median of interleaved pairs."""
    figures: list[Figure] = []
    pairs, steps = (3, 3) if quick else (12, 6)
    for batch in batches:
        output = (pairs + 2) * steps + batch + 8
        engine = SmolLM2Engine(_config("float32", batch), model)
        prompts = [smollm2_tokenizer().prompt_ids(_prompt(_PROMPT_TOKENS, n)) for n in range(batch)]
        loop = BareLoop(model, prompts, _PROMPT_TOKENS + output)
        for number in range(batch):
            engine.add(_work(number, _PROMPT_TOKENS, output))
        while engine.step().decode_tokens < batch:  # until all prompts are in
            pass
        loop.decode(steps)
        ratios: list[float] = []
        for number in range(pairs):
            sides: list[Callable[[int], None]] = [partial(_steps, engine), loop.decode]
            order = (1, 0) if number % 2 else (0, 1)
            took_s = {side: _seconds(partial(sides[side], steps)) for side in order}
            ratios.append(took_s[1] / took_s[0])
        figures.append(Figure(f"worker.decode_ratio.batch_{batch}", median(ratios), "ratio"))
    return figures


def _steps(engine: SmolLM2Engine, steps: int) -> None:
    for _ in range(steps):
        engine.step()


def over_static(
    model: SmolLM2, *, quick: bool = False, concurrencies: Sequence[int] = (16, 32)
) -> list[Figure]:
    """Tokens/s of the engine over a static batcher's, output lengths uniform in 8 to 256.

    Each batch's lengths are the midpoints of equal shares of the range, so that the few batches of
    a bench neither flatter nor harm either side by chance.
    """
    low, high = (8, 128) if quick else _UNIFORM
    figures: list[Figure] = []
    for count in concurrencies:
        lengths = [round(low + (high - low) * (n + 0.5) / count) for n in range(count)]
        ratio = _over_static(model, [lengths] * (1 if quick else 2), count)
        figures.append(Figure(f"worker.over_static.concurrency_{count}", ratio, "ratio"))
    return figures


def over_static_code(model: SmolLM2, *, quick: bool = False) -> list[Figure]:
    """As `over_static`, output lengths drawn from the Azure code trace, or from the fit to it."""
    count = 16
    draws = code_output_tokens(count * (1 if quick else 6))
    batches = [draws[start : start + count] for start in range(0, len(draws), count)]
    ratio = _over_static(model, batches, count)
    return [Figure(f"worker.over_static_code.concurrency_{count}", ratio, "ratio")]


def _over_static(model: SmolLM2, batches: Sequence[Sequence[int]], count: int) -> float:
    """The ratio of tokens/s under a standing backlog of `batches`, over and over.

    The two take turns of a few steps, so that both meet the same other load on the machine.
    """
    dtype: DtypeName = "bfloat16" if model.dtype.itemsize == 2 else "float32"  # noqa: PLR2004 - bytes
    engine = SmolLM2Engine(_config(dtype, count), model)
    backlog = _backlog([length for batch in batches for length in batch], count)
    _run_until(engine, backlog, tokens=count * 8)  # fills the batch, and warms up
    prompts = [smollm2_tokenizer().prompt_ids(_prompt(_PROMPT_TOKENS, n)) for n in range(count)]
    static_s = engine_s = 0.0
    engine_tokens = 0
    for lengths in batches:
        for part, share in _static_batch(model, prompts, lengths):
            static_s += _seconds(part)
            start = time.perf_counter()
            engine_tokens += _run_until(engine, backlog, tokens=round(share * sum(lengths)))
            engine_s += time.perf_counter() - start
    return (engine_tokens / engine_s) / (sum(map(sum, batches)) / static_s)


def _static_batch(
    model: SmolLM2, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> Iterator[tuple[Callable[[], object], float]]:
    """A static batch in parts of a few steps, each with its share of the whole."""
    longest = max(lengths)
    loops: list[BareLoop] = []
    yield lambda: loops.append(BareLoop(model, prompts, len(prompts[0]) + longest)), 1 / longest
    for done in range(1, longest, _TURN_STEPS):
        steps = min(_TURN_STEPS, longest - done)
        yield partial(loops[0].decode, steps), steps / longest


def _backlog(lengths: Sequence[int], count: int) -> Iterator[Work]:
    """Work without end, in an order that is not sorted by length."""
    shuffled = list(lengths)
    random.Random(_SEED).shuffle(shuffled)  # noqa: S311 - a bench's order, not a secret
    for number, length in enumerate(cycle(shuffled), start=count):
        yield _work(number, _PROMPT_TOKENS, length)


def _run_until(engine: SmolLM2Engine, backlog: Iterator[Work], tokens: int) -> int:
    """Step with a full batch until so many tokens have come; how many did."""
    produced = 0
    while produced < tokens:
        for _ in range(engine.info.max_batch - len(engine.progress())):
            engine.add(next(backlog))
        produced += engine.step().decode_tokens
    return produced


def mixed_load(model: SmolLM2, dtype: DtypeName, *, quick: bool = False) -> list[Figure]:
    """Output tokens/s end to end: 64 requests at once, prompts 24-200, outputs 8-256, 16 in flight.

    float32 is the figure itself; bfloat16 has its name appended.
    """
    draw = random.Random(_SEED)  # noqa: S311 - a bench's load, not a secret
    engine = SmolLM2Engine(_config(dtype, 16), model)
    engine.warm_up()
    tokens = 0
    for number in range(16 if quick else 64):
        work = _work(number, draw.randint(24, 200), draw.randint(8, 64 if quick else 256))
        tokens += work.max_output_tokens
        engine.add(work)

    def run() -> None:
        while engine.has_work:
            engine.step()

    suffix = "" if dtype == "float32" else f"_{dtype}"
    return [Figure(f"worker.tok_s.mixed_64{suffix}", tokens / _seconds(run), "tokens/s")]


def code_output_tokens(count: int, folder: Path | None = None) -> list[int]:
    """Output lengths like the Azure code trace's: from the trace in `folder`, else from the fit.

    `folder` defaults to the environment's HEADWAY_TRACES. Lengths are cut at 256.
    """
    draw = random.Random(_SEED)  # noqa: S311 - a bench's load, not a secret
    named = os.environ.get(TRACES_ENVIRONMENT)
    folder = folder or (Path(named) if named else None)
    if folder is not None:
        with gzip.open(folder / _CODE_TRACE, "rt", newline="") as file:
            lengths = [int(row["output_tokens"]) for row in csv.DictReader(file)]
        drawn = draw.choices(lengths, k=count)
    else:
        drawn = [fitted_code_output(draw.random()) for _ in range(count)]
    return [min(length, _CODE_OUTPUT_MAX) for length in drawn]


def fitted_code_output(share: float) -> int:
    """The fit's output tokens at a quantile from 0 to 1."""
    place = min(bisect_right(_CODE_FIT, (share, float("inf"))), len(_CODE_FIT) - 1)
    (low_share, low), (high_share, high) = _CODE_FIT[place - 1], _CODE_FIT[place]
    return round(low * (high / low) ** ((share - low_share) / (high_share - low_share)))
