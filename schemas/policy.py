"""Every tunable number of the request level and of the owner shell, as one versioned value. Pure.

Nothing tunable is a literal in code: a module that needs such a number takes a Policy. The digest
names the values, so two policies with the same digest decide alike.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from schemas.message import message

Tier = Literal["realtime", "critical", "normal", "batch"]
# Highest first; the index is the rank.
TIERS: tuple[Tier, ...] = ("realtime", "critical", "normal", "batch")

PositiveMs = Annotated[int, Field(ge=1, le=86_400_000)]


@message
class Policy:
    """The numbers that decisions depend on.

    Attributes:
        look_ahead_requests: how many waiting requests of a model are tried, in order, when the
            first does not fit.
        queued_requests_max: waiting requests of one model beyond which arrivals are rejected.
        default_output_tokens_max: output limit of a request that names none.
        default_tier, default_tenant: of a request that names none.
        dedupe_window_ms: how long an ended request's id is remembered.
        dedupe_ids_max: how many ended ids are remembered at most; the oldest go first.
        attempts_max: runs of one request, the first included, before it fails.
        retry_backoff_ms: pause before the second, third, … attempt; the last one repeats.
        replica_lost_ms: silence after which a replica's work is retried elsewhere.
        tier_latency_target_ms: wait that each tier aims at, highest tier first.
        append_entries_max: entries in one ledger record.
        snapshot_entries: entries between two snapshots of the state.
        payload_cache_bytes: prompts that the shell keeps in memory, so as not to read them again.
    """

    # People write these: a misspelt name or a number in quotes is refused, not ignored.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["policy.v1"] = "policy.v1"
    name: Annotated[str, Field(min_length=1, max_length=128)] = "default"
    version: Annotated[int, Field(ge=1)] = 1
    look_ahead_requests: Annotated[int, Field(ge=1, le=256)] = 8
    queued_requests_max: Annotated[int, Field(ge=1, le=10_000_000)] = 50_000
    default_output_tokens_max: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    default_tier: Tier = "normal"
    default_tenant: Annotated[str, Field(min_length=1, max_length=128)] = "default"
    dedupe_window_ms: PositiveMs = 600_000
    dedupe_ids_max: Annotated[int, Field(ge=1)] = 200_000
    attempts_max: Annotated[int, Field(ge=1, le=100)] = 3
    retry_backoff_ms: Annotated[tuple[PositiveMs, ...], Field(min_length=1)] = (100, 200, 400)
    replica_lost_ms: PositiveMs = 3_000
    tier_latency_target_ms: tuple[PositiveMs, PositiveMs, PositiveMs, PositiveMs] = (
        100,
        500,
        1_000,
        60_000,
    )
    append_entries_max: Annotated[int, Field(ge=1, le=10_000)] = 500
    snapshot_entries: Annotated[int, Field(ge=1)] = 100_000
    payload_cache_bytes: Annotated[int, Field(ge=0)] = 64 * 1024 * 1024


_ADAPTER = TypeAdapter(Policy)


def policy_digest(policy: Policy) -> str:
    """Return 16 hex characters that name the policy's values (its canonical JSON)."""
    return hashlib.blake2b(_ADAPTER.dump_json(policy), digest_size=8).hexdigest()
