"""Every tunable number of the request level and of the owner shell, as one versioned value. Pure.

Nothing tunable is a literal in code: a module that needs such a number takes a Policy. The digest
names the values, so two policies with the same digest decide alike. A key that may differ by model,
tier or tenant is read through schemas/policy_scope, never straight from the policy.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from schemas import policy_offline as offline
from schemas.ids import ModelName, TenantName
from schemas.message import message
from schemas.tunable import PER_MODEL, PER_TENANT, PER_TIER, tunable

Tier = Literal["realtime", "critical", "normal", "batch"]
# Highest first; the index is the rank.
TIERS: tuple[Tier, ...] = ("realtime", "critical", "normal", "batch")

DAY_MS = 86_400_000
# The recorder keeps a version in 32 bits.
VERSION_MAX = 2**31 - 1
PositiveMs = Annotated[int, Field(ge=1, le=DAY_MS)]
_OWN = "Headway's own choice"


@message
class Override:
    """Another value of one key, for what it names; None names everything.

    Of several that fit, the one that names a tenant wins over one that names a model, and that over
    one that names a tier. No two of a key name the same (schemas/policy_check holds it).
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    model: ModelName | None = None
    tier: Tier | None = None
    tenant: TenantName | None = None
    key: str
    value: int | bool | str | None


