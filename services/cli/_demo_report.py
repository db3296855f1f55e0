"""What a demo prints at its end: tables for people, one object for programs. Decides nothing."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from schemas.policy import TIERS
from services.cli import _demo_words as words
from services.cli._demo_audit import AuditFound
from services.cli._demo_checks import ReplayFound
from services.cli._demo_embeddings import Embedded
from services.cli._output import plain
from services.cli._waterfall import render_waterfall
from services.cli.explain import as_plain as story_as_plain
from services.lab.occupancy import Occupancy
from services.lab.scheduling import LINES, JobSeen, Scheduling
from services.lab.summary import Spread, Summary
from streams.story_parts import Story

LABEL_CHARS = 12
LATENCY_WORDS = "ms from the arrival: TTFT to the first token, e2e to the outcome if completed"


@dataclass(slots=True)
class Report:
    """Everything that a demo found.

    Attributes:
        setting: what was run: model, engine, replicas, traffic, seed, scales.
        summary: of the generative requests; those of texts and of the job are told apart.
        faults: sentences that say what is wrong; none in a sound run.
    """

    setting: dict[str, Any]
    summary: Summary
    occupancy: Occupancy
    scheduling: Scheduling
    embedded: Embedded
    job: JobSeen | None
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
        "preemptions": _preemptions_plain(report.scheduling),
        "batches": {
            model: plain(replace(one, closed_by=Counter())) | {"closed_by": dict(one.closed_by)}
            for model, one in report.scheduling.windows.items()
        },
        "embeddings": plain(report.embedded),
        "job": None if report.job is None else _job_plain(report.job),
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
    console.print()
    console.print(Text("Tokens read and generated for each tenant, and ms", style="dim"))
    console.print(_tenants(summary))
    console.print()
    _print_scheduling(console, report)
    if report.slowest is not None:
        console.print()
        console.print(Text("The slowest request", style="bold"))
        console.print(render_waterfall(report.slowest, console.width))
    console.print()
    console.print(Text("Is it sound?", style="bold"))
    _print_checks(console, report)
    console.print()


def _job_plain(job: JobSeen) -> dict[str, Any]:
    report: dict[str, Any] = plain(job.report)
    return {
        "report": report | {"held": dict(job.report.held)},
        "released": dict(job.released),
        "items_left": job.items_left,
        "holds": dict(job.holds),
        "yields": job.yields,
        "output_tokens": job.output_tokens,
    }


def _preemptions_plain(scheduling: Scheduling) -> dict[str, Any]:
    return {
        "count": scheduling.preemptions,
        "tokens_kept": scheduling.tokens_kept,
        "by": [
            {"left": line, "left_for": tier, "count": count}
            for (line, tier), count in sorted(scheduling.left.items())
        ],
        "examples": [plain(one) for one in scheduling.examples.values()],
    }


def _print_scheduling(console: Console, report: Report) -> None:
    """Print who gave way to whom, how the job went, and which batches were formed."""
    scheduling = report.scheduling
    console.print(Text("Who gave way", style="bold"))
    if scheduling.preemptions:
        _say(
            console,
            "preempted",
            f"{scheduling.preemptions} × a request left its replica for one that stands above it,"
            f" with {scheduling.tokens_kept:,} tokens kept, none of which was generated twice",
        )
        console.print(Padding(_who_left(scheduling), (0, 0, 0, LABEL_CHARS + 1)))
        told = max(scheduling.examples.values(), key=lambda one: one.tokens_kept)
        _say(console, "such as", words.left(told))
    else:
        _say(console, "preempted", "nobody: no request lacked room that lower work had")
    if report.job is not None:
        _say(console, "job", words.job_sentence(report.setting["job"], report.job))
        _say(console, "it yielded", words.yields_sentence(report.job))
    console.print()
    console.print(Text("Texts for the encoder", style="bold"))
    if not scheduling.windows:
        _say(console, "batches", "none was formed")
    for model, windows in scheduling.windows.items():
        _say(console, "batches", f"{model}: {words.batches_sentence(windows)}")
    embedded = report.embedded
    waited = "-" if embedded.wait_ms_p50 is None else f"{embedded.wait_ms_p50:,.0f} ms"
    _say(console, "texts", f"{embedded.completed} of {embedded.sent} embedded, wait p50 {waited}")
    if embedded.cosine is not None:
        found = f"{embedded.question!r} is nearest to {embedded.nearest!r}"
        _say(console, "nearest", f"{found} (cosine {embedded.cosine:.2f})")


def _who_left(scheduling: Scheduling) -> Table:
    """Return how many of which line left for which tier."""
    table = _table("who left", *(f"for {tier}" for tier in TIERS))
    for line in LINES:
        counts = [scheduling.left[line, tier] for tier in TIERS]
        if any(counts):
            name = "offline items" if line == "offline" else line
            table.add_row(name, *(str(count or "") for count in counts))
    return table


def _tenants(summary: Summary) -> Table:
    table = _table("tenant", "requests", "completed", "tokens", "share")
    for name in ("wait p50", "p95", "e2e p50", "p95"):
        table.add_column(name, justify="right", no_wrap=True)
    whole = sum(tenant.tokens for tenant in summary.tenants) or 1
    for one in summary.tenants:
        table.add_row(
            *(one.tenant, str(one.requests), str(one.completed), f"{one.tokens:,}"),
            *(f"{one.tokens / whole:.0%}", *_three(one.wait_ms)[:2], *_three(one.e2e_ms)[:2]),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


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
    line.add_column(width=LABEL_CHARS)
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
    table = _table("tier", "requests", "TTFT p50", "p95", "p99", "e2e p50", "p95", "p99")
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
