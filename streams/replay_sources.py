"""Where replay finds ledgers: Kafka, the recorder's store, or a file; fed to a Verifier each.

Reads only. Memory is bounded by a batch, whatever the ledger's length. A file holds one ledger
line a line (NDJSON, .gz too), of one cell or of several, each cell's in its order.
"""

import asyncio
import gzip
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.topics import LEDGER, REQUESTS, SNAPSHOTS
from services import bus
from services.scheduler.state import State
from streams.recovery import best_snapshot, last_marks
from streams.replay import Report, Verifier
from streams.snapshots import Shell

# Told how many records or lines of a cell are done, and of how many.
OnProgress = Callable[[int, int, int], None]

_STORE_BATCH_LINES = 20_000
_YIELD_RECORDS = 200
_CELL = re.compile(rb'^\{"kind":"[^"]*","cell":(\d+),')


class SourceError(RuntimeError):
    """A ledger cannot be read from there; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one cell's replay found, and from where it began when not at the beginning."""

    report: Report
    began: str | None = None


async def cells_of(bootstrap: str) -> int:
    """Return how many cells the deployment has.

    Raises:
        SourceError: Headway's topics are not there. bus.BusError: the broker is away.
    """
    cells = await bus.partition_count(bootstrap, REQUESTS)
    if not cells:
        raise SourceError(f"there is no topic {REQUESTS} on {bootstrap}: start Headway first")
    return cells


async def records_of(bootstrap: str, cell: int) -> AsyncIterator[bytes]:
    """Yield every record of a cell's ledger, from the log's start to its present end.

    Raises:
        bus.BusError: the broker did not answer.
    """
    ledger = TopicPartition(LEDGER, cell)
    async with bus.consuming(bootstrap, [ledger]) as consumer:
        start, end = await _span(consumer, ledger)
        async for record in bus.read_range(consumer, ledger, start, end):
            yield record.value or b""


async def replay_kafka(bootstrap: str, cell: int, on_progress: OnProgress) -> Replayed:
    """Verify a cell's ledger as Kafka holds it, up to its end at this moment.

    When retention has taken the ledger's beginning, the oldest snapshot that still joins the log
    takes its place.

    Raises:
        SourceError: the beginning is gone and no snapshot is good.
        bus.BusError: the broker did not answer.
    """
    ledger = TopicPartition(LEDGER, cell)
    async with bus.consuming(bootstrap, [ledger, TopicPartition(SNAPSHOTS, cell)]) as consumer:
        log_start, end = await _span(consumer, ledger)
        start, began = log_start, None
        verifier = Verifier(cell)
        if log_start > 0:
            shell, state = await _snapshot(consumer, ledger, log_start, end)
            start = shell.ledger_offset
            verifier = Verifier(cell, shell.position, state)
            began = (
                f"the ledger of cell {cell} begins at offset {log_start}: verified from the"
                f" snapshot of seq {shell.position.next_seq - 1} on"
            )
        done = 0
        async for record in bus.read_range(consumer, ledger, start, end):
            verifier.feed(record.value)
            done += 1
            if done % _YIELD_RECORDS == 0:
                on_progress(cell, record.offset + 1 - start, end - start)
                await asyncio.sleep(0)
        on_progress(cell, end - start, end - start)
        return Replayed(verifier.report(), began)


def replay_store(client: Any, cell: int, on_progress: OnProgress) -> Replayed:
    """Verify a cell's ledger as the recorder's store holds it, in batches.

    Args:
        client: a clickhouse_connect client.
        cell: whose ledger.
        on_progress: told lines.

    Raises:
        whatever the client raises when the store does not answer.
    """
    verifier = Verifier(cell)
    total = store_lines(client, cell)
    done = 0
    for batch in _store_batches(client, cell):
        for raw in batch:
            verifier.feed(raw)
        done += len(batch)
        on_progress(cell, done, total)
    return Replayed(verifier.report())


def store_lines(client: Any, cell: int) -> int:
    """Return how many ledger lines of a cell the store holds."""
    rows = client.query(
        "SELECT count() FROM ledger FINAL WHERE cell = {cell:Int32}", parameters={"cell": cell}
    ).result_rows
    return int(rows[0][0])


