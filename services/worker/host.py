"""One worker process: a device, and the replicas of one to four models that it hosts.

Each replica is a WorkerService of its own: its slot, consumer, reports, engine and KV pool. They
share the device, which runs one iteration at a time (device.py). Decides nothing about requests.

What ends what: an engine that cannot be loaded, a report that the bus will never take, or policies
that cannot be followed for another reason than the bus, ends the process, after the others have
finished what runs or handed it over; whoever supervises it starts it again. A replica that the cell
turns away (another life has its slot) leaves, and the others go on.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.ids import replica_name
from services.worker.device import Device
from services.worker.engine import Engine
from services.worker.service import TurnedAwayError, WorkerService
from services.worker.turn_weights import TurnWeights
from services.worker.turns import HOSTED_MAX, Replica

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hosted:
    """One replica to host, and what makes its engine."""

    replica: Replica
    load: Callable[[], Engine]


class WorkerHost:
    """The replicas of one process on one device.

    Raises:
        ValueError: there are too many, or one is named twice; a sentence.
    """

    def __init__(self, bootstrap: str, hosted: Sequence[Hosted]) -> None:
        replicas = [one.replica for one in hosted]
        check_hosted(replicas)
        self._weights = TurnWeights(bootstrap)
        self._device = Device(replicas, self._weights.of)
        self._services = [
            WorkerService(bootstrap, *one.replica, one.load, self._device) for one in hosted
        ]
        self._turned_away: TurnedAwayError | None = None
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Ask for an orderly end of all replicas, each as `WorkerService.stop` says."""
        for service in self._services:
            service.stop()

    async def run(self) -> None:
        """Serve until stopped, or until none is left.

        Raises:
            TurnedAwayError: the cell has no place for any of them.
            LoadError, UnwritableError, bus.BusError: one of them cannot go on, so all have ended.
            Whatever else ends one of them, or ends the following of the policies.
        """
        following = {asyncio.create_task(self._weights.follow())} if self._device.shared else set()
        running = {asyncio.create_task(service.run()) for service in self._services}
        ended_in_order = 0
        try:
            while running:
                done, _ = await asyncio.wait(
                    running | following, return_when=asyncio.FIRST_COMPLETED
                )
                running -= done
                following -= done
                # Cancelled are only those that waited for one that could not be loaded.
                for error in [one.exception() for one in done if not one.cancelled()]:
                    if error is None:
                        ended_in_order += 1
                    else:
                        self._end_after(error, running)
        finally:
            for task in (*running, *following):
                task.cancel()
            await asyncio.gather(*running, *following, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        if self._turned_away is not None and not ended_in_order:
            raise self._turned_away

    def _end_after(self, error: BaseException, others: "set[asyncio.Task[None]]") -> None:
        """Let the replicas that still run go on or end, as it follows from what ended one."""
        if isinstance(error, TurnedAwayError):
            self._turned_away = error
            if others:
                log.error("%s; the other models of this worker go on", error)
            return
        if self._failure is not None:
            return
        self._failure = error
        if others:
            log.error("%s; the other models of this worker end too", error)
        self.stop()
        if not self._device.loaded:
            # Those that wait for it have taken no work.
            for task in others:
                task.cancel()


def check_hosted(replicas: Sequence[Replica]) -> None:
    """Return if a worker can host these replicas.

    Raises:
        ValueError: it cannot; a sentence.
    """
    if len(replicas) > HOSTED_MAX:
        raise ValueError(
            f"{len(replicas)} models are to be hosted, and a device takes {HOSTED_MAX} at most:"
            " start another worker for the rest"
        )
    for at, replica in enumerate(replicas):
        if replica in replicas[:at]:
            raise ValueError(
                f"{replica_name(*replica)} is named twice: a slot has one replica, so give the"
                " second one a slot of its own"
            )
