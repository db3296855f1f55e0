"""The keys of the policy about who leaves for whom and how much KV a request gets. Pure.

A part of schemas/policy.py, where their defaults stand: only their declarations are here.
"""

from typing import Annotated, Literal

from schemas.tunable import PER_TENANT, tunable

_OWN = "Headway's own choice"

Preemptible = Annotated[
    bool,
    tunable(
        "Whether a running request may be asked to leave, for one of a higher tier or when KV"
        " runs out; it is marked when it is accepted.",
        unit="",
        origin=_OWN,
        scope=PER_TENANT,
    ),
]
PreemptionsMax = Annotated[
    int,
    tunable(
        "How often one request may be asked to leave before it stays to its end.",
        unit="times",
        origin=_OWN,
        scope=PER_TENANT,
        ge=0,
        le=1_000,
    ),
]
ReservationForm = Annotated[
    Literal["full", "quantile"],
    tunable(
        "What a request gets when it starts: KV for its prompt and all the output it may have,"
        " or for the output that is likely; then it is given more as it grows, and the"
        " youngest of the lowest tier leaves when none is left.",
        unit="",
        origin=_OWN,
        scope=PER_TENANT,
    ),
]
ReservationQuantilePct = Annotated[
    int,
    tunable(
        "The share of outputs that a quantile reservation is meant to hold.",
        unit="%",
        origin=_OWN,
        scope=PER_TENANT,
        ge=1,
        le=100,
    ),
]
ReservationMarginPct = Annotated[
    int,
    tunable(
        "What a quantile reservation adds to the length that was seen.",
        unit="%",
        origin=_OWN,
        scope=PER_TENANT,
        ge=0,
        le=1_000,
    ),
]
ReservationGrowthBlocks = Annotated[
    int,
    tunable(
        "KV blocks that a request is given at a time when it outgrows its reservation.",
        unit="blocks",
        origin=_OWN,
        scope=PER_TENANT,
        ge=1,
        le=65_536,
    ),
]
ReservationSamplesMin = Annotated[
    int,
    tunable(
        "Outputs that must have been seen before a quantile is trusted; below it, a tenant's"
        " are taken for those of its model, and below it there, all is reserved.",
        unit="outputs",
        origin=_OWN,
        scope=PER_TENANT,
        ge=1,
        le=1_000_000,
    ),
]
ReservationSamplesMax = Annotated[
    int,
    tunable(
        "Outputs that are remembered per tenant and per model: at so many, older ones count half.",
        unit="outputs",
        origin=_OWN,
        ge=2,
        le=10_000_000,
    ),
]
ReservationTenantsMax = Annotated[
    int,
    tunable(
        "Tenants of one model whose outputs are remembered apart; the longest silent go first.",
        unit="tenants",
        origin="about 1.5 kB of memory each",
        ge=1,
        le=100_000,
    ),
]
