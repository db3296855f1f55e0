"""The command line `headway`: one module a command, loaded only when it is called.

A command's module holds `command`, a click command. It may import anything of Headway; nothing may
import it. Errors that a person can act on are raised as `click.ClickException` sentences.
"""

import importlib
import logging
import sys
from collections.abc import Sequence

import click

from services.cli._streams import guard_output

# The clients of the bus write a line for each retry beside the error that they raise, or that they
# get over; what matters of it is told by us.
NOISY = ("aiokafka", "faust", "mode", "kafka", "asyncio")

# In the order in which a newcomer meets them.
COMMANDS: dict[str, str] = {
    "demo": "Run the main job, end to end, and check it.",
    "up": "Start everything embedded and stay.",
    "submit": "Send a request and wait for its outcome.",
    "cancel": "Ask for a request to end now.",
    "batch": "Offline jobs: submit a file, see how far it is, get its results.",
    "explain": "Tell why a request waited, and what was decided.",
    "replay": "Derive every recorded decision again and compare.",
    "sql": "Query the flight recorder.",
    "config": "Show and change the policy: every tunable number.",
    "topics": "List every topic, its schemas, writers and readers.",
    "doctor": "Check what is reachable, lag, gaps, disk and GPUs.",
    "bench": "Measure, and print the figures.",
    "cell": "Run a cell process (one part of a deployment).",
    "worker": "Run a worker for one replica slot (one part of a deployment).",
    "recorder": "Run the recorder (one part of a deployment).",
    "signals": "Run the stream processors (one part of a deployment).",
}


class Commands(click.Group):
    """Finds a command's module by its name, so that `--help` needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of COMMANDS."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command, or return None if there is no such one."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"services.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headway", message="%(prog)s %(version)s")
def _headway() -> None:
    """Headway: an event-sourced scheduler for GPU inference on a message bus.

    Every command that answers takes --json for programs. HEADWAY_KAFKA and HEADWAY_CLICKHOUSE name
    real servers; without them, the ones of a running `headway up` are found by its state directory:
    --state, or HEADWAY_STATE.

    \b
    Exit codes:
      0    what was asked for was done
      1    it could not be done, or came out wrong; a sentence says why
      2    the command line is wrong, and nothing was done
      3    a worker was told that there is no place for it
      130  interrupted (Ctrl-C)
    """  # noqa: D301 - click's mark for lines that it shall not fill is the character itself


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the console script's entry point."""
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    guard_output()
    try:
        _headway.main(args=None if arguments is None else list(arguments), prog_name="headway")
    finally:
        # Here, where it can still be told that the output cannot be written.
        _flush()


def _flush() -> None:
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        return
    try:
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