def store_cells(client: Any) -> list[int]:
    """Return the cells of which the store holds ledger lines."""
    rows = client.query("SELECT DISTINCT cell FROM ledger ORDER BY cell").result_rows
    return [int(row[0]) for row in rows]


def _store_batches(client: Any, cell: int) -> Iterator[list[bytes]]:
    """Yield a cell's raw lines in the order of the log."""
    offset, line = 0, 0
    while True:
        rows = client.query(
            "SELECT offset, line, raw FROM ledger FINAL WHERE cell = {cell:Int32}"
            " AND (offset, line) >= ({offset:Int64}, {line:Int32})"
            " ORDER BY offset, line LIMIT {most:UInt32}",
            parameters={"cell": cell, "offset": offset, "line": line, "most": _STORE_BATCH_LINES},
        ).result_rows
        if not rows:
            return
        yield [as_bytes(row[2]) for row in rows]
        offset, line = rows[-1][0], rows[-1][1] + 1


def replay_file(path: Path, on_progress: OnProgress, only: int | None = None) -> list[Replayed]:
    """Verify the ledgers in a file; `only` one cell's when given.

    Raises:
        SourceError: the file cannot be read, or a line is no ledger line.
    """
    verifiers: dict[int, Verifier] = {}
    counts: dict[int, int] = {}
    for number, raw in enumerate(_file_lines(path), start=1):
        found = _CELL.match(raw)
        if found is None:
            raise SourceError(f"line {number} of {path} is not a ledger line: {raw[:80]!r}")
        cell = int(found[1])
        if only is not None and cell != only:
            continue
        verifier = verifiers.get(cell)
        if verifier is None:
            verifier = verifiers[cell] = Verifier(cell)
        verifier.feed(raw)
        counts[cell] = counts.get(cell, 0) + 1
        if counts[cell] % _YIELD_RECORDS == 0:
            on_progress(cell, counts[cell], 0)
    if not verifiers:
        raise SourceError(f"{path} holds no ledger line" + _of_cell(only))
    for cell, count in counts.items():
        on_progress(cell, count, count)
    return [Replayed(verifiers[cell].report()) for cell in sorted(verifiers)]


async def export(bootstrap: str, cells: Iterable[int], path: Path) -> int:
    """Write every ledger line of the cells to `path` (gzipped if it ends in .gz); return how many.

    Raises:
        SourceError: the file cannot be written. bus.BusError: the broker did not answer.
    """
    lines = 0
    try:
        with _opened(path, "wb") as file:
            for cell in cells:
                async for value in records_of(bootstrap, cell):
                    file.write(value + b"\n")
                    lines += value.count(b"\n") + 1
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror or error}") from error
    return lines


def _file_lines(path: Path) -> Iterator[bytes]:
    try:
        with _opened(path, "rb") as file:
            for raw in file:
                if raw.strip():
                    yield raw.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error) as error:
        # Of an error of the system, its own words name the file again.
        why = getattr(error, "strerror", None) or error
        raise SourceError(f"{path} cannot be read: {why}") from error


def _opened(path: Path, mode: str) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, mode))
    return path.open(mode)  # pyright: ignore[reportReturnType] - binary in both modes


def _of_cell(only: int | None) -> str:
    return "" if only is None else f" of cell {only}"


def as_bytes(value: Any) -> bytes:
    """Return a ledger line as the store gave it: its client gives text where it can."""
    return value if isinstance(value, bytes) else str(value).encode()


async def _span(consumer: AIOKafkaConsumer, partition: TopicPartition) -> tuple[int, int]:
    starts = await bus.bounded(consumer.beginning_offsets([partition]), "tell a start offset")
    ends = await bus.bounded(consumer.end_offsets([partition]), "tell an end offset")
    return starts[partition], ends[partition]


async def _snapshot(
    consumer: AIOKafkaConsumer, ledger: TopicPartition, log_start: int, end: int
) -> tuple[Shell, State]:
    """Return the oldest good snapshot that the log goes on from."""
    cell = ledger.partition
    marks = await last_marks(consumer, ledger, log_start, end)
    found = await best_snapshot(consumer, cell, reversed(marks.pointers), log_start)
    if found is not None:
        shell, state, _ = found
        return shell, state
    raise SourceError(
        f"the ledger of cell {cell} begins at offset {log_start} and no snapshot of it can be read:"
        " nothing is left to derive it from; try --from clickhouse"
    )
