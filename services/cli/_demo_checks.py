"""Checks a finished demo: every request once, every decision derived again, the record complete.

Each check gives what it measured and the sentences that say what is wrong; none raises for that.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.cli._demo_run import AnySending, Watch
from streams.replay import combined_digest
from streams.replay_sources import cells_of, replay_kafka

NAMED_MAX = 3
# How often the ledger is looked at again for outcomes that headway.results has.


@dataclass(frozen=True, slots=True)
class ReplayFound:
    """What a full replay found. Each entry holds one fact."""

    entries: int
    decisions: int
    void_entries: int
    mismatches: int
    digest: str
    seconds: float
    facts_per_s: float
    faults: list[str] = field(default_factory=list[str])


def outcome_faults(plan: Sequence[AnySending], watch: Watch) -> list[str]:
    """Say which requests have no outcome, or more than one, once the ledger has been heard."""
    ids = [sending.request.id for sending in plan]
    ended = watch.occupancy.ended
    waited_s = watch.ended_s - watch.began_s
    faults = list(watch.troubles)
    silent = [one for one in ids if one not in watch.results]
    if silent:
        faults.append(
            f"{len(silent)} of {len(ids)} requests have no outcome after {waited_s:.0f} s"
            f" ({_some(silent)}): send less with --seconds or --scale-tokens, or look at the"
            " parts' logs with --state DIR"
        )
    unheard = [one for one in watch.results if one not in ended]
    if unheard:
        faults.append(f"the ledger has no outcome of {_some(unheard)}, but headway.results has")
    doubled = [f"{one} ({ended[one]})" for one in ids if ended.get(one, 0) > 1]
    if doubled:
        faults.append(f"{len(doubled)} requests have more than one outcome: {_some(doubled)}")
    return faults


async def full_replay(kafka: str) -> ReplayFound:
    """Derive the ledgers of all cells again and compare.

    Raises:
        SourceError, bus.BusError: they cannot be read.
    """
    began_s = time.perf_counter()
    replayed = [await replay_kafka(kafka, cell, _unheard) for cell in range(await cells_of(kafka))]
    seconds = time.perf_counter() - began_s
    reports = [one.report for one in replayed]
    entries = sum(report.entries for report in reports)
    faults: list[str] = []
    for report in reports:
        if report.mismatches:
            faults.append(f"the replay differs: {report.mismatches[0].sentence()}")
        if report.stopped is not None:
            faults.append(f"the replay did not get to the end: {report.stopped}")
    return ReplayFound(
        entries=entries,
        decisions=sum(report.decisions for report in reports),
        void_entries=sum(report.void_entries for report in reports),
        mismatches=sum(report.mismatch_count for report in reports),
        digest=combined_digest(reports),
        seconds=seconds,
        facts_per_s=entries / seconds if seconds > 0 else 0.0,
        faults=faults,
    )


def _unheard(cell: int, done: int, total: int) -> None:
    del cell, done, total


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
