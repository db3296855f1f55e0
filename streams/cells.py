"""The cell process: shares the cells of a deployment with other such processes.

A consumer group on headway.requests says which cells are whose; nothing is read through it. Each
assigned cell gets an owner, which is begun again after a doubt. Decides nothing by itself.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from schemas.profile import Profile
from schemas.topics import CELLS_DEFAULT, REQUESTS
from services import bus
from streams.admission import CountTokens
from streams.owner import Owner, SupersededError
from streams.recovery import RecoveryError

GROUP = "headway-cells"
# What a cell remembers holds no cycles, and looking for some among all of it stops the loop for
# 100 ms: so, as good as never. The young generations are looked at seldom too.
GC_THRESHOLDS = (10_000, 20, 10_000)
RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
# A superseded owner waits until its group would have told it that the cell is no longer its own.
SUPERSEDED_WAIT_S = bus.SESSION_MS / 1000 + 1.0
STEADY_S = 10.0
COMMIT_S = 1.0
STOP_S_MAX = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Held:
    """A cell that this process holds: the task that keeps an owner alive, and that owner."""

    task: asyncio.Task[None]
    owner: Owner | None = None
    stopping: bool = False


class Cells(ConsumerRebalanceListener):
    """Keeps an owner for each cell that the group assigns to this process."""

    def __init__(self, bootstrap: str, counter_of: Callable[[Profile], CountTokens]) -> None:
        self._bootstrap = bootstrap
        self._counter_of = counter_of
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._cells = 0
        self._held: dict[int, Held] = {}
        self._group: AIOKafkaConsumer | None = None
        self._stopping = asyncio.Event()
        self._committed_s = 0.0

    def stop(self) -> None:
        """Ask for an orderly end: owners finish the batch in hand."""
        self._stopping.set()

    async def run(self, cells: int = CELLS_DEFAULT) -> None:
        """Serve until `stop`; a broker that is away is waited for."""
        wait_s = RETRY_S_MIN
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._cells = await bus.ensure_topics(self._bootstrap, cells)
                await self._take_part()
            except (bus.BusError, KafkaError) as error:
                log.warning("the cell process lost the bus and tries again: %s", error)
            wait_s = _next_wait_s(wait_s, began_s)
            await self._pause(wait_s)
        await self._release(list(self._held))

    async def _take_part(self) -> None:
        group = bus.new_consumer(self._bootstrap, group=GROUP)
        self._group = group
        group.subscribe([REQUESTS], listener=self)
        try:
            await bus.bounded(group.start(), "accept a group member")
            while not self._stopping.is_set():
                # Nothing is fetched (all partitions are paused), but a member must keep asking.
                await bus.bounded(group.getmany(timeout_ms=500), "answer a group member")
                await self._commit_for_people(group)
        finally:
            await bus.stop_client(group)
            self._group = None

    async def _commit_for_people(self, group: AIOKafkaConsumer) -> None:
        """Commit how far the ledgers are, for tools that show lag; no cell ever reads it."""
        if time.monotonic() - self._committed_s < COMMIT_S:
            return
        self._committed_s = time.monotonic()
        assigned = group.assignment()
        offsets = {
            partition: held.owner.next_request_offset
            for cell, held in self._held.items()
            if held.owner is not None and (partition := TopicPartition(REQUESTS, cell)) in assigned
        }
        known = {partition: offset for partition, offset in offsets.items() if offset is not None}
        if not known:
            return
        try:
            await bus.bounded(group.commit(known), "take a commit")
        except bus.BusError as error:
            if not isinstance(error.__cause__, CommitFailedError | IllegalStateError):
                raise
            # A rebalance came in between: the next commit will do.

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride] - coroutines are allowed, the client's type does not say so
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        """Keep the owners: most cells stay where they are, and the fence covers the others."""

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride] - as above
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        """Give up the cells that are others' now, and take those that are new."""
        partitions = list(assigned)
        mine = {partition.partition for partition in partitions}
        if self._group is not None and partitions:
            self._group.pause(*partitions)
        await self._release([cell for cell in self._held if cell not in mine])
        for cell in sorted(mine - set(self._held)):
            self._held[cell] = Held(asyncio.create_task(self._hold(cell)))
        log.info("this process holds the cells %s of %d", sorted(mine), self._cells)

    async def _release(self, cells: list[int]) -> None:
        tasks: list[asyncio.Task[None]] = []
        for cell in cells:
            held = self._held.pop(cell)
            held.stopping = True
            if held.owner is not None:
                held.owner.stop()
            else:
                held.task.cancel()
            tasks.append(held.task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S_MAX)
            for task in late:
                task.cancel()

    async def _hold(self, cell: int) -> None:
        """Keep an owner of the cell alive: one life after another."""
        wait_s = RETRY_S_MIN
        while (held := self._held.get(cell)) is not None and not held.stopping:
            began_s = time.monotonic()
            try:
                held.owner = self._new_owner(cell)
                await held.owner.run()
            except SupersededError as error:
                log.warning("%s", error)
                held.owner = None
                await asyncio.sleep(SUPERSEDED_WAIT_S)
            except bus.BusError as error:
                log.warning("cell %d: %s; the owner begins again from the log", cell, error)
            except RecoveryError as error:
                log.error("cell %d cannot be recovered: %s", cell, error)  # noqa: TRY400 - the sentence says it; a trace would not
                wait_s = RETRY_S_MAX
            except Exception:
                # A defect must not end the cell in silence: it is told, with its trace, and the
                # next life starts from the log.
                log.exception("cell %d: the owner failed unexpectedly and begins again", cell)
            held.owner = None
            wait_s = _next_wait_s(wait_s, began_s)
            if not held.stopping:
                await asyncio.sleep(wait_s)

    def _new_owner(self, cell: int) -> Owner:
        return Owner(
            self._bootstrap,
            cell=cell,
            cells=self._cells,
            name=self._name,
            counter_of=self._counter_of,
        )

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _next_wait_s(wait_s: float, began_s: float) -> float:
    """Return the next pause: doubled, or the shortest again after a steady life."""
    if time.monotonic() - began_s > STEADY_S:
        return RETRY_S_MIN
    return min(wait_s * 2, RETRY_S_MAX)
