"""The Faust application: how it is configured, what runs in it, and how it starts and ends.

The one file that imports Faust, and the one place where its loose types are narrowed. May touch
the process's signals and the log levels of Faust's own parts; knows nothing of what is folded.

Why Faust carries so little: an agent that raises still acks, commits can pass an event that is in
flight, and tables rest on commits. So the ledger's topic is read without acks (nothing is ever
committed), there are no tables, and what Faust delivers is checked against the log (see
streams.signals). Several such processes share the ledger's partitions by Faust's consumer group;
one that comes or goes builds the depth of the cells it was given from snapshot and ledger.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, cast

import faust
from faust.transport.drivers import aiokafka as driver

from schemas.topics import LEDGER
from services import bus
from streams.signals import Depths, SignalsError

APP_ID = "headway-signals"
TELL_INTERVAL_S = 1.0
# How often it is looked whether Faust has crashed by itself.
HEALTH_INTERVAL_S = 0.5
# Within this, Faust must have started or stopped; it has calls that can hang without a broker.
START_S_MAX = 30.0
STOP_S_MAX = 8.0
# After a failure there is nothing to save, and the supervisor waits for the end.
FAILED_STOP_S_MAX = 2.0
# The exit code of a process whose Faust hangs at its end (sysexits.h: a temporary failure).
EXIT_HUNG = 75
# A broker that is away at the start is asked again after this pause.
BROKER_RETRY_S = 1.0
HEARTBEAT_S = bus.SESSION_MS / 6000
# The broker answers a fetch once so much is there, or after so long: a depth is told once a second,
# and to take the ledger record by record costs broker and signals a fetch for each.
GATHER_BYTES = 1024 * 1024
GATHER_MS = 400
# What Faust and its parts say below these is of no use to an operator and comes in floods: the
# client tells each failed attempt to connect; we tell once that the broker is away.
LOG_LEVELS = {"faust": logging.ERROR, "mode": logging.ERROR, "aiokafka": logging.CRITICAL}

log = logging.getLogger(__name__)


class Message(Protocol):
    """What we read of Faust's message."""

    partition: int
    offset: int


class Event(Protocol):
    """What we read of Faust's event; `value` is the record's raw bytes, or None."""

    value: bytes | None
    message: Message


class Stream(Protocol):
    """What we use of Faust's stream."""

    def events(self) -> AsyncIterator[Event]:
        """Yield events as they come."""
        ...


class FaustApp(Protocol):
    """What we use of faust.App. Its own type leaves half of these untyped or unbound."""

    crashed: bool
    crash_reason: BaseException | None
    on_partitions_assigned: Any

    def topic(self, *topics: str, **settings: Any) -> Any:
        """Describe a topic."""
        ...

    def agent(self, channel: Any, **settings: Any) -> Callable[[Any], Any]:
        """Register an agent."""
        ...

    def timer(self, interval: float) -> Callable[[Any], Any]:
        """Register a timer."""
        ...

    def start(self) -> Awaitable[None]:
        """Start everything; returns once it runs."""
        ...

    def stop(self) -> Awaitable[None]:
        """Stop everything."""
        ...


class _GatheringThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no settings for these, and the client reads them when it starts.
        for name, value in (("_fetch_min_bytes", GATHER_BYTES), ("_fetch_max_wait_ms", GATHER_MS)):
            assert hasattr(consumer, name), f"aiokafka's consumer has no {name} any more"  # noqa: S101 - of a fixed version
            setattr(consumer, name, value)
        return consumer


class _GatheringConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _GatheringThread(self, loop=self.loop, beacon=self.beacon)


class _GatheringTransport(driver.Transport):
    """Faust's own, which lets the broker gather what it gives."""

    Consumer = _GatheringConsumer


def make_app(bootstrap: str, state_dir: Path) -> FaustApp:
    """Return a Faust app with nothing in it yet.

    Args:
        bootstrap: of the broker, as host:port, several separated by commas.
        state_dir: where Faust may keep files; with no tables it keeps none.
    """
    brokers = ";".join(f"kafka://{address.strip()}" for address in bootstrap.split(","))
    app = faust.App(
        APP_ID,
        broker=brokers,
        store="memory://",
        datadir=str(state_dir),
        autodiscover=False,
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,  # topics are created by services.bus, with their settings
        # Nothing is committed, so each start begins at the end; what was before is read by us.
        consumer_auto_offset_reset="latest",
        consumer_max_fetch_size=bus.REQUEST_BYTES_MAX,
        broker_session_timeout=bus.SESSION_MS / 1000,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_request_timeout=bus.CALL_S_MAX,
        stream_wait_empty=False,  # without acks there is nothing to wait for
    )
    app.transport = _GatheringTransport(app.conf.broker_consumer, app)
    return cast("FaustApp", app)


