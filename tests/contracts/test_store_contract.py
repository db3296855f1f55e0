"""What a ClickHouse must do for Headway: one suite over the embedded one and a real server.

The real server is the one that HEADWAY_TEST_CLICKHOUSE names, else one in Docker where an engine
answers; without either, its half is skipped. Each test uses a database of its own.
"""

import asyncio
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError

from services.recorder.chdb_server import ChdbServer
from services.recorder.engine import Engine

pytestmark = pytest.mark.store
EXCEPTION_AFTER_OUTPUT = (
    "SELECT number, throwIf(number = 150000, 'stop here') FROM numbers(200000)"
    " SETTINGS max_block_size = 1000"
)


def docker_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    told = subprocess.run([docker, "info"], capture_output=True, timeout=5, check=False)
    return told.returncode == 0


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    path: Path = tmp_path_factory.mktemp("store")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = Engine(path)
    server = ChdbServer(engine)
    port = asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    yield {"host": "127.0.0.1", "port": port}
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    engine.close()


@pytest.fixture(scope="module")
def real_server() -> Iterator[dict[str, Any]]:
    named = os.environ.get("HEADWAY_TEST_CLICKHOUSE")
    if named:
        parts = urlsplit(named)
        yield {
            "host": parts.hostname,
            "port": parts.port,
            "username": parts.username or "default",
            "password": parts.password or "",
        }
        return
    if not docker_answers():
        pytest.skip("no ClickHouse server: HEADWAY_TEST_CLICKHOUSE is not set, no Docker answers")
    from testcontainers.clickhouse import ClickHouseContainer  # noqa: PLC0415 - only where Docker is

    with ClickHouseContainer("clickhouse/clickhouse-server:latest") as container:
        yield {
            "host": container.get_container_host_ip(),
            "port": int(container.get_exposed_port(8123)),
            "username": container.username,
            "password": container.password,
        }


