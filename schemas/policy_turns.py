"""The keys of the policy by which models take turns on a device that they share. Pure.

A part of schemas/policy.py, where their defaults stand: only their declarations are here.
"""

from typing import Annotated

from pydantic import Field

from schemas.tunable import PER_MODEL, tunable

_Weight = Annotated[int, Field(ge=1, le=100)]

IterationWeight = Annotated[
    int,
    tunable(
        "The model's part of the iterations on a device that it shares with other models: it is"
        " multiplied by the weight of the model's tier, and stands beside those of the others.",
        unit="parts",
        origin="all models alike",
        scope=PER_MODEL,
        ge=1,
        le=100,
        unsaid=1,
    ),
]
IterationTierWeights = Annotated[
    tuple[_Weight, _Weight, _Weight, _Weight],
    tunable(
        "By what a model's iteration_weight is multiplied, by the highest tier among its requests"
        " on the device, highest tier first.",
        unit="parts",
        origin="each tier counts twice as much as the one below it",
        unsaid=(8, 4, 2, 1),
    ),
]