def add_depth(app: FaustApp, depths: Depths) -> None:
    """Add the depth processor: an agent over the ledger, and a timer that tells."""
    ledger = app.topic(
        LEDGER,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        acks=False,
    )

    async def fold_depth(stream: Stream) -> None:
        try:
            async for event in stream.events():
                message = event.message
                await depths.take(message.partition, message.offset, event.value)
        except Exception as error:
            # Faust would begin the agent again without the event, and say no more of it.
            depths.fail(error)
            raise

    async def tell_depth() -> None:
        try:
            await depths.tell()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must end the process
            depths.fail(error)

    async def assigned(_app: Any, partitions: Any, **_: Any) -> None:
        depths.hold(item.partition for item in partitions if item.topic == LEDGER)

    app.agent(ledger, name="fold_depth")(fold_depth)
    app.timer(TELL_INTERVAL_S)(tell_depth)
    app.on_partitions_assigned.connect(assigned, weak=False)


async def run(
    bootstrap: str, *, state_dir: Path = Path(), stop: asyncio.Event | None = None
) -> None:
    """Run the signal processors until `stop` is set, or on SIGTERM or SIGINT where it is None.

    A broker that is away at the start is waited for. A processor that raises, a stream that is
    dead and a broker that stays away end it: the caller ends the process with a non-zero exit
    code, and its supervisor begins it again.

    Where it has the process to itself (`stop` is None) and Faust hangs at the end, it ends the
    process with exit code 75.

    Raises:
        SignalsError: it cannot go on; the sentence says why.
    """
    quieten()
    with _stopping(stop) as stopping:
        cells = await _cells(bootstrap, stopping)
        if stopping.is_set():
            return
        depths = Depths(bootstrap, cells)
        app = make_app(bootstrap, state_dir)
        add_depth(app, depths)
        stop_s_max = FAILED_STOP_S_MAX
        try:
            await depths.start()
            await asyncio.wait_for(_await(app.start()), START_S_MAX)
            log.info("signals: depth of %d cells is told once a second", cells)
            await _until_over(app, depths, stopping)
            stop_s_max = STOP_S_MAX
        except (bus.BusError, TimeoutError) as error:
            raise SignalsError(f"the signal processors could not start: {error}") from error
        finally:
            stopped, _ = await asyncio.gather(_stop(app, stop_s_max), depths.stop())
            if not stopped and stop is None:
                # Faust's consumer has a thread that is waited for at the process's end: one that
                # hangs would keep a dead processor alive, in silence.
                logging.shutdown()
                os._exit(EXIT_HUNG)


def quieten() -> None:
    """Keep the logs of Faust and its parts to what an operator needs."""
    for name, level in LOG_LEVELS.items():
        logging.getLogger(name).setLevel(level)


async def _cells(bootstrap: str, stopping: asyncio.Event) -> int:
    """Return the number of cells of the deployment, once the broker has its ledger topic."""
    told = False
    while not stopping.is_set():
        try:
            # One partition more than there are cells: the planner's.
            partitions = await bus.partition_count(bootstrap, LEDGER)
        except bus.BusError as error:
            problem = str(error)
        else:
            if partitions > 1:
                return partitions - 1
            problem = f"the topic {LEDGER} does not exist yet: no cell has started"
        if not told:
            log.warning("the signal processors wait: %s", problem)
            told = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), BROKER_RETRY_S)
    return 0


async def _until_over(app: FaustApp, depths: Depths, stopping: asyncio.Event) -> None:
    asked = asyncio.create_task(stopping.wait())
    try:
        while not asked.done():
            await asyncio.wait(
                {asked, depths.failed},
                timeout=HEALTH_INTERVAL_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            reason = depths.failed.result() if depths.failed.done() else None
            if reason is None and app.crashed:
                reason = app.crash_reason or RuntimeError("Faust gave no reason")
            if reason is not None:
                raise _told(reason)
    finally:
        asked.cancel()


def _told(reason: BaseException) -> SignalsError:
    """Say why the process ends: in one line for what is known, with its trace for a defect."""
    if isinstance(reason, SignalsError):
        log.error("the process ends: %s", reason)
        return reason
    log.error("a signal processor failed, so the process ends", exc_info=reason)
    error = SignalsError(f"a signal processor failed: {reason!r}")
    error.__cause__ = reason
    return error


async def _stop(app: FaustApp, seconds: float) -> bool:
    """Stop Faust; return whether it did within `seconds`."""
    try:
        await asyncio.wait_for(_await(app.stop()), seconds)
    except TimeoutError:
        log.warning("Faust did not stop within %g s and is left behind", seconds)
        return False
    except Exception as error:  # noqa: BLE001 - the reason for the end is told already
        log.warning("Faust did not stop in an orderly way: %r", error)
    return True


async def _await(call: Awaitable[None]) -> None:
    await call


@contextlib.contextmanager
def _stopping(given: asyncio.Event | None) -> Any:
    """Yield the event that ends the run; set by SIGTERM and SIGINT when none is given."""
    if given is not None:
        yield given
        return
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopping.set)
    try:
        yield stopping
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
