"""`headway signals`: the stream processors."""

import asyncio
import sys

import click

from services.cli._process import broker_of, collect_seldom, log_to_stderr, settings_of_part
from streams.app import SignalsError, run


@click.command(epilog="Example: HEADWAY_KAFKA=127.0.0.1:9092 headway signals")
def command() -> None:
    """Run the stream processors: one part of a deployment.

    Derives the queue depth of each model from the ledger, once a second, and writes it to
    headway.signals. Ends with a non-zero exit code when a processor fails, to be started again.
    """
    log_to_stderr()
    collect_seldom()
    chosen = settings_of_part()
    try:
        asyncio.run(run(broker_of(chosen), state_dir=chosen.state_dir / "signals"))
    except SignalsError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
