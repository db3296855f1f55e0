"""Compressed record batches to their plain bytes, to a bound. Pure: bytes in, bytes out.

The client inflates a batch whole before anything can look at it, and the broker bounds only what
comes over the wire: 4 MiB of gzip may stand for 4 GiB. Here the output is bounded while it grows.
"""

import zlib
from collections.abc import Iterator

import cramjam

# The most that one batch may hold, inflated. A producer fills a batch by its compressed size where
# it can, and prompts compress to a tenth.
BATCH_BYTES_MAX = 64 * 1024 * 1024

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

_NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_FIRST_GUESS_BYTES = 1024 * 1024
_GROWTH = 8


class InflateError(ValueError):
    """The bytes cannot be inflated, or not to so few bytes; the sentence says which."""


def inflate(codec: int, data: bytes, bytes_max: int = BATCH_BYTES_MAX) -> bytes:
    """Return what `data` stands for, at most `bytes_max` bytes of it.

    Args:
        codec: of a record batch's attributes: GZIP, SNAPPY, LZ4 or ZSTD.
        data: the compressed records.
        bytes_max: how much they may become.

    Raises:
        InflateError: they are damaged, would become more, or the codec is none of these.
    """
    name = _NAMES.get(codec, f"codec {codec}")
    try:
        if codec == GZIP:
            return _gzip(data, bytes_max)
        if codec == SNAPPY:
            return _snappy(data, bytes_max)
        if codec in (LZ4, ZSTD):
            return _framed(codec, data, bytes_max)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise InflateError(f"its {name} cannot be inflated: {error}") from error
    raise InflateError(f"it is compressed with {name}, which is not known")


def _too_much(name: str, bytes_max: int) -> InflateError:
    return InflateError(f"its {name} would become more than {bytes_max} bytes")


def _gzip(data: bytes, bytes_max: int) -> bytes:
    """Inflate every member; what follows the last is no part of the format and is left."""
    pieces: list[bytes] = []
    left = bytes_max
    rest = data
    while not pieces or rest.startswith(_GZIP_MAGIC):
        member = zlib.decompressobj(_GZIP_WINDOW)
        piece = member.decompress(rest, left + 1)
        left -= len(piece)
        if left < 0:
            raise _too_much("gzip", bytes_max)
        if not member.eof:
            raise InflateError("its gzip ends in its midst")
        pieces.append(piece)
        rest = member.unused_data
    return b"".join(pieces)


def _snappy(data: bytes, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    left = bytes_max
    for block in _snappy_blocks(data):
        left -= cramjam.snappy.decompress_raw_len(block)
        if left < 0:
            raise _too_much("snappy", bytes_max)
        pieces.append(bytes(cramjam.snappy.decompress_raw(block)))
    return b"".join(pieces)


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the raw blocks: Java's stream holds many behind a header, others are one block."""
    if not data.startswith(_XERIAL_MAGIC):
        yield data
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise InflateError("its snappy ends in its midst")
        yield data[at : at + size]
        at += size


def _framed(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Inflate lz4 or zstd into a buffer that grows to the bound: neither need tell its size."""
    into = cramjam.lz4.decompress_into if codec == LZ4 else cramjam.zstd.decompress_into
    size = min(_FIRST_GUESS_BYTES, bytes_max)
    while True:
        buffer = bytearray(size)
        try:
            written = into(data, buffer)
        except cramjam.DecompressionError as error:
            # The library tells a full buffer by these words alone.
            if "whole buffer" not in str(error):
                raise
            if size >= bytes_max:
                raise _too_much(_NAMES[codec], bytes_max) from error
            size = min(size * _GROWTH, bytes_max)
        else:
            return bytes(memoryview(buffer)[:written])
