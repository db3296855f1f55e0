"""A small real deployment for tests: a broker that may be killed, and processes that may be too.

Real processes of the command line over a real Apache Kafka; nothing is replaced. The engine is the
simulated one with a latency, so that there is always work in flight.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from schemas.bus import ResendAnswer, Result, decision_id
from schemas.codec import decode, encode
from schemas.continuity import Continuity
from schemas.ids import cell_of
from schemas.ledger import Entry
from schemas.policy import Policy
from schemas.policy_history import record_of
from schemas.profile import SMOLLM2_135M, Profile
from schemas.topics import CONFIG, DEAD_LETTER, LEDGER, REQUESTS, RESULTS, work_topic
from services import bus
from services.embedded.broker import Broker
from services.embedded.ports import free_port
from services.embedded.processes import Child
from services.settings import CLICKHOUSE, KAFKA, STATE
from streams.recovery import HEADER_SNAPSHOTS
from streams.replay import Verifier
from streams.replay_sources import records_of
from streams.snapshots import Pointer, read_pointers

CELLS = 2
# KV of 784 tokens is 49 blocks; see S1.
BYTES_PROFILE = replace(SMOLLM2_135M, tokenizer="bytes", bytes_per_token=1)
MODEL = BYTES_PROFILE.model


@dataclass(slots=True)
class Deployment:
    """Processes over one broker; the test stops and kills what it likes."""

    bootstrap: str
    directory: Path
    broker: Broker | None = None
    profile: Profile = BYTES_PROFILE
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    recorder_port: int = 0

    @property
    def cell_number(self) -> int:
        """The cell that owns the model."""
        return cell_of(self.profile.model, CELLS)

    async def prepare(self) -> None:
        """Create the topics and publish the profile."""
        await bus.ensure_topics(self.bootstrap, CELLS)
        await bus.ensure_work_topic(self.bootstrap, self.profile)
        async with bus.producing(self.bootstrap) as producer:
            key = f"profile/{self.profile.model}".encode()
            await producer.send_and_wait(CONFIG, encode(self.profile), key=key)

    async def set_policy(self, policy: Policy, *, who: str = "test") -> int:
        """Set a policy as `headway config` does, without waiting; return its record's offset."""
        key, value = record_of(
            policy, based_on=max(1, policy.version - 1), at_us=0, who=who, why="the test needs it"
        )
        async with bus.producing(self.bootstrap) as producer:
            return (await producer.send_and_wait(CONFIG, value, key=key)).offset

    def spawn(self, name: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Child:
        """Start a process of the command line under `name`, replacing an ended one."""
        if name in self.children:
            self.children[name].close()
        places = {
            KAFKA: self.bootstrap,
            STATE: str(self.directory / "state"),
        }
        argv = [sys.executable, "-m", "services.cli", *arguments]
        child = Child(argv, self.directory / f"{name}.log", places | dict(environ or {}))
        child.start()
        self.children[name] = child
        return child

    def start_cell(self, name: str = "cell") -> Child:
        """Start a cell process."""
        return self.spawn(name, "cell", "--cells", str(CELLS))

    def start_worker(self, slot: int = 0, *arguments: str) -> Child:
        """Start a simulated worker; by default at real speed, with room for 16."""
        chosen = arguments or ("--speed", "10", "--max-batch", "16")
        return self.spawn(
            f"worker-{slot}",
            *("worker", "--model", self.profile.model, "--slot", str(slot)),
            *("--engine", "simulated", *chosen),
        )

    def start_recorder(self, clickhouse: str | None = None) -> Child:
        """Start the recorder: before the server at `clickhouse`, or with one embedded."""
        if clickhouse is not None:
            return self.spawn("recorder", "recorder", environ={CLICKHOUSE: clickhouse})
        self.recorder_port = self.recorder_port or free_port()
        return self.spawn("recorder", "recorder", "--port", str(self.recorder_port))

    def kill(self, name: str) -> None:
        """End a process as kill -9 does, and wait until it is gone."""
        self.children[name].kill()
        self.children[name].wait(10)

    def freeze(self, name: str) -> None:
        """Stop a process in its tracks (SIGSTOP)."""
        os.kill(self.children[name].pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen process go on (SIGCONT)."""
        os.kill(self.children[name].pid, signal.SIGCONT)

    def close(self) -> None:
        """End everything at once; orderly ends have tests of their own."""
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            child.wait(10)
            child.close()

    # Traffic

    async def send(self, bodies: Iterable[dict[str, Any]]) -> list[str]:
        """Send requests as a producer does; return their ids. Waits for the broker if need be."""
        ids: list[str] = []
        for body in bodies:
            await self.send_raw(json.dumps(body).encode())
            ids.append(body["id"])
        return ids

    async def send_raw(
        self, value: bytes | None, *, timestamp_ms: int | None = None, seconds: float = 60.0
    ) -> int:
        """Write one record to headway.requests; return its offset. Tries until the broker takes it.

        A producer that is not answered sends again: that is what idempotent ids are for.
        """
        until_s = time.monotonic() + seconds
        while True:
            try:
                async with bus.producing(self.bootstrap) as producer:
                    sent = producer.send_and_wait(
                        REQUESTS,
                        value,
                        key=self.profile.model.encode(),
                        partition=self.cell_number,
                        timestamp_ms=timestamp_ms,
                    )
                    return (await bus.bounded(sent, "take a request", 5.0)).offset
            except bus.BusError:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(0.3)

    async def send_many(self, bodies: list[dict[str, Any]]) -> list[str]:
        """Send many requests over one connection; the broker must be up."""
        async with bus.producing(self.bootstrap) as producer:
            acks = [
                await producer.send(
                    REQUESTS,
                    json.dumps(body).encode(),
                    key=self.profile.model.encode(),
                    partition=self.cell_number,
                )
                for body in bodies
            ]
            await asyncio.gather(*acks)
        return [body["id"] for body in bodies]

    def request(self, request_id: str, **fields: Any) -> dict[str, Any]:
        """Return a small request; `fields` replace or add."""
        return {
            "kind": "inference-request.v1",
            "id": request_id,
            "model": self.profile.model,
            "prompt": "how long is the queue",
            "max_output_tokens": 8,
        } | fields

    # What became of it

    async def outcomes(self, ids: Iterable[str], seconds: float = 60.0) -> dict[str, Result]:
        """Wait until each id has an outcome; fails with the missing ones."""
        wanted = set(ids)
        until_s = time.monotonic() + seconds
        found: dict[str, Result] = {}
        while True:
            try:
                found = {result.id: result for result in await self.results()}
            except bus.BusError:
                await asyncio.sleep(0.3)
            missing = wanted - found.keys()
            if not missing:
                return {request_id: found[request_id] for request_id in wanted}
            if time.monotonic() > until_s:
                raise AssertionError(
                    f"{len(missing)} of {len(wanted)} requests have no outcome after {seconds} s:"
                    f" {sorted(missing)[:5]}; logs: {self.log_tails()}"
                )
            await asyncio.sleep(0.3)

    async def results(self) -> list[Result]:
        """Return every outcome on headway.results, in order, duplicates included.

        Between them stand the answers to resends, which are no outcomes.
        """
        found: list[Result] = []
        for value in await self.read_all(RESULTS):
            result = decode(value)
            if isinstance(result, ResendAnswer):
                continue
            assert isinstance(result, Result)
            found.append(result)
        return found

    async def published_decisions(self) -> list[tuple[str, int, tuple[int, int, int]]]:
        """Return the topic, partition and decision id of each record that follows from one."""
        found: list[tuple[str, int, tuple[int, int, int]]] = []
        for topic in (RESULTS, work_topic(self.profile.model)):
            for record in await self.records(topic):
                told = decision_id(dict(record.headers))
                if told is not None:
                    found.append((topic, record.partition, told))
        return found

    async def read_all(self, topic: str) -> list[bytes]:
        """Return all values of a topic, partition by partition."""
        return [record.value or b"" for record in await self.records(topic)]

    async def records(self, topic: str) -> list[bus.Record]:
        """Return all records of a topic, partition by partition."""
        count = await bus.partition_count(self.bootstrap, topic)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        found: list[bus.Record] = []
        async with bus.consuming(self.bootstrap, partitions) as consumer:
            starts = await bus.bounded(consumer.beginning_offsets(partitions), "tell offsets")
            ends = await bus.bounded(consumer.end_offsets(partitions), "tell offsets")
            for partition in partitions:
                start, end = starts[partition], ends[partition]
                read = bus.read_range(consumer, partition, start, end)
                found.extend([record async for record in read])
        return found

    async def dead_letters(self) -> list[bytes]:
        """Return every dead letter."""
        return await self.read_all(DEAD_LETTER)

    async def entries(self) -> list[Entry]:
        """Return the entries of the model's cell that count."""
        continuity = Continuity()
        return [
            line.entry
            async for value in records_of(self.bootstrap, self.cell_number)
            for line in continuity.admit(value)
        ]

    async def until_recorded(
        self, what: str, enough: Callable[[list[Entry]], bool], seconds: float = 60.0
    ) -> None:
        """Wait until the entries of the model's cell are `enough`; fails with `what` they lack."""
        until_s = time.monotonic() + seconds
        while not enough(await self.entries()):
            if time.monotonic() > until_s:
                raise AssertionError(f"no {what} in {seconds} s; logs: {self.log_tails()}")
            await asyncio.sleep(0.2)

    async def wait_for_replicas(self, count: int = 1, seconds: float = 60.0) -> None:
        """Wait until `count` replicas were admitted in all."""
        await self.until_recorded(
            f"{count} replicas came up",
            lambda entries: decision_kinds(entries)["replica-admitted.v1"] >= count,
            seconds,
        )

    async def wait_for_dispatches(self, count: int) -> None:
        """Wait until requests were dispatched `count` times in all."""
        await self.until_recorded(
            f"{count} requests were dispatched",
            lambda entries: decision_kinds(entries)["request-dispatched.v1"] >= count,
        )

    async def snapshot_pointers(self) -> list[Pointer]:
        """Return the snapshots that the cell's last ledger record names, newest first."""
        ledger = TopicPartition(LEDGER, self.cell_number)
        async with bus.consuming(self.bootstrap, [ledger]) as consumer:
            end = (await bus.bounded(consumer.end_offsets([ledger]), "tell an end offset"))[ledger]
            last = [record async for record in bus.read_range(consumer, ledger, end - 1, end)]
        return read_pointers(dict(last[0].headers).get(HEADER_SNAPSHOTS, b"").decode())

    async def check_record(self, ids: Iterable[str]) -> None:
        """Check what always holds: one outcome each, no gap, replay without a difference."""
        results = Counter(result.id for result in await self.results())
        twice = {key: count for key, count in results.items() if count > 1}
        assert not twice, f"ids with more than one outcome on headway.results: {twice}"
        entries = await self.entries()
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        ended = Counter(
            d.id for entry in entries for d in entry.decisions if d.kind == "request-ended.v1"
        )
        assert {request_id: ended[request_id] for request_id in ids} == dict.fromkeys(ids, 1)
        assert await self.mismatches() == []

    async def mismatches(self) -> list[str]:
        """Replay every cell's ledger; return what differs."""
        found: list[str] = []
        for cell in range(CELLS):
            verifier = Verifier(cell)
            async for value in records_of(self.bootstrap, cell):
                verifier.feed(value)
            found += [mismatch.sentence() for mismatch in verifier.report().mismatches]
        return found

    def log_tails(self) -> dict[str, list[str]]:
        """Return the last log lines of each process, for a failing test."""
        return {name: child.last_lines(4) for name, child in self.children.items()}


def decision_kinds(entries: Iterable[Entry]) -> Counter[str]:
    """Count the decisions of the entries by their kind."""
    return Counter(decision.kind for entry in entries for decision in entry.decisions)
