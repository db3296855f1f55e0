"""How commands speak: JSON for programs, sentences and tables for people, errors in words.

What a person can act on ends a command with one sentence and exit code 1, never with a trace.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

import click
from rich.console import Console

from services import bus
from services.embedded.state import StateError
from services.gateway.client import NoOutcomeError
from services.settings import SettingsError
from streams.recovery import RecoveryError
from streams.replay_sources import SourceError

T = TypeVar("T")

# What the parts raise with a sentence that tells a person what to do.
SPOKEN = (
    bus.BusError,
    NoOutcomeError,
    RecoveryError,
    SettingsError,
    SourceError,
    StateError,
)
INTERRUPTED = 130
# Of what is drawn when nobody's terminal says how wide it is.
PIPE_COLUMNS = 120

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def console() -> Console:
    """Return the console on stdout."""
    return _wide_in_a_pipe(Console(highlight=False, soft_wrap=False))


def progress_console() -> Console:
    """Return the console on stderr, for what is only of interest while it goes on."""
    return _wide_in_a_pipe(Console(stderr=True, highlight=False))


def _wide_in_a_pipe(made: Console) -> Console:
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_COLUMNS
    return made


def print_json(value: Any) -> None:
    """Print `value` as one JSON document; dataclasses as objects."""
    click.echo(json.dumps(plain(value), ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return `value` with its dataclasses as dictionaries."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


@contextlib.contextmanager
def in_words() -> Generator[None]:
    """Turn what the parts raise into the command's one sentence.

    Raises:
        click.ClickException: with the sentence.
    """
    try:
        yield
    except SPOKEN as error:
        raise click.ClickException(str(error)) from error


def run(work: Coroutine[Any, Any, T], interrupted: str = "") -> T:
    """Run `work` to its end; Ctrl-C ends it with exit code 130, and says `interrupted`.

    Raises:
        click.ClickException: a part said what is wrong.
    """
    with in_words():
        try:
            return asyncio.run(work)
        except KeyboardInterrupt:
            click.echo(f"\n{interrupted}" if interrupted else "", err=True)
            sys.exit(INTERRUPTED)
