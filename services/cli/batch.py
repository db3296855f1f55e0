"""`headway batch`: offline jobs: submit a file, see how far it is, get its results, steer it."""

import asyncio
import contextlib
import getpass
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import click
from pydantic import TypeAdapter, ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from schemas.batch import ENDED, Action, BatchControl, BatchJob, BatchStatus
from schemas.codec import encode, explain
from services.cli import _endpoints, _output
from services.cli._batch_words import (
    counts,
    failures,
    held_by,
    hold_sentence,
    state_sentence,
    status_json,
)
from services.gateway import batch, batch_file
from services.gateway.batch_results import result_lines

WAIT_S = 15.0
_HEADER = TypeAdapter(BatchJob)


@click.group(
    short_help="Offline jobs: submit a file, see how far it is, get its results.",
    epilog="Example:  headway batch submit prompts.jsonl --wait",
)
def command() -> None:
    """Run files of requests offline, beside online work, whenever it leaves room.

    A file has a request a line, in OpenAI's batch format. Its items run in the batch tier: only
    while there are no online requests, or while a margin of room stays free for them.
    """


@command.command(epilog="Example:  headway batch submit prompts.jsonl --job night-17")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--job", "job_id", help="The job's id; follows from the file's contents if left out.")
@click.option("--model", help="Answers all lines, whatever model they name.")
@click.option("--tenant", help="Who is charged; the policy's default if left out.")
@click.option("--wait", is_flag=True, help="Stay until the job has ended.")
@_endpoints.state_option
@_output.json_option
def submit(
    *,
    file: Path,
    job_id: str | None,
    model: str | None,
    tenant: str | None,
    wait: bool,
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Check FILE, then send it as a job.

    A file with a wrong line is refused whole, with the numbers of its lines. A submit that was cut
    off may be repeated: it goes on where it ended, and no item runs twice.
    """
    bootstrap = _endpoints.kafka(state_dir)
    with _file_errors(file):
        checked = batch_file.check(file, model)
        header = _header(checked, job_id, tenant)
        status = _output.run(
            _submit(bootstrap, checked, header),
            interrupted=f"cut off; the same command goes on with {header.job}",
        )
    if wait and status.report.state not in ENDED:
        status = _output.run(
            _wait(bootstrap, status),
            interrupted=f"{status.job} goes on without you; `headway batch status {status.job}`",
        )
    _tell(status, None, as_json=as_json)
    if status.report.state == "rejected" or (wait and status.report.state != "completed"):
        raise click.ClickException(state_sentence(status))


@command.command(epilog="Example:  headway batch status night-17 --wait")
@click.argument("job", metavar="JOB")
@click.option("--wait", is_flag=True, help="Stay until the job has ended, and show its progress.")
@click.option(
    "--failures",
    "failures_max",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How many of the items that failed are listed with their reasons.",
)
@_endpoints.state_option
@_output.json_option
def status(
    *, job: str, wait: bool, failures_max: int, state_dir: str | None, as_json: bool
) -> None:
    """Tell how far JOB is, why it waits, and which of its items failed."""
    bootstrap = _endpoints.kafka(state_dir)
    found, standing = _output.run(_find(bootstrap, job))
    if wait and found.report.state not in ENDED:
        found = _output.run(_wait(bootstrap, found), interrupted=f"{job} goes on without you")
        standing = _output.run(batch.standing(bootstrap))
    hold = standing.hold_of(found)
    listed: list[dict[str, Any]] = []
    if failures_max and failures(found.report):
        listed = _output.run(_failed_items(bootstrap, found, failures_max))
    if as_json:
        _output.print_json({**status_json(found, hold), "failures": listed})
        return
    _tell(found, hold_sentence(found, hold), as_json=False)
    for line in listed:
        click.echo(f"  {line['custom_id']}: {line['error']['code']}: {line['error']['message']}")
    left_out = failures(found.report) - len(listed)
    if left_out > 0 and listed:
        click.echo(f"  … and {left_out} more: `headway batch results {job}` has all of them")


@command.command("list", epilog="Example:  headway batch list --json")
@_endpoints.state_option
@_output.json_option
def list_jobs(*, state_dir: str | None, as_json: bool) -> None:
    """List the jobs, the oldest first."""
    standing = _output.run(batch.standing(_endpoints.kafka(state_dir)))
    jobs = batch.first_of(standing.jobs.values())
    if as_json:
        _output.print_json([status_json(one, standing.hold_of(one)) for one in jobs])
        return
    if not jobs:
        click.echo("no job was submitted yet: `headway batch submit FILE.jsonl` submits one")
        return
    table = Table("job", "model", "state", "items", "done", "failed", "in flight", "held by")
    for one in jobs:
        hold = standing.hold_of(one)
        done, failed, in_flight = counts(one.report)
        table.add_row(
            *(one.job, one.model, one.report.state, f"{one.report.items:,}", f"{done:,}"),
            *(f"{failed:,}", f"{in_flight:,}", held_by(one, hold)),
        )
    _output.console().print(table)


@command.command(epilog="Example:  headway batch results night-17 -o night-17-results.jsonl")
@click.argument("job", metavar="JOB")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE, in place only once it is whole; the standard output if left out.",
)
@_endpoints.state_option
@_output.json_option
def results(*, job: str, output: Path | None, state_dir: str | None, as_json: bool) -> None:
    """Write a line for each item of JOB that has ended, in OpenAI's format, in the file's order.

    Of a job that still runs, those that have ended so far.
    """
    bootstrap = _endpoints.kafka(state_dir)
    found, _ = _output.run(_find(bootstrap, job))
    if output is None:
        written, failed = _output.run(_write(bootstrap, found, sys.stdout))
    else:
        partial = output.with_name(output.name + ".part")
        with _file_errors(output):
            with partial.open("w", encoding="utf-8") as file:
                written, failed = _output.run(_write(bootstrap, found, file))
            partial.replace(output)
    if as_json and output is not None:
        _output.print_json(
            {"job": job, "state": found.report.state, "lines": written, "failed": failed}
        )
    elif not as_json:
        left = found.report.items - written
        rest = f"; {left} items have not ended" if left else ""
        click.echo(f"{job}: {written} lines, {failed} of them errors{rest}", err=True)


def _steering(action: Action, done: str, text: str) -> click.Command:
    @click.command(action, help=text, epilog=f"Example:  headway batch {action} night-17")
    @click.argument("job", metavar="JOB")
    @click.option("--why", default="", help="For the record.")
    @_endpoints.state_option
    @_output.json_option
    def steering(*, job: str, why: str, state_dir: str | None, as_json: bool) -> None:
        bootstrap = _endpoints.kafka(state_dir)
        found, _ = _output.run(_find(bootstrap, job))
        became = _output.run(_steer(bootstrap, found, action, why))
        if as_json:
            _output.print_json(status_json(became, None))
        else:
            click.echo(f"{job} is {done}: {state_sentence(became)}")

    return steering


command.add_command(
    _steering("pause", "paused", "Release no more items of JOB; those under way run to their end.")
)
command.add_command(_steering("resume", "resumed", "Let a paused JOB go on."))
command.add_command(
    _steering("cancel", "cancelled", "End JOB: no more items run, and those under way leave.")
)

# Which states a job is in once an action has taken hold.
_REACHED: dict[Action, tuple[str, ...]] = {
    "pause": ("paused",),
    "resume": ("running",),
    "cancel": ("cancelling", "cancelled"),
}
_POSSIBLE: dict[Action, tuple[str, ...]] = {
    "pause": ("running",),
    "resume": ("paused",),
    "cancel": ("receiving", "running", "paused"),
}


async def _steer(bootstrap: str, found: BatchStatus, action: Action, why: str) -> BatchStatus:
    if found.report.state in _REACHED[action]:
        return found
    if found.report.state not in _POSSIBLE[action]:
        raise click.ClickException(f"cannot {action} it: {state_sentence(found)}")
    who = getpass.getuser()
    await batch.steer(
        bootstrap,
        BatchControl(job=found.job, model=found.model, action=action, who=who, why=why[:500]),
    )
    async for became in batch.follow(bootstrap, found.job, WAIT_S):
        if became.seq > found.seq and became.report.state in (*_REACHED[action], *ENDED):
            if became.report.state in ENDED and became.report.state not in _REACHED[action]:
                raise click.ClickException(f"cannot {action} it: {state_sentence(became)}")
            return became
    raise click.ClickException(
        f"no cell answered within {WAIT_S:g} s; `headway doctor` tells whether cells run"
    )


async def _find(bootstrap: str, job: str) -> tuple[BatchStatus, batch.Standing]:
    standing = await batch.standing(bootstrap)
    found = standing.jobs.get(job)
    if found is None:
        raise click.ClickException(f"there is no job {job!r}: `headway batch list` lists them")
    return found, standing


async def _submit(bootstrap: str, checked: batch_file.Checked, header: BatchJob) -> BatchStatus:
    with _progress() as bar:
        task = bar.add_task(f"sending {header.job}", total=header.items)
        return await batch.submit(
            bootstrap, checked, header, lambda count: bar.update(task, completed=count)
        )


async def _wait(bootstrap: str, status: BatchStatus) -> BatchStatus:
    """Show a job's progress until it has ended; return its last status."""
    with _progress() as bar:
        task = bar.add_task(status.job, total=status.report.items)
        while status.report.state not in ENDED:
            async for latest in batch.follow(bootstrap, status.job, timeout_s=None):
                status = latest
                done, failed, _ = counts(latest.report)
                text = f"{latest.job} {latest.report.state}" + (f", {failed} failed" * (failed > 0))
                bar.update(task, completed=done + failed, description=text)
            await asyncio.sleep(0)
    return status


async def _write(bootstrap: str, status: BatchStatus, file: IO[str]) -> tuple[int, int]:
    written = failed = 0
    async for line in result_lines(bootstrap, status):
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        written += 1
        failed += line["error"] is not None
    file.flush()
    return written, failed


async def _failed_items(bootstrap: str, status: BatchStatus, most: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    lines = result_lines(bootstrap, status)
    async with contextlib.aclosing(lines):
        async for line in lines:
            if line["error"] is not None:
                found.append({"custom_id": line["custom_id"], "error": line["error"]})
                if len(found) == most:
                    break
    return found


def _header(checked: batch_file.Checked, job: str | None, tenant: str | None) -> BatchJob:
    try:
        header = checked.header(job, tenant)
        # As JSON, because that is the form in which the cell's edge will judge it.
        return _HEADER.validate_json(encode(header))
    except ValidationError as error:
        raise click.ClickException(f"the job is not acceptable: {explain(error)}") from error


def _tell(status: BatchStatus, held: str | None, *, as_json: bool) -> None:
    if as_json:
        _output.print_json(status_json(status, None))
        return
    click.echo(f"{status.job}: {state_sentence(status)}")
    if held:
        click.echo(held)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=_output.progress_console(),
        transient=True,
    )


@contextlib.contextmanager
def _file_errors(path: Path) -> Generator[None]:
    """Turn what is wrong with a file into a sentence.

    Raises:
        click.ClickException: with the sentence.
    """
    try:
        yield
    except (batch_file.FileError, batch.JobError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from error
