"""Every key of the policy, as it declares itself: text, unit, default, range, scope, origin. Pure.

Read from the declarations in schemas/policy, so nothing is written twice; the form that people
fill in, its reference and the checks take it from here. Judges no value: see schemas/policy_check.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from schemas.policy import Policy
from schemas.tunable import Scope

# Of the policy itself, not of what it tunes.
NOT_KEYS = ("kind", "version", "overrides")
# How "no value" is written where a key may have none: the form's language has no word for it.
NONE = "none"


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        text: what it does, a sentence. unit: of its value, "" for a name or a switch.
        bound: what it takes, in words. origin: where the default comes from.
        scope: what an override of it may name; empty when it holds for everything alike.
        textual: whether its value is a text. nullable: whether it may have no value.
        adapter: checks a value. schema: the JSON Schema of a value.
    """

    name: str
    text: str
    unit: str
    bound: str
    default: Any
    origin: str
    scope: tuple[Scope, ...]
    textual: bool
    nullable: bool
    adapter: TypeAdapter[Any]
    schema: dict[str, Any]


def bound_of(schema: Mapping[str, Any]) -> str:
    """Return in words what values a JSON Schema of a key lets pass."""
    if "anyOf" in schema:
        (some,) = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return f'{bound_of(some)}, or "{NONE}"'
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(str(one) for one in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "boolean":
        return "true or false"
    if schema["type"] == "string":
        return f"a text of {_between(schema, 'minLength', 'maxLength')} characters"
    if schema["type"] == "array":
        each = schema["prefixItems"][0] if "prefixItems" in schema else schema["items"]
        count = _between(schema, "minItems", "maxItems")
        return f"a list of {count} values, each {bound_of(each)}"
    return f"a whole number, {_between(schema, 'minimum', 'maximum')}"


def _between(schema: Mapping[str, Any], least: str, most: str) -> str:
    low, high = (f"{schema[word]:,}" if word in schema else None for word in (least, most))
    if low == high:
        return low or "any"
    if high is None:
        return f"{low} or more"
    return f"{low} to {high}" if low else f"at most {high}"


def _keys() -> Mapping[str, Key]:
    hints = get_type_hints(Policy, include_extras=True)
    declared = TypeAdapter(Policy).json_schema()["properties"]
    default = Policy()
    keys: dict[str, Key] = {}
    for name in (field.name for field in fields(Policy) if field.name not in NOT_KEYS):
        schema = {word: said for word, said in declared[name].items() if word != "title"}
        text, unit = schema.pop("description"), schema.pop("unit")
        origin, scope = schema.pop("origin"), tuple(schema.pop("scope"))
        schema.pop("default")
        keys[name] = Key(
            name=name,
            text=text,
            unit=unit,
            bound=bound_of(schema),
            default=getattr(default, name),
            origin=origin,
            scope=scope,
            textual=schema.get("type") == "string",
            nullable="anyOf" in schema,
            adapter=TypeAdapter(hints[name], config=ConfigDict(strict=True)),
            schema=schema,
        )
    return MappingProxyType(keys)


# Every key by its name, in the order of their declaration.
KEYS = _keys()
