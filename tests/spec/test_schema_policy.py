"""Policy and profile are values: a digest names them, bounds hold, unknown is never zero."""

import json
from dataclasses import fields
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.policy import TIERS, Override, Policy, policy_digest
from schemas.profile import SMOLLM2_135M, Profile, kv_bytes_per_token

POLICY = TypeAdapter(Policy)
PROFILE = TypeAdapter(Profile)

SHAPE: dict[str, Any] = {
    "kind": "profile.v1",
    "model": "m",
    "layers": 32,
    "kv_heads": 32,
    "head_size": 128,
    "kv_dtype_bytes": 2,
    "max_sequence_tokens": 2048,
}
# Another legal value of each field.
CHANGES: dict[str, Any] = {
    "name": "night",
    "version": 2,
    "overrides": (Override(tenant="acme", key="attempts_max", value=4),),
    "starvation_cap_ms": 4_999,
    "look_ahead_requests": 9,
    "queued_requests_max": 49_999,
    "default_output_tokens_max": 255,
    "default_tier": "batch",
    "default_tenant": "acme",
    "preemptible": False,
    "preemptions_max": 4,
    "reservation": "quantile",
    "reservation_quantile_pct": 91,
    "reservation_margin_pct": 11,
    "reservation_growth_blocks": 5,
    "reservation_samples_min": 51,
    "reservation_samples_max": 2_001,
    "reservation_tenants_max": 257,
    "dedupe_window_ms": 1,
    "dedupe_ids_max": 1,
    "attempts_max": 3,
    "starved_share_pct": 50,
    "room_kept_after_pct": 0,
    "fair_weight": 2,
    "fair_quantum": 65,
    "fair_prompt_token_cost": 2,
    "fair_output_token_cost": 5,
    "quota_queued_requests": 1,
    "quota_queued_tokens": 1,
    "quota_running_requests": 1,
    "quota_tokens_per_minute": 1,
    "refusal_backoff_ms": (100, 200, 401),
    "idle_tenants_max": 9_999,
    "refuse_hopeless": True,
    "service_samples_min": 17,
    "cold_start_max_ms": 599_999,
    "retry_backoff_ms": (100, 200, 401),
    "replica_lost_ms": 2_999,
    "tier_latency_target_ms": (100, 500, 1_000, 60_001),
    "append_entries_max": 499,
    "snapshot_entries": 49_999,
    "offline_idle_ms": 501,
    "offline_kv_margin_pct": 26,
    "offline_slots_margin_pct": 24,
    "offline_slots_max_pct": 60,
    "offline_alone_ms": 20_000,
    "offline_ready_share": 9,
    "offline_inflight_max": 255,
    "offline_release_max": 63,
    "offline_window_items": 2_047,
    "offline_jobs_max": 999,
    "offline_job_items_max": 999_999,
    "offline_job_chunks_max": 19_999,
    "offline_report_pct": 2,
    "payload_cache_bytes": 0,
    "window_mode": "when_free",
    "batch_texts_max": 17,
    "window_ms": 151,
    "window_share_pct": 26,
    "window_backlog_closes": None,
    "window_tunes": False,
    "window_min_ms": 11,
    "window_max_ms": 201,
    "window_tune_step_pct": 26,
    "window_tune_pause_ms": 999,
    "mem_safety_margin_pct": 16,
    "batch_padding_pct_max": 26,
    "batch_look_ahead_requests": 65,
    "batches_ahead_max": 2,
    "iteration_weight": 2,
    "iteration_tier_weights": (8, 4, 2, 2),
}


def test_the_digest_changes_with_each_field() -> None:
    names = {field.name for field in fields(Policy)} - {"kind"}
    assert names == set(CHANGES), "give each field of Policy another value in CHANGES"
    digests = {policy_digest(Policy(**{name: CHANGES[name]})) for name in names}
    assert len(digests | {policy_digest(Policy())}) == len(names) + 1


def test_equal_policies_have_equal_digests() -> None:
    assert policy_digest(Policy()) == policy_digest(Policy(version=1))
    assert len(policy_digest(Policy())) == 16


