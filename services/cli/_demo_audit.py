"""Asks the recorder whether its record of a demo is complete. Reads only.

The recorder is never in the way of scheduling, so it may be behind: it is given time to catch up to
the last entry that was seen on each ledger, and to the last outcome, and no more than that.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.cli import _endpoints
from services.recorder.server import connect

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class AuditFound:
    """What the recorder's audit found.

    Attributes:
        caught_up: whether it held all that was on the ledgers within the time given.
        catch_up_s: how long that took, after the last outcome was seen.
        requests, results: rows of this run.
        problems: how many each check of the view `audit` finds.
    """

    caught_up: bool
    catch_up_s: float
    requests: int = 0
    results: int = 0
    problems: dict[str, int] = field(default_factory=dict[str, int])
    faults: list[str] = field(default_factory=list[str])

    def sentence(self) -> str:
        """Return what was found in one line."""
        if not self.caught_up:
            return f"not finished: the recorder was still behind after {self.catch_up_s:.0f} s"
        checks = ", ".join(self.problems)
        return (
            f"{self.requests} requests and {self.results} outcomes recorded, complete"
            f" {self.catch_up_s:.1f} s after the last one; {sum(self.problems.values())} problems"
            f" ({checks})"
        )


async def audit(
    clickhouse: str, prefixes: list[str], total: int, last_seq: Mapping[int, int], s_max: float
) -> AuditFound:
    """Wait until the recorder has caught up, for `s_max` at most, and ask for its audit.

    Args:
        clickhouse: URL of the recorder's store.
        prefixes: what the ids of this run's requests begin with, those of its job's items too.
        total: how many they are.
        last_seq: of each cell, the entry that must be there.
        s_max: for all of it.
    """
    from clickhouse_connect.driver.exceptions import (  # noqa: PLC0415 - slow to load
        ClickHouseError,
    )

    began_s = time.monotonic()
    behind = "it has not answered"
    while time.monotonic() - began_s < s_max:
        try:
            behind, found = await asyncio.to_thread(_look, clickhouse, prefixes, total, last_seq)
        except (ClickHouseError, OSError) as error:
            behind, found = _endpoints.first_line(error), None
        if found is not None:
            return AuditFound(
                caught_up=True,
                catch_up_s=time.monotonic() - began_s,
                requests=found.requests,
                results=found.results,
                problems=found.problems,
                faults=found.faults,
            )
        await asyncio.sleep(POLL_S)
    waited_s = time.monotonic() - began_s
    fault = f"the recorder has not caught up within {waited_s:.0f} s: {behind}"
    return AuditFound(caught_up=False, catch_up_s=waited_s, faults=[fault])


def _look(
    clickhouse: str, prefixes: list[str], total: int, last_seq: Mapping[int, int]
) -> tuple[str, AuditFound | None]:
    """Return what the recorder lacks still; or, once it lacks nothing, what its audit finds."""
    client = connect(clickhouse, _endpoints.STORE_QUERY_S)
    try:
        rows = client.query("SELECT cell, max(seq) FROM ledger GROUP BY cell").result_rows
        held = {int(cell): int(seq) for cell, seq in rows}
        for cell, seq in last_seq.items():
            if held.get(cell, -1) < seq:
                lacks = f"of cell {cell} it holds seq {held.get(cell, -1)}, the ledger {seq}"
                return lacks, None
        mine = {"prefixes": prefixes}
        ended, unended = _row(
            client,
            "SELECT countIf(outcome IS NOT NULL), countIf(outcome IS NULL) FROM requests"
            " WHERE arrayExists(one -> startsWith(id, one), {prefixes:Array(String)})",
            mine,
        )
        (results,) = _row(
            client,
            "SELECT count() FROM results"
            " WHERE arrayExists(one -> startsWith(id, one), {prefixes:Array(String)})",
            mine,
        )
        if results < ended:
            return f"it holds {results} outcomes of {ended}", None
        problems = {
            str(check): int(count)
            for check, count in client.query("SELECT check, problems FROM audit").result_rows
        }
    finally:
        client.close()
    faults = [
        f"the audit finds {count} {check}: `headway sql` tells which (views audit_*)"
        for check, count in problems.items()
        if count
    ]
    if (ended, results) != (total, total) or unended:
        faults.append(
            f"the recorder holds {ended} ended and {unended} unended requests and {results}"
            f" outcomes; {total} requests and items were sent"
        )
    return "", AuditFound(True, 0.0, ended, results, problems, faults)


def _row(client: Any, query: str, parameters: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in client.query(query, parameters=parameters).result_rows[0])
