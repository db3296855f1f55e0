"""The keys of schemas/policy that the owner shell follows. Pure.

Only their declarations stand here; their values are fields of Policy, as those of every key.
"""

from typing import Annotated

from schemas.tunable import tunable

_OWN = "Headway's own choice"

AppendEntriesMax = Annotated[
    int,
    tunable("Entries in one ledger record.", unit="entries", origin=_OWN, ge=1, le=10_000),
]

SnapshotEntries = Annotated[
    int,
    tunable(
        "Entries between two snapshots of the state.",
        unit="entries",
        origin=_OWN,
        ge=1,
        le=100_000_000,
    ),
]

PayloadCacheBytes = Annotated[
    int,
    tunable(
        "Prompts that the shell keeps in memory, so as not to read them again.",
        unit="bytes",
        origin=_OWN,
        ge=0,
        le=64 * 1024**3,
    ),
]
