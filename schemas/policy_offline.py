"""The keys of a policy that offline work is judged by: their texts, units and bounds. Pure.

schemas/policy.py holds their defaults and the order in which they are written.
"""

from typing import Annotated

from schemas.tunable import PER_MODEL, tunable

DAY_MS = 86_400_000
_OWN = "Headway's own choice"

OfflineIdleMs = Annotated[
    int,
    tunable(
        "How long there must have been no online request before offline work need leave no margin.",
        unit="ms",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=DAY_MS,
    ),
]
OfflineKvMarginPct = Annotated[
    int,
    tunable(
        "Share of the KV pools that offline work leaves free while there is online work.",
        unit="%",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=100,
    ),
]
OfflineSlotsMarginPct = Annotated[
    int,
    tunable(
        "Share of the batch slots that offline work leaves free while there is online work.",
        unit="%",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=100,
    ),
]
OfflineSlotsMaxPct = Annotated[
    int,
    tunable(
        "Share of the batch slots that offline work takes at most while online work comes and goes:"
        " one that comes finds a place, and iterations stay short.",
        unit="%",
        origin=_OWN,
        scope=PER_MODEL,
        ge=1,
        le=100,
        unsaid=50,
    ),
]
OfflineAloneMs = Annotated[
    int,
    tunable(
        "How long there must have been no online request before offline work may take every slot.",
        unit="ms",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=86_400_000,
        unsaid=10_000,
    ),
]
OfflineReadyShare = Annotated[
    int,
    tunable(
        "Of as many items as may run, one in so many more stands ready behind them, and one at"
        " least; and so many are released at once.",
        unit="items",
        origin="an eighth bridges the way over the bus where a request takes a second",
        scope=PER_MODEL,
        ge=1,
        le=1_000,
        unsaid=8,
    ),
]
OfflineInflightMax = Annotated[
    int,
    tunable(
        "Items of a model's jobs that are requests at once, at most.",
        unit="items",
        origin=_OWN,
        scope=PER_MODEL,
        ge=1,
        le=100_000,
    ),
]
OfflineReleaseMax = Annotated[
    int,
    tunable(
        "Items that become requests by one decision, at most; then the next job has its turn.",
        unit="items",
        origin=_OWN,
        scope=PER_MODEL,
        ge=1,
        le=1_000,
    ),
]
OfflineWindowItems = Annotated[
    int,
    tunable(
        "How far a job's releases may be ahead of its oldest item that has not ended.",
        unit="items",
        origin="bounds what a reader of the results holds back to give them in order",
        scope=PER_MODEL,
        ge=1,
        le=1_000_000,
    ),
]
OfflineJobsMax = Annotated[
    int,
    tunable(
        "Jobs that a cell remembers; ended ones make room, the oldest first.",
        unit="jobs",
        origin="about 1 kB of memory each",
        ge=1,
        le=100_000,
    ),
]
OfflineJobItemsMax = Annotated[
    int,
    tunable(
        "Items of one job, at most.",
        unit="items",
        origin=_OWN,
        scope=PER_MODEL,
        ge=1,
        le=10_000_000,
    ),
]
OfflineJobChunksMax = Annotated[
    int,
    tunable(
        "Records with items of one job that are remembered until they are released, at most.",
        unit="records",
        origin="about 150 bytes of memory each",
        scope=PER_MODEL,
        ge=1,
        le=1_000_000,
    ),
]
OfflineReportPct = Annotated[
    int,
    tunable(
        "Share of a job's items that may end before its progress is published again.",
        unit="%",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=100,
    ),
]
