"""A policy as a TOML file: written with every key explained, read with every fault and its line."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import policy_form
from schemas.policy import TIERS, Override, Policy
from schemas.policy_check import policy_of, policy_values
from schemas.policy_form import form_schema, read, toml, write
from schemas.policy_keys import KEYS

names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=9)
overrides = st.builds(
    Override,
    tenant=names,
    tier=st.sampled_from([None, *TIERS]),
    key=st.just("attempts_max"),
    value=st.integers(1, 100),
)


@given(
    name=names,
    cap=st.integers(1, 9),
    chosen=st.lists(overrides, unique_by=lambda one: (one.tenant, one.tier)),
)
def test_a_written_policy_is_read_again_as_it_was(
    name: str, cap: int, chosen: list[Override]
) -> None:
    policy = Policy(name=name, starvation_cap_ms=cap, overrides=tuple(chosen))
    form = read(write(policy, based_on=7))
    assert form.faults == []
    assert form.based_on == 7
    assert form.policy is not None
    assert sorted(form.policy.overrides, key=repr) == sorted(policy.overrides, key=repr)
    assert policy_values(form.policy) | {"overrides": []} == policy_values(policy) | {
        "overrides": []
    }


def test_the_written_file_explains_every_key() -> None:
    text = write(Policy(), ["Of the night shift."])
    assert text.startswith("# Of the night shift.\n")
    for key in KEYS.values():
        assert f"\n{key.name} = {toml(key.default)}\n" in text
        assert key.origin.split()[0] in text
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    assert "based_on" not in text


def test_overrides_for_the_same_place_stand_in_one_table() -> None:
    policy = Policy(
        overrides=(
            Override(model="m", key="attempts_max", value=5),
            Override(tier="batch", tenant="acme", key="attempts_max", value=6),
            Override(model="m", key="look_ahead_requests", value=9),
        )
    )
    assert write(policy).endswith(
        '\n[[override]]\nmodel = "m"\nattempts_max = 5\nlook_ahead_requests = 9\n'
        '\n[[override]]\ntier = "batch"\ntenant = "acme"\nattempts_max = 6\n'
    )


def test_a_key_that_is_left_out_has_its_default() -> None:
    assert read("").policy == Policy()
    assert read("attempts_max = 7").policy == Policy(attempts_max=7)


def test_every_fault_is_told_at_once_with_its_line() -> None:
    text = """\
version = 3
look_ahed_requests = 8
"starvation_cap_ms" = "5s"
based_on = true
'attempts_max' = 0
overrides = []

[[override]]
tier = "gold"
attempts_max = 3
queued_requests_max = 3

[[override]]
tenant = "acme"

[[ override ]]
starvation_cap_ms = 4

[[override]]
tenant = "acme"
attempts_max = 3

[[override]]
attempts_max = 3
tenant = "acme"

[thing]
x = 3
"""
    told = [(line, fault.sentence().split(";")[0]) for line, fault in read(text).faults]
    assert told == [
        (1, "version: leave it out: Headway counts it"),
        (2, '"look_ahed_requests": there is no such key'),
        (3, 'starvation_cap_ms cannot be "5s": it is a text'),
        (4, "based_on: it is the number of a version, or is left out"),
        (5, "attempts_max cannot be 0: it is below 1"),
        (6, "overrides: leave it out: write [[override]] tables"),
        (9, 'tier cannot be "gold": there is no such tier'),
        (11, "queued_requests_max: it cannot differ by tier, only by model"),
        (13, "[[override]]: it sets no key"),
        (17, "starvation_cap_ms everywhere: it names no model, tier or tenant"),
        (24, "attempts_max for tenant acme: it is set twice there"),
        (27, '"thing": there is no such key'),
    ]


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a = 1\nb =\n", 2, "the file: it is no TOML: Invalid value"),
        ("a = ", None, "the file: it is no TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 9_000, None, "the file: it is no TOML: "),
        ("override = 3", 1, "override: write it with two brackets, [[override]]"),
        ('[override]\nmodel = "m"', 1, "override: write it with two brackets, [[override]]"),
        ("override = [3]", None, "[[override]]: it sets no key"),
        ("x.y = 3", None, '"x": there is no such key'),
    ],
)
def test_a_file_that_is_not_of_the_form_is_refused(
    text: str, line: int | None, sentence: str
) -> None:
    ((found, fault),) = read(text).faults
    assert found == line
    assert fault.sentence().startswith(sentence)


def test_too_many_overrides_have_no_line_of_their_own() -> None:
    tables = "".join(
        f'[[override]]\ntenant = "t{number}"\nattempts_max = 3\n' for number in range(10_001)
    )
    ((line, fault),) = read(tables).faults
    assert line is None
    assert "there are 10,001 of them" in fault.sentence()


def test_no_value_is_written_as_none_where_a_key_may_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = KEYS["attempts_max"]
    schema = {"anyOf": [key.schema, {"type": "null"}]}
    nullable = replace(key, nullable=True, schema=schema)
    monkeypatch.setattr(policy_form, "KEYS", {**KEYS, "attempts_max": nullable})
    assert toml(None) == '"none"'
    said = read('attempts_max = "none"').faults[0][1].sentence()
    assert said.startswith("attempts_max cannot be none: it is no value")
    taken = form_schema()["properties"]["attempts_max"]["anyOf"]
    assert taken == [key.schema, {"const": "none"}]


def test_a_text_is_written_so_that_toml_reads_it_as_it_was() -> None:
    policy = policy_of(policy_values(Policy()) | {"name": 'a"b\\c é'})
    assert f"name = {toml(policy.name)}" in write(policy)
    assert toml("a\x7fb\n") == '"a\\u007fb\\n"'
    assert read(write(policy)).policy == policy
