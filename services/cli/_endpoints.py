"""Where the commands find Kafka and ClickHouse: the environment, else a running `headway up`.

Decides nothing else. A command says with `--state` which deployment it means.
"""

import contextlib
import socket
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import click

from services.embedded.state import running_endpoints
from services.recorder.server import connect, without_password
from services.settings import CLICKHOUSE, KAFKA, Settings, SettingsError, load

KAFKA_CONNECT_S = 5
STORE_QUERY_S = 300

state_option = click.option(
    "--state",
    "state_dir",
    metavar="DIR",
    help="State directory of the running deployment (HEADWAY_STATE).",
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the deployment serves; None is what is not there."""

    settings: Settings
    kafka: str | None
    clickhouse: str | None


def find(state_dir: str | None) -> Places:
    """Return where things are, by the environment first.

    Raises:
        click.ClickException: a setting is wrong.
    """
    try:
        settings = load(state_dir)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    running = running_endpoints(settings.state_dir)
    return Places(
        settings,
        settings.kafka or (running.kafka if running else None),
        settings.clickhouse or (running.clickhouse if running else None),
    )


def kafka(state_dir: str | None) -> str:
    """Return the bootstrap servers.

    Raises:
        click.ClickException: there are none, or none of them answers.
    """
    places = find(state_dir)
    if places.kafka is None:
        raise click.ClickException(
            f"no Headway runs on {places.settings.state_dir}: start one with `headway up`, name its"
            " directory with --state, or name a Kafka with HEADWAY_KAFKA=host:port"
        )
    named_by = KAFKA if places.settings.kafka else str(places.settings.state_dir)
    check_answers(places.kafka, named_by)
    return places.kafka


def check_answers(bootstrap: str, named_by: str) -> None:
    """Return if any of the servers accepts a connection.

    Raises:
        click.ClickException: none does; the client's own words would not say what to do.
    """
    trouble = "it names no server"
    for server in bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), KAFKA_CONNECT_S):
                return
        except (OSError, OverflowError) as error:
            trouble = getattr(error, "strerror", None) or str(error)
    raise click.ClickException(
        f"no Kafka answers at {bootstrap}, which {named_by} names ({trouble}): start it, or name"
        " another"
    )


def store(state_dir: str | None) -> Any:
    """Return a clickhouse_connect client of the recorder's store.

    Raises:
        click.ClickException: there is none, or it does not answer.
    """
    places = find(state_dir)
    if places.clickhouse is None:
        raise click.ClickException(
            f"no recorder runs on {places.settings.state_dir}: start one with `headway up`, name"
            " its directory with --state, or name a ClickHouse with HEADWAY_CLICKHOUSE=http://…"
        )
    named_by = CLICKHOUSE if places.settings.clickhouse else str(places.settings.state_dir)
    where = without_password(places.clickhouse)
    with store_errors(f"no ClickHouse answers at {where}, which {named_by} names"):
        return connect(places.clickhouse, STORE_QUERY_S)


@contextlib.contextmanager
def store_errors(what: str = "the recorder refused") -> Generator[None]:
    """Turn what the store's client raises into one sentence, with what the server said.

    Raises:
        click.ClickException: with the sentence.
    """
    from clickhouse_connect.driver.exceptions import (  # noqa: PLC0415 - slow to load
        ClickHouseError,
    )

    try:
        yield
    except (ClickHouseError, OSError) as error:
        raise click.ClickException(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return what the server or the connection said, without what the client wraps around it."""
    if isinstance(error.__cause__, OSError) or "NewConnectionError" in str(error):
        return "nobody listens there"
    if "RemoteDisconnected" in str(error) or "Connection aborted" in str(error):
        return "what listens there does not speak HTTP"
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    _, _, said = text.rpartition("server response: ")
    return said.partition(" (for url ")[0]
