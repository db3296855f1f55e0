"""Columns to a block of ClickHouse's Native format: what both stores insert. Pure.

Only the column types that the recorder inserts. Format, per ClickHouse's documentation: varint
number of columns, varint number of rows, then for each column its name and type as
length-prefixed strings and its values; integers little-endian, strings length-prefixed.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

ColumnType = Literal[
    "UInt8", "Int32", "Int64", "DateTime64(3, 'UTC')", "DateTime64(6, 'UTC')", "String"
]
Column = tuple[ColumnType, Sequence[int] | Sequence[bytes]]

_NUMPY = {"UInt8": np.uint8, "Int32": np.int32}  # every other number: np.int64
_VARINT_BITS = 7
_VARINT_MORE = 0x80


def encode_block(columns: Mapping[str, Column]) -> bytes:
    """Return one Native block of `columns`, which all have the same number of rows.

    Raises:
        OverflowError: an integer does not fit its type.
    """
    counts = {len(values) for _, values in columns.values()}
    assert len(counts) == 1, f"columns of different lengths: {counts}"  # noqa: S101 - a bug of ours
    parts = [_varint(len(columns)), _varint(counts.pop())]
    for name, (kind, values) in columns.items():
        parts.append(_text(name.encode()))
        parts.append(_text(kind.encode()))
        if kind == "String":
            _append_strings(parts, values)  # pyright: ignore[reportArgumentType] - by `kind`
        else:
            parts.append(np.array(values, dtype=_NUMPY.get(kind, np.int64)).tobytes())
    return b"".join(parts)


def _append_strings(parts: list[bytes], values: Sequence[bytes]) -> None:
    lengths: dict[int, bytes] = {}
    for value in values:
        length = len(value)
        prefix = lengths.get(length)
        if prefix is None:
            prefix = lengths[length] = _varint(length)
        parts.append(prefix)
        parts.append(value)


def _text(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _VARINT_MORE:
        out.append(value & (_VARINT_MORE - 1) | _VARINT_MORE)
        value >>= _VARINT_BITS
    out.append(value)
    return bytes(out)
