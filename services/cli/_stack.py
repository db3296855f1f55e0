"""A whole deployment on this machine: broker, recorder, cell, signals and workers, supervised.

Starts only what no environment variable names, tells other commands where it serves, and stops in
the reverse order. Used by `up`, `demo` and the benches.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from aiokafka import TopicPartition

from schemas.codec import CodecError, decode_line, encode, split_record
from schemas.decisions import ReplicaAdmitted
from schemas.ids import cell_of
from schemas.profile import Profile
from schemas.topics import CELLS_DEFAULT, CONFIG, LEDGER
from services import bus
from services.embedded.broker import Broker
from services.embedded.ports import free_port
from services.embedded.processes import Supervisor
from services.embedded.state import Endpoints, StateDir
from services.settings import CLICKHOUSE, KAFKA, STATE, Settings

READY_S_MAX = 180.0
POLL_S = 0.2
# What only reads the ledger gives way to what serves requests, on processors that they share.
PATIENT = ("recorder", "signals")
NICE = ("nice", "-n", "5")
# Starts of a part, while waiting for it, after which it will not come up.
RESTARTS_MAX = 3
# OpenMP's threads spin while they wait for each other, for as long as they are let. On a machine
# that all parts share, a spinning worker thread keeps the other one from running: 1 token/s was
# measured where threads that sleep gave 17. Whoever has cores to spare sets it to ACTIVE.
THREADS_WAIT = "OMP_WAIT_POLICY"


class StackError(RuntimeError):
    """The deployment did not come up; the sentence says which part, and why."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Another replica on a worker's device; `options` as in `headway worker --host`."""

    model: str
    slot: int
    options: str


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker to start: its slot, `headway worker`'s arguments, and what shares its device."""

    slot: int
    arguments: tuple[str, ...]
    beside: tuple[Beside, ...] = ()

    def command(self, model: str) -> tuple[str, ...]:
        """Return the command line of the worker, for a replica of `model` and what is beside."""
        if not self.beside:
            return ("worker", "--model", model, "--slot", str(self.slot), *self.arguments)
        hosts = [f"model={model},slot={self.slot}"]
        hosts += [f"model={one.model},slot={one.slot},{one.options}" for one in self.beside]
        return ("worker", *(word for host in hosts for word in ("--host", host)), *self.arguments)


