"""The policy as it holds for one model, tier and tenant. Pure; reads a Policy, changes nothing.

A Policy holds one value of each key and overrides of some. Settings answers for a model, a tier and
a tenant at once, and remembers its answers: there are never more of them than combinations of what
the overrides name, however many tenants there are.
"""

from dataclasses import replace

from schemas.policy import Override, Policy, Tier

# (model, tier, tenant); None is not named.
Where = tuple[str | None, Tier | None, str | None]


class Settings:
    """A policy and the values that it takes for a model, tier and tenant."""

    __slots__ = ("_answers", "_models", "_tenants", "_tiers", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._models = {override.model for override in policy.overrides}
        self._tiers = {override.tier for override in policy.overrides}
        self._tenants = {override.tenant for override in policy.overrides}
        self._answers: dict[Where, Policy] = {}

    def at(self, model: str | None, tier: Tier | None = None, tenant: str | None = None) -> Policy:
        """Return the policy that holds there; its `overrides` are those of the whole."""
        if not self.policy.overrides:
            return self.policy
        where = (
            model if model in self._models else None,
            tier if tier in self._tiers else None,
            tenant if tenant in self._tenants else None,
        )
        found = self._answers.get(where)
        if found is None:
            found = self._answers[where] = self._resolved(where)
        return found

    def _resolved(self, where: Where) -> Policy:
        chosen = fitting(self.policy, where)
        return replace(self.policy, **{override.key: override.value for override in chosen})


def fitting(policy: Policy, where: Where) -> list[Override]:
    """Return the overrides that hold for a (model, tier, tenant), the one that wins last."""
    model, tier, tenant = where
    chosen = [
        override
        for override in policy.overrides
        if override.model in {None, model}
        and override.tier in {None, tier}
        and override.tenant in {None, tenant}
    ]
    chosen.sort(key=_precedence)
    return chosen


def _precedence(override: Override) -> tuple[bool, bool, bool]:
    named = (override.tenant, override.model, override.tier)
    tenant, model, tier = (name is not None for name in named)
    return tenant, model, tier
