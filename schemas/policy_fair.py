"""The keys of the policy by which tenants share a tier: their texts, units and bounds. Pure.

A part of schemas/policy.py, where their defaults stand: only their declarations are here.
"""

from typing import Annotated

from schemas.tunable import PER_MODEL, PER_TENANT, tunable

_OWN = "Headway's own choice"

FairWeight = Annotated[
    int,
    tunable(
        "The tenant's part of a tier that several tenants wait in, beside their weights.",
        unit="parts",
        origin=_OWN,
        scope=PER_TENANT,
        ge=1,
        le=10_000,
    ),
]
FairQuantum = Annotated[
    int,
    tunable(
        "The cost that a tenant of weight 1 may run up before the turn goes to the next.",
        unit="cost units",
        origin="less than one short request: changing the tenant costs nothing",
        scope=PER_MODEL,
        ge=1,
        le=1_000_000_000,
    ),
]
FairPromptTokenCost = Annotated[
    int,
    tunable(
        "What a prompt token costs a tenant.",
        unit="cost units",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=1_000_000,
    ),
]
FairOutputTokenCost = Annotated[
    int,
    tunable(
        "What an output token costs a tenant.",
        unit="cost units",
        origin="a decoded token takes about four times as long as one of a prompt",
        scope=PER_MODEL,
        ge=1,
        le=1_000_000,
    ),
]
