"""`headway bench`: measures, and prints each figure under its name, with machine and commit.

The measuring itself stands beside what is measured; this module only chooses, runs and prints.
"""

import asyncio
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from rich.console import Console
from rich.table import Table

from schemas.figures import Figure
from services.cli._output import json_option

Measure = Callable[[bool], list[Figure]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a figure should reach; `at_least` or `at_most` is None where it is only reported."""

    at_least: float | None = None
    at_most: float | None = None

    def text(self) -> str:
        """Return the bound as people write it."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""

    def reached(self, value: float) -> bool:
        """Return whether `value` is within the bound."""
        enough = self.at_least is None or value >= self.at_least
        return enough and (self.at_most is None or value <= self.at_most)


ASKED: dict[str, Asked] = {
    "core.facts_per_s.waiting_1000": Asked(at_least=100_000),
    "core.facts_per_s.waiting_10000": Asked(at_least=50_000),
    "fairness.light_wait_p95_ratio": Asked(at_most=1.5),
    "fairness.share_error": Asked(at_most=0.02),
    "bus.dispatch_p50_ms.rate_1000": Asked(at_most=5),
    "bus.dispatch_p99_ms.rate_1000": Asked(at_most=25),
    "bus.sustained_req_per_s": Asked(at_least=4_000),
    "worker.decode_ratio.batch_1": Asked(at_least=0.85),
    "worker.decode_ratio.batch_8": Asked(at_least=0.85),
    "worker.decode_ratio.batch_16": Asked(at_least=0.85),
    "worker.decode_ratio.batch_32": Asked(at_least=0.85),
    "worker.over_static.concurrency_16": Asked(at_least=1.7),
    "worker.over_static.concurrency_32": Asked(at_least=1.7),
    "worker.over_static_code.concurrency_16": Asked(at_least=3),
    "worker.tok_s.mixed_64": Asked(at_least=164),
    "continuous.throughput_ratio": Asked(at_least=3),
    "continuous.p95_ratio": Asked(at_most=0.167),
    "recorder.rows_per_s": Asked(at_least=50_000),
    "recorder.lag_s": Asked(at_most=2),
    "replay.facts_per_s": Asked(at_least=15_000),
    "recovery.s.entries_1000000": Asked(at_most=5),
    "offline.online_ttft_p99_ratio": Asked(at_most=1.2),
    "offline.idle_capacity_used": Asked(at_least=0.8),
    "window.p95_ratio": Asked(at_most=0.33),
    "window.utilisation_ratio": Asked(at_least=2),
    "oneshot.p50_ms.rate_200": Asked(at_most=12),
    "oneshot.sustained_req_per_s": Asked(at_least=2_500),
    "memory.mb.broker": Asked(at_most=400),
    "memory.mb.recorder": Asked(at_most=700),
    "memory.mb.cell": Asked(at_most=250),
    "memory.mb.signals": Asked(at_most=250),
    "memory.mb.worker": Asked(at_most=250),
}


def _core(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    del quick
    from streams.bench_core import core_figures  # noqa: PLC0415 - a group loads only what it runs

    return core_figures()


def _fairness(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    del quick
    from streams.bench_fairness import fairness_figures  # noqa: PLC0415 - as above

    return fairness_figures()


def _worker(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    # The engine has the machine to itself here, so its threads need not sleep while they wait: on
    # two idle cores that is 1.47 times the tokens per second. It must be set before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
    from services.worker.bench import worker_figures  # noqa: PLC0415 - as above

    return worker_figures(quick=quick)


def _recorder(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from services.recorder.bench import recorder_figures  # noqa: PLC0415 - as above

    return recorder_figures(quick=quick)


def _replay(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from services.cli._bench_bus import with_broker  # noqa: PLC0415 - as above
    from streams.bench_replay import recovery_figures, replay_figures  # noqa: PLC0415 - as above

    found = replay_figures(quick=quick)
    return found + with_broker(lambda kafka: asyncio.run(recovery_figures(kafka, quick=quick)))


def _bus(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from services.cli._bench_bus import bus_figures  # noqa: PLC0415 - as above

    return bus_figures(quick=quick)


def _offline(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from services.cli._bench_offline import offline_figures  # noqa: PLC0415 - as above

    return offline_figures(quick=quick)


def _window(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    del quick
    from streams.bench_windows import window_figures  # noqa: PLC0415 - as above

    return window_figures()


def _oneshot(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from services.cli._bench_oneshot import oneshot_figures  # noqa: PLC0415 - as above

    return oneshot_figures(quick=quick)


def _reservation(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from streams.bench_reservation import reservation_figures  # noqa: PLC0415 - as above

    return reservation_figures(quick=quick)


def _continuous(quick: bool) -> list[Figure]:  # noqa: FBT001 - the shape of every measure
    from services.worker.bench_continuous import continuous_figures  # noqa: PLC0415 - as above

    return continuous_figures(quick=quick)


GROUPS: dict[str, tuple[Measure, str]] = {
    "core": (_core, "the request-level core alone, on one core"),
    "reservation": (
        _reservation,
        "KV reservation by quantile over that in full, on the traces that HEADWAY_TRACES names",
    ),
    "continuous": (_continuous, "continuous over static batching, by the simulated engine"),
    "fairness": (_fairness, "how two tenants share a replica, one with ten times the load"),
    "replay": (_replay, "replay of a ledger, and recovery of a long one"),
    "recorder": (_recorder, "the recorder's insertion"),
    "bus": (_bus, "the whole loop over a real broker; recorder lag and memory come with it"),
    "offline": (_offline, "an offline job beside online requests on the torch worker"),
    "window": (_window, "what a batch window costs: the core in virtual time"),
    "oneshot": (_oneshot, "a one-shot model over a real broker, 5 ms a batch of at most 16"),
    "worker": (_worker, "the torch engine beside a bare loop and a static batcher"),
}


@click.command(epilog="Example: headway bench core bus --json")
@click.argument("groups", nargs=-1, metavar="[GROUP…]", type=click.Choice(list(GROUPS)))
@click.option("--quick", is_flag=True, help="Shorter runs: to see that it works, not to quote.")
@json_option
def command(*, groups: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure, and print the figures beside what is asked of them.

    Groups: core, reservation, continuous, replay, recorder, bus, offline, window, oneshot, worker;
    all of them when none is named.
    """
    console = Console(stderr=True)
    figures: list[Figure] = []
    for group in groups or GROUPS:
        measure, what = GROUPS[group]
        console.print(f"measuring {group}: {what}", highlight=False)
        figures += measure(quick)
    machine, commit = machine_name(), commit_name()
    if as_json:
        rows = [
            {
                "name": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "machine": machine,
                "commit": commit,
            }
            for figure in figures
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        _show(figures, f"{machine}, commit {commit}")


def _show(figures: list[Figure], where: str) -> None:
    table = Table("figure", "value", "unit", "asked", "", title=where)
    for figure in figures:
        asked = ASKED.get(figure.name, Asked())
        mark = "" if asked == Asked() else "✓" if asked.reached(figure.value) else "✗"
        table.add_row(figure.name, _number(figure.value), figure.unit, asked.text(), mark)
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - three figures


def machine_name() -> str:
    """Return what the figures were measured on: processor, cores, memory, Python."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory_gib = round(psutil.virtual_memory().total / 2**30)
    python = platform.python_version()
    return f"{model}, {os.cpu_count()} cores, {memory_gib} GiB, Python {python}"


def commit_name() -> str:
    """Return the commit of this checkout, with + when files differ from it, or "unknown"."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit.stdout.strip()
