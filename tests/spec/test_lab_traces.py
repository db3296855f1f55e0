"""Trace files, good and bad: what is read from them, and what is said of them."""

import gzip
from pathlib import Path

import pytest

from services.lab.arrivals import Arrival
from services.lab.traces import TraceError, read_trace

OWN = "t_ms,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_a_plain_trace_is_read_relative_to_its_first_row(tmp_path: Path) -> None:
    path = written(tmp_path, OWN + "1000.5,4808,10\n1052.5,3180,8\n")
    assert read_trace(path) == [Arrival(0.0, 4808, 10), Arrival(52.0, 3180, 8)]


def test_a_gzipped_trace_is_known_by_its_bytes_not_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress((OWN + "0,1,2\n").encode()))
    assert read_trace(path) == [Arrival(0.0, 1, 2)]


def test_azures_columns_and_seven_fractional_digits_are_read(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    first, second = read_trace(written(tmp_path, AZURE + rows))
    assert (first.t_ms, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.t_ms == pytest.approx(4314.579, abs=0.001)


def test_azures_time_zone_counts(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.000000+00:00,1,1\n2024-05-10 02:00:01+02:00,2,2\n"
    assert [one.t_ms for one in read_trace(written(tmp_path, AZURE + rows))] == [0.0, 1000.0]


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, OWN + "30,3,3\n10,1,1\n20,2,2\n")
    assert [(one.t_ms, one.prompt_tokens) for one in read_trace(path)] == [(0, 1), (10, 2), (20, 3)]


def test_other_columns_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = written(tmp_path, "name,output_tokens,t_ms,prompt_tokens\na,7,0,5\n\n,8,1,6\n")
    assert read_trace(path) == [Arrival(0.0, 5, 7), Arrival(1.0, 6, 8)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty: its first line should name the columns"),
        (OWN, "holds no row"),
        ("a,b,c\n1,2,3\n", "it should have t_ms,prompt_tokens,output_tokens or TIMESTAMP"),
        (OWN + "0,1,1\nsoon,1,1\n", "line 3 of the trace .* t_ms is 'soon'"),
        (OWN + "nan,1,1\n", "line 2 of the trace .* t_ms is 'nan'"),
        (OWN + "0,1.5,1\n", "line 2 of the trace .* prompt_tokens is '1.5'"),
        (OWN + "0,1,-1\n", "line 2 of the trace .* output_tokens is '-1'"),
        (OWN + "0,1\n", "line 2 of the trace .* has 2 columns; it should have 3"),
        (AZURE + "yesterday,1,1\n", "line 2 of the trace .* TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-02-30 00:00:00,1,1\n", "line 2 of the trace .* TIMESTAMP"),
    ],
)
def test_a_trace_that_cannot_be_used_is_named_in_a_sentence(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(TraceError, match=told):
        read_trace(written(tmp_path, text))


def test_a_trace_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.csv")
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TraceError, match="is not text in UTF-8"):
        read_trace(path)
    path.write_bytes(gzip.compress((OWN + "0,1,1\n" * 100).encode())[:-12])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)
