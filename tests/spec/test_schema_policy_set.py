"""Of several policies that are set, one counts, and the log's order says which."""

import json
from dataclasses import replace
from typing import Any

import pytest

from schemas.codec import CodecError, decode, digest, encode
from schemas.policy import Override, Policy, policy_digest
from schemas.policy_history import Change, History, changes, record_of
from schemas.policy_set import PolicySet, refusal, unreadable_because
from schemas.profile import SMOLLM2_135M

NOWHERE = (None, None, None)


def a_set(version: int, *, who: str = "ann", **values: Any) -> tuple[bytes, bytes]:
    """Return the (key, value) of a record that sets this version."""
    policy = Policy(version=version, **values)
    return record_of(policy, based_on=max(1, version - 1), at_us=5, who=who, why="to see")


def refused(active: Policy, key: bytes | None, raw: bytes) -> str | None:
    asked = decode(raw)
    assert isinstance(asked, PolicySet)
    return refusal(active, asked, key, raw)


def history(*records: tuple[bytes | None, bytes | None]) -> History:
    made = History()
    for offset, (key, raw) in enumerate(records):
        made.add(offset, key, raw)
    return made


def test_a_history_begins_with_the_built_in_policy() -> None:
    made = history()
    assert [one.policy for one in made.versions] == [Policy()]
    assert made.active.who == "headway"
    assert made.active.digest == policy_digest(Policy())
    assert made.version(1) is made.active
    assert made.before(made.active) is None
    assert made.version(2) is None


def test_each_version_comes_into_force_with_who_when_and_why() -> None:
    made = history(a_set(2, attempts_max=4), a_set(3, attempts_max=5, who="bob"))
    assert [one.policy.version for one in made.versions] == [1, 2, 3]
    assert made.active.policy == Policy(version=3, attempts_max=5)
    assert (made.active.who, made.active.why, made.active.at_us) == ("bob", "to see", 5)
    assert (made.active.offset, made.active.based_on) == (1, 2)
    assert made.refused == []
    assert made.before(made.active) is made.version(2)


def test_a_policy_that_contradicts_itself_does_not_come_into_force() -> None:
    key, raw = a_set(2, window_ms=300)
    told = refused(Policy(), key, raw)
    assert told is not None
    assert told.startswith("window_ms cannot be 300: it is above window_max_ms, which is 200")


def test_of_two_who_set_at_the_same_time_the_first_on_the_log_wins() -> None:
    made = history(a_set(2, attempts_max=4), a_set(2, attempts_max=5, who="bob"))
    assert (made.active.who, made.active.policy.attempts_max) == ("ann", 4)
    (lost,) = made.refused
    assert lost.asked is not None
    assert (lost.offset, lost.asked.who) == (1, "bob")
    assert lost.reason.startswith("version 2 is not above 2, which is in force: another was set")


def test_records_of_the_same_version_have_keys_of_their_own_so_none_is_compacted_away() -> None:
    records = [a_set(2), a_set(2, who="bob"), a_set(3)]
    keys = {key for key, _ in records}
    assert len(keys) == 3
    assert all(key.startswith((b"policy/2/", b"policy/3/")) for key in keys)


def test_a_record_under_another_key_is_refused_because_compaction_would_lose_one() -> None:
    key, raw = a_set(2)
    for other in (None, b"policy/default", a_set(3)[0]):
        assert f"the record's key is not that of its policy, {key.decode()}" in str(
            refused(Policy(), other, raw)
        )
    assert refused(Policy(), key, raw) is None


def test_a_version_far_ahead_is_refused_and_one_a_little_ahead_is_not() -> None:
    assert refused(Policy(), *a_set(1_001)) is None
    assert refused(Policy(), *a_set(1_002)) == (
        "version 1002 is more than 1000 ahead of 1, which is in force; the next one is 2"
    )


def test_a_digest_that_is_not_the_policys_is_refused() -> None:
    _, raw = a_set(2)
    asked = decode(raw)
    assert isinstance(asked, PolicySet)
    forged = encode(replace(asked, digest="0" * 16))
    key, _ = record_of(asked.policy, based_on=1, at_us=5, who="ann", why="to see")
    made = history((key, forged))
    assert "key is not that of its policy" in made.refused[0].reason
    right = made.refused[0].reason.split(", ")[1].split(":")[0].encode()
    assert "its digest, 0000000000000000, is not that of its policy" in str(
        refused(Policy(), right, forged)
    )


