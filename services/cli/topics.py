"""`headway topics`: every topic, its messages and their schemas, who writes and reads it."""

import json
from pathlib import Path
from typing import Any

import click
from aiokafka import TopicPartition

import schemas
from schemas.topics import CONFIG, DAY_MS, LEDGER, TOPICS, Topic
from services import bus
from services.cli import _config_text, _endpoints, _output
from streams.policies import Standing, read_standing

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

    With a reachable broker also the partitions that each has there, their end offsets, and the
    policy in force.
    """
    if kind is not None:
        click.echo(_schema(kind))
        return
    bootstrap = _endpoints.find(state_dir).kafka
    live: dict[str, dict[int, int]] = {}
    standing: Standing | None = None
    if bootstrap is not None:
        try:
            live = _output.run(end_offsets(bootstrap))
            standing = _output.run(read_standing(bootstrap)) if LEDGER in live else None
        except click.ClickException as error:
            click.echo(f"the live columns are left out: {error.message}", err=True)
    if as_json:
        _output.print_json([_plain(topic, live, standing) for topic in TOPICS])
    else:
        for topic in TOPICS:
            _print(topic, live)
            if topic.name == CONFIG and standing is not None:
                click.echo(f"    in force   {_policy(standing)}")


def _schema(kind: str) -> str:
    """Return the JSON Schema of a message kind.

    Raises:
        click.BadParameter: there is no such kind; the sentence lists those that there are.
    """
    known = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    if kind not in known:
        raise click.BadParameter(
            f"no message kind is named {kind!r}; there are {', '.join(known)}",
            param_hint="--schema",
        )
    return (SCHEMAS / f"{kind}.json").read_text().rstrip()


async def end_offsets(bootstrap: str) -> dict[str, dict[int, int]]:
    """Return the end offset of each partition of each Headway topic that the broker has.

    Work topics are there under their own names, one for each model.

    Raises:
        bus.BusError: the broker did not answer.
    """
    async with bus.administering(bootstrap) as admin:
        names = await bus.bounded(admin.list_topics(), "list its topics")
        ours = sorted(name for name in names if name.startswith("headway."))
        described = await bus.bounded(admin.describe_topics(ours), "describe its topics")
    partitions = [
        TopicPartition(topic["topic"], number)
        for topic in described
        for number in range(len(topic["partitions"]))
    ]
    async with bus.consuming(bootstrap) as consumer:
        ends = await bus.bounded(consumer.end_offsets(partitions), "tell end offsets")
    found: dict[str, dict[int, int]] = {name: {} for name in ours}
    for partition, end in ends.items():
        found[partition.topic][partition.partition] = end
    return found


def _policy(standing: Standing) -> str:
    active = standing.history.active
    return _config_text.policy_name(active.policy, active.digest)


def _plain(
    topic: Topic, live: dict[str, dict[int, int]], standing: Standing | None
) -> dict[str, Any]:
    told: dict[str, Any] = {
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
    if topic.name == CONFIG and standing is not None:
        active = standing.history.active
        told["policy"] = {
            "name": active.policy.name,
            "version": active.policy.version,
            "digest": active.digest,
        }
    return told


def _is_of(topic: Topic, name: str) -> bool:
    if topic.partitions == "work-slots":
        return name.startswith(topic.name.removesuffix("MODEL"))
    return name == topic.name


def _print(topic: Topic, live: dict[str, dict[int, int]]) -> None:
    click.echo(f"{click.style(topic.name, bold=True)}: {topic.purpose}")
    click.echo(f"    messages   {', '.join(topic.kinds) or 'none yet'}")
    click.echo(f"    written by {', '.join(topic.writers)}; read by {', '.join(topic.readers)}")
    click.echo(
        f"    key        {topic.keyed_by}; partitions: {_partitions(topic)}; kept: {_kept(topic)}"
    )
    for name, ends in live.items():
        if _is_of(topic, name):
            which = "" if name == topic.name else f"{name}: "
            click.echo(
                f"    there now  {which}{_counted(len(ends), 'partition')}, end offsets"
                f" {', '.join(str(end) for end in ends.values())}"
            )


def _partitions(topic: Topic) -> str:
    counts = {
        "one": "1",
        "cells": "one a cell",
        "cells-and-planner": "one a cell, and the planner's",
        "work-slots": "one a replica slot",
    }
    return counts[topic.partitions]


def _kept(topic: Topic) -> str:
    if topic.retention_ms is None:
        return "compacted"
    if topic.retention_ms % DAY_MS == 0:
        return _counted(topic.retention_ms // DAY_MS, "day")
    return f"{topic.retention_ms // 3_600_000} h"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
