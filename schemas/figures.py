"""One measured number with its name and unit. Pure; what every bench returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured figure; `name` is dotted, from the group to the case."""

    name: str
    value: float
    unit: str
