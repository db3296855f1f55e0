"""Measures a one-shot model over a real broker: producer, cell, and an engine of 5 ms a batch.

A batch takes at most 16, so that 3,200 requests a second are the ceiling, and leaves when the
engine is free (`when_free`). Times are taken in one process, from just before a request is sent
until its outcome is consumed.
"""

import asyncio
import json
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from schemas.figures import Figure
from schemas.policy import Policy
from schemas.profile import MINILM_L6
from services.cli import _bench_bus as over_bus
from services.cli._stack import Stack, WorkerPlan
from streams.policies import set_policy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PROFILE = replace(MINILM_L6, model=over_bus.MODEL, tokenizer="bytes")
POLICY = Policy(name="when-free", version=2, window_mode="when_free")
WORKER = ("--engine", "simulated-oneshot", "--pass-ms", "5", "--max-batch", "16")
BODY = json.dumps(
    {
        "kind": "embedding-request.v1",
        "id": "%s",
        "model": over_bus.MODEL,
        "tenant": "tenant-%d",
        "input": "How long does a request wait for its turn?",
    }
).encode()
WARM_S = 3.0
IDLE_S = 5.0
POLICY_S_MAX = 10.0


def oneshot_figures(*, quick: bool) -> list[Figure]:
    """Return the round trip at a low rate, what is sustained, and what idling costs."""
    return asyncio.run(_oneshot_figures(8.0 if quick else 30.0))


async def _oneshot_figures(seconds: float) -> list[Figure]:
    async with _running() as stack:
        await over_bus.paced(stack.kafka, rate=200, seconds=WARM_S, body=BODY)
        before = over_bus.cpu_s(stack)
        await asyncio.sleep(IDLE_S)
        idle = over_bus.cpu_s(stack)
        low = await over_bus.paced(stack.kafka, rate=200, seconds=seconds, body=BODY)
        used = over_bus.cpu_s(stack)
        load, per_s = await over_bus.closed(stack.kafka, seconds, body=BODY, window=400)
        after = over_bus.cpu_s(stack)
    figures = [
        Figure("oneshot.p50_ms.rate_200", over_bus.percentile_ms(low.done_s, 50), "ms"),
        Figure("oneshot.p99_ms.rate_200", over_bus.percentile_ms(low.done_s, 99), "ms"),
        Figure(
            "oneshot.dispatch_p50_ms.rate_200", over_bus.percentile_ms(low.dispatch_s, 50), "ms"
        ),
        Figure("oneshot.sustained_req_per_s", per_s, "req/s"),
        Figure("oneshot.sustained_p50_ms", over_bus.percentile_ms(load.done_s, 50), "ms"),
    ]
    for name, idle_s in idle.items():
        share = (idle_s - before[name]) / IDLE_S
        figures.append(Figure(f"oneshot.idle_cpu_pct.{name}", 100 * share, "%"))
    for name, used_s in used.items():
        cost_us = 1e6 * (after[name] - used_s) / len(load.done_s)
        figures.append(Figure(f"oneshot.cpu_us_per_req.{name}", cost_us, "µs"))
    return figures


@asynccontextmanager
async def _running() -> "AsyncGenerator[Stack, None]":
    """Give a deployment with the simulated encoder, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as state:
        stack = Stack(
            over_bus.embedded(state),
            profiles=[PROFILE],
            workers={over_bus.MODEL: [WorkerPlan(0, WORKER)]},
            tell=over_bus.quiet,
            with_recorder=False,
            with_signals=False,
        )
        try:
            await stack.start()
            why = "a batch leaves when the engine is free"
            await set_policy(
                stack.kafka, POLICY, based_on=1, who="bench", why=why, wait_s=POLICY_S_MAX
            )
            yield stack
        finally:
            await stack.stop()
