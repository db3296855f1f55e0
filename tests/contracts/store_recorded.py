"""A recorded ledger, and a store that a sink fills: what the tests of the tables share."""

import asyncio
from pathlib import Path
from typing import Any

from schemas.codec import decode_line
from schemas.decisions import RequestEnded
from schemas.topics import DEAD_LETTER, LEDGER, RESULTS, SIGNALS, TELEMETRY
from services.recorder.engine import Engine
from services.recorder.limits import RecorderLimits
from services.recorder.migrate import migrate
from services.recorder.sink import Batch, Place, Sink
from services.recorder.store import EmbeddedStore

ROOT = Path(__file__).parents[2]
CELL = 2
LINES = (ROOT / "tests/golden/scheduler-ledger.ndjson").read_bytes().splitlines()
ENTRIES = [decode_line(raw).entry for raw in LINES]
ENDS = [
    decision
    for item in ENTRIES
    for decision in item.decisions
    if isinstance(decision, RequestEnded)
]
PARTITIONS = {LEDGER: 3, RESULTS: 2, TELEMETRY: 2, SIGNALS: 1, DEAD_LETTER: 2}
LIMITS = RecorderLimits(retry_ms_first=1, retry_ms_max=2)
LINES_A_RECORD = 10


class Recorded:
    """A store with tables, and a sink over it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = EmbeddedStore(engine)
        migrate(self.store)
        self.dead: list[tuple[Place, str]] = []
        self.sink = Sink(self.store, LIMITS, self._send)

    async def _send(self, place: Place, value: bytes | None, reason: str) -> None:
        del value
        self.dead.append((place, reason))

    async def resume(self) -> None:
        await self.sink.resume(PARTITIONS)

    async def record(self, records: list[tuple[Place, bytes | None]]) -> None:
        batch = Batch()
        for place, value in records:
            self.sink.add(batch, place, 1_764_500_000_000, value)
        assert await self.sink.store(batch, asyncio.Event())

    def ask(self, sql: str) -> list[list[Any]]:
        return self.store.query(sql)

    def one(self, sql: str) -> Any:
        return self.ask(sql)[0][0]


def ledger_records() -> list[tuple[Place, bytes | None]]:
    return [
        ((LEDGER, CELL, at // LINES_A_RECORD), b"\n".join(LINES[at : at + LINES_A_RECORD]))
        for at in range(0, len(LINES), LINES_A_RECORD)
    ]


def example(name: str) -> bytes:
    return (ROOT / f"schemas/examples/{name}.json").read_bytes().strip()
