"""Takes snapshots of one cell beside its owner's work: copied at rest, encoded in a thread.

The ledger's records carry where the last two lie (`pointers_text`). A snapshot that fails costs
nothing but a longer recovery, so it is told and let go.
"""

import asyncio
import logging
from dataclasses import replace

from aiokafka.errors import KafkaError

from services import bus
from services.scheduler.snapshot import Frozen, encode_pieces, freeze
from services.scheduler.state import State, cut_short
from streams import snapshots
from streams.publisher import Publisher
from streams.snapshots import Pointer, Shell

ACK_POLL_S = 0.05

log = logging.getLogger(__name__)


class Snapshotter:
    """Writes a snapshot each time enough entries have come since the last one."""

    def __init__(self, cell: int, publisher: Publisher) -> None:
        self._cell = cell
        self._publisher = publisher
        self._pointers: list[Pointer] = []
        self._slot = 0
        self._last_seq = -1
        self._task: asyncio.Task[None] | None = None

    def adopt(self, pointers: list[Pointer]) -> None:
        """Go on from the snapshots that the ledger names, newest first."""
        self._pointers = pointers[: snapshots.SLOTS]
        if self._pointers:
            self._last_seq = self._pointers[0].seq
            # The newest must stay whole until the next one is.
            self._slot = (self._pointers[0].slot + 1) % snapshots.SLOTS

    def pointers_text(self) -> str:
        """Return where the snapshots lie, newest first, as ledger records carry it."""
        return ";".join(pointer.text() for pointer in self._pointers)

    def stop(self) -> None:
        """Give up the snapshot in hand."""
        if self._task is not None:
            self._task.cancel()

    def take_if_due(self, state: State, shell: Shell) -> None:
        """Begin a snapshot if the policy's number of entries has come since the last one."""
        last_seq = shell.position.next_seq - 1
        running = self._task is not None and not self._task.done()
        # Where a step was cut short is not part of a snapshot.
        due = last_seq - self._last_seq >= state.policy.snapshot_entries and not cut_short(state)
        if running or not due:
            return
        self._last_seq = last_seq
        copied = replace(shell, inputs=dict(shell.inputs), routed=dict(shell.routed))
        self._task = asyncio.create_task(self._take(freeze(state), copied, last_seq))

    async def _take(self, frozen: Frozen, shell: Shell, seq: int) -> None:
        def packed() -> bytes:
            return snapshots.pack(shell, b"".join(encode_pieces(frozen)))

        try:
            body = await asyncio.to_thread(packed)
            # A snapshot stands only for entries whose effects are all out, because recovery from
            # it does not look at the entries before.
            while self._publisher.published_seq < seq:  # noqa: ASYNC110 - acks are counted, not signalled
                await asyncio.sleep(ACK_POLL_S)
            pointer = await snapshots.write(
                self._publisher.producer, self._cell, self._slot, shell, body
            )
        except (bus.BusError, KafkaError) as error:
            log.warning("cell %d: the snapshot of seq %d failed: %s", self._cell, seq, error)
            return
        self._slot = (self._slot + 1) % snapshots.SLOTS
        self._pointers = [pointer, *self._pointers][: snapshots.SLOTS]
