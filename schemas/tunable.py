"""How a key of the policy is declared, so that it documents itself. Pure; used by schemas/policy.

The text, unit, range, scope and origin of each key stand in its JSON Schema, from which the form
that people fill in and its reference are made. A key without them cannot be declared.
"""

from typing import Any, Literal

from pydantic import Field

# What a key may be set for apart from the whole deployment.
Scope = Literal["model", "tier", "tenant"]
NOWHERE_ELSE: tuple[Scope, ...] = ()
PER_MODEL: tuple[Scope, ...] = ("model",)
PER_TIER: tuple[Scope, ...] = ("model", "tier")
PER_TENANT: tuple[Scope, ...] = ("model", "tier", "tenant")
# Of what is counted for a tenant over all its tiers.
PER_ACCOUNT: tuple[Scope, ...] = ("model", "tenant")


def tunable(
    text: str,
    *,
    unit: str,
    origin: str,
    scope: tuple[Scope, ...] = NOWHERE_ELSE,
    ge: int | None = None,
    le: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    unsaid: Any = None,
) -> Any:
    """Return the field of one key.

    Args:
        text: what the key does, a sentence.
        unit: of its value, "" for a name or a switch.
        origin: where its default comes from.
        scope: what overrides may name.
        ge: the least value.
        le: the greatest value.
        min_length: of a text or a list.
        max_length: of a text or a list.
        unsaid: the default of a key that came after policies had been recorded, which never changes
            then. Where the key has it, a policy is written without the key: so what was recorded
            before keeps its bytes and its digest. (Its decisions are derived again only if the
            default is what was done before the key came.)
    """
    return Field(
        description=text,
        ge=ge,
        le=le,
        min_length=min_length,
        max_length=max_length,
        exclude_if=None if unsaid is None else lambda value: value == unsaid,
        json_schema_extra={"unit": unit, "origin": origin, "scope": list(scope)},
    )
