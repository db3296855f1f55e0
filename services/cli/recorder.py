"""`headway recorder`: the recorder, with the embedded ClickHouse where no server is named."""

import click

from services.cli._process import (
    broker_of,
    collect_seldom,
    log_to_stderr,
    run_until_stopped,
    settings_of_part,
)
from services.recorder.chdb_server import PortTakenError
from services.recorder.engine import EngineInUseError
from services.recorder.migrate import MigrationError
from services.recorder.service import Recorder


@click.command(epilog="Example: HEADWAY_KAFKA=127.0.0.1:9092 headway recorder --port 8123")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Of the embedded ClickHouse; 0 takes a free one, which is told when it is ready.",
)
@click.option(
    "--state", "state_dir", metavar="DIR", help="Where the embedded ClickHouse keeps data."
)
def command(*, port: int, state_dir: str | None) -> None:
    """Run the recorder: one part of a deployment.

    Stores the ledger, results, telemetry, signals and dead letters in ClickHouse: in the server
    that HEADWAY_CLICKHOUSE names, or else in one in this process, which answers on 127.0.0.1.
    """
    log_to_stderr()
    collect_seldom()
    chosen = settings_of_part(state_dir)
    broker_of(chosen)
    recorder = Recorder(chosen, port=port, ready=_say_ready)
    try:
        run_until_stopped(recorder.run(), recorder.stop)
    except (EngineInUseError, MigrationError, PortTakenError) as error:
        raise click.ClickException(str(error)) from error


def _say_ready(url: str) -> None:
    click.echo(f"ready {url.rpartition('@')[2]}")
