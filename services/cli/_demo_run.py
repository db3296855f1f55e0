"""Drives one demo: sends each request at its time, follows the ledger, waits for every outcome.

It reads what any producer and any reader could: headway.results through the client, and
headway.ledger for what waits and runs. Every wait is bounded.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.bus import Result
from schemas.codec import CodecError, decode_line, split_record
from schemas.requests import InferenceRequest
from schemas.topics import LEDGER
from services import bus
from services.cli._demo_traffic import Sending
from services.gateway.client import Client
from services.gateway.tail import Tail
from services.lab.occupancy import Occupancy
from streams.replay_sources import records_of

# Stands in every record that says something of replicas, and in few others.
_REPLICAS = b'"kind":"replica-'


@dataclass(slots=True)
class Watch:
    """What is known of a run while it goes on, for the display and for the checks at its end.

    Attributes:
        total: requests to send. sent: so far. results: the outcomes, in the order they came.
        troubles: why a request could not be sent or cancelled.
    """

    total: int
    occupancy: Occupancy = field(default_factory=Occupancy)
    sent: int = 0
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    troubles: list[str] = field(default_factory=list[str])
    began_s: float = 0.0
    ended_s: float = 0.0
    _read_up_to: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    _held: list[bus.Record] | None = field(default_factory=list[bus.Record])

    def on_ledger(self, record: bus.Record) -> None:
        """Take the next record of the ledger, once `catch_up` is through."""
        if self._held is not None:
            self._held.append(record)
            return
        self._read(record.partition, record.value)

    async def catch_up(self, kafka: str, cells: int) -> None:
        """Learn from the ledgers, up to here, which replicas there are."""
        for cell in range(cells):
            async for value in records_of(kafka, cell):
                if _REPLICAS in value:
                    self._read(cell, value)
        # What these few records say of requests is not the whole of it.
        self.occupancy = self.occupancy.without_requests()
        held, self._held = self._held or [], None
        for record in held:
            self._read(record.partition, record.value)

    def _read(self, cell: int, value: bytes | None) -> None:
        """Take a record; what is void or unreadable is left to the replay to tell."""
        try:
            entries = [decode_line(raw).entry for raw in split_record(value)]
        except CodecError:
            return
        epoch, next_seq = self._read_up_to.get(cell, (0, 0))
        first = entries[0]
        if first.epoch < epoch or first.seq < next_seq:
            return
        self._read_up_to[cell] = (first.epoch, entries[-1].seq + 1)
        for entry in entries:
            self.occupancy.read(entry)


async def run_traffic(kafka: str, plan: Sequence[Sending], watch: Watch, s_max: float) -> None:
    """Send the plan's requests and return when each has its outcome, or after `s_max`.

    Raises:
        bus.BusError: the broker is away.
    """
    async with Client(kafka) as client:
        ledger = Tail(kafka, LEDGER, client.cells, watch.on_ledger)
        await ledger.start()
        await watch.catch_up(kafka, client.cells)
        tasks: list[asyncio.Task[None]] = []
        try:
            watch.began_s = time.monotonic()
            for sending in plan:
                await asyncio.sleep(watch.began_s + sending.at_s - time.monotonic())
                tasks.append(asyncio.create_task(_one(client, sending, watch)))
            left_s = watch.began_s + s_max - time.monotonic()
            await asyncio.wait(tasks, timeout=max(0.0, left_s))
            watch.ended_s = time.monotonic()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await ledger.stop()


async def _one(client: Client, sending: Sending, watch: Watch) -> None:
    cancelling = None
    request = sending.request
    try:
        watch.sent += 1
        if sending.cancel_after_s is not None:
            cancelling = asyncio.create_task(_cancel(client, sending, watch))
        result = await (_follow(client, request) if request.stream else client.run(request))
    except bus.BusError as error:
        watch.troubles.append(f"{request.id} could not be sent: {error}")
        return
    finally:
        if cancelling is not None and not cancelling.done():
            cancelling.cancel()
    watch.results[request.id] = result


async def _follow(client: Client, request: InferenceRequest) -> Result:
    async for piece in client.follow(request):
        if isinstance(piece, Result):
            return piece
    raise AssertionError("a followed request ends with its outcome")


async def _cancel(client: Client, sending: Sending, watch: Watch) -> None:
    assert sending.cancel_after_s is not None  # noqa: S101 - the caller has looked
    await asyncio.sleep(sending.cancel_after_s)
    try:
        await client.cancel(sending.request.id, sending.request.model)
    except bus.BusError as error:
        watch.troubles.append(f"{sending.request.id} could not be cancelled: {error}")
