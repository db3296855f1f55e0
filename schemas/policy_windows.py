"""The keys of schemas/policy that batch windows of one-shot models follow. Pure.

Only their declarations stand here; their values are fields of Policy, as those of every key.
"""

from typing import Annotated, Literal

from pydantic import Field

from schemas.tunable import PER_MODEL, tunable

DAY_MS = 86_400_000
_OWN = "Headway's own choice"

WindowMode = Annotated[
    Literal["window", "when_free"],
    tunable(
        "Whether a one-shot model holds requests back for a window, so that others join them,"
        " or a batch leaves as soon as a replica is free.",
        unit="",
        origin=_OWN,
        scope=PER_MODEL,
    ),
]

BatchTextsMax = Annotated[
    int,
    tunable(
        "Texts in one batch of a one-shot model; the replica's own limit holds too.",
        unit="texts",
        origin="the field's usual default",
        scope=PER_MODEL,
        ge=1,
        le=1024,
    ),
]

WindowMs = Annotated[
    int,
    tunable(
        "How long requests are held back for others to join them, before it is tuned.",
        unit="ms",
        origin="the middle of the usual 100 to 200 ms",
        scope=PER_MODEL,
        ge=1,
        le=60_000,
    ),
]

WindowSharePct = Annotated[
    int,
    tunable(
        "The most that a window may take of its tier's latency target.",
        unit="percent",
        origin="a quarter leaves the rest to the work itself",
        scope=PER_MODEL,
        ge=1,
        le=100,
    ),
]

WindowBacklogCloses = Annotated[
    Annotated[int, Field(ge=0, le=10_000)] | None,
    tunable(
        "When more requests than this wait, the window closes; null lets it run.",
        unit="requests",
        origin="half a batch is worth a pass",
        scope=PER_MODEL,
    ),
]

WindowTunes = Annotated[
    bool,
    tunable(
        "Whether a window follows the load: shorter at peaks, longer when it is quiet.",
        unit="",
        origin=_OWN,
        scope=PER_MODEL,
    ),
]

WindowMinMs = Annotated[
    int,
    tunable(
        "The shortest window that tuning may set.",
        unit="ms",
        origin=_OWN,
        scope=PER_MODEL,
        ge=1,
        le=60_000,
    ),
]

WindowMaxMs = Annotated[
    int,
    tunable(
        "The longest window that tuning may set.",
        unit="ms",
        origin="the end of the usual 100 to 200 ms",
        scope=PER_MODEL,
        ge=1,
        le=60_000,
    ),
]

WindowTuneStepPct = Annotated[
    int,
    tunable(
        "A window is tuned only when it would change by more than this.",
        unit="percent",
        origin="wider than the noise of an average over 32 arrivals",
        scope=PER_MODEL,
        ge=1,
        le=1_000,
    ),
]

WindowTunePauseMs = Annotated[
    int,
    tunable(
        "A window is tuned at most this often.",
        unit="ms",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=DAY_MS,
    ),
]

MemSafetyMarginPct = Annotated[
    int,
    tunable(
        "How much of a one-shot replica's memory a batch leaves free.",
        unit="percent",
        origin="allocators lose about a tenth to pieces",
        scope=PER_MODEL,
        ge=0,
        le=90,
    ),
]

BatchPaddingPctMax = Annotated[
    int,
    tunable(
        "The most of a batch that may be padding; texts of other lengths ride in a later one.",
        unit="percent",
        origin=_OWN,
        scope=PER_MODEL,
        ge=0,
        le=100,
    ),
]

BatchLookAheadRequests = Annotated[
    int,
    tunable(
        "How many waiting requests are looked at, in order, to fill a batch.",
        unit="requests",
        origin="four batches",
        scope=PER_MODEL,
        ge=1,
        le=1024,
    ),
]

BatchesAheadMax = Annotated[
    int,
    tunable(
        "Full batches that may wait at a busy replica, so that it need not wait for the cell.",
        unit="batches",
        origin="one covers the way over the bus",
        scope=PER_MODEL,
        ge=0,
        le=8,
    ),
]
