"""How a message class is declared. Pure; used by every other file of this package.

A message is a slotted dataclass that the type checker treats as frozen. It is not frozen
at run time: a frozen dataclass takes 1.2 µs to construct instead of 0.2 µs, and the core
constructs several for each fact. Nothing may assign to a field after construction.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[T]) -> type[T]:
    """Make `cls` a message: keyword-only, slotted, compared and hashed by value."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