@message
class Policy:
    """The numbers that decisions depend on; what each one does stands in its description."""

    # People write these: a misspelt name or a number in quotes is refused, not ignored.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["policy.v1"] = "policy.v1"
    name: Annotated[
        str,
        tunable("Names the policy for people.", unit="", origin=_OWN, min_length=1, max_length=128),
    ] = "default"
    version: Annotated[
        int,
        tunable("Grows by one with each change.", unit="", origin="counted", ge=1, le=VERSION_MAX),
    ] = 1
    overrides: Annotated[
        tuple[Override, ...],
        tunable(
            "Other values of keys for a model, tier or tenant.",
            unit="",
            origin=_OWN,
            max_length=10_000,
        ),
    ] = ()

    # Which request runs next
    look_ahead_requests: Annotated[
        int,
        tunable(
            "How many waiting requests are tried, in order, when the first does not fit.",
            unit="requests",
            origin=_OWN,
            scope=PER_MODEL,
            ge=1,
            le=256,
        ),
    ] = 8
    tier_latency_target_ms: Annotated[
        tuple[PositiveMs, PositiveMs, PositiveMs, PositiveMs],
        tunable(
            "The wait that each tier aims at, highest tier first.",
            unit="ms",
            origin="the tiers' definition: below 100 ms, 500 ms, 1 s, above 1 s",
        ),
    ] = (100, 500, 1_000, 60_000)
    starvation_cap_ms: Annotated[
        int,
        tunable(
            "The wait after which a request runs next, whatever stands above it.",
            unit="ms",
            origin=_OWN,
            scope=PER_TIER,
            ge=1,
            le=DAY_MS,
        ),
    ] = 5_000
    default_tier: Annotated[
        Tier, tunable("The tier of a request that names none.", unit="", origin=_OWN)
    ] = "normal"
    default_tenant: Annotated[
        str,
        tunable(
            "The tenant of a request that names none.",
            unit="",
            origin=_OWN,
            min_length=1,
            max_length=128,
        ),
    ] = "default"
    default_output_tokens_max: Annotated[
        int,
        tunable(
            "The output limit of a request that names none.",
            unit="tokens",
            origin=_OWN,
            scope=PER_TENANT,
            ge=1,
            le=1_000_000,
        ),
    ] = 256
    queued_requests_max: Annotated[
        int,
        tunable(
            "Waiting requests of one model beyond which arrivals are rejected.",
            unit="requests",
            origin=_OWN,
            scope=PER_MODEL,
            ge=1,
            le=10_000_000,
        ),
    ] = 50_000

    # Preemption
    preemptible: Annotated[
        bool,
        tunable(
            "Whether a running request may be asked to leave, for one of a higher tier or when KV"
            " runs out; it is marked when it is accepted.",
            unit="",
            origin=_OWN,
            scope=PER_TENANT,
        ),
    ] = True
    preemptions_max: Annotated[
        int,
        tunable(
            "How often one request may be asked to leave before it stays to its end.",
            unit="times",
            origin=_OWN,
            scope=PER_TENANT,
            ge=0,
            le=1_000,
        ),
    ] = 3

    # KV reservation
    reservation: Annotated[
        Literal["full", "quantile"],
        tunable(
            "What a request gets when it starts: KV for its prompt and all the output it may have,"
            " or for the output that is likely; then it is given more as it grows, and the"
            " youngest of the lowest tier leaves when none is left.",
            unit="",
            origin=_OWN,
            scope=PER_TENANT,
        ),
    ] = "full"
    reservation_quantile_pct: Annotated[
        int,
        tunable(
            "The share of outputs that a quantile reservation is meant to hold.",
            unit="%",
            origin=_OWN,
            scope=PER_TENANT,
            ge=1,
            le=100,
        ),
    ] = 90
    reservation_margin_pct: Annotated[
        int,
        tunable(
            "What a quantile reservation adds to the length that was seen.",
            unit="%",
            origin=_OWN,
            scope=PER_TENANT,
            ge=0,
            le=1_000,
        ),
    ] = 10
    reservation_growth_blocks: Annotated[
        int,
        tunable(
            "KV blocks that a request is given at a time when it outgrows its reservation.",
            unit="blocks",
            origin=_OWN,
            scope=PER_TENANT,
            ge=1,
            le=65_536,
        ),
    ] = 4
    reservation_samples_min: Annotated[
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
    ] = 50
    reservation_samples_max: Annotated[
        int,
        tunable(
            "Outputs that are remembered per tenant and per model: at so many, older ones count"
            " half.",
            unit="outputs",
            origin=_OWN,
            ge=2,
            le=10_000_000,
        ),
    ] = 2_000
    reservation_tenants_max: Annotated[
        int,
        tunable(
            "Tenants of one model whose outputs are remembered apart; the longest silent go first.",
            unit="tenants",
            origin="about 1.5 kB of memory each",
            ge=1,
            le=100_000,
        ),
    ] = 256

    # The same request again, and lost attempts
    dedupe_window_ms: Annotated[
        int,
        tunable(
            "How long an ended request's id is remembered.",
            unit="ms",
            origin=_OWN,
            ge=1,
            le=DAY_MS,
        ),
    ] = 600_000
    dedupe_ids_max: Annotated[
        int,
        tunable(
            "How many ended ids are remembered at most; the oldest go first.",
            unit="ids",
            origin="about 40 MB of memory",
            ge=1,
            le=10_000_000,
        ),
    ] = 200_000
    attempts_max: Annotated[
        int,
        tunable(
            "Runs of one request, the first included, before it fails.",
            unit="attempts",
            origin=_OWN,
            scope=PER_TENANT,
            ge=1,
            le=100,
        ),
    ] = 3
    retry_backoff_ms: Annotated[
        tuple[PositiveMs, ...],
        tunable(
            "The pause before the second, third, … attempt; the last one repeats.",
            unit="ms",
            origin=_OWN,
            min_length=1,
            max_length=100,
        ),
    ] = (100, 200, 400)
    replica_lost_ms: Annotated[
        int,
        tunable(
            "Silence after which a replica's work is retried elsewhere.",
            unit="ms",
            origin="six heartbeats of a worker",
            ge=1,
            le=DAY_MS,
        ),
    ] = 3_000

    # Offline jobs beside online work; see schemas/policy_offline.
    offline_idle_ms: offline.OfflineIdleMs = 500
    offline_kv_margin_pct: offline.OfflineKvMarginPct = 25
    offline_slots_margin_pct: offline.OfflineSlotsMarginPct = 25
    offline_inflight_max: offline.OfflineInflightMax = 256
    offline_release_max: offline.OfflineReleaseMax = 64
    offline_window_items: offline.OfflineWindowItems = 2_048
    offline_jobs_max: offline.OfflineJobsMax = 1_000
    offline_job_items_max: offline.OfflineJobItemsMax = 1_000_000
    offline_job_chunks_max: offline.OfflineJobChunksMax = 20_000
    offline_report_pct: offline.OfflineReportPct = 1

    # The owner shell
    append_entries_max: Annotated[
        int,
        tunable("Entries in one ledger record.", unit="entries", origin=_OWN, ge=1, le=10_000),
    ] = 500
    snapshot_entries: Annotated[
        int,
        tunable(
            "Entries between two snapshots of the state.",
            unit="entries",
            origin=_OWN,
            ge=1,
            le=100_000_000,
        ),
    ] = 100_000
    payload_cache_bytes: Annotated[
        int,
        tunable(
            "Prompts that the shell keeps in memory, so as not to read them again.",
            unit="bytes",
            origin=_OWN,
            ge=0,
            le=64 * 1024**3,
        ),
    ] = 64 * 1024 * 1024


_ADAPTER = TypeAdapter(Policy)


def policy_digest(policy: Policy) -> str:
    """Return 16 hex characters that name the policy's values (its canonical JSON)."""
    return hashlib.blake2b(_ADAPTER.dump_json(policy), digest_size=8).hexdigest()
