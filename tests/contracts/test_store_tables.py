"""The recorder's tables, views and ready-made queries on a real engine, over a recorded ledger."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from schemas.batches import BatchFormed
from schemas.decisions import RequestDispatched
from schemas.facts import PolicyActivated
from schemas.policy import Policy, policy_digest
from schemas.topics import DEAD_LETTER, RESULTS, SIGNALS, TELEMETRY
from services.recorder.engine import Engine
from services.recorder.queries import ReadyQuery, ready_queries
from tests.contracts.store_recorded import (
    ENDS,
    ENTRIES,
    LINES,
    Recorded,
    example,
    ledger_records,
)

pytestmark = pytest.mark.store


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A store that holds the recorded ledger and one message of each other topic."""
    engine = Engine(tmp_path_factory.mktemp("golden"))
    recorded = Recorded(engine)

    async def fill() -> None:
        await recorded.resume()
        await recorded.record(ledger_records())
        await recorded.record(
            [
                ((RESULTS, 0, 0), example("result.v1")),
                ((TELEMETRY, 0, 0), example("device-sample.v1")),
                ((SIGNALS, 0, 0), example("depth.v1")),
                ((DEAD_LETTER, 0, 0), example("dead-letter.v1")),
            ]
        )

    asyncio.run(fill())
    yield recorded
    engine.close()


def test_the_ledger_is_kept_byte_for_byte(golden: Recorded) -> None:
    rows = golden.ask("SELECT raw FROM ledger FINAL ORDER BY offset, line")
    assert [row[0].encode() for row in rows] == LINES


def test_every_decision_has_a_row(golden: Recorded) -> None:
    rows = golden.ask("SELECT seq, index, kind, json FROM decisions ORDER BY seq, index")
    told = [(seq, index, kind, json.loads(text)) for seq, index, kind, text in rows]
    wanted = [
        (item["seq"], index, decision["kind"], decision)
        for item in map(json.loads, LINES)
        for index, decision in enumerate(item["decisions"])
    ]
    assert told == wanted


def test_every_request_has_one_row_with_its_end(golden: Recorded) -> None:
    rows = golden.ask(
        "SELECT id, outcome, reason, attempts, slot, wait_us, run_us, e2e_us, ttft_us,"
        " prompt_tokens, output_tokens, toUnixTimestamp64Micro(arrived_at) FROM requests"
        " ORDER BY request_offset, id"
    )
    wanted = [
        [
            end.id,
            end.outcome,
            end.reason,
            end.attempts,
            end.slot,
            end.wait_us,
            end.run_us,
            end.e2e_us,
            end.ttft_us,
            end.prompt_tokens,
            end.usage.output_tokens if end.usage else None,
            end.arrived_us,
        ]
        for end in sorted(ENDS, key=lambda end: (end.request_offset, end.id))
    ]
    assert rows == wanted


def test_the_causes_of_waits_are_those_of_the_decisions(golden: Recorded) -> None:
    rows = golden.ask("SELECT cause, sum(cause_us) FROM waits GROUP BY cause")
    wanted: Counter[str] = Counter()
    for end in ENDS:
        wanted.update(dict(end.waits))
    assert {cause: int(total) for cause, total in rows} == dict(wanted)