@pytest.fixture(params=["embedded", "real_server"])
def access(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(request.param)


@pytest.fixture
def client(access: dict[str, Any]) -> Iterator[Any]:
    name = f"contract_{uuid.uuid4().hex[:12]}"
    first = clickhouse_connect.get_client(**access)
    first.command(f"CREATE DATABASE {name}")
    inside = clickhouse_connect.get_client(**access, database=name)
    inside.command(
        "CREATE TABLE t (n UInt64, s String, m Map(String, UInt64), f Nullable(Float64),"
        " at DateTime64(6, 'UTC')) ENGINE = MergeTree ORDER BY n"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    yield inside
    inside.close()
    first.command(f"DROP DATABASE {name}")
    first.close()


def row(number: int) -> list[Any]:
    text = f"line {number}\n'quoted' \"twice\" \\ \t é 漢 \x00"
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    return [number, text, {"kv": number, "it's": 2**53}, None if number % 2 else number / 4, at]


COLUMNS = ["n", "s", "m", "f", "at"]


def test_it_answers_a_ping_and_tells_its_version(client: Any) -> None:
    assert client.ping()
    assert int(client.server_version.split(".")[0]) >= 25


def test_rows_come_back_as_they_went_in(client: Any) -> None:
    client.insert("t", [row(1), row(2)], column_names=COLUMNS)
    told = client.query("SELECT * FROM t ORDER BY n", tz_mode="aware").result_rows
    assert [list(r) for r in told] == [row(1), row(2)]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip"])
def test_every_frame_of_a_compressed_insert_is_stored(
    access: dict[str, Any], client: Any, compression: str
) -> None:
    packed = clickhouse_connect.get_client(**access, database=client.database, compress=compression)
    rows = [row(number) for number in range(15_000)]
    packed.insert("t", rows, column_names=COLUMNS)
    assert packed.query("SELECT count(), sum(n) FROM t").result_rows == [(15_000, 112_492_500)]
    assert len(packed.query("SELECT * FROM t").result_rows) == 15_000
    packed.close()


def test_csv_json_lines_and_arrow_are_inserted(client: Any) -> None:
    client.raw_insert("t", ["n", "s"], b'1,"a FORMAT CSV"\n2,"b"\n', fmt="CSV")
    client.raw_insert("t", ["n", "s"], b'{"n":3,"s":"SELECT"}\n', fmt="JSONEachRow")
    client.insert_arrow("t", pa.table({"n": pa.array([4], pa.uint64()), "s": ["d"]}))
    told = client.query("SELECT n, s FROM t ORDER BY n").result_rows
    assert told == [(1, "a FORMAT CSV"), (2, "b"), (3, "SELECT"), (4, "d")]


def test_bound_parameters_hold_any_text(client: Any) -> None:
    client.insert("t", [row(7)], column_names=COLUMNS)
    found = client.query(
        "SELECT n FROM t WHERE s = {s:String} AND n = {n:UInt64}",
        parameters={"s": row(7)[1], "n": 7},
    )
    assert found.result_rows == [(7,)]


def test_a_setting_holds_for_its_query_alone(client: Any) -> None:
    ask = "SELECT toUInt64(getSetting('max_block_size'))"
    before = client.query(ask).result_rows
    assert client.query(ask, settings={"max_block_size": 77}).result_rows == [(77,)]
    assert client.query(ask).result_rows == before


def test_an_error_is_told_with_its_code(client: Any) -> None:
    with pytest.raises(ClickHouseError, match=r"Code: 60.*UNKNOWN_TABLE"):
        client.query("SELECT * FROM no_such_table")


def test_a_query_that_fails_on_the_way_leaves_nothing_in_the_next_answer(client: Any) -> None:
    for _ in range(5):
        with pytest.raises(ClickHouseError, match="stop here"):
            client.query(EXCEPTION_AFTER_OUTPUT)
        assert client.query("SELECT 42").result_rows == [(42,)]


def test_a_stream_that_fails_on_the_way_raises(client: Any) -> None:
    with (
        pytest.raises((ClickHouseError, OSError)),
        client.query_row_block_stream(EXCEPTION_AFTER_OUTPUT) as blocks,
    ):
        for _ in blocks:
            pass
    assert client.query("SELECT 42").result_rows == [(42,)]


def test_a_large_result_comes_as_a_stream(client: Any) -> None:
    with client.query_row_block_stream("SELECT number FROM numbers(1000000)") as blocks:
        assert sum(sum(r[0] for r in block) for block in blocks) == 499_999_500_000


def test_a_repeated_token_stores_the_rows_once(client: Any) -> None:
    once = {"insert_deduplication_token": "headway.ledger:0:0-9", "async_insert": 0}
    for _ in range(2):
        client.insert("t", [row(1), row(2)], column_names=COLUMNS, settings=once)
    assert client.query("SELECT count() FROM t").result_rows == [(2,)]


@pytest.mark.parametrize(
    "statement", ["INSERT INTO t (n) VALUES (1)", "DROP TABLE t", "TRUNCATE TABLE t"]
)
def test_a_reading_connection_changes_nothing(client: Any, statement: str) -> None:
    client.insert("t", [row(1)], column_names=COLUMNS)
    with pytest.raises(ClickHouseError, match="READONLY"):
        client.command(statement, settings={"readonly": 1})
    assert client.query("SELECT count() FROM t").result_rows == [(1,)]


def test_a_long_query_does_not_hold_an_insert_up(access: dict[str, Any], client: Any) -> None:
    other = clickhouse_connect.get_client(**access, database=client.database)
    endless = threading.Thread(
        target=lambda: client.query("SELECT sleepEachRow(1) FROM numbers(2)"), daemon=True
    )
    endless.start()
    other.insert("t", [row(1)], column_names=COLUMNS)
    assert endless.is_alive()
    endless.join()
    other.close()


def test_an_insert_says_so_when_a_view_on_its_table_fails(client: Any) -> None:
    client.command("CREATE TABLE entry (n UInt64) ENGINE = Null")
    client.command("CREATE TABLE whole (n UInt64) ENGINE = MergeTree ORDER BY n")
    client.command(
        "CREATE MATERIALIZED VIEW fails TO whole AS"
        " SELECT n + throwIf(n = 3, 'no 3') AS n FROM entry"
    )
    with pytest.raises(ClickHouseError, match="no 3"):
        client.insert("entry", [[1], [3]], column_names=["n"])
    client.insert("entry", [[1], [2]], column_names=["n"])
    assert client.query("SELECT count() FROM whole").result_rows == [(2,)]


def test_settings_may_stand_in_an_insert_with_data(client: Any) -> None:
    for _ in range(2):
        client.command(
            "INSERT INTO t (n, s)"
            " SETTINGS insert_deduplication_token = 'x', async_insert = 0 FORMAT CSV",
            data="5,five\n",
        )
    assert client.query("SELECT n, s FROM t").result_rows == [(5, "five")]
