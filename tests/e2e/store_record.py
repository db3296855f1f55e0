"""What must hold of the recorder's tables after any fault: all there, nothing twice, no gap."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from services.recorder.queries import ready_queries
from services.recorder.server import connect
from streams.replay import combined_digest
from streams.replay_sources import replay_kafka, replay_store
from tests.e2e.deployment import CELLS, Deployment

CATCH_UP_S_MAX = 60.0
QUERY_S_MAX = 60
EMPTY = ("missing_offsets", "outcomes_without_result")


async def check_store(deployment: Deployment, url: str, ids: Iterable[str]) -> None:
    """End what writes, let the recorder catch up, and hold its tables against Kafka's ledger."""
    for name, child in deployment.children.items():
        if name.startswith(("cell", "worker")):
            child.kill()
            child.wait(10)
    from_kafka = [
        (await replay_kafka(deployment.bootstrap, cell, _silent)).report for cell in range(CELLS)
    ]
    await asyncio.to_thread(
        _wait_until_caught_up, url, {report.cell: report.next_seq for report in from_kafka}
    )

    def look() -> None:
        client = connect(url, QUERY_S_MAX)
        try:
            _check_tables(client, set(ids))
            from_store = [replay_store(client, cell, _silent).report for cell in range(CELLS)]
        finally:
            client.close()
        for report in (*from_kafka, *from_store):
            assert report.mismatch_count == 0, report.mismatches[:3]
        assert combined_digest(from_store) == combined_digest(from_kafka)

    await asyncio.to_thread(look)


def _check_tables(client: Any, ids: set[str]) -> None:
    def rows(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in client.query(sql).result_rows]

    assert rows("SELECT check, problems FROM audit WHERE problems > 0") == []
    assert rows("SELECT id FROM audit_unfinished") == []
    assert rows("SELECT count() - uniqExact(cell, seq, index) FROM decisions") == [(0,)]
    for table in ("requests", "results"):
        ended = Counter(row[0] for row in rows(f"SELECT id FROM {table} WHERE outcome != ''"))  # noqa: S608 - our own tables' names
        assert {key: count for key, count in ended.items() if count > 1} == {}
        assert ended.keys() == ids, f"{table} differs from what was sent"
    for query in ready_queries():
        if query.name in EMPTY:
            assert rows(query.sql) == [], query.name


def _wait_until_caught_up(url: str, next_seq: dict[int, int]) -> None:
    """Wait until the store holds every entry; a server that is not up yet is waited for too."""
    wanted = {cell: seq for cell, seq in next_seq.items() if seq}
    held: dict[int, int] = {}
    until_s = time.monotonic() + CATCH_UP_S_MAX
    while time.monotonic() < until_s:
        held = _held(url)
        if held == wanted and _results_are_in(url):
            return
        time.sleep(0.3)
    raise AssertionError(f"the recorder holds {held} entries by cell; the ledgers {wanted}")


def _held(url: str) -> dict[int, int]:
    rows = _rows(url, "SELECT cell, max(seq) + 1 FROM ledger GROUP BY cell")
    return {int(cell): int(seq) for cell, seq in rows}


def _results_are_in(url: str) -> bool:
    sql = "SELECT (SELECT countIf(outcome != '') FROM requests) - (SELECT count() FROM results)"
    return _rows(url, sql) == [(0,)]


def _rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    from clickhouse_connect.driver.exceptions import ClickHouseError  # noqa: PLC0415 - slow to load

    try:
        client = connect(url, QUERY_S_MAX)
    except (ClickHouseError, OSError):
        return []
    try:
        return [tuple(row) for row in client.query(sql).result_rows]
    except (ClickHouseError, OSError):
        return []
    finally:
        client.close()


def _silent(_cell: int, _done: int, _total: int) -> None:
    """Tell nobody."""
