"""Cancels a request and finds out what became of that. Reads the ledgers, decides nothing.

The cancel's own place in headway.requests identifies it, so two cancels of one id are told apart.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from schemas import decisions as d
from schemas.codec import CodecError, decode_line, split_record
from schemas.facts import CancelAsked
from schemas.ids import cell_of
from schemas.ledger import Entry
from schemas.topics import LEDGER, REQUESTS
from services import bus
from services.gateway.client import Client
from services.gateway.tail import Tail

Became = Literal["cancelled", "ended", "unknown", "already-asked", "asked", "unanswered"]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a cancel.

    Attributes:
        became: `cancelled`; `ended` (it had an outcome before, or came to another one);
            `unknown`; `already-asked`; `asked` (it runs, and has not left yet); `unanswered`.
        outcome, detail: of the request, when it ended while this was watched.
        cell, seq: the entry that says so, or None.
    """

    id: str
    became: Became
    outcome: str | None = None
    detail: str = ""
    cell: int | None = None
    seq: int | None = None


class _Watch:
    """Reads ledger records and keeps what they say about one cancel."""

    def __init__(self, request_id: str, cells: int) -> None:
        self._id = request_id
        self._needle = request_id.encode()
        self._unknown_to: set[int] = set()
        self._cells = cells
        self._asked_of = cells
        self._source: tuple[str, int, int] | None = None
        self._unread: list[Entry] = []
        self.answer = Cancelled(request_id, "unanswered")
        self.done = asyncio.Event()

    def expect(self, partition: int, offset: int, asked_of: int) -> None:
        """Say where the cancel came to stand, and of how many cells it asks."""
        self._source = (REQUESTS, partition, offset)
        self._asked_of = asked_of
        for entry in self._unread:
            self._read(entry)
        self._unread.clear()

    def on_record(self, record: bus.Record) -> None:
        try:
            lines = split_record(record.value)
            entries = [decode_line(raw).entry for raw in lines if self._needle in raw]
        except CodecError:
            return
        for entry in entries:
            if self._source is None:
                self._unread.append(entry)
            else:
                self._read(entry)

    def _read(self, entry: Entry) -> None:
        if self.done.is_set():
            return
        for decision in entry.decisions:
            if isinstance(decision, d.RequestEnded) and decision.id == self._id:
                became: Became = "cancelled" if decision.outcome == "cancelled" else "ended"
                self._settle(entry, became, decision.outcome, decision.detail)
            elif (
                isinstance(decision, d.LeaveAsked)
                and decision.id == self._id
                and decision.cause == "cancelled"
            ):
                self.answer = Cancelled(self._id, "asked", cell=entry.cell, seq=entry.seq)
            elif isinstance(decision, d.CancelIgnored) and self._is_mine(entry):
                self._ignored(entry, decision)

    def _ignored(self, entry: Entry, decision: d.CancelIgnored) -> None:
        if decision.why == "unknown":
            self._unknown_to.add(entry.cell)
            if len(self._unknown_to) >= self._asked_of:
                self._settle(entry, "unknown")
        elif decision.why == "ended":
            self._settle(entry, "ended")
        else:
            # The earlier cancel's end is this one's too, so it is waited for.
            self.answer = Cancelled(self._id, "already-asked", cell=entry.cell, seq=entry.seq)

    def _is_mine(self, entry: Entry) -> bool:
        fact = entry.fact
        if not isinstance(fact, CancelAsked) or fact.id != self._id:
            return False
        return entry.source == self._source or fact.routed_by is not None

    def _settle(
        self, entry: Entry, became: Became, outcome: str | None = None, detail: str = ""
    ) -> None:
        self.answer = Cancelled(self._id, became, outcome, detail, entry.cell, entry.seq)
        self.done.set()


async def cancel(bootstrap: str, request_id: str, model: str | None, timeout_s: float) -> Cancelled:
    """Ask for a request to end and return what became of it within `timeout_s`.

    Raises:
        bus.BusError: the broker did not take the cancel, or the ledgers are not read any more.
    """
    async with Client(bootstrap) as client:
        watch = _Watch(request_id, client.cells)
        tail = Tail(bootstrap, LEDGER, client.cells, watch.on_record)
        await tail.start()
        answered = asyncio.ensure_future(watch.done.wait())
        try:
            partition, offset = await client.cancel(request_id, model)
            # The cell that reads a cancel without a model asks the others and says nothing itself.
            alone = client.cells == 1 or (
                model is not None and cell_of(model, client.cells) == partition
            )
            watch.expect(partition, offset, 1 if alone else client.cells - 1)
            await tail.wait(answered, timeout_s)
        except TimeoutError:
            return watch.answer
        finally:
            answered.cancel()
            await tail.stop()
        return watch.answer
