"""The recorder's process: the embedded ClickHouse where no server is named, and the reading.

Never in the way of scheduling: nothing waits for it, and it waits for whatever is away.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import psutil

from services.recorder.chdb_server import HOST, ChdbServer
from services.recorder.engine import Engine
from services.recorder.limits import RecorderLimits
from services.recorder.migrate import migrate
from services.recorder.reading import Reading
from services.recorder.store import EmbeddedStore, ServerStore, Store, StoreError
from services.settings import Settings

log = logging.getLogger("headway.recorder")

# Within the state directory.
STORE_DIRECTORY = "clickhouse"


class RecorderError(RuntimeError):
    """The recorder cannot start; the sentence says what to do."""


class Recorder:
    """One recorder.

    Args:
        settings: where the brokers are, and ClickHouse or the state directory.
        port: of the embedded ClickHouse, or 0 for a free one.
        limits: batches, pauses and memory.
        ready: is called with the URL of ClickHouse once it answers and has its tables.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        port: int = 0,
        limits: RecorderLimits | None = None,
        ready: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._port = port
        self._limits = limits or RecorderLimits()
        self._ready = ready
        self._stop = asyncio.Event()
        self._reading: Reading | None = None

    def stop(self) -> None:
        """Ask it to store what it has read and end."""
        self._stop.set()
        if self._reading is not None:
            self._reading.stop()

    async def run(self) -> None:
        """Record until `stop`.

        Raises:
            RecorderError: no broker is named.
            EngineInUseError, PortTakenError: the embedded ClickHouse cannot start.
            MigrationError: the store's tables are another version's.
        """
        if self._settings.kafka is None:
            raise RecorderError("the recorder needs a Kafka: name one with HEADWAY_KAFKA=host:port")
        async with AsyncExitStack() as stack:
            store, serve = await self._open_store(stack)
            await self._migrate(store)
            if self._stop.is_set():
                return
            self._reading = Reading(self._settings.kafka, store, self._limits)
            url = await serve()
            log.info("the recorder is ready; ClickHouse answers at %s", url.rpartition("@")[2])
            if self._ready is not None:
                self._ready(url)
            await self._reading.run()
            log.info("the recorder has stored what it read and stops")

    async def _open_store(self, stack: AsyncExitStack) -> tuple[Store, Callable[[], Any]]:
        """Return the store and what makes it reachable for others, which gives its URL."""
        named = self._settings.clickhouse
        if named is not None:
            remote = ServerStore(named)
            stack.callback(remote.close)

            async def known() -> str:
                return named

            return remote, known
        directory = self._settings.state_dir / STORE_DIRECTORY
        engine = await asyncio.to_thread(Engine, directory, self._limits)
        stack.callback(engine.close)
        server = ChdbServer(engine, self.status)

        async def serve() -> str:
            port = await server.start(self._port)
            stack.push_async_callback(server.stop)
            return f"http://{HOST}:{port}"

        return EmbeddedStore(engine), serve

    async def _migrate(self, store: Store) -> None:
        """Bring the tables up to date, however long the store is away."""
        pause_ms = self._limits.retry_ms_first
        while not self._stop.is_set():
            try:
                applied = await asyncio.to_thread(migrate, store)
            except StoreError as error:
                log.warning("the store is in trouble, trying on: %s", error)
            else:
                log.info("applied %s", ", ".join(applied) or "no migration: the tables are there")
                return
            try:
                await asyncio.wait_for(self._stop.wait(), pause_ms / 1000)
            except TimeoutError:
                pause_ms = min(2 * pause_ms, self._limits.retry_ms_max)

    async def status(self) -> dict[str, Any]:
        """Return what /headway/status tells; None stands for what is not known."""
        reading = self._reading
        if reading is None:
            return {"reading": False, "partitions": []}
        partitions = reading.partitions()
        lags = [found.lag for found in partitions]
        known = [lag for lag in lags if lag is not None]
        return {
            "reading": reading.reading.is_set() and reading.trouble is None,
            "lag": sum(known) if lags and len(known) == len(lags) else None,
            "rows_stored": reading.sink.rows_stored,
            "dead_letters": reading.sink.dead_letters,
            "void_entries": reading.sink.void_entries,
            "last_error": reading.last_error(),
            "resident_bytes": psutil.Process(os.getpid()).memory_info().rss,
            "partitions": [asdict(found) for found in partitions],
        }


async def run(
    settings: Settings,
    *,
    port: int = 0,
    limits: RecorderLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Record until cancelled; see Recorder."""
    await Recorder(settings, port=port, limits=limits, ready=ready).run()
