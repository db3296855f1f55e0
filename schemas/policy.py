"""Every tunable number of the request level and of the owner shell, as one versioned value. Pure.

Nothing tunable is a literal in code: a module that needs such a number takes a Policy. The digest
names the values, so two policies with the same digest decide alike. A key that may differ by model,
tier or tenant is read through schemas/policy_scope, never straight from the policy.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from schemas import policy_fair as fair
from schemas import policy_offline as offline
from schemas import policy_room as keys
from schemas import policy_shell as shell
from schemas import policy_turns as turns
from schemas import policy_windows as windows
from schemas.ids import ModelName, TenantName
from schemas.message import message
from schemas.tunable import PER_ACCOUNT, PER_MODEL, PER_TENANT, PER_TIER, tunable

Tier = Literal["realtime", "critical", "normal", "batch"]
# Highest first; the index is the rank.
TIERS: tuple[Tier, ...] = ("realtime", "critical", "normal", "batch")

DAY_MS = 86_400_000
# The recorder keeps a version in 32 bits.
VERSION_MAX = 2**31 - 1
PositiveMs = Annotated[int, Field(ge=1, le=DAY_MS)]
# None is no quota.
Quota = Annotated[int, Field(ge=1, le=1_000_000_000_000)] | None
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
    starved_share_pct: Annotated[
        int,
        tunable(
            "Of the dispatches of a model, the share that requests past their starvation cap get"
            " while requests of a higher tier wait too; 100 lets them all go first.",
            unit="%",
            origin="so that a flood of low-tier work cannot stop the tiers above it",
            scope=PER_MODEL,
            ge=1,
            le=100,
        ),
    ] = 25
    room_kept_after_pct: Annotated[
        int,
        tunable(
            "How much of its starvation cap the next request waits for KV before room is kept for"
            " it: from then on nothing else goes to the replica that is to have it.",
            unit="%",
            origin="half the cap is left for what runs there to end",
            scope=PER_TIER,
            ge=0,
            le=100,
        ),
    ] = 50
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
    preemptible: keys.Preemptible = True
    preemptions_max: keys.PreemptionsMax = 3

    # KV reservation
    reservation: keys.ReservationForm = "full"
    reservation_quantile_pct: keys.ReservationQuantilePct = 90
    reservation_margin_pct: keys.ReservationMarginPct = 10
    reservation_growth_blocks: keys.ReservationGrowthBlocks = 4
    reservation_samples_min: keys.ReservationSamplesMin = 50
    reservation_samples_max: keys.ReservationSamplesMax = 2_000
    reservation_tenants_max: keys.ReservationTenantsMax = 256

    # How tenants share a tier, and what each may have
    fair_weight: fair.FairWeight = 1
    fair_quantum: fair.FairQuantum = 64
    fair_prompt_token_cost: fair.FairPromptTokenCost = 1
    fair_output_token_cost: fair.FairOutputTokenCost = 4
    quota_queued_requests: Annotated[
        Quota,
        tunable(
            "Waiting requests of a tenant, per model, beyond which its arrivals are rejected.",
            unit="requests",
            origin=_OWN,
            scope=PER_ACCOUNT,
        ),
    ] = None
    quota_queued_tokens: Annotated[
        Quota,
        tunable(
            "Prompt and output tokens that a tenant's waiting requests may ask for, per model.",
            unit="tokens",
            origin=_OWN,
            scope=PER_ACCOUNT,
        ),
    ] = None
    quota_running_requests: Annotated[
        Quota,
        tunable(
            "Requests of a tenant, per model, that run at once; the others wait.",
            unit="requests",
            origin=_OWN,
            scope=PER_ACCOUNT,
        ),
    ] = None
    quota_tokens_per_minute: Annotated[
        Quota,
        tunable(
            "Prompt and output tokens that a tenant may use in a minute, per model.",
            unit="tokens/min",
            origin=_OWN,
            scope=PER_ACCOUNT,
        ),
    ] = None
    refusal_backoff_ms: Annotated[
        tuple[PositiveMs, ...],
        tunable(
            "When a refused tenant is told to come back, after its first, second, … refusal in a"
            " row; the last one repeats.",
            unit="ms",
            origin=_OWN,
            min_length=1,
            max_length=100,
        ),
    ] = (100, 200, 400)
    idle_tenants_max: Annotated[
        int,
        tunable(
            "Tenants of a model without a request that are remembered; the longest idle go first.",
            unit="tenants",
            origin="about 5 MB of memory per model",
            ge=0,
            le=10_000_000,
        ),
    ] = 10_000
    refuse_hopeless: Annotated[
        bool,
        tunable(
            "Whether a request is refused at the door when, by measured service times, it could"
            " not start before its deadline.",
            unit="",
            origin=_OWN,
            scope=PER_TENANT,
        ),
    ] = False
    service_samples_min: Annotated[
        int,
        tunable(
            "Dispatches out of a backlog that must have been timed before a deadline is hopeless.",
            unit="dispatches",
            origin=_OWN,
            scope=PER_MODEL,
            ge=1,
            le=1_000_000,
        ),
    ] = 16

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
            origin="a first run and one after each of the three pauses of retry_backoff_ms",
            scope=PER_TENANT,
            ge=1,
            le=100,
        ),
    ] = 4
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
    cold_start_max_ms: Annotated[
        int,
        tunable(
            "How long a replica may load its model before nobody counts on it any more.",
            unit="ms",
            origin="twice a slow cold start of 5 minutes",
            ge=1,
            le=DAY_MS,
        ),
    ] = 600_000

    # Offline jobs beside online work; see schemas/policy_offline.
    offline_idle_ms: offline.OfflineIdleMs = 500
    offline_kv_margin_pct: offline.OfflineKvMarginPct = 25
    offline_slots_margin_pct: offline.OfflineSlotsMarginPct = 25
    offline_slots_max_pct: offline.OfflineSlotsMaxPct = 50
    offline_alone_ms: offline.OfflineAloneMs = 10_000
    offline_ready_share: offline.OfflineReadyShare = 8
    offline_inflight_max: offline.OfflineInflightMax = 256
    offline_release_max: offline.OfflineReleaseMax = 64
    offline_window_items: offline.OfflineWindowItems = 2_048
    offline_jobs_max: offline.OfflineJobsMax = 1_000
    offline_job_items_max: offline.OfflineJobItemsMax = 1_000_000
    offline_job_chunks_max: offline.OfflineJobChunksMax = 20_000
    offline_report_pct: offline.OfflineReportPct = 1

    # Batch windows of one-shot models (schemas/policy_windows.py)
    window_mode: windows.WindowMode = "window"
    batch_texts_max: windows.BatchTextsMax = 16
    window_ms: windows.WindowMs = 150
    window_share_pct: windows.WindowSharePct = 25
    window_backlog_closes: windows.WindowBacklogCloses = 8
    window_tunes: windows.WindowTunes = True
    window_min_ms: windows.WindowMinMs = 10
    window_max_ms: windows.WindowMaxMs = 200
    window_tune_step_pct: windows.WindowTuneStepPct = 25
    window_tune_pause_ms: windows.WindowTunePauseMs = 1_000
    mem_safety_margin_pct: windows.MemSafetyMarginPct = 15
    batch_padding_pct_max: windows.BatchPaddingPctMax = 25
    batch_look_ahead_requests: windows.BatchLookAheadRequests = 64
    batches_ahead_max: windows.BatchesAheadMax = 1

    # Models that share a device (schemas/policy_turns.py)
    iteration_weight: turns.IterationWeight = 1
    iteration_tier_weights: turns.IterationTierWeights = (8, 4, 2, 1)

    # The owner shell (schemas/policy_shell.py)
    append_entries_max: shell.AppendEntriesMax = 500
    snapshot_entries: shell.SnapshotEntries = 100_000
    payload_cache_bytes: shell.PayloadCacheBytes = 64 * 1024 * 1024


_ADAPTER = TypeAdapter(Policy)


def policy_digest(policy: Policy) -> str:
    """Return 16 hex characters that name the policy's values (its canonical JSON)."""
    return hashlib.blake2b(_ADAPTER.dump_json(policy), digest_size=8).hexdigest()
