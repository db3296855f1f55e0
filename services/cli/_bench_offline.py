"""Measures offline work beside online work: one real worker, the two in turns over a real broker.

Three kinds of rounds follow each other: the worker full, which gives its capacity; online requests
alone at 40% of it; and the same with an offline job beside them. The last two take turns, so that a
noisy machine strikes both. Idle capacity used is the job's output tokens per second over what
online work leaves of the capacity. Everything, the load included, runs on this machine.
"""

import asyncio
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from schemas.bus import Result
from schemas.figures import Figure
from schemas.profile import SMOLLM2_135M
from schemas.requests import InferenceRequest
from services.cli._bench_bus import embedded
from services.cli._stack import Stack, WorkerPlan
from services.gateway import batch
from services.gateway.batch_file import check
from services.gateway.client import Client

MODEL = SMOLLM2_135M.model
ONLINE_SHARE = 0.4
OUTPUT_TOKENS = 32
PROMPT = "Tell in one sentence how a queue grows and shrinks over a day."
MAX_BATCH = 16
ROUNDS = 4
ROUND_S = 60.0
QUICK_ROUNDS = 1
QUICK_ROUND_S = 20.0
JOB_ITEMS = 5_000
OUTCOME_S_MAX = 120.0
_SEED = 7


@dataclass(slots=True)
class Round:
    """What came of one kind of round.

    Attributes:
        ttft_ms: of the online requests. online_tokens, offline_tokens: generated. seconds: in all.
    """

    ttft_ms: list[float] = field(default_factory=list[float])
    online_tokens: int = 0
    offline_tokens: int = 0
    seconds: float = 0.0


def offline_figures(*, quick: bool) -> list[Figure]:
    """Return the group's figures; about 10 minutes, or 2 with `quick` (rougher)."""
    return asyncio.run(_figures(quick=quick))


async def _figures(*, quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as state:
        plan = WorkerPlan(0, ("--max-batch", str(MAX_BATCH)))
        stack = Stack(
            embedded(state),
            profiles=[SMOLLM2_135M],
            workers={MODEL: [plan]},
            tell=_quiet,
            with_recorder=False,
            with_signals=False,
        )
        try:
            await stack.start()
            return await _measure(stack.kafka, Path(state), quick=quick)
        finally:
            await stack.stop()


async def _measure(kafka: str, directory: Path, *, quick: bool) -> list[Figure]:
    rounds, seconds = (QUICK_ROUNDS, QUICK_ROUND_S) if quick else (ROUNDS, ROUND_S)
    path = directory / "job.jsonl"
    _write_job(path)
    alone, beside = Round(), Round()
    async with Client(kafka) as client:
        capacity = await _capacity(client, seconds / 2)
        rate = ONLINE_SHARE * capacity / OUTPUT_TOKENS
        for number in range(rounds):
            await _online(client, alone, rate, seconds, f"alone-{number}")
            job = f"bench-{number}"
            await _start_job(kafka, path, job)
            before = await _completed(kafka, job)
            began_s = time.monotonic()
            await _online(client, beside, rate, seconds, f"beside-{number}")
            done = await _completed(kafka, job) - before
            # The round's own clock: items that end while the last online ones do are counted too.
            beside.offline_tokens += round(
                done * OUTPUT_TOKENS * seconds / (time.monotonic() - began_s)
            )
            await _cancel_job(kafka, job)
    online_rate = beside.online_tokens / beside.seconds
    idle = max(1e-9, capacity - online_rate)
    ratio = _percentile(beside.ttft_ms, 99) / _percentile(alone.ttft_ms, 99)
    return [
        Figure("offline.online_ttft_p99_ratio", ratio, "×"),
        Figure(
            "offline.idle_capacity_used", beside.offline_tokens / beside.seconds / idle, "share"
        ),
        Figure("offline.online_ttft_p99_ms.alone", _percentile(alone.ttft_ms, 99), "ms"),
        Figure("offline.online_ttft_p99_ms.beside", _percentile(beside.ttft_ms, 99), "ms"),
        Figure("offline.capacity_tok_per_s", capacity, "tok/s"),
        Figure("offline.online_tok_per_s", online_rate, "tok/s"),
    ]


async def _capacity(client: Client, seconds: float) -> float:
    """Return output tokens per second with every slot taken until the last ones end."""
    tokens, began_s = 0, time.monotonic()

    async def keep_one_running(lane: int) -> None:
        nonlocal tokens
        number = 0
        while time.monotonic() < began_s + seconds:
            result = await client.run(_request(f"full-{lane}-{number}"), OUTCOME_S_MAX)
            tokens += result.usage.output_tokens if result.usage else 0
            number += 1

    await asyncio.gather(*(keep_one_running(lane) for lane in range(MAX_BATCH)))
    return tokens / (time.monotonic() - began_s)


async def _online(client: Client, into: Round, rate: float, seconds: float, name: str) -> None:
    """Send requests at random times, `rate` a second on average, and wait for their outcomes."""
    chance = random.Random(_SEED)  # noqa: S311 - the same arrivals in each round
    running: list[asyncio.Task[Result]] = []
    began_s = time.monotonic()
    due_s = chance.expovariate(rate)
    while due_s < seconds:
        await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
        request = _request(f"{name}-{len(running)}")
        running.append(asyncio.create_task(client.run(request, OUTCOME_S_MAX)))
        due_s += chance.expovariate(rate)
    results = await asyncio.gather(*running)
    into.seconds += seconds
    for result in results:
        into.online_tokens += result.usage.output_tokens if result.usage else 0
        if result.ttft_us is not None:
            into.ttft_ms.append(result.ttft_us / 1000)


def _request(name: str) -> InferenceRequest:
    return InferenceRequest(
        kind="inference-request.v1",
        id=name,
        model=MODEL,
        tier="critical",
        prompt=PROMPT,
        max_output_tokens=OUTPUT_TOKENS,
        temperature=1.0,
    )


def _write_job(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(JOB_ITEMS):
            body = {
                "model": MODEL,
                "prompt": PROMPT,
                "max_tokens": OUTPUT_TOKENS,
                "temperature": 1.0,
            }
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": body,
            }
            file.write(json.dumps(line) + "\n")


async def _start_job(kafka: str, path: Path, job: str) -> None:
    checked = check(path)
    await batch.submit(kafka, checked, checked.header(job, None), lambda _: None)


async def _completed(kafka: str, job: str) -> int:
    return (await batch.standing(kafka)).jobs[job].report.completed


async def _cancel_job(kafka: str, job: str) -> None:
    control = batch.BatchControl(job=job, model=MODEL, action="cancel", who="bench")
    await batch.steer(kafka, control)
    async for _ in batch.follow(kafka, job, OUTCOME_S_MAX):
        pass


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _quiet(sentence: str) -> None:
    del sentence
