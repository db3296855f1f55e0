"""Names of things, their limits, and which cell owns a model. Pure; imports nothing of ours.

An id is a string that its writer chose. A cell is a partition number of headway.requests.
"""

import re
from typing import Annotated

from pydantic import StringConstraints

REQUEST_ID_CHARS_MAX = 256
NAME_CHARS_MAX = 128

RequestId = Annotated[str, StringConstraints(min_length=1, max_length=REQUEST_ID_CHARS_MAX)]
# Model and tenant names become parts of topic names, keys and labels, so they are plain.
_PLAIN = re.compile(r"^[A-Za-z0-9._-]+$")
ModelName = Annotated[
    str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX, pattern=_PLAIN.pattern)
]
TenantName = Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX)]

# (topic, partition, offset) of the record that a fact was read from.
Source = tuple[str, int, int]
# (cell, seq, index) of the decision that sent a message on from another cell.
RoutedBy = tuple[int, int, int]

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_M = 0x5BD1E995
_U32 = 0xFFFFFFFF


def model_name_fault(name: str) -> str | None:
    """Return the sentence that says why no model can have this name, or None."""
    if len(name) <= NAME_CHARS_MAX and _PLAIN.fullmatch(name):
        return None
    return (
        f"{name!r} is no model's name: that has 1 to {NAME_CHARS_MAX} of the characters A-Z, a-z,"
        " 0-9, '.', '_' and '-'"
    )


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data`, as Kafka's own default partitioner computes it.

    Formula: Austin Appleby's MurmurHash2, seed 0x9747b28c. Producers that leave partitioning to
    Kafka's Java client or to aiokafka reach the owning cell at once by using the model as key.
    """
    length = len(data)
    value = (_MURMUR2_SEED ^ length) & _U32
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little")
        word = (word * _MURMUR2_M) & _U32
        word ^= word >> 24
        word = (word * _MURMUR2_M) & _U32
        value = ((value * _MURMUR2_M) & _U32) ^ word
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _MURMUR2_M) & _U32
    value ^= value >> 13
    value = (value * _MURMUR2_M) & _U32
    return value ^ (value >> 15)


def cell_of(model: str, cells: int) -> int:
    """Return the cell (0 ≤ cell < `cells`) that owns `model`."""
    return (murmur2(model.encode()) & 0x7FFFFFFF) % cells


def replica_name(model: str, slot: int) -> str:
    """Return the name that people and tables use for the replica in `slot` of `model`."""
    return f"{model}/{slot}"
