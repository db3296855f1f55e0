"""What a demo prints at its end: tables for people, one object for programs. Decides nothing."""

from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli._demo_audit import AuditFound
from services.cli._demo_checks import ReplayFound
from services.cli._output import plain
from services.cli._waterfall import render_waterfall
from services.cli.explain import as_plain as story_as_plain
from services.lab.occupancy import Occupancy
from services.lab.summary import Spread, Summary
from streams.story_parts import Story

LATENCY_WORDS = "ms from the arrival: TTFT to the first token, e2e to the outcome if completed"


@dataclass(slots=True)
class Report:
    """Everything that a demo found.

    Attributes:
        setting: what was run: model, engine, replicas, traffic, seed, scales.
        faults: sentences that say what is wrong; none in a sound run.
    """

    setting: dict[str, Any]
    summary: Summary
    occupancy: Occupancy
    slowest: Story | None = None
    replay: ReplayFound | None = None
    audit: AuditFound | None = None
    faults: list[str] = field(default_factory=list[str])


def as_plain(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    summary = plain(report.summary)
    summary["outcomes"] = dict(report.summary.outcomes)
    summary["reasons"] = dict(report.summary.reasons)
    summary["waits_ms"] = dict(report.summary.waits_ms)
    return {
        "ok": not report.faults,
        "faults": report.faults,
        "setting": report.setting,
        "summary": summary,
        "mean_batch": report.occupancy.mean_batch,
        "kv_use_mean": report.occupancy.kv_use_mean,
        "kv_use_peak": report.occupancy.kv_use_peak,
        "slowest": None if report.slowest is None else story_as_plain(report.slowest),
        "replay": plain(report.replay),
        "audit": plain(report.audit),
    }


def print_report(console: Console, report: Report) -> None:
    """Print the report for people."""
    summary = report.summary
    console.print()
    console.print(Text("What came of it", style="bold"))
    sent = report.setting["requests"]
    _say(console, "requests", f"{sent} sent; {summary.requests} outcomes: {_outcomes(summary)}")
    rate = summary.tokens_per_s or 0.0
    _say(
        console,
        "tokens",
        f"{summary.prompt_tokens:,} read, {summary.output_tokens:,} generated in"
        f" {summary.seconds:.1f} s: {rate:.0f} tokens/s",
    )
    _say(console, "waits", _waits(summary))
    _say(console, "batch", _batch(report.occupancy))
    _say(console, "KV", _kv(report.occupancy))
    console.print()
    speed = report.setting["speed"]
    faster = "" if speed == 1 else f"; everything at {speed:g} times its speed"
    console.print(Text(LATENCY_WORDS + faster, style="dim"))
    console.print(_latencies(summary))
    if report.slowest is not None:
        console.print()
        console.print(Text("The slowest request", style="bold"))
        console.print(render_waterfall(report.slowest, console.width))
    console.print()
    console.print(Text("Is it sound?", style="bold"))
    _print_checks(console, report)
    console.print()


def _print_checks(console: Console, report: Report) -> None:
    replay, audit = report.replay, report.audit
    if replay is not None:
        _say(
            console,
            "replay",
            f"{replay.entries:,} facts and {replay.decisions:,} decisions derived again in"
            f" {replay.seconds:.1f} s ({replay.facts_per_s:,.0f} facts/s):"
            f" {replay.mismatches} mismatches, digest {replay.digest}",
        )
    if audit is not None:
        _say(console, "audit", audit.sentence())
    for fault in report.faults:
        console.print(Text(f"  ✗ {fault}", style="bold red"))
    if not report.faults:
        console.print(
            Text(
                "  ✓ every request has exactly one outcome, the replay has no mismatch, and the"
                " record has no gap",
                style="bold green",
            )
        )


def _say(console: Console, label: str, text: str) -> None:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=10)
    line.add_column(overflow="fold")
    line.add_row(Text(f"  {label}", style="dim"), text)
    console.print(line)


def _outcomes(summary: Summary) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes) or "none"


def _waits(summary: Summary) -> str:
    total_ms = sum(ms for _, ms in summary.waits_ms)
    if summary.wait_ms is None or not total_ms:
        return "none"
    causes = ", ".join(f"{cause} {ms / total_ms:.0%}" for cause, ms in summary.waits_ms)
    return (
        f"p50 {summary.wait_ms.p50:,.0f} ms, p99 {summary.wait_ms.p99:,.0f} ms;"
        f" of all waiting: {causes}"
    )


def _batch(occupancy: Occupancy) -> str:
    if occupancy.mean_batch is None:
        return "no replica had a request"
    return f"{occupancy.mean_batch:.1f} requests on a busy replica, on average"


def _kv(occupancy: Occupancy) -> str:
    if occupancy.kv_use_mean is None:
        return "nothing was reserved"
    return (
        f"{occupancy.kv_use_mean:.0%} of the blocks reserved on average, at most"
        f" {occupancy.kv_use_peak:.0%}"
    )


def _latencies(summary: Summary) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("tier", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    for name in ("TTFT p50", "p95", "p99", "e2e p50", "p95", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for tier in summary.tiers:
        if tier.requests:
            table.add_row(
                tier.tier, str(tier.requests), *_three(tier.ttft_ms), *_three(tier.e2e_ms)
            )
    table.add_section()
    table.add_row("all", str(summary.requests), *_three(summary.ttft_ms), *_three(summary.e2e_ms))
    return table


def _three(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return ("-", "-", "-")
    return (f"{spread.p50:,.0f}", f"{spread.p95:,.0f}", f"{spread.p99:,.0f}")
