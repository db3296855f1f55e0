"""What the HTTP interface has to know of a SQL text, and what it must not mistake for it."""

import pytest

from services.recorder.statement import Head, read_statement


@pytest.mark.parametrize(
    ("sql", "insert", "settings", "made", "data"),
    [
        (
            b"INSERT INTO t (a) FORMAT Native\n\x01\x02",
            "INSERT INTO t (a) ",
            "",
            "Native",
            b"\x01\x02",
        ),
        (b"insert into t format CSV 1,2", "insert into t ", "", "CSV", b"1,2"),
        (b"INSERT INTO t FORMAT CSV\r\n1", "INSERT INTO t ", "", "CSV", b"1"),
        (
            b"-- FORMAT x\nINSERT INTO `FORMAT` (a) SETTINGS b = 'FORMAT TSV' FORMAT JSON\n{}",
            "-- FORMAT x\nINSERT INTO `FORMAT` (a) ",
            "SETTINGS b = 'FORMAT TSV' ",
            "JSON",
            b"{}",
        ),
    ],
)
def test_an_insert_is_parted_from_its_data(
    sql: bytes, insert: str, settings: str, made: str, data: bytes
) -> None:
    statement = read_statement(sql)
    assert statement.kind == "insert-data"
    assert statement.head == Head(insert, settings)
    assert statement.format == made
    assert sql[statement.data_at :] == data


@pytest.mark.parametrize(
    "sql",
    [
        b"INSERT INTO t VALUES ('a FORMAT CSV')",
        b"INSERT INTO t SELECT 1 FORMAT CSV",
        b"INSERT INTO t FORMAT Values (1)",
    ],
)
def test_an_insert_without_data_of_a_format_is_left_whole(sql: bytes) -> None:
    assert read_statement(sql).head is None


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        (b"SELECT 1", None),
        (b"SELECT 1 FORMAT JSON", "JSON"),
        (b"SELECT 1\n FORMAT Native;", "Native"),
        (b"SELECT 1 FORMAT CSV SETTINGS max_threads = 1", "CSV"),
        (b"SELECT 'FORMAT JSON'", None),
        (b"SELECT 1 -- FORMAT JSON", None),
        (b"WITH 1 AS format SELECT format", None),
    ],
)
def test_the_format_of_a_result_is_found(sql: bytes, made: str | None) -> None:
    statement = read_statement(sql)
    assert statement.kind == "select"
    assert statement.format == made


def test_set_and_use_belong_to_the_session() -> None:
    assert read_statement(b" SET max_threads = 1").kind == "session"
    assert read_statement(b"use db").kind == "session"


def test_what_stands_in_strings_is_no_keyword() -> None:
    plain = read_statement(b"SELECT 'KILL QUERY' AS \"INTO OUTFILE\" /* KILL */").plain
    assert "KILL" not in plain
    assert "OUTFILE" not in plain


def test_garbage_is_left_for_the_engine_to_refuse() -> None:
    assert read_statement(b"'unclosed \xff\x00 (((").kind == "other"
    assert read_statement(b"").kind == "other"
