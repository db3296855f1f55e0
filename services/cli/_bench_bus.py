"""Measures the whole loop over a real broker: producer, cell, worker with an instant engine.

Everything runs on this machine, the load included. Times are taken in one process, by one clock:
from just before a request is sent until its work, or its outcome, is consumed.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.figures import Figure
from schemas.ids import cell_of
from schemas.profile import SMOLLM2_135M
from schemas.topics import REQUESTS, RESULTS, work_topic
from services import bus
from services.cli._stack import Stack, WorkerPlan
from services.embedded.broker import Broker
from services.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

MODEL = "bench"
PROFILE = replace(SMOLLM2_135M, model=MODEL, tokenizer="bytes")
WARM_S = 5.0
TENANTS = 8
PROMPT = "How long does a request wait for its turn? " * 3
KEY = MODEL.encode()
# Made once, so that the load takes as little of the two cores as it can.
BODY = json.dumps(
    {
        "kind": "inference-request.v1",
        "id": "%s",
        "model": MODEL,
        "tenant": "tenant-%d",
        "prompt": PROMPT,
        "max_output_tokens": 16,
    }
).encode()
# Requests on their way at once in the sustained run: about half a second's worth.
WINDOW = 2_000
DRAIN_S_MAX = 30.0
LAG_POLL_S = 0.5


@dataclass(slots=True)
class Load:
    """Sends requests and notes when their work and their outcomes come by.

    Attributes:
        sent_s: when each request was sent. dispatch_s, done_s: how long its work and outcome took.
    """

    producer: AIOKafkaProducer
    consumer: AIOKafkaConsumer
    cell: int
    run: bytes
    body: bytes = BODY
    sent_s: dict[bytes, float] = field(default_factory=dict[bytes, float])
    dispatch_s: list[float] = field(default_factory=list[float])
    done_s: list[float] = field(default_factory=list[float])
    done_at_s: list[float] = field(default_factory=list[float])

    async def send(self, index: int) -> None:
        """Send one request."""
        name = b"%s-%d" % (self.run, index)
        body = self.body % (name, index % TENANTS)
        self.sent_s[name] = time.perf_counter()
        await self.producer.send(REQUESTS, body, key=KEY, partition=self.cell)

    async def listen(self, expected: Callable[[], int | None]) -> None:
        """Note work and outcomes until `expected()` outcomes have come by (None: not known yet)."""
        while (wanted := expected()) is None or len(self.done_s) < wanted:
            got = await self.consumer.getmany(timeout_ms=200)
            now_s = time.perf_counter()
            for partition, records in got.items():
                taken = self.done_s if partition.topic == RESULTS else self.dispatch_s
                for record in records:
                    sent_s = self.sent_s.get(record.key or b"")
                    if sent_s is not None:
                        taken.append(now_s - sent_s)
                if partition.topic == RESULTS:
                    self.done_at_s.extend([now_s] * len(records))


def bus_figures(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    """Return the bus figures, the recorder's lag under that load, and the memory of each part."""
    return asyncio.run(_bus_figures(quick=quick))


async def _bus_figures(*, quick: bool) -> list[Figure]:
    seconds = 10.0 if quick else 60.0
    async with running_stack() as stack:
        await paced(stack.kafka, rate=500, seconds=WARM_S)
        load = await paced(stack.kafka, rate=1000, seconds=seconds / 2)
        figures = [
            Figure("bus.dispatch_p50_ms.rate_1000", percentile_ms(load.dispatch_s, 50), "ms"),
            Figure("bus.dispatch_p99_ms.rate_1000", percentile_ms(load.dispatch_s, 99), "ms"),
        ]
        lags: list[float] = []
        watching = asyncio.create_task(_watch_lag(stack, lags))
        before_s = cpu_s(stack)
        load, per_s = await closed(stack.kafka, seconds)
        after_s = cpu_s(stack)
        watching.cancel()
        figures.append(Figure("bus.sustained_req_per_s", per_s, "req/s"))
        figures.append(Figure("bus.sustained_p99_ms", percentile_ms(load.dispatch_s, 99), "ms"))
        if lags:
            figures.append(Figure("recorder.lag_s", max(lags), "s"))
        figures += [
            Figure(
                f"bus.cpu_us_per_req.{name}",
                1e6 * (after_s[name] - used_s) / len(load.done_s),
                "µs",
            )
            for name, used_s in before_s.items()
        ]
        figures += _memory(stack)
    return figures