@dataclass(slots=True)
class Stack:
    """A deployment that runs as long as this process.

    Args:
        settings: what is embedded and where it keeps its data.
        profiles: of the models to serve.
        workers: to start, by model.
        tell: is called with a sentence for each step and each restart.
        with_recorder, with_signals: whether those parts run.
    """

    settings: Settings
    profiles: list[Profile]
    workers: dict[str, list[WorkerPlan]]
    tell: Callable[[str], None]
    cells: int = CELLS_DEFAULT
    with_recorder: bool = True
    with_signals: bool = True
    kafka: str = field(default="", init=False)
    clickhouse: str | None = field(default=None, init=False)
    supervisor: Supervisor = field(init=False)
    _state: StateDir | None = field(default=None, init=False)
    _looking: "asyncio.Task[None] | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.tell)

    @property
    def logs(self) -> Path:
        """Where the parts' logs are."""
        return self.settings.state_dir / "logs"

    async def start(self) -> None:
        """Start every part and return once requests are served.

        Raises:
            StateError: another deployment holds the state directory, or it cannot be written.
            JarsError, JavaError, BrokerError, ChildError: a part cannot be started.
            BusError, StackError: a part did not come up in time.
        """
        self._state = StateDir(self.settings.state_dir)
        self._looking = asyncio.create_task(self.supervisor.run())
        await self._start_broker()
        await bus.ensure_topics(self.kafka, self.cells)
        for profile in self.profiles:
            await bus.ensure_work_topic(self.kafka, profile)
        await self._publish_profiles()
        ready = asyncio.create_task(self._wait_for_workers())
        if self.with_recorder:
            self._start_recorder()
        self._spawn("cell", "cell")
        if self.with_signals:
            self._spawn("signals", "signals")
        for model, plans in self.workers.items():
            for plan in plans:
                self._spawn(f"worker-{model}-{plan.slot}", *plan.command(model))
        if self.with_recorder:
            await self._wait_for_recorder()
        await ready
        self._publish_endpoints()

    async def stop(self) -> None:
        """Stop every part."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.supervisor.stop_all()
        if self._state is not None:
            self._state.release()

    # Parts

    async def _start_broker(self) -> None:
        if self.settings.kafka is not None:
            self.kafka = self.settings.kafka
            self.tell(f"using Kafka at {self.kafka}")
            return
        self.tell("starting the broker (its jars are fetched the first time)")
        broker = Broker(self.settings, self.settings.state_dir / "kafka")
        child = await asyncio.to_thread(broker.child)
        self.supervisor.keep("broker", child)
        await asyncio.to_thread(broker.wait_until_serving)
        if broker.notice:
            self.tell(broker.notice)
        self.kafka = broker.bootstrap
        self.tell(f"Kafka serves at {self.kafka}")

    def _start_recorder(self) -> None:
        if self.settings.clickhouse is not None:
            self.clickhouse = self.settings.clickhouse
            self._spawn("recorder", "recorder")
            return
        port = free_port()
        self.clickhouse = f"http://127.0.0.1:{port}"
        self._spawn("recorder", "recorder", "--port", str(port))

    def _spawn(self, name: str, *arguments: str) -> None:
        environ = {KAFKA: self.kafka, STATE: str(self.settings.state_dir)}
        environ[THREADS_WAIT] = os.environ.get(THREADS_WAIT, "PASSIVE")
        if self.clickhouse is not None and name != "recorder":
            environ[CLICKHOUSE] = self.clickhouse
        argv = [sys.executable, "-m", "services.cli", *arguments]
        if name in PATIENT:
            argv = [*NICE, *argv]
        self.supervisor.start(name, argv, self.logs / f"{name}.log", environ)

    async def _publish_profiles(self) -> None:
        async with bus.producing(self.kafka) as producer:
            for profile in self.profiles:
                key = f"profile/{profile.model}".encode()
                sent = producer.send_and_wait(CONFIG, encode(profile), key=key)
                await bus.bounded(sent, "take a profile")

    def _publish_endpoints(self) -> None:
        assert self._state is not None  # noqa: S101 - start came first
        pids = {status.name: status.pid for status in self.supervisor.status()}
        holder = Endpoints(self.kafka, self.clickhouse, os.getpid(), pids)
        self._state.publish(holder)

    # Readiness

    async def _wait_for_recorder(self) -> None:
        until_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < until_s:
            if await asyncio.to_thread(_answers, f"{self.clickhouse}/ping"):
                self.tell(f"the recorder serves at {self.clickhouse}")
                return
            self._check("recorder")
            await asyncio.sleep(POLL_S)
        raise StackError(f"the recorder did not come up; its log is in {self.logs}")

    async def _wait_for_workers(self) -> None:
        """Follow the ledgers until every worker's replica is admitted."""
        parts = {
            replica: f"worker-{model}-{plan.slot}"
            for model, plans in self.workers.items()
            for plan in plans
            for replica in [(model, plan.slot), *((one.model, one.slot) for one in plan.beside)]
        }
        missing = set(parts)
        cells = await bus.partition_count(self.kafka, LEDGER) - 1
        partitions = [
            TopicPartition(LEDGER, cell) for cell in {cell_of(model, cells) for model, _ in missing}
        ]
        if not partitions:
            return
        until_s = time.monotonic() + READY_S_MAX
        async with bus.consuming(self.kafka, partitions) as consumer:
            ends = await bus.bounded(consumer.end_offsets(partitions), "tell end offsets")
            for partition, end in ends.items():
                consumer.seek(partition, end)
            while missing:
                got = await bus.bounded(consumer.getmany(timeout_ms=500), "answer a fetch")
                for records in got.values():
                    for record in records:
                        missing -= _admitted(record.value)
                for replica in missing:
                    self._check(parts[replica])
                if time.monotonic() > until_s:
                    names = ", ".join(f"{model}/{slot}" for model, slot in sorted(missing))
                    raise StackError(
                        f"no word of {names} after {READY_S_MAX:g} s; the logs are in {self.logs}"
                    )
        self.tell("every worker is ready")

    def _check(self, name: str) -> None:
        for status in self.supervisor.status():
            if status.name == name and status.restarts >= RESTARTS_MAX:
                raise StackError(f"{name} does not stay up: {status.last_exit}")


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310 - our own address
            return answer.status == 200  # noqa: PLR2004 - HTTP's OK
    except (URLError, OSError):
        return False


def _admitted(value: bytes | None) -> set[tuple[str, int]]:
    try:
        entries = [decode_line(raw).entry for raw in split_record(value)]
    except CodecError:
        return set()
    return {
        (decision.model, decision.slot)
        for entry in entries
        for decision in entry.decisions
        if isinstance(decision, ReplicaAdmitted)
    }