def test_queue_depth_is_what_the_decisions_add_up_to(golden: Recorded) -> None:
    waiting: set[str] = set()
    running: set[str] = set()
    wanted: dict[int, tuple[int, int]] = {}
    for item in ENTRIES:
        for decision in item.decisions:
            kind = decision.kind
            if getattr(decision, "model", None) != "m":
                continue
            if kind in {"request-queued.v1", "request-returned.v1", "request-preempted.v1"}:
                waiting.add(decision.id)  # pyright: ignore[reportAttributeAccessIssue] - by kind
                running.discard(decision.id)  # pyright: ignore[reportAttributeAccessIssue] - by kind
            elif kind in {"request-dispatched.v1", "attempt-lost.v1", "request-ended.v1"}:
                name: str = decision.id  # pyright: ignore[reportAttributeAccessIssue] - by kind
                waiting.discard(name)
                running.discard(name)
                if kind == "request-dispatched.v1":
                    running.add(name)
            else:
                continue
            wanted[item.fact.at_us // 1_000_000] = (len(waiting), len(running))
    rows = golden.ask(
        "SELECT toUnixTimestamp64Milli(toDateTime64(second, 3)) / 1000, waiting, running"
        " FROM queue_depth WHERE model = 'm' ORDER BY second"
    )
    assert {int(second): (w, r) for second, w, r in rows} == wanted


def test_a_replica_never_holds_more_blocks_than_were_dispatched_to_it(golden: Recorded) -> None:
    dispatched: dict[str, int] = defaultdict(int)
    for item in ENTRIES:
        for decision in item.decisions:
            if isinstance(decision, RequestDispatched):
                dispatched[f"{decision.model}/{decision.slot}"] += decision.blocks
    last = golden.ask(
        "SELECT replica, argMax(running, second), argMax(blocks_used, second), max(blocks_used)"
        " FROM replica_occupancy GROUP BY replica"
    )
    assert {row[0] for row in last} == set(dispatched)
    for replica, running, blocks, most in last:
        assert (running, blocks) == (0, 0), "all requests of this ledger have ended"
        # What came and went within a second is not seen at its end.
        assert 0 <= most <= dispatched[replica]
    assert any(most for *_, most in last)


def test_unknown_is_null_and_never_zero(golden: Recorded) -> None:
    assert golden.ask("SELECT temperature_c, utilisation FROM telemetry") == [[None, 0.87]]
    never_ran = {end.id for end in ENDS if end.usage is None}
    rows = golden.ask("SELECT id FROM requests WHERE isNull(output_tokens)")
    assert {row[0] for row in rows} == never_ran


def test_the_audit_of_a_whole_ledger_finds_nothing(golden: Recorded) -> None:
    rows = golden.ask("SELECT check, problems FROM audit")
    assert len(rows) == 6
    assert all(problems == 0 for _, problems in rows)


@pytest.mark.parametrize("query", ready_queries(), ids=lambda query: query.name)
def test_a_ready_made_query_runs_and_says_what_it_answers(
    golden: Recorded, query: ReadyQuery
) -> None:
    assert query.answers
    assert query.answers.endswith(".")
    bound = {"id": "c-8"}
    rows = golden.store.query(query.sql, {name: bound[name] for name in query.parameters})
    # Of a ledger without a fault in which all requests have ended.
    empty = {"kv_beyond_pool", "missing_offsets", "waiting_now"}
    assert bool(rows) != (query.name in empty)


def test_a_story_tells_a_request_from_arrival_to_end(golden: Recorded) -> None:
    query = next(query for query in ready_queries() if query.name == "request_story")
    rows = golden.store.query(query.sql, {"id": "c-8"})
    kinds = [row[4] for row in rows]
    assert kinds[0] == "request-arrived.v1"
    assert kinds[-1] == "request-ended.v1"
    assert "request-dispatched.v1" in kinds
    at = [row[0] for row in rows]
    assert at == sorted(at)


def test_outcomes_by_tier_counts_every_end(golden: Recorded) -> None:
    query = next(query for query in ready_queries() if query.name == "outcomes_by_tier")
    told = {
        (tier, outcome, reason): count for tier, outcome, reason, count in golden.ask(query.sql)
    }
    assert told == dict(Counter((end.tier, end.outcome, end.reason) for end in ENDS))


def test_every_table_and_column_says_what_it_is(golden: Recorded) -> None:
    unsaid = golden.ask(
        "SELECT name FROM system.tables WHERE database = 'default' AND comment = ''"
        " AND engine != 'MaterializedView'"
    )
    assert unsaid == []
    columns = golden.ask(
        "SELECT table, name FROM system.columns WHERE database = 'default' AND comment = ''"
        " AND NOT startsWith(table, '.')"
    )
    assert columns == []


def test_batches_are_told_by_what_closed_them(golden: Recorded) -> None:
    query = next(query for query in ready_queries() if query.name == "batches")
    rows = golden.ask(query.sql)
    formed = [
        item for entry in ENTRIES for item in entry.decisions if isinstance(item, BatchFormed)
    ]
    expected = Counter(item.why for item in formed)
    assert {row[1]: row[2] for row in rows} == expected
    assert {row[0] for row in rows} == {"e"}
    assert sum(row[3] for row in rows) == sum(len(item.members) for item in formed) == 40


def test_every_policy_has_a_row_with_who_and_why_and_decisions_join_to_it(
    golden: Recorded,
) -> None:
    wanted = [
        (item.fact.policy, item.fact.who, item.fact.why)
        for item in ENTRIES
        if isinstance(item.fact, PolicyActivated)
    ]
    rows = golden.ask(
        "SELECT version, digest, name, who, why, `values`['attempts_max'], cells FROM policies"
        " ORDER BY version, at"
    )
    assert rows == [
        [
            policy.version,
            policy_digest(policy),
            policy.name,
            who,
            why,
            str(policy.attempts_max),
            1,
        ]
        for policy, who, why in wanted
    ]
    under = golden.ask(
        "SELECT count() FROM decisions AS d INNER JOIN policies AS p"
        " ON d.policy_version = p.version AND d.policy_digest = p.digest"
    )
    assert [[int(count)] for (count,) in under] == [
        [sum(len(item.decisions) for item in ENTRIES if item.policy_version in _versions(wanted))]
    ]


def _versions(policies: list[tuple[Policy, str, str]]) -> set[int]:
    return {policy.version for policy, _, _ in policies}


UNITS = {
    "_us": "Unit: µs",
    "_ms": "Unit: ms",
    "_s": "Unit: s",
    "_bytes": "Unit: bytes",
    "_tokens": "Unit: tokens",
    "_w": "Unit: W",
    "_c": "Unit: °C",
    "waits": "Unit: µs",
    "blocks": "Unit: KV blocks",
}


@pytest.mark.parametrize("ending", UNITS)
def test_a_column_of_a_measure_says_its_unit_in_tables_and_views_alike(
    golden: Recorded, ending: str
) -> None:
    comments = golden.store.query(
        "SELECT table, name, comment FROM system.columns"
        " WHERE database = 'default' AND endsWith(name, {ending:String})",
        {"ending": ending},
    )
    assert comments
    assert [row for row in comments if UNITS[ending] not in row[2]] == []


def test_describe_tells_an_analyst_what_a_view_s_columns_mean(golden: Recorded) -> None:
    told = {row[0]: row[4] for row in golden.ask("DESCRIBE TABLE requests")}
    assert told["wait_us"] == "All time in which no replica had it. Unit: µs."
    assert told["outcome"].startswith("completed, rejected, expired, failed, cancelled")


def test_a_request_that_was_never_queued_is_not_in_the_queue_s_depth(golden: Recorded) -> None:
    never = {end.model for end in ENDS} - {"m", "e"}
    assert never == {"nowhere-m"}, "the recorded ledger holds a request for an unknown model"
    assert golden.ask("SELECT DISTINCT model FROM queue_depth ORDER BY model") == [["e"], ["m"]]