def test_a_policy_of_a_release_with_other_keys_keeps_its_digest() -> None:
    key, raw = a_set(2)
    value = json.loads(raw)
    del value["policy"]["payload_cache_bytes"]
    # What an older release would have written, which did not know the key.
    written = json.dumps(value["policy"], separators=(",", ":")).encode()
    value["digest"] = digest(written)
    older = json.dumps(value, separators=(",", ":")).encode()
    key = f"policy/2/{digest(older)}".encode()
    assert refused(Policy(), key, older) is None


def test_a_key_that_came_later_counts_once_it_differs_from_its_default() -> None:
    made = history(a_set(2, iteration_weight=3), a_set(3, iteration_weight=1))
    assert made.refused == []
    told = [one.digest for one in made.versions]
    assert told == [policy_digest(one.policy) for one in made.versions]
    assert told[1] != policy_digest(Policy(version=2))
    assert told[2] == policy_digest(Policy(version=3))
    assert changes(made.versions[1].policy, made.versions[2].policy) == [
        Change("iteration_weight", NOWHERE, 3, 1)
    ]


def test_an_override_that_cannot_be_is_refused_with_its_reason() -> None:
    bad = Override(tenant="acme", key="starvation_cap_ms", value=5)
    assert refused(Policy(), *a_set(2, overrides=(bad,))) == (
        "starvation_cap_ms for tenant acme: it cannot differ by tenant, only by model or tier"
    )
    many = tuple(Override(model=f"m{n}", key="no", value=5) for n in range(9))
    said = str(refused(Policy(), *a_set(2, overrides=many)))
    assert said.count("there is no such key") == 5
    assert said.endswith("; and more")


def _changed(**values: Any) -> bytes:
    value = json.loads(a_set(2)[1])
    value["policy"] |= values
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (_changed(attempts_max=0), "attempts_max cannot be 0: it is below 1; it takes"),
        (_changed(attempt_max=5), '"attempt_max": there is no such key; did you mean attempts_max'),
        (_changed(attempts_max="5"), 'attempts_max cannot be "5": it is a text; it takes'),
        (encode(Policy()), "a policy is set by a policy-set.v1, which says who set it and why"),
        (_changed(version=0), None),
        (b'{"kind":"policy-set.v1","policy":7}', None),
        (b'{"kind":"profile.v1"}', None),
        (b"[1]", None),
        (b"garbage", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (None, None),
    ],
)
def test_a_record_that_is_no_policy_says_which_key_is_wrong(
    raw: bytes | None, reason: str | None
) -> None:
    said = unreadable_because(raw)
    assert (said is None) == (reason is None)
    assert (said or "").startswith(reason or "")


def test_a_history_passes_over_what_is_no_policy_and_keeps_why_one_was_none() -> None:
    made = history(
        (b"policy/2/x", b"garbage"),
        (b"profile/m", b"garbage"),
        (b"profile/m", encode(SMOLLM2_135M)),
        (b"policy/2/x", None),
        (None, b"garbage"),
        (b"policy/default", encode(Policy(version=2))),
        (b"policy/2/x", _changed(attempts_max=0)),
        a_set(2),
    )
    assert made.active.policy.version == 2
    assert [one.offset for one in made.refused] == [0, 5, 6]
    assert "attempts_max cannot be 0" in made.refused[2].reason
    assert made.refused[0].asked is None


@pytest.mark.parametrize("change", [{"who": ""}, {"why": ""}, {"why": "a\nb"}, {"who": "x" * 129}])
def test_who_and_why_are_a_line_of_text(change: dict[str, Any]) -> None:
    value = json.loads(a_set(2)[1]) | change
    with pytest.raises(CodecError, match=next(iter(change))):
        decode(json.dumps(value).encode())


def test_what_changed_between_two_policies_is_told_key_by_key() -> None:
    acme = Override(tenant="acme", key="attempts_max", value=4)
    before = Policy(overrides=(acme, Override(model="m", key="attempts_max", value=9)))
    after = Policy(
        version=2,
        name="night",
        starvation_cap_ms=9,
        overrides=(
            replace(acme, value=5),
            Override(tier="batch", key="starvation_cap_ms", value=30_000),
        ),
    )
    assert changes(before, after) == [
        Change("name", NOWHERE, "default", "night"),
        Change("starvation_cap_ms", NOWHERE, 5_000, 9),
        Change("attempts_max", (None, None, "acme"), 4, 5),
        Change("attempts_max", ("m", None, None), 9, None),
        Change("starvation_cap_ms", (None, "batch", None), None, 30_000),
    ]
    assert changes(after, after) == []
