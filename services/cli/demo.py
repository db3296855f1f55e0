"""`headway demo`: the main job end to end on real parts, and proof that it went right."""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from schemas.batch import items_prefix
from services import settings as where
from services.cli import _output
from services.cli._demo_audit import audit
from services.cli._demo_checks import full_replay, outcome_faults
from services.cli._demo_embeddings import embedded
from services.cli._demo_job import Job, whole_machine
from services.cli._demo_job import begin as begin_job
from services.cli._demo_job import end as end_job
from services.cli._demo_job import faults as job_faults
from services.cli._demo_plan import Plan, new_plan, probe_speed
from services.cli._demo_progress import SENDING, Progress
from services.cli._demo_report import Report, as_plain, print_report
from services.cli._demo_run import AnySending, Watch, followed, run_traffic
from services.cli._demo_traffic import Sending
from services.cli._stack import Stack
from services.cli.up import START_ERRORS
from services.gateway.batch import JobError
from services.gateway.batch_file import FileError
from services.lab.occupancy import Occupancy
from services.lab.summary import summarise
from services.lab.traces import TraceError
from streams.story_sources import story_from_kafka

AUDIT_S_MAX = 60.0
TERMINATED = 128 + signal.SIGTERM
LOG_LINES = 3


@click.command(
    epilog="Example:  headway demo --engine simulated --trace azure2023_code.csv.gz --speed 4"
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="How long requests are sent; of a trace, so much of it.",
)
@click.option(
    "--engine",
    type=click.Choice(["torch", "simulated"]),
    default="torch",
    show_default=True,
    help="torch runs SmolLM2-135M; simulated takes the time of Llama-3.1-8B on an H100.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A CSV, plain or gzipped, with t_ms,prompt_tokens,output_tokens or Azure's columns.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Send so many times faster; a simulated engine is as much faster.",
)
@click.option(
    "--scale-tokens",
    type=click.FloatRange(min=0, min_open=True),
    help="Multiply prompt and output lengths; by default what a small machine can serve (torch),"
    " or 1 (simulated).",
)
@click.option("--workers", type=click.IntRange(1, 8), help="Replicas: 1 (torch) or 4 (simulated).")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the traffic.")
@click.option(
    "--state", metavar="DIR", help="Keep everything there; else it is deleted at the end."
)
@_output.json_option
def command(*, state: str | None, as_json: bool, **options: Any) -> None:
    """Start a whole deployment, send a minute of bursty chat traffic, and check all of it.

    Starts a Kafka broker, the recorder, a cell, the stream processors and workers. An offline job
    takes the idle machine; then come chats of several tenants and tiers through Kafka, for which it
    gives way, and texts for an encoder, which go in batches. It shows how that goes; then it prints
    a summary, who left for whom, the waits of the slowest request, a full replay of the ledger and
    the recorder's audit.

    Exit code 0 only if every request has exactly one outcome, the replay has no mismatch and the
    audit finds no gap; else 1, with the sentence that says what is wrong.
    """
    console = _output.progress_console() if as_json else _output.console()
    try:
        plan = new_plan(**options)
        with _state_directory(state) as directory:
            report = _output.run(_demo(plan, where.load(directory), console))
    except (TraceError, JobError, FileError, *START_ERRORS) as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        click.echo("stopped before its end", err=True)
        sys.exit(TERMINATED)
    if as_json:
        _output.print_json(as_plain(report))
    else:
        print_report(console, report)
    sys.exit(1 if report.faults else 0)


