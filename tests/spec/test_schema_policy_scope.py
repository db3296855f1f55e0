"""A policy answers for one model, tier and tenant: the most particular override wins."""

from schemas.policy import Override, Policy
from schemas.policy_scope import Settings

CAP_MS = "starvation_cap_ms"


def _cap(settings: Settings, model: str, tier: str, tenant: str) -> int:
    assert tier in {"realtime", "critical", "normal", "batch"}
    return settings.at(model, tier, tenant).starvation_cap_ms  # pyright: ignore[reportArgumentType] - a tier, as just checked


def test_without_overrides_the_policy_itself_holds_everywhere() -> None:
    policy = Policy()
    assert Settings(policy).at("m", "batch", "acme") is policy


def test_the_override_that_names_a_tenant_wins_then_a_model_then_a_tier() -> None:
    settings = Settings(
        Policy(
            overrides=(
                Override(tenant="acme", key=CAP_MS, value=1),
                Override(model="m", key=CAP_MS, value=2),
                Override(tier="batch", key=CAP_MS, value=3),
            )
        )
    )
    assert _cap(settings, "m", "batch", "acme") == 1
    assert _cap(settings, "m", "batch", "other") == 2
    assert _cap(settings, "other", "batch", "other") == 3
    assert _cap(settings, "other", "normal", "other") == Policy().starvation_cap_ms


def test_two_names_beat_one_and_the_later_of_two_alike_holds() -> None:
    settings = Settings(
        Policy(
            overrides=(
                Override(model="m", tier="batch", key=CAP_MS, value=1),
                Override(model="m", key=CAP_MS, value=2),
                Override(tier="normal", key=CAP_MS, value=3),
                Override(tier="normal", key=CAP_MS, value=4),
            )
        )
    )
    assert _cap(settings, "m", "batch", "acme") == 1
    assert _cap(settings, "m", "normal", "acme") == 2
    assert _cap(settings, "other", "normal", "acme") == 4


def test_what_no_override_names_shares_one_answer_however_many_tenants_ask() -> None:
    settings = Settings(Policy(overrides=(Override(tenant="acme", key=CAP_MS, value=1),)))
    answers = {id(settings.at("m", "normal", f"tenant-{number}")) for number in range(1_000)}
    assert len(answers) == 1