def test_a_policy_recorded_before_a_key_came_keeps_its_bytes_and_its_digest() -> None:
    # Recorded ledgers name this digest. A key that comes later is declared with `unsaid`.
    assert policy_digest(Policy()) == "d5aede7386dbf0ea"
    assert POLICY.validate_json(POLICY.dump_json(Policy())) == Policy()
    assert b"iteration_" not in POLICY.dump_json(Policy())
    said = json.loads(POLICY.dump_json(Policy(iteration_weight=2)))
    assert (said["iteration_weight"], "iteration_tier_weights" in said) == (2, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "x" * 129),
        ("version", 0),
        ("look_ahead_requests", 0),
        ("look_ahead_requests", 257),
        ("queued_requests_max", 0),
        ("queued_requests_max", 10_000_001),
        ("default_output_tokens_max", 0),
        ("default_output_tokens_max", 1_000_001),
        ("default_tier", "platinum"),
        ("default_tenant", ""),
        ("dedupe_window_ms", 0),
        ("dedupe_window_ms", 86_400_001),
        ("attempts_max", 0),
        ("attempts_max", 101),
        ("retry_backoff_ms", []),
        ("retry_backoff_ms", [0]),
        ("replica_lost_ms", 0),
        ("tier_latency_target_ms", [100, 500, 1_000]),
        ("append_entries_max", 0),
        ("append_entries_max", 10_001),
        ("snapshot_entries", 0),
        ("payload_cache_bytes", -1),
        ("iteration_weight", 0),
        ("iteration_weight", 101),
        ("iteration_tier_weights", [8, 4, 2]),
        ("iteration_tier_weights", [8, 4, 2, 0]),
    ],
)
def test_a_policy_out_of_bounds_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        POLICY.validate_json(json.dumps({"kind": "policy.v1", field: value}))


def test_every_change_of_the_table_is_within_bounds() -> None:
    written = POLICY.dump_json(Policy(**CHANGES))
    assert json.loads(written)["retry_backoff_ms"] == [100, 200, 401]
    assert POLICY.validate_json(written) == Policy(**CHANGES)


def test_the_tiers_are_named_from_the_highest_down() -> None:
    assert TIERS == ("realtime", "critical", "normal", "batch")
    assert len(Policy().tier_latency_target_ms) == len(TIERS)


def test_the_kv_of_a_known_model_is_worked_out_by_hand() -> None:
    # Llama-2-7B in 16 bits: 2 x 32 layers x 4096 wide x 2 bytes; 16 sequences of 2048 tokens
    # take the 17.2 GB that its serving is known for.
    profile = PROFILE.validate_json(json.dumps(SHAPE))
    assert kv_bytes_per_token(profile) == 2 * 32 * 4096 * 2 == 524_288
    assert kv_bytes_per_token(profile) * 16 * 2048 == 17_179_869_184


def test_the_kv_of_smollm2_is_worked_out_by_hand() -> None:
    assert kv_bytes_per_token(SMOLLM2_135M) == 46_080
    assert PROFILE.validate_json(PROFILE.dump_json(SMOLLM2_135M)) == SMOLLM2_135M


def test_what_was_not_measured_is_unknown_and_not_zero() -> None:
    profile = PROFILE.validate_json(json.dumps(SHAPE))
    assert profile.weights_bytes is None
    assert profile.cold_start_ms is None
    assert profile.decode_tokens_per_s is None
    assert profile.latency_budget_ms is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "two words"),
        ("model", ""),
        ("version", 0),
        ("layers", 0),
        ("kv_heads", 0),
        ("head_size", -1),
        ("kv_dtype_bytes", 0),
        ("max_sequence_tokens", 0),
        ("work_slots", 0),
        ("work_slots", 1025),
        ("tokenizer", "unknown"),
        ("bytes_per_token", 0),
        ("weights_bytes", 0),
        ("cold_start_ms", 0),
        ("decode_tokens_per_s", 0.0),
        ("latency_budget_ms", 0),
    ],
)
def test_a_profile_out_of_bounds_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        PROFILE.validate_json(json.dumps({**SHAPE, field: value}))


@pytest.mark.parametrize("change", [{"look_ahed_requests": 4}, {"look_ahead_requests": "4"}])
def test_a_misspelt_name_or_a_number_in_quotes_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        POLICY.validate_json(json.dumps(change))
