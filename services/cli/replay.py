"""`headway replay`: derive every recorded decision again from the facts, and compare; or export."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.cli import _endpoints, _output
from streams.replay import combined_digest
from streams.replay_sources import (
    OnProgress,
    Replayed,
    SourceError,
    cells_of,
    export,
    replay_file,
    replay_kafka,
    replay_store,
    store_cells,
)

MISMATCHES_SHOWN = 5


@click.command(
    epilog="Examples:  headway replay --verify --from clickhouse    "
    "headway replay --export ledger.ndjson.gz",
    short_help="Derive every recorded decision again and compare.",
)
@click.option("--verify", is_flag=True, help="Derive and compare (what it does without --export).")
@click.option(
    "--from",
    "source",
    type=click.Choice(["kafka", "clickhouse", "file"]),
    default="kafka",
    show_default=True,
    help="Where to read the ledger; file is implied by --file.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Ledger lines as --export writes them (NDJSON; .gz too).",
)
@click.option("--cell", type=click.IntRange(min=0), help="Only this cell; all of them if left out.")
@click.option(
    "--export",
    "export_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write Kafka's ledger lines to this file instead of verifying.",
)
@_endpoints.state_option
@_output.json_option
def command(
    *,
    verify: bool,
    source: str,
    path: Path | None,
    cell: int | None,
    export_path: Path | None,
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Step the recorded facts through the core again and compare every byte of every entry.

    Uses the facts and the policies that the ledger itself activated, never a recorded decision.
    Exit code 1 when anything differs: the cell, the seq, and what differs are named.
    """
    if export_path is not None:
        if verify or path is not None:
            raise click.UsageError("--export stands alone: give it without --verify and --file")
        if source != "kafka":
            raise click.UsageError("--export writes Kafka's ledger: give it without --from")
        _export(state_dir, cell, export_path, as_json=as_json)
        return
    if source == "file" and path is None:
        raise click.UsageError("--from file needs --file FILE")
    began_s = time.monotonic()
    with _shown_progress() as on_progress:
        if path is not None:
            with _output.in_words():
                found = replay_file(path, on_progress, cell)
            source = "file"
        elif source == "clickhouse":
            found = _verify_store(state_dir, cell, on_progress)
        else:
            bootstrap = _endpoints.kafka(state_dir)
            found = _output.run(_verify_kafka(bootstrap, cell, on_progress))
    _tell(source, found, time.monotonic() - began_s, as_json=as_json)


async def _verify_kafka(
    bootstrap: str, only: int | None, on_progress: OnProgress
) -> list[Replayed]:
    return [
        await replay_kafka(bootstrap, cell, on_progress)
        for cell in _chosen(await cells_of(bootstrap), only)
    ]


def _verify_store(
    state_dir: str | None, only: int | None, on_progress: OnProgress
) -> list[Replayed]:
    client = _endpoints.store(state_dir)
    try:
        with _endpoints.store_errors():
            cells = store_cells(client) if only is None else [only]
            if not cells:
                raise click.ClickException("the recorder holds no ledger lines yet")
            return [replay_store(client, cell, on_progress) for cell in cells]
    finally:
        client.close()


def _chosen(cells: int, only: int | None) -> list[int]:
    if only is None:
        return list(range(cells))
    if only >= cells:
        raise SourceError(f"there is no cell {only}: the deployment has the cells 0 to {cells - 1}")
    return [only]


def _export(state_dir: str | None, only: int | None, path: Path, *, as_json: bool) -> None:
    bootstrap = _endpoints.kafka(state_dir)

    async def work() -> int:
        return await export(bootstrap, _chosen(await cells_of(bootstrap), only), path)

    lines = _output.run(work())
    if as_json:
        _output.print_json({"file": str(path), "lines": lines})
    else:
        click.echo(f"wrote {lines} ledger lines to {path}")


class _shown_progress:  # noqa: N801 - used as a context manager, as a verb
    """A progress bar on standard error, one line a cell, gone when it is done."""

    def __init__(self) -> None:
        console = _output.progress_console()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[int, Any] = {}

    def __enter__(self) -> Callable[[int, int, int], None]:
        self._bar.start()
        return self._on_progress

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def _on_progress(self, cell: int, done: int, total: int) -> None:
        task = self._tasks.get(cell)
        if task is None:
            task = self._tasks[cell] = self._bar.add_task(f"cell {cell}", total=total or None)
        self._bar.update(task, completed=done, total=total or None)


def _tell(source: str, found: list[Replayed], seconds: float, *, as_json: bool) -> None:
    """Print what was found; end with exit code 1 if anything differs.

    Raises:
        click.ClickException: it does.
    """
    reports = [one.report for one in found]
    entries = sum(report.entries for report in reports)
    mismatches = sum(report.mismatch_count for report in reports)
    told = {
        "source": source,
        "entries": entries,
        "decisions": sum(report.decisions for report in reports),
        "void_entries": sum(report.void_entries for report in reports),
        "mismatches": mismatches,
        "digest": combined_digest(reports),
        "seconds": round(seconds, 3),
        "facts_per_s": round(entries / seconds) if seconds > 0 else 0,
        "cells": [{**_output.plain(one.report), "began": one.began} for one in found],
    }
    if as_json:
        _output.print_json(told)
    else:
        for one in found:
            _tell_cell(one)
        click.echo(
            f"{entries} entries and {told['decisions']} decisions derived again in {seconds:.1f} s"
            f" ({told['facts_per_s']} facts/s): {mismatches} mismatches, digest {told['digest']}"
        )
    if mismatches:
        first = next(report.mismatches[0] for report in reports if report.mismatches)
        raise click.ClickException(f"the ledger does not follow from its facts: {first.sentence()}")


def _tell_cell(one: Replayed) -> None:
    report = one.report
    if one.began is not None:
        click.echo(one.began)
    void = f", {report.void_entries} void" if report.void_entries else ""
    if report.foreign_records:
        void += f", {report.foreign_records} records of no owner passed over"
    policies = ", ".join(f"version {version} ({digest})" for version, digest in report.policies)
    click.echo(
        f"cell {report.cell}: seq {report.first_seq} to {report.next_seq - 1}{void}; policy"
        f" {policies or 'none'}; {report.mismatch_count} mismatches; digest {report.digest}"
    )
    for mismatch in report.mismatches[:MISMATCHES_SHOWN]:
        click.echo(f"  {mismatch.sentence()}")
        click.echo(f"    recorded: {mismatch.recorded}")
        if mismatch.derived:
            click.echo(f"    derived:  {mismatch.derived}")
    if report.stopped is not None:
        click.echo(f"  {report.stopped}")