@contextlib.contextmanager
def _state_directory(state: str | None) -> Generator[str]:
    """Give the directory that is asked for, or a fresh one that is deleted afterwards."""
    if state is not None:
        yield state
        return
    directory = tempfile.mkdtemp(prefix="headway-demo-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _demo(plan: Plan, settings: where.Settings, console: Console) -> Report:
    """Run the plan on a deployment of its own, and check it."""
    progress = Progress(console)
    stack = Stack(
        settings,
        profiles=[plan.profile, plan.encoder],
        workers=plan.workers_by_model,
        tell=progress.tell,
    )
    main = asyncio.current_task()
    assert main is not None  # noqa: S101 - a coroutine runs in a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    console.print(Text(plan.headline(), style="bold"))
    try:
        await stack.start()
        async with whole_machine(stack.kafka, plan.profile.model):
            report = await _run_and_check(plan, stack, progress)
        if report.faults:
            _print_logs(stack, console)
    except START_ERRORS:
        _print_logs(stack, console)
        raise
    finally:
        progress.enter("stopping the deployment")
        await stack.stop()
    return report


async def _run_and_check(plan: Plan, stack: Stack, progress: Progress) -> Report:
    probe = plan.probe()
    speed, faults = 1.0, list[str]()
    if probe:
        watch = await _probe(probe, stack, progress)
        speed = probe_speed(watch.ended_s - watch.began_s)
        faults += outcome_faults(probe, watch)
    sendings, scales = plan.traffic(speed)
    texts, job = plan.texts(), plan.job(speed)
    progress.tell(_scales_sentence(scales, speed if probe else None))
    everything = sorted([*sendings, *texts], key=lambda one: one.at_s)
    watch = await _run_beside_job(everything, job, stack, progress)
    faults += outcome_faults(everything, watch)
    faults += job_faults(job, watch)
    results = [watch.results[one.request.id] for one in sendings if one.request.id in watch.results]
    setting = plan.setting | {"prompt_scale": scales[0], "output_scale": scales[1]}
    report = Report(
        setting | {"texts": len(texts), "job": job.id, "job_items": len(job.lines)},
        summarise(results, watch.ended_s - watch.began_s),
        watch.occupancy,
        watch.scheduling,
        embedded(texts, watch.results, meaningful=not plan.simulated),
        watch.scheduling.jobs.get(job.id),
        faults=faults,
    )
    if stack.clickhouse is not None and stack.with_recorder:
        progress.enter("waiting for the recorder, and asking for its audit")
        released = report.job.report.released if report.job else 0
        total = len(probe) + len(everything) + released
        last_seq = dict(watch.occupancy.last_seq)
        mine = [plan.run, items_prefix(job.id)]
        report.audit = await audit(stack.clickhouse, mine, total, last_seq, AUDIT_S_MAX)
        report.faults += report.audit.faults
    progress.enter("deriving every decision again")
    report.replay = await full_replay(stack.kafka)
    report.faults += report.replay.faults
    if report.summary.slowest is not None:
        report.slowest = await story_from_kafka(stack.kafka, report.summary.slowest)
    return report


async def _probe(probe: list[Sending], stack: Stack, progress: Progress) -> Watch:
    """Send some requests, to see how long they take."""
    watch = Watch(len(probe))
    showing = progress.of(watch, "looking how fast this machine is")
    async with showing, followed(stack.kafka, watch) as client:
        await run_traffic(client, probe, watch)
    return watch


async def _run_beside_job(
    everything: list[AnySending], job: Job, stack: Stack, progress: Progress
) -> Watch:
    """Let the job take the machine, send everything at its time, and let the job end."""
    watch = Watch(len(everything), Occupancy(job.model))
    showing = progress.of(watch, "letting an offline job take the idle machine")
    async with showing, followed(stack.kafka, watch) as client:
        await begin_job(job, stack.kafka, stack.settings.state_dir, watch)
        progress.enter(SENDING)
        await run_traffic(client, everything, watch)
        progress.enter("letting the offline job end")
        await end_job(job, stack.kafka, watch)
    return watch


def _scales_sentence(scales: tuple[float, float], speed: float | None) -> str:
    prompts, outputs = scales
    told = f"lengths: of the trace's, prompts × {prompts:.3g} and outputs × {outputs:.3g}"
    return told if speed is None else f"{told}, to fit this machine (speed {speed:.2g})"


def _print_logs(stack: Stack, console: Console) -> None:
    """Show the last lines of each part's log, for they may be deleted next."""
    for log in sorted(stack.logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        if lines:
            console.print(Text(f"the last lines of {log.name}:", style="dim"))
            for line in lines:
                console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
