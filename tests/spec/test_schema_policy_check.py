"""What is wrong with a policy is told with the key, the bound and the reason, and all at once."""

from datetime import date
from typing import Any

import pytest

from schemas.policy import Override, Policy
from schemas.policy_check import faults, named, policy_of, policy_values, shown

CAP = "starvation_cap_ms"


def told(**values: Any) -> list[str]:
    return [fault.sentence() for fault in faults(values)]


def told_of(*overrides: Any) -> list[str]:
    return told(overrides=list(overrides))


def override(**fields: Any) -> dict[str, Any]:
    return {"key": "attempts_max", "value": 4} | fields


def test_a_policy_without_fault_becomes_one_again() -> None:
    policy = Policy(name="night", overrides=(Override(tenant="acme", key="attempts_max", value=4),))
    assert list(faults(policy_values(policy))) == []
    assert policy_of(policy_values(policy)) == policy


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (CAP, 0, f"{CAP} cannot be 0: it is below 1; it takes a whole number, 1 to 86,400,000"),
        (CAP, 86_400_001, f"{CAP} cannot be 86400001: it is above 86,400,000; it takes"),
        (CAP, "5s", f'{CAP} cannot be "5s": it is a text; it takes a whole number'),
        (CAP, True, f"{CAP} cannot be true: it is a switch; it takes a whole number"),
        (CAP, 1.5, f"{CAP} cannot be 1.5: it is a number with a fraction; it takes"),
        (CAP, None, f"{CAP} cannot be none: it is no value; it takes"),
        (CAP, {}, f"{CAP} cannot be a table: it is a table; it takes"),
        (CAP, date(2026, 1, 1), f"{CAP} cannot be a date or time: it is a date or time"),
        pytest.param(
            CAP,
            10**5000,
            f"{CAP} cannot be a huge number: it is above 86,400,000",
            id="more digits than Python writes",
        ),
        (CAP, [[1]], f"{CAP} cannot be a list: it is a list; it takes a whole number"),
        ("default_tier", "gold", 'default_tier cannot be "gold": it is none of them; it takes one'),
        ("default_tenant", "", 'default_tenant cannot be "": it has 0 characters; it takes a text'),
        ("name", "x" * 129, '…": it has 129 characters; it takes a text of 1 to 128 characters'),
        ("name", "a\x1b[2J", 'name cannot be "a�[2J": it holds a sign that cannot be shown'),
        ("retry_backoff_ms", [], "retry_backoff_ms cannot be []: it has 0 values; it takes a list"),
        ("retry_backoff_ms", [9, 0], "retry_backoff_ms cannot be [9, 0]: its value 2 is below 1"),
        ("retry_backoff_ms", ["9"], 'retry_backoff_ms cannot be ["9"]: its value 1 is a text'),
        ("retry_backoff_ms", 9, "retry_backoff_ms cannot be 9: it is a whole number; it takes"),
        ("tier_latency_target_ms", [1, 2], "cannot be [1, 2]: it has 2 values; it takes a list"),
        ("tier_latency_target_ms", [1] * 5, "it has 5 values; it takes a list of 4 values"),
    ],
)
def test_a_bad_value_is_refused_with_the_key_the_bound_and_the_reason(
    key: str, value: Any, sentence: str
) -> None:
    (said,) = told(**{key: value})
    assert sentence in said


def test_a_name_that_is_no_key_is_told_with_the_one_that_was_meant() -> None:
    assert told(starvation_cap=5) == [
        f'"starvation_cap": there is no such key; did you mean {CAP}?'
    ]
    assert told(zzz=5) == ['"zzz": there is no such key; `headway config keys` lists them']
    (said,) = told(**{"x" * 1_000_000: 5})
    assert len(said) < 150


def test_every_fault_is_told_and_not_the_first_alone() -> None:
    assert len(told(name="", attempts_max=0, starvation_cap=1, default_tier=3)) == 4


@pytest.mark.parametrize(
    ("one", "sentences"),
    [
        (override(tenant="acme"), []),
        (override(model="m", tier="batch", tenant="acme"), []),
        (
            override(tier="gold"),
            ['tier cannot be "gold": there is no such tier; it takes one of realtime, critical,'],
        ),
        (override(model="two words"), ['model cannot be "two words": it is no name of a model']),
        (override(tenant="a\nb"), ['tenant cannot be "a�b": it is no name of a tenant']),
        (override(tenant=7), ["tenant cannot be 7: it is no name of a tenant"]),
        (
            override(tenant="acme", value=0),
            ["attempts_max for tenant acme cannot be 0: it is below 1; it takes a whole number"],
        ),
        (
            override(tenant="acme", key=CAP),
            [f"{CAP} for tenant acme: it cannot differ by tenant, only by model or tier"],
        ),
        (
            override(model="m", key="replica_lost_ms"),
            ["replica_lost_ms for model m: it holds for the whole deployment and cannot be"],
        ),
        (override(), ["attempts_max everywhere: it names no model, tier or tenant; set the key"]),
        (
            override(model="m", key="attempt_max"),
            ['"attempt_max" for model m: there is no such key; did you mean attempts_max?'],
        ),
        ({"model": "m", "value": 3}, ["an override: it needs a key and a value"]),
        ({"model": "m", "key": "attempts_max"}, ["an override: it needs a key and a value"]),
        (override(model="m", who="me"), ['"who": an override has no such field']),
        (7, ["override 1: it is a whole number, not a table"]),
        (
            override(tier="gold", model="", value=0),
            ['model cannot be ""', 'tier cannot be "gold"', "attempts_max cannot be 0"],
        ),
    ],
)
def test_an_override_is_refused_by_what_it_names(one: Any, sentences: list[str]) -> None:
    said = told_of(one)
    assert len(said) == len(sentences), said
    for sentence, wanted in zip(said, sentences, strict=True):
        assert sentence.startswith(wanted)


def test_no_two_overrides_of_a_key_name_the_same() -> None:
    again = override(model="m", value=5)
    assert told_of(override(model="m"), override(model="m", tier="batch"), again) == [
        "attempts_max for model m: it is set twice there"
    ]


def test_overrides_are_a_list_of_a_bounded_length() -> None:
    assert told(overrides=3) == ["overrides: they are a list, not a whole number"]
    (said,) = told_of(*[override(tenant="acme")] * 10_001)
    assert said == "overrides: there are 10,001 of them, and at most 10,000 are kept"


def test_a_place_and_a_value_are_said_as_people_write_them() -> None:
    assert named({"model": "m", "tenant": "acme"}) == "for model m, tenant acme"
    assert named({}) == "everywhere"
    assert shown(("a", False)) == '["a", false]'
    assert shown("x" * 100) == f'"{"x" * 57}…"'
    assert len(shown([100] * 100)) == 60
