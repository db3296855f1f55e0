"""How the long-running commands run: log lines for machines, and an orderly end on SIGTERM."""

import asyncio
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import click

from services import settings


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how grave, who, what, and the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def log_to_stderr() -> None:
    """Send our log lines to standard error; `main` has quieted the others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def collect_seldom(thresholds: tuple[int, int, int] = (10_000, 20, 100)) -> None:
    """Let the garbage collector look seldom, and never at what is there by now.

    A part makes objects by the thousand in a second, and nearly all of them go by their count: by
    the collector's own thresholds a tenth of the recorder's time under load was its looking. The
    young generations, where the client's cycles die, are looked at all the same; everything that is
    left once in 20 million objects.
    """
    gc.freeze()
    gc.set_threshold(*thresholds)


def settings_of_part(state_dir: str | None = None) -> settings.Settings:
    """Return the settings of a part of a deployment.

    Raises:
        click.ClickException: a variable holds something that cannot be used.
    """
    try:
        return settings.load(state_dir)
    except settings.SettingsError as error:
        raise click.ClickException(str(error)) from error


def broker_of(chosen: settings.Settings) -> str:
    """Return the broker that a part of a deployment is given.

    Raises:
        click.ClickException: none is named.
    """
    if chosen.kafka is None:
        raise click.ClickException(
            f"{settings.KAFKA} names no broker: this is one part of a deployment, and needs one."
            " `headway up` starts a whole deployment"
        )
    return chosen.kafka


def run_until_stopped(work: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Run `work` to its end; SIGTERM and SIGINT call `stop`, which asks it to end.

    SIGUSR1 writes where every task stands to standard error: what to look at when one hangs.
    """

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGUSR1, _tell_tasks)
        await work

    asyncio.run(watched())


def _tell_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(limit=8, file=sys.stderr)
