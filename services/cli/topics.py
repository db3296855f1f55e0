"""`headway topics`: every topic, its messages and their schemas, who writes and reads it."""

import json
from pathlib import Path
from typing import Any

import click
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from rich.table import Table

import schemas
from schemas.topics import CELLS_DEFAULT, DAY_MS, TOPICS, Topic
from services import bus
from services.cli import _endpoints, _output

SCHEMAS = Path(schemas.__file__).parent / "json"


@click.command(
    epilog="Examples:  headway topics    headway topics --schema inference-request.v1",
    short_help="List every topic, its schemas, writers and readers.",
)
@click.option(
    "--schema", "kind", metavar="KIND", help="Print the JSON Schema of this message kind."
)
@_endpoints.state_option
@_output.json_option
def command(kind: str | None, state_dir: str | None, *, as_json: bool) -> None:
    """List the topics: purpose, message kinds, writers, readers, key, partitions, retention.

    With a reachable broker also how many partitions each has there, and how many records came.
    """
    if kind is not None:
        click.echo(_schema(kind))
        return
    bootstrap = _endpoints.find(state_dir).kafka
    live: dict[str, dict[int, int]] = {}
    if bootstrap is not None:
        try:
            live = _output.run(end_offsets(bootstrap))
        except click.ClickException as error:
            click.echo(f"the live columns are left out: {error.message}", err=True)
    if as_json:
        _output.print_json([_plain(topic, live) for topic in TOPICS])
    else:
        _output.console().print(_table(live))


def _schema(kind: str) -> str:
    """Return the JSON Schema of a message kind.

    Raises:
        click.ClickException: there is no such kind; the sentence lists those that there are.
    """
    known = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    if kind not in known:
        raise click.ClickException(
            f"no message kind is named {kind!r}; there are {', '.join(known)}"
        )
    return (SCHEMAS / f"{kind}.json").read_text().rstrip()


async def end_offsets(bootstrap: str) -> dict[str, dict[int, int]]:
    """Return the end offset of each partition of each Headway topic that the broker has.

    Work topics are there under their own names, one for each model.

    Raises:
        bus.BusError: the broker did not answer.
    """
    async with bus.consuming(bootstrap) as consumer:
        try:
            names = await bus.bounded(consumer.topics(), "list its topics")
        except KafkaError as error:
            raise bus.BusError(f"Kafka could not list its topics: {error!r}") from error
        ours = sorted(name for name in names if name.startswith("headway."))
        found: dict[str, dict[int, int]] = {}
        for name in ours:
            partitions = [
                TopicPartition(name, number)
                for number in sorted(consumer.partitions_for_topic(name) or ())
            ]
            ends = await bus.bounded(consumer.end_offsets(partitions), "tell end offsets")
            found[name] = {partition.partition: end for partition, end in ends.items()}
        return found


def _plain(topic: Topic, live: dict[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "purpose": topic.purpose,
        "kinds": list(topic.kinds),
        "schemas": {kind: json.loads(_schema(kind)) for kind in topic.kinds},
        "writers": list(topic.writers),
        "readers": list(topic.readers),
        "keyed_by": topic.keyed_by,
        "partitions": topic.partitions,
        "retention_ms": topic.retention_ms,
        "settings": topic.config(),
        "live": {name: ends for name, ends in live.items() if _is_of(topic, name)},
    }


def _is_of(topic: Topic, name: str) -> bool:
    if topic.partitions == "work-slots":
        return name.startswith(topic.name.removesuffix("MODEL"))
    return name == topic.name


def _table(live: dict[str, dict[int, int]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("topic", "what, and in which kinds", "writers → readers", "key", "partitions"):
        table.add_column(name, overflow="fold")
    table.add_column("kept", no_wrap=True)
    if live:
        table.add_column("records", justify="right", no_wrap=True)
    for topic in TOPICS:
        kinds = ", ".join(topic.kinds) or "no messages yet"
        row = [
            topic.name,
            f"{topic.purpose}\n{kinds}",
            f"{', '.join(topic.writers)} → {', '.join(topic.readers)}",
            topic.keyed_by,
            _partitions(topic, live),
            _kept(topic),
        ]
        if live:
            row.append(str(sum(sum(ends.values()) for ends in _live(topic, live))))
        table.add_row(*row)
    return table


def _live(topic: Topic, live: dict[str, dict[int, int]]) -> list[dict[int, int]]:
    return [ends for name, ends in live.items() if _is_of(topic, name)]


def _partitions(topic: Topic, live: dict[str, dict[int, int]]) -> str:
    there = _live(topic, live)
    if there:
        return ", ".join(str(len(ends)) for ends in there)
    if topic.partitions == "work-slots":
        return "a slot each"
    return str(topic.partition_count(CELLS_DEFAULT))


def _kept(topic: Topic) -> str:
    if topic.retention_ms is None:
        return "compacted"
    if topic.retention_ms % DAY_MS == 0:
        return f"{topic.retention_ms // DAY_MS} days"
    return f"{topic.retention_ms // 3_600_000} h"
