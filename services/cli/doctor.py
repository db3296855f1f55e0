"""`headway doctor`: what is reachable, how far behind it is, and whether the record has gaps."""

import asyncio
import json
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

import click
import psutil
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from rich.table import Table

from schemas.topics import LEDGER, REQUESTS
from services import bus, settings
from services.cli import _config_text, _endpoints
from services.cli._output import console, json_option, run
from services.embedded.java import JavaError, find_java
from services.embedded.state import running_endpoints
from services.recorder.server import connect, without_password
from streams.cells import GROUP as CELLS_GROUP
from streams.policies import Standing, read_standing

FREE_BYTES_LOW = 2 * 2**30
LAG_HIGH = 10_000

Verdict = Literal["ok", "warn", "fail", "none"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `none` is something that is absent and need not be there."""

    name: str
    verdict: Verdict
    detail: str


@click.command(epilog="Example: headway doctor --json | jq '.[] | select(.verdict != \"ok\")'")
@_endpoints.state_option
@json_option
def command(*, state_dir: str | None, as_json: bool) -> None:
    """Check what is reachable, versions, lag, gaps, free disk, and GPUs.

    Exits with 1 if anything is broken; a warning alone exits with 0.
    """
    places = _endpoints.find(state_dir)
    findings = [*_machine(places.settings), *run(_deployment(places))]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if any(finding.verdict == "fail" for finding in findings):
        sys.exit(1)


def _show(findings: list[Finding]) -> None:
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]", "none": "–"}
    table = Table("", "what", "found", box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(marks[finding.verdict], finding.name, finding.detail)
    console().print(table)


# The machine


def _machine(chosen: settings.Settings) -> list[Finding]:
    return [
        Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}"),
        Finding("headway", "ok", version("headway")),
        _java(chosen),
        _disk(chosen),
        _gpu(),
    ]


def _java(chosen: settings.Settings) -> Finding:
    if chosen.kafka is not None:
        return Finding("java", "none", "not needed: HEADWAY_KAFKA names a broker")
    try:
        java, major = find_java(chosen.java)
    except JavaError as error:
        return Finding("java", "fail", str(error))
    return Finding("java", "ok", f"{major} ({java})")


def _disk(chosen: settings.Settings) -> Finding:
    place = chosen.state_dir
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / 2**30:.1f} GiB free for {chosen.state_dir}"
    if free < FREE_BYTES_LOW:
        return Finding("disk", "warn", f"{detail}: make room, or choose another with --state")
    return Finding("disk", "ok", detail)


def _gpu() -> Finding:
    import pynvml  # noqa: PLC0415 - loads a driver library; only here

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        names = [str(pynvml.nvmlDeviceGetName(_handle(pynvml, at))) for at in range(count)]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Finding("gpu", "none", f"none: {error}")
    return Finding("gpu", "ok", ", ".join(names) or "the driver is there, but no GPU")


def _handle(pynvml: Any, index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


# The deployment


async def _deployment(places: _endpoints.Places) -> list[Finding]:
    findings = [_up(places.settings)]
    if places.kafka is None:
        detail = "none: start one with `headway up`, or name one with HEADWAY_KAFKA"
        findings.append(Finding("kafka", "fail", detail))
    else:
        findings += await _kafka(places.kafka)
    findings += await asyncio.to_thread(_clickhouse, places.clickhouse)
    return findings


def _up(chosen: settings.Settings) -> Finding:
    found = running_endpoints(chosen.state_dir)
    if found is None:
        return Finding("headway up", "none", f"none on {chosen.state_dir}")
    gone = [name for name, pid in found.processes.items() if not psutil.pid_exists(pid)]
    restarted = f"; restarted since: {', '.join(gone)}" if gone else ""
    return Finding("headway up", "ok", f"process {found.pid} on {chosen.state_dir}{restarted}")


async def _kafka(bootstrap: str) -> list[Finding]:
    try:
        async with bus.consuming(bootstrap) as consumer:
            cells = await bus.partition_count(bootstrap, REQUESTS)
            if not cells:
                detail = f"{bootstrap} answers, but has no Headway topics: start a cell"
                return [Finding("kafka", "warn", detail)]
            ledgers = [TopicPartition(LEDGER, cell) for cell in range(cells)]
            ends = await bus.bounded(consumer.end_offsets(ledgers), "tell end offsets")
            lags = await _lags(bootstrap, consumer)
            policy = _policy(await read_standing(bootstrap))
    except (bus.BusError, KafkaError) as error:
        return [Finding("kafka", "fail", f"{bootstrap}: {error}")]
    records = sum(ends.values())
    return [
        Finding("kafka", "ok", f"{bootstrap}: {cells} cells, {records} ledger records"),
        policy,
        *lags,
    ]


def _policy(standing: Standing) -> Finding:
    active = standing.history.active
    name = _config_text.policy_name(active.policy, active.digest).removeprefix("policy ")
    verdict: Verdict = "warn" if standing.behind else "ok"
    return Finding("policy", verdict, f"{name}: {_config_text.cells_text(standing)}")


async def _lags(bootstrap: str, consumer: Any) -> list[Finding]:
    """Return how far each group is behind, by the offsets that it commits for people."""
    from services.recorder.reading import (  # noqa: PLC0415 - loads the engine; only here
        GROUP as RECORDER_GROUP,
    )

    findings: list[Finding] = []
    async with bus.administering(bootstrap) as admin:
        for name, group in (("cells' lag", CELLS_GROUP), ("recorder's lag", RECORDER_GROUP)):
            committed = await bus.bounded(
                admin.list_consumer_group_offsets(group), "tell committed offsets"
            )
            partitions = list(committed)
            if not partitions:
                findings.append(Finding(name, "none", "unknown: nothing committed yet"))
                continue
            ends = await bus.bounded(consumer.end_offsets(partitions), "tell end offsets")
            lag = sum(max(0, ends[p] - committed[p].offset) for p in partitions)
            verdict: Verdict = "warn" if lag > LAG_HIGH else "ok"
            findings.append(Finding(name, verdict, f"{lag} records"))
    return findings


def _clickhouse(url: str | None) -> list[Finding]:
    if url is None:
        return [Finding("clickhouse", "none", "no recorder runs here")]
    where = without_password(url)
    try:
        client = connect(url, _endpoints.STORE_QUERY_S)
        server = str(client.command("SELECT version()"))
        audit = client.query("SELECT * FROM audit").named_results()
        rows = [dict(row) for row in audit]
    except Exception as error:  # noqa: BLE001 - the client raises many kinds; the sentence says which
        return [Finding("clickhouse", "fail", f"{where}: {_endpoints.first_line(error)}")]
    bad = [row for row in rows if row.get("problems")]
    detail = ", ".join(f"{row['check']}: {row['problems']}" for row in bad) or "no gap"
    return [
        Finding("clickhouse", "ok", f"{server} at {where}"),
        Finding("audit", "fail" if bad else "ok", detail),
    ]
