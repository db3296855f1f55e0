"""What the recorder's sink makes of records: once each, if repeated, void, bad or altered."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.codec import decode_line, encode_entry
from schemas.decisions import RequestEnded
from schemas.facts import ClockTicked
from schemas.ledger import Entry
from schemas.topics import DEAD_LETTER, LEDGER, TELEMETRY
from services.recorder.engine import Engine, EngineInUseError
from services.recorder.limits import RecorderLimits
from services.recorder.migrate import DIRECTORY, MigrationError, migrate, migrations, statements
from services.recorder.sink import Batch
from services.recorder.store import StoreError
from tests.contracts.store_recorded import (
    CELL,
    ENDS,
    ENTRIES,
    LINES,
    Recorded,
    example,
    ledger_records,
)

pytestmark = pytest.mark.store


@pytest_asyncio.fixture
async def empty(tmp_path: Path) -> AsyncIterator[Recorded]:
    engine = Engine(tmp_path / "store")
    recorded = Recorded(engine)
    await recorded.resume()
    yield recorded
    engine.close()


async def test_what_is_read_twice_is_there_once(empty: Recorded) -> None:
    records = ledger_records()
    # One that looked where to read on before the other had stored anything, as after a crash.
    behind = Recorded(empty.engine)
    await behind.resume()
    await empty.record(records[:12])
    await behind.record(records[:15])
    await empty.resume()
    await empty.record(records)
    assert empty.one("SELECT count() FROM ledger FINAL") == len(LINES)
    assert empty.one("SELECT count() FROM decisions") == sum(len(e.decisions) for e in ENTRIES)
    assert empty.one("SELECT count() FROM requests") == len(ENDS)
    assert [row for row in empty.ask("SELECT * FROM audit") if row[1]] == []


async def test_a_crash_before_the_ledgers_own_rows_is_made_good(empty: Recorded) -> None:
    records = ledger_records()
    await empty.record(records[:5])
    batch = Batch()
    for place, value in records[5:9]:
        empty.sink.add(batch, place, 1, value)
    for insert in batch.inserts():
        if insert.table != "ledger":
            empty.store.insert(insert.table, insert.columns, insert.token)
    await empty.resume()
    assert empty.sink.next_offsets[LEDGER, CELL] == 5
    await empty.record(records[5:])
    assert empty.one("SELECT count() FROM ledger") == len(LINES)
    assert empty.one("SELECT count() FROM decisions") == sum(len(e.decisions) for e in ENTRIES)
    assert empty.one("SELECT countIf(chain_holds = 0) FROM ledger") == 0


async def test_a_repeated_insert_stores_nothing_twice(empty: Recorded) -> None:
    batch = Batch()
    for place, value in ledger_records():
        empty.sink.add(batch, place, 1, value)
    for _ in range(3):
        for insert in batch.inserts():
            empty.store.insert(insert.table, insert.columns, insert.token)
    assert empty.one("SELECT count() FROM ledger") == len(LINES)
    assert empty.one("SELECT count() FROM decision_rows") == sum(len(e.decisions) for e in ENTRIES)


async def test_the_audit_finds_what_is_missing_altered_and_unexplained(empty: Recorded) -> None:
    lines = list(LINES)
    altered = next(
        i
        for i, item in enumerate(ENTRIES)
        if any(isinstance(d, RequestEnded) and len(d.waits) > 1 for d in item.decisions)
    )
    lines[altered] = lines[altered].replace(b'"wait_us":', b'"wait_us":1', 1)
    records = [((LEDGER, CELL, index), line) for index, line in enumerate(lines) if index != 100]
    await empty.record(records)  # pyright: ignore[reportArgumentType] - bytes is bytes | None
    audit = {check: problems for check, problems, _ in empty.ask("SELECT * FROM audit")}
    assert audit["ledger gaps"] == 1
    # The altered line, and the one whose predecessor is missing.
    assert audit["ledger altered"] == 2
    assert audit["unexplained waits"] == 1
    assert empty.ask("SELECT seq_before, seq_after, missing FROM audit_gaps") == [[99, 101, 1]]


async def test_void_entries_are_kept_apart(empty: Recorded) -> None:
    records = ledger_records()
    await empty.record(records)
    last = ENTRIES[-1]
    stale = Entry(
        cell=CELL,
        seq=last.seq + 1,
        epoch=1,
        source=None,
        policy_version=1,
        policy_digest="0" * 16,
        fact=ClockTicked(at_us=last.fact.at_us),
        decisions=(),
    )
    line, _ = encode_entry(stale, decode_line(LINES[-1]).chain)
    await empty.record([((LEDGER, CELL, len(records)), line)])
    assert empty.one("SELECT count() FROM ledger") == len(LINES)
    assert empty.ask("SELECT seq, epoch FROM void_entries") == [[last.seq + 1, 1]]
    assert empty.sink.void_entries == 1


async def test_a_bad_record_is_a_dead_letter_once(empty: Recorded) -> None:
    await empty.record(
        [((TELEMETRY, 1, 0), b"{"), ((TELEMETRY, 1, 1), example("device-sample.v1"))]
    )
    assert [place for place, _ in empty.dead] == [(TELEMETRY, 1, 0)]
    # Its letter is on the bus and recorded; its record is read again, as after a crash.
    letter = example("dead-letter.v1").replace(b"headway.requests", TELEMETRY.encode())
    letter = letter.replace(b'"partition":2,"offset":20818', b'"partition":1,"offset":0')
    await empty.record([((DEAD_LETTER, 1, 0), letter)])
    empty.sink.next_offsets[TELEMETRY, 1] = 0
    await empty.record([((TELEMETRY, 1, 0), b"{")])
    assert len(empty.dead) == 1


async def test_a_row_that_the_store_refuses_is_a_dead_letter_and_the_others_are_stored(
    empty: Recorded,
) -> None:
    empty.store.command("ALTER TABLE telemetry_rows ADD CONSTRAINT odd CHECK offset != 137")
    await empty.record(
        [((TELEMETRY, 0, offset), example("device-sample.v1")) for offset in range(300)]
    )
    assert [place for place, _ in empty.dead] == [(TELEMETRY, 0, 137)]
    assert "ClickHouse refused the row" in empty.dead[0][1]
    assert empty.ask("SELECT count(), sum(offset) FROM telemetry") == [[299, 44_850 - 137]]


async def test_a_batch_too_large_for_the_stores_memory_is_stored_in_parts(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "store", RecorderLimits(query_bytes=3_000_000))
    try:
        recorded = Recorded(engine)
        await recorded.resume()
        samples = [
            ((TELEMETRY, 0, offset), example("device-sample.v1")) for offset in range(20_000)
        ]
        await asyncio.wait_for(recorded.record(samples), 60)  # pyright: ignore[reportArgumentType] - as above
        assert recorded.one("SELECT count() FROM telemetry_rows") == 20_000
    finally:
        engine.close()


def test_a_migration_that_changed_after_it_was_applied_is_refused(
    empty: Recorded, tmp_path: Path
) -> None:
    changed = tmp_path / "migrations"
    shutil.copytree(DIRECTORY, changed)
    first = min(changed.iterdir())
    first.write_text(first.read_text() + "\n-- a word\n")
    with pytest.raises(MigrationError, match=f"{first.name} has changed since"):
        migrate(empty.store, changed)
    first.unlink()
    with pytest.raises(MigrationError, match="does not know"):
        migrate(empty.store, changed)


def test_a_migration_cut_off_half_way_is_gone_through_again(
    empty: Recorded, tmp_path: Path
) -> None:
    directory = tmp_path / "migrations"
    directory.mkdir()
    second = "CREATE TABLE half_b (a Int8) ENGINE = Memory"
    for migration in migrations():
        (directory / migration.name).write_text(migration.sql)
    text = f"-- two tables\nCREATE TABLE half_a (a Int8) ENGINE = Memory;\n{second};\n"
    (directory / "0999_half.sql").write_text(text)
    empty.store.command(next(statements(text)))
    assert migrate(empty.store, directory) == ["0999_half.sql"]
    assert migrate(empty.store, directory) == []
    assert empty.one("SELECT count() FROM half_b") == 0


def test_a_query_that_is_refused_says_why(empty: Recorded) -> None:
    with pytest.raises(StoreError, match="UNKNOWN_TABLE"):
        empty.ask("SELECT * FROM nothing")


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(EngineInUseError, match="choose another with --state"):
        Engine(file / "store")
