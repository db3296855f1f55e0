"""How a policy is set: the message, its key on the bus, and which one of several counts. Pure.

Each version is a record of its own on headway.config, and its key names the record's bytes, so
that compaction keeps all of them. Cells and people apply the same rule in the order of the offsets,
so of two operators who set at once exactly one wins, and everybody agrees which.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field

from schemas.message import message
from schemas.policy import VERSION_MAX, Policy
from schemas.policy_check import Fault, faults
from schemas.policy_pairs import contradictions

# A record may be ahead of what a reader knows, whose own release refused the ones between. One that
# is further ahead would use the numbers up.
VERSIONS_AHEAD_MAX = 1_000
_FAULTS_TOLD_MAX = 5
# The last microsecond that the recorder can keep, in the year 2299.
_AT_US_MAX = 10_413_791_999_999_999

_PLAIN = r"^[^\x00-\x1f\x7f-\x9f]+$"
Who = Annotated[str, Field(min_length=1, max_length=128, pattern=_PLAIN)]
Why = Annotated[str, Field(min_length=1, max_length=1_000, pattern=_PLAIN)]


@message
class PolicySet:
    """An operator's new policy, whole. Operator → cells, on headway.config.

    Attributes:
        digest: names the policy's values, as its writer's release computes it.
        based_on: the version that its values were made from: the one before, or one restored.
        at_us: when, by the operator's clock. who: set it. why: in their words.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["policy-set.v1"] = "policy-set.v1"
    policy: Policy
    digest: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    based_on: Annotated[int, Field(ge=1, le=VERSION_MAX)]
    at_us: Annotated[int, Field(ge=0, le=_AT_US_MAX)]
    who: Who
    why: Why


def key_of(policy: Policy, raw: bytes) -> bytes:
    """Return the key of the record `raw`, which sets `policy`."""
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return f"policy/{policy.version}/{digest}".encode()


def refusal(active: Policy, asked: PolicySet, key: bytes | None, raw: bytes) -> str | None:
    """Return why a policy that was read does not come into force after `active`, or None."""
    version = asked.policy.version
    found = list(faults({"overrides": _overrides(asked)})) or contradictions(asked.policy)
    told = list(_told(iter(found)))
    if told:
        return "; ".join(told)
    if key != key_of(asked.policy, raw):
        return (
            f"the record's key is not that of its policy, {key_of(asked.policy, raw).decode()}:"
            " compaction would lose one; use `headway config`"
        )
    if asked.digest != _digest_as_written(raw):
        return f"its digest, {asked.digest}, is not that of its policy; use `headway config`"
    if version <= active.version:
        return (
            f"version {version} is not above {active.version}, which is in force: another was set"
            " before it, so it was made from what no longer holds; look at that one, and set again"
        )
    if version > active.version + VERSIONS_AHEAD_MAX:
        return (
            f"version {version} is more than {VERSIONS_AHEAD_MAX} ahead of {active.version}, which"
            f" is in force; the next one is {active.version + 1}"
        )
    return None


def unreadable_because(raw: bytes | None) -> str | None:
    """Return why a record that could not be decoded is no policy, by its keys and their bounds.

    None when it does not even say that it is one.
    """
    try:
        value: Any = json.loads(raw or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    record = cast("dict[str, Any]", value)
    if record.get("kind") == "policy.v1":
        return "a policy is set by a policy-set.v1, which says who set it and why: `headway config`"
    if record.get("kind") != "policy-set.v1" or not isinstance(record.get("policy"), dict):
        return None
    return "; ".join(_told(faults(record["policy"]))) or None


def _digest_as_written(raw: bytes) -> str:
    """Return the digest of the policy in a record, whichever keys its writer's release knew."""
    written = json.dumps(json.loads(raw)["policy"], ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(written.encode(), digest_size=8).hexdigest()


def _told(found: Iterator[Fault]) -> Iterator[str]:
    """Yield the first sentences, and that there are more."""
    for number, fault in enumerate(found):
        if number == _FAULTS_TOLD_MAX:
            yield "and more"
            return
        yield fault.sentence()


def _overrides(asked: PolicySet) -> list[dict[str, Any]]:
    return [
        {"model": one.model, "tier": one.tier, "tenant": one.tenant, "key": one.key}
        | {"value": one.value}
        for one in asked.policy.overrides
    ]