@asynccontextmanager
async def running_stack() -> "AsyncGenerator[Stack, None]":
    """Give a deployment with an instant engine, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as state:
        plan = WorkerPlan(0, ("--engine", "simulated", "--instant"))
        stack = Stack(embedded(state), profiles=[PROFILE], workers={MODEL: [plan]}, tell=quiet)
        try:
            await stack.start()
            yield stack
        finally:
            await stack.stop()


def embedded(state: str) -> Settings:
    """Return settings for parts of our own, whatever the environment names."""
    return replace(load(state), kafka=None, clickhouse=None)


def quiet(sentence: str) -> None:
    """Say nothing of what a deployment tells."""
    del sentence


@asynccontextmanager
async def _new_load(kafka: str, body: bytes) -> "AsyncGenerator[Load, None]":
    cell = cell_of(MODEL, await bus.partition_count(kafka, REQUESTS))
    watched = [TopicPartition(RESULTS, cell), TopicPartition(work_topic(MODEL), 0)]
    async with bus.producing(kafka) as producer, bus.consuming(kafka, watched) as consumer:
        for partition, end in (await consumer.end_offsets(watched)).items():
            consumer.seek(partition, end)
        yield Load(producer, consumer, cell, b"%x" % time.time_ns(), body)


async def paced(kafka: str, *, rate: int, seconds: float, body: bytes = BODY) -> Load:
    """Send at a fixed rate, whatever comes back."""
    count = int(rate * seconds)
    async with _new_load(kafka, body) as load:
        listening = asyncio.create_task(load.listen(lambda: count))
        began_s = time.perf_counter()
        sent = 0
        while sent < count:
            due = min(count, int((time.perf_counter() - began_s) * rate) + 1)
            for index in range(sent, due):
                await load.send(index)
            sent = max(sent, due)
            # Not a moment longer than until the next is due, and not awake meanwhile: the load
            # shares the processors with what it measures.
            await asyncio.sleep(max(0.0, began_s + sent / rate - time.perf_counter()))
        await asyncio.wait_for(listening, DRAIN_S_MAX)
        return load


async def closed(
    kafka: str, seconds: float, *, body: bytes = BODY, window: int = WINDOW
) -> tuple[Load, float]:
    """Keep `window` requests on their way; return the load and the outcomes per second.

    The window bounds every lag: what is measured is what the whole loop sustains.
    """
    async with _new_load(kafka, body) as load:
        total: list[int] = []
        listening = asyncio.create_task(load.listen(lambda: total[0] if total else None))
        began_s = time.perf_counter()
        sent = 0
        while time.perf_counter() - began_s < seconds:
            room = window - (sent - len(load.done_s))
            for _ in range(max(0, room)):
                await load.send(sent)
                sent += 1
            await asyncio.sleep(0.002)
        until_s = time.perf_counter()
        total.append(sent)
        await asyncio.wait_for(listening, DRAIN_S_MAX)
        done = sum(at_s <= until_s for at_s in load.done_at_s)
        return load, done / (until_s - began_s)


async def _watch_lag(stack: Stack, lags: list[float]) -> None:
    """Note how old the newest entry in the store is, compared with the newest on the ledger."""
    from services.recorder.bench import lag_s  # noqa: PLC0415 - only where a recorder runs

    while stack.clickhouse is not None:
        await asyncio.sleep(LAG_POLL_S)
        lags.append(await lag_s(stack.kafka, stack.clickhouse))


def _processes(stack: Stack) -> dict[str, psutil.Process]:
    return {
        "worker" if status.name.startswith("worker") else status.name: psutil.Process(status.pid)
        for status in stack.supervisor.status()
    }


def cpu_s(stack: Stack) -> dict[str, float]:
    """Return the processor seconds that each part has used, the load's own among them."""
    processes = {**_processes(stack), "load": psutil.Process()}
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def _memory(stack: Stack) -> list[Figure]:
    return [
        Figure(f"memory.mb.{name}", process.memory_info().rss / 2**20, "MB")
        for name, process in _processes(stack).items()
    ]


def percentile_ms(values_s: list[float], percent: int) -> float:
    """Return a percentile of times, in ms."""
    ordered = sorted(values_s)
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def with_broker(measure: Callable[[str], Any]) -> Any:
    """Run `measure` with the bootstrap servers of a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as state:
        broker = Broker(embedded(state), Path(state) / "kafka")
        broker.start()
        try:
            return measure(broker.bootstrap)
        finally:
            broker.stop()
