"""Every version of the policy, who set it and why, from the records of headway.config. Pure.

Folds the records in the order of their offsets by the rule that the cells apply, so it knows which
one is in force and which ones were refused, without asking a cell.
"""

from dataclasses import dataclass, field

from schemas.codec import CodecError, decode, encode
from schemas.policy import Policy, policy_digest
from schemas.policy_check import policy_values
from schemas.policy_set import PolicySet, key_of, refusal, unreadable_because


@dataclass(frozen=True, slots=True)
class Version:
    """One version that came into force.

    Attributes:
        offset: of its record, or None for the built-in one. digest: as its writer told it.
        based_on, at_us, who, why: as in the record; None and 0 for the built-in one.
    """

    policy: Policy
    digest: str
    offset: int | None
    based_on: int | None
    at_us: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that was meant as a policy and did not come into force; `asked` if it was one."""

    offset: int
    reason: str
    asked: PolicySet | None


def record_of(
    policy: Policy, *, based_on: int, at_us: int, who: str, why: str
) -> tuple[bytes, bytes]:
    """Return the (key, value) of the record that sets `policy`."""
    digest = policy_digest(policy)
    raw = encode(
        PolicySet(policy=policy, digest=digest, based_on=based_on, at_us=at_us, who=who, why=why)
    )
    return key_of(policy, raw), raw


def built_in() -> Version:
    """Return the first version, which every deployment begins with."""
    why = "the built-in default of a new deployment"
    return Version(Policy(), policy_digest(Policy()), None, None, 0, "headway", why)


@dataclass(slots=True)
class History:
    """The versions in the order in which they came into force, and what was refused."""

    versions: list[Version] = field(default_factory=lambda: [built_in()])
    refused: list[Refused] = field(default_factory=list[Refused])

    @property
    def active(self) -> Version:
        """The one in force."""
        return self.versions[-1]

    def version(self, number: int) -> Version | None:
        """Return the version of that number, or None."""
        return next((one for one in self.versions if one.policy.version == number), None)

    def before(self, version: Version) -> Version | None:
        """Return the one that was in force before `version`, or None for the first."""
        index = self.versions.index(version)
        return self.versions[index - 1] if index else None

    def add(self, offset: int, key: bytes | None, raw: bytes | None) -> None:
        """Take in the next record; profiles and tombstones are passed over."""
        if raw is None:
            return
        try:
            asked = decode(raw)
        except CodecError as error:
            if (key or b"").startswith(b"policy/"):
                reason = unreadable_because(raw) or str(error)
                self.refused.append(Refused(offset, reason, None))
            return
        if not isinstance(asked, PolicySet):
            reason = unreadable_because(raw)
            if reason is not None:
                self.refused.append(Refused(offset, reason, None))
            return
        reason = refusal(self.active.policy, asked, key, raw)
        if reason is not None:
            self.refused.append(Refused(offset, reason, asked))
            return
        self.versions.append(
            Version(
                asked.policy,
                asked.digest,
                offset,
                asked.based_on,
                asked.at_us,
                asked.who,
                asked.why,
            )
        )


Place = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs between two policies; None where an override is not there.

    Attributes:
        place: the (model, tier, tenant) of an override; all None for the key itself.
    """

    key: str
    place: Place
    before: object
    after: object


def changes(before: Policy, after: Policy) -> list[Change]:
    """Return what differs, the keys themselves first, in the order of their declaration."""
    old, new = _by_place(before), _by_place(after)
    return [
        Change(key, place, old.get((key, place)), new.get((key, place)))
        for key, place in dict.fromkeys([*old, *new])
        if ((key, place) in old, old.get((key, place)))
        != ((key, place) in new, new.get((key, place)))
    ]


def _by_place(policy: Policy) -> dict[tuple[str, Place], object]:
    values = policy_values(policy)
    overrides = values.pop("overrides")
    del values["kind"], values["version"]
    found: dict[tuple[str, Place], object] = {
        (key, (None, None, None)): value for key, value in values.items()
    }
    for one in overrides:
        found[one["key"], (one["model"], one["tier"], one["tenant"])] = one["value"]
    return found
