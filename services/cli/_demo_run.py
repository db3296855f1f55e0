"""Drives one demo: sends each request at its time, follows the ledger, waits for every outcome.

It reads what any producer and any reader could: headway.results through the client, and
headway.ledger for what waits and runs. Every wait is bounded.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from schemas.bus import Result
from schemas.codec import CodecError, decode_line, split_record
from schemas.requests import InferenceRequest
from schemas.topics import LEDGER
from services import bus
from services.cli._demo_embeddings import TextSending
from services.cli._demo_traffic import Sending
from services.gateway.client import Client
from services.gateway.tail import Tail
from services.lab.occupancy import Occupancy
from services.lab.scheduling import Scheduling
from streams.replay_sources import records_of

AnySending = Sending | TextSending

# After the last request was sent, this long for the rest; a machine that needs longer is told so.
DRAIN_S_MAX = 300.0
HEAR_S_MAX = 30.0
POLL_S = 0.05
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
    scheduling: Scheduling = field(default_factory=Scheduling)
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

    def has_heard_all(self) -> bool:
        """Return whether the ledger has told of every outcome that came."""
        return all(one in self.occupancy.ended for one in self.results)

    async def catch_up(self, kafka: str, cells: int) -> None:
        """Learn from the ledgers, up to here, which replicas there are."""
        for cell in range(cells):
            async for value in records_of(kafka, cell):
                if _REPLICAS in value:
                    self._read(cell, value)
        # What these few records say of requests is not the whole of it.
        self.occupancy = self.occupancy.without_requests()
        self.scheduling = Scheduling()
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
            self.scheduling.read(entry)


@contextlib.asynccontextmanager
async def followed(kafka: str, watch: Watch) -> AsyncGenerator[Client]:
    """Give a client, while `watch` follows the ledgers.

    Raises:
        bus.BusError: the broker is away.
    """
    async with Client(kafka) as client:
        ledger = Tail(kafka, LEDGER, client.cells, watch.on_ledger)
        await ledger.start()
        try:
            await watch.catch_up(kafka, client.cells)
            yield client
            # Its reader may lag behind the results.
            await until(watch.has_heard_all, HEAR_S_MAX)
        finally:
            await ledger.stop()


async def until(
    reached: Callable[[], bool], seconds: float, progress: Callable[[], int] = lambda: 0
) -> bool:
    """Wait until something is reached, for so long at most since the last progress."""
    before, until_s = progress(), time.monotonic() + seconds
    while not reached():
        now = progress()
        if now != before:
            before, until_s = now, time.monotonic() + seconds
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def run_traffic(client: Client, plan: Sequence[AnySending], watch: Watch) -> None:
    """Send the plan's requests and return when each has its outcome, or after DRAIN_S_MAX.

    Raises:
        bus.BusError: the broker is away.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        watch.began_s = time.monotonic()
        for sending in plan:
            await asyncio.sleep(watch.began_s + sending.at_s - time.monotonic())
            tasks.append(asyncio.create_task(_one(client, sending, watch)))
        await asyncio.wait(tasks, timeout=DRAIN_S_MAX)
        watch.ended_s = time.monotonic()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(client: Client, sending: AnySending, watch: Watch) -> None:
    cancelling = None
    request = sending.request
    try:
        watch.sent += 1
        if isinstance(sending, Sending) and sending.cancel_after_s is not None:
            cancelling = asyncio.create_task(_cancel(client, sending, watch))
        if isinstance(request, InferenceRequest) and request.stream:
            result = await _follow(client, request)
        else:
            result = await client.run(request)
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
