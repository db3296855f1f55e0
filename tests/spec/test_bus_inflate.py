"""Compressed bytes become their own, or a sentence; and never more than they may."""

import contextlib
import gzip

import pytest
from aiokafka.codec import lz4_encode, snappy_encode, zstd_encode
from hypothesis import given, settings
from hypothesis import strategies as st

from services.inflate import GZIP, LZ4, SNAPPY, ZSTD, InflateError, inflate

PACK = {GZIP: gzip.compress, SNAPPY: snappy_encode, LZ4: lz4_encode, ZSTD: zstd_encode}
SIZE = 3_000_000
BOUND = 2_999_999


@pytest.mark.parametrize("codec", PACK)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, SIZE])
def test_what_was_packed_comes_back(codec: int, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    assert inflate(codec, PACK[codec](data)) == data
    assert inflate(codec, PACK[codec](data), max(1, size)) == data


@pytest.mark.parametrize("codec", PACK)
def test_more_than_the_bound_is_refused_in_a_sentence(codec: int) -> None:
    with pytest.raises(InflateError, match=f"would become more than {BOUND} bytes"):
        inflate(codec, PACK[codec](bytes(SIZE)), BOUND)


@pytest.mark.parametrize("codec", PACK)
@given(data=st.binary(max_size=200), cut=st.integers(0, 60), bent=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_give_bytes_or_a_sentence(
    codec: int, data: bytes, cut: int, bent: int
) -> None:
    packed = bytearray(PACK[codec](data))
    packed[bent % len(packed)] ^= 0x55
    for damaged in (bytes(packed), bytes(packed[: len(packed) - cut]), data):
        with contextlib.suppress(InflateError):
            assert len(inflate(codec, damaged, 1_000)) <= 1_000


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(InflateError, match="codec 6, which is not known"):
        inflate(6, b"")
