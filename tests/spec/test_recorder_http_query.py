"""Requests and bodies as ClickHouse clients send them."""

import gzip
import zlib

import lz4.frame
import pytest
import zstandard

from services.recorder.engine import EngineError
from services.recorder.http_query import Compressor, decompress, read_query

LIMIT = 1_000_000


def test_every_lz4_frame_of_a_body_is_read() -> None:
    frames = [lz4.frame.compress(b"block %d;" % number) for number in range(50)]
    whole = b"".join(b"block %d;" % number for number in range(50))
    assert decompress(b"".join(frames), "lz4", LIMIT) == whole


def test_every_zstd_frame_of_a_body_is_read() -> None:
    packed = zstandard.ZstdCompressor().compress(b"one") + zstandard.compress(b"two")
    assert decompress(packed, "zstd", LIMIT) == b"onetwo"


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip", "deflate"])
def test_what_is_compressed_comes_back(encoding: str) -> None:
    compressor = Compressor(encoding)
    packed = compressor.add(b"first ") + compressor.add(b"second") + compressor.end()
    assert decompress(packed, encoding, LIMIT) == b"first second"


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("lz4", lz4.frame.compress(b"x" * 1000)[:-6]),
        ("zstd", b"not zstd at all"),
        ("gzip", gzip.compress(b"x" * 1000)[:-10]),
        ("deflate", zlib.compress(b"x")[1:]),
        ("snappy", b"x"),
    ],
)
def test_a_body_that_is_cut_off_or_of_another_kind_is_refused(encoding: str, packed: bytes) -> None:
    with pytest.raises(EngineError, match="UNKNOWN_COMPRESSION_METHOD"):
        decompress(packed, encoding, LIMIT)


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip"])
def test_a_body_that_grows_beyond_the_limit_is_refused(encoding: str) -> None:
    compressor = Compressor(encoding)
    packed = compressor.add(bytes(LIMIT + 1)) + compressor.end()
    with pytest.raises(EngineError, match="larger than the 1000000 bytes"):
        decompress(packed, encoding, LIMIT)


def test_parameters_are_sorted_into_what_they_are() -> None:
    query = read_query(
        "POST",
        {
            "query": "SELECT {id:String}",
            "param_id": "a",
            "max_threads": "1",
            "session_id": "s",
            "database": "d",
            "wait_end_of_query": "1",
        },
        {"Accept-Encoding": "br;q=1, zstd", "X": "y"},
        b"",
    )
    assert query.sql == b"SELECT {id:String}"
    assert query.params == {"id": "a"}
    assert query.settings == {"max_threads": "1"}
    assert (query.session_id, query.database) == ("s", "d")
    assert not query.readonly
    assert query.encoding is None


def test_a_query_in_the_address_goes_before_the_data_in_the_body() -> None:
    query = read_query("POST", {"query": "INSERT INTO t FORMAT CSV"}, {}, b"1,2")
    assert query.sql == b"INSERT INTO t FORMAT CSV\n1,2"


def test_get_reads_only() -> None:
    assert read_query("GET", {"query": "SELECT 1"}, {}, b"").readonly
    assert read_query("POST", {"readonly": "2"}, {}, b"SELECT 1").readonly


def test_clickhouses_own_block_compression_is_refused_with_what_to_use() -> None:
    with pytest.raises(EngineError, match="use Content-Encoding"):
        read_query("POST", {"decompress": "1"}, {}, b"")
