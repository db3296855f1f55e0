"""Reads a safetensors file: its header, and each float32 tensor as a view of the mapped file.

The format is a length of 8 bytes, little-endian, so many bytes of JSON, and the tensors' bytes.
"""

import json
import mmap
import struct
from pathlib import Path
from typing import Any, Final

import torch

_LENGTH_BYTES: Final = 8
_HEADER_BYTES_MAX: Final = 100 * 1024 * 1024


class SafetensorsError(ValueError):
    """The file is not a safetensors file of float32 tensors; says which and why."""


def read_float32(path: Path) -> dict[str, torch.Tensor]:
    """Return the file's float32 tensors by name; others (indices, say) are left out.

    Raises:
        SafetensorsError: the file is cut short, or is no such file.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    header, start = _header(path, data)
    tensors: dict[str, torch.Tensor] = {}
    for name, place in header.items():
        if name == "__metadata__" or place["dtype"] != "F32":
            continue
        first, end = place["data_offsets"]
        count = (end - first) // 4
        if start + end > len(data):
            raise SafetensorsError(f"{path} is cut short: {name} ends beyond its end")
        flat = torch.frombuffer(data, dtype=torch.float32, count=count, offset=start + first)
        tensors[name] = flat.reshape(place["shape"])
    return tensors


def _header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    if len(data) < _LENGTH_BYTES:
        raise SafetensorsError(f"{path} is too short for a safetensors file")
    (length,) = struct.unpack_from("<Q", data)
    start = _LENGTH_BYTES + length
    if length > _HEADER_BYTES_MAX or start > len(data):
        raise SafetensorsError(f"{path} is no safetensors file: its header has no sound length")
    try:
        return json.loads(data[_LENGTH_BYTES:start]), start
    except ValueError as error:
        raise SafetensorsError(f"{path} is no safetensors file: {error}") from error
