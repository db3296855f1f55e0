"""`headway cell`: a cell process, which shares the cells with others of its group."""

import sys

import click

from schemas.topics import CELLS_DEFAULT
from services.cli._process import (
    broker_of,
    collect_seldom,
    log_to_stderr,
    run_until_stopped,
    settings_of_part,
)
from streams.cells import GC_THRESHOLDS, Cells
from streams.counting import counter_of

# Snapshots are encoded in a thread; a short interval keeps the owner's loop responsive meanwhile.
SWITCH_INTERVAL_S = 0.001


@click.command(epilog="Example: HEADWAY_KAFKA=127.0.0.1:9092 headway cell")
@click.option(
    "--cells",
    type=click.IntRange(1, 1024),
    default=CELLS_DEFAULT,
    show_default=True,
    help="Cells of a new deployment; one that exists keeps its number.",
)
def command(*, cells: int) -> None:
    """Run a cell process: one part of a deployment.

    Creates the topics that are missing, takes its share of the cells, and hands them on when it
    ends. Several such processes share the cells; when one is lost the others take over.
    """
    log_to_stderr()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    collect_seldom(GC_THRESHOLDS)
    process = Cells(broker_of(settings_of_part()), counter_of)
    run_until_stopped(process.run(cells), process.stop)
