"""`headway up`: everything embedded, on this machine, until it is stopped."""

import asyncio
import json
import signal
from dataclasses import asdict, replace

import click
from rich.console import Console
from rich.table import Table

from schemas.profile import MINILM_L6, SMOLLM2_135M
from services import settings as where
from services.bus import BusError
from services.cli import _endpoints
from services.cli._stack import Beside, Stack, StackError, WorkerPlan
from services.cli._worker_oneshot import MINILM, SIMULATED
from services.embedded.broker import BrokerError
from services.embedded.jars import JarsError
from services.embedded.java import JavaError
from services.embedded.ports import PortsError
from services.embedded.processes import ChildError
from services.embedded.state import StateError

START_ERRORS = (
    BusError,
    StackError,
    BrokerError,
    JarsError,
    JavaError,
    PortsError,
    ChildError,
    StateError,
    where.SettingsError,
)


@click.command(
    epilog="Example: headway up --state ./headway-state, then in another terminal: "
    "headway submit --state ./headway-state 'What is a queue?'",
)
@click.option(
    "--state",
    metavar="DIR",
    help="Directory for the data (HEADWAY_STATE); by default one of this user.",
)
@click.option(
    "--workers",
    type=click.IntRange(0, SMOLLM2_135M.work_slots),
    default=1,
    show_default=True,
    help="How many replicas of SmolLM2 to run.",
)
@click.option(
    "--engine",
    type=click.Choice(["torch", "simulated"]),
    default="torch",
    show_default=True,
    help="What runs the model.",
)
@click.option(
    "--embeddings",
    is_flag=True,
    help="Serve the sentence encoder all-MiniLM-L6-v2 too, on the device of the first worker.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the endpoints as JSON once it serves.")
def command(
    *, state: str | None, workers: int, engine: str, embeddings: bool, as_json: bool
) -> None:
    """Start everything embedded and stay until Ctrl-C.

    Starts a Kafka broker, the recorder, a cell, the stream processors and workers for
    SmolLM2-135M. HEADWAY_KAFKA and HEADWAY_CLICKHOUSE name real servers to use instead. A part that
    ends is started again, and the reason is told. The broker's address is printed, for producers;
    it stays the same as long as the state directory does. HEADWAY_JAVA names the Java to run the
    broker with, HEADWAY_CACHE a directory for the jars that are fetched once.
    """
    console = Console(stderr=True)
    try:
        settings = where.load(state)
        if settings.kafka is not None:
            _endpoints.check_answers(settings.kafka, where.KAFKA)
        stack = Stack(
            settings,
            profiles=[SMOLLM2_135M, *([MINILM_L6] if embeddings else [])],
            workers=_workers(workers, engine, embeddings=embeddings),
            tell=lambda sentence: console.print(f"  {sentence}", highlight=False),
        )
        asyncio.run(_stay(stack, console, as_json=as_json))
    except START_ERRORS as error:
        raise click.ClickException(str(error)) from error


def _workers(count: int, engine: str, *, embeddings: bool) -> dict[str, list[WorkerPlan]]:
    """Return the workers to start, by model; the encoder shares the first one's device."""
    encoder = MINILM if engine == "torch" else SIMULATED
    plans = [WorkerPlan(slot, ("--engine", engine)) for slot in range(count)]
    workers = {SMOLLM2_135M.model: plans}
    if embeddings and plans:
        shared = (Beside(MINILM_L6.model, 0, f"engine={encoder}"),)
        plans[0] = replace(plans[0], beside=shared)
    elif embeddings:
        workers[MINILM_L6.model] = [WorkerPlan(0, ("--engine", encoder))]
    return workers


async def _stay(stack: Stack, console: Console, *, as_json: bool) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    starting = asyncio.create_task(stack.start())
    try:
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _show(stack, console, as_json=as_json)
            await stopping.wait()
        console.print("stopping", highlight=False)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await stack.stop()


def _show(stack: Stack, console: Console, *, as_json: bool) -> None:
    if as_json:
        told = {
            "kafka": stack.kafka,
            "clickhouse": stack.clickhouse,
            "state": str(stack.settings.state_dir),
            "processes": [asdict(status) for status in stack.supervisor.status()],
        }
        click.echo(json.dumps(told))
        return
    table = Table("part", "process", "log, in the state directory", title="Headway serves")
    for status in stack.supervisor.status():
        folder = "kafka" if status.name == "broker" else "logs"
        table.add_row(status.name, str(status.pid), f"{folder}/{status.name}.log")
    console.print(table)
    for name, what in (
        ("Kafka", stack.kafka),
        ("ClickHouse", stack.clickhouse),
        ("State", stack.settings.state_dir),
    ):
        console.print(f"{name:<11} {what}", highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops everything.", highlight=False)
