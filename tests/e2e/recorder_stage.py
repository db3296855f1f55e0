"""What the recorder's broker tests share: topics, a running recorder, a store that fails."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from schemas.topics import LEDGER
from services import bus
from services.recorder.chdb_server import HOST, ChdbServer
from services.recorder.engine import Engine
from services.recorder.limits import RecorderLimits
from services.recorder.service import Recorder
from services.recorder.store import ServerStore
from services.settings import CLICKHOUSE, KAFKA, STATE, Settings, load
from tests.e2e.signals_ledger import WrittenLedger

CELLS = 2
WAIT_S_MAX = 60.0
QUICK = RecorderLimits(batch_ms=50, stall_s=1.0, retry_ms_first=50, retry_ms_max=500)


async def new_topics(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        names = [name for name in await admin.list_topics() if name.startswith("headway.")]
        await admin.delete_topics(names)
    finally:
        await admin.close()
    async with asyncio.timeout(WAIT_S_MAX):
        while await bus.partition_count(bootstrap, LEDGER):  # noqa: ASYNC110 - the broker's doing
            await asyncio.sleep(0.1)
    await bus.ensure_topics(bootstrap, CELLS)


def chosen(kafka: str, state: Path, clickhouse: str | None = None) -> Settings:
    environ = {KAFKA: kafka, STATE: str(state), "HOME": str(state)}
    if clickhouse is not None:
        environ[CLICKHOUSE] = clickhouse
    return load(environ=environ)


class Running:
    """A recorder in this process."""

    def __init__(self, recorder: Recorder, url: str) -> None:
        self.recorder = recorder
        self.url = url
        self.store = ServerStore(url)

    async def ask(self, sql: str) -> list[list[Any]]:
        return await asyncio.to_thread(self.store.query, sql)

    async def one(self, sql: str) -> int:
        return int((await self.ask(sql))[0][0])

    async def until(self, sql: str, wanted: int) -> None:
        """Wait until the query's one number is as wanted; more than that will never do."""
        async with asyncio.timeout(WAIT_S_MAX):
            while (found := await self.one(sql)) != wanted:
                assert found < wanted, f"{sql}: {found}, and {wanted} is wanted"
                await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def recording(settings: Settings) -> AsyncGenerator[Running, None]:
    """Run a recorder in this process until the block ends."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    recorder = Recorder(settings, limits=QUICK, ready=url.set_result)
    task = asyncio.create_task(recorder.run())
    await asyncio.wait({task, url}, timeout=WAIT_S_MAX, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    running = Running(recorder, await url)
    try:
        yield running
    finally:
        running.store.close()
        recorder.stop()
        await asyncio.wait_for(task, WAIT_S_MAX)


async def assert_whole(running: Running, ledgers: list[WrittenLedger]) -> None:
    """Every entry is there once, in the storage too, and the audit finds nothing."""
    found = await running.ask(
        "SELECT cell, count(), min(seq), max(seq), uniqExact(seq) FROM ledger FINAL"
        " GROUP BY cell ORDER BY cell"
    )
    counts = {ledger.cell: ledger.last_seq + 1 for ledger in ledgers}
    assert found == [[cell, count, 0, count - 1, count] for cell, count in counts.items()]
    # In these ledgers all requests stand at one source offset, and an id may come back.
    audit = await running.ask(
        "SELECT check, problems FROM audit WHERE problems > 0 AND check != 'double outcomes'"
    )
    assert audit == []
    twice = "SELECT count() - uniqExact(cell, seq, index) FROM decisions"
    assert await running.one(twice) == 0


class CutProxy:
    """Passes bytes to a ClickHouse; when told, cuts the connection instead of passing a reply."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self.cut_next_inserts = 0
        self.cuts = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(HOST, self._target_port)
        cut = False

        async def there() -> None:
            nonlocal cut
            while data := await reader.read(65536):
                if b"INSERT+INTO" in data or b"INSERT INTO" in data:
                    cut = self.cut_next_inserts > 0
                    self.cut_next_inserts -= cut
                to_writer.write(data)
                await to_writer.drain()
            to_writer.close()

        sending = asyncio.create_task(there())
        with contextlib.suppress(ConnectionError):
            while data := await to_reader.read(65536):
                if cut:
                    self.cuts += 1
                    break
                writer.write(data)
                await writer.drain()
        sending.cancel()
        to_writer.close()
        writer.close()


@contextlib.asynccontextmanager
async def clickhouse(directory: Path, port: int = 0) -> AsyncGenerator[ChdbServer, None]:
    """Run a ClickHouse that the recorder takes for a server."""
    engine = Engine(directory)
    server = ChdbServer(engine)
    await server.start(port)
    try:
        yield server
    finally:
        await server.stop()
        engine.close()
