"""What is wrong with a policy's values, told with the key, the bound and the reason. Pure.

Sees values as people and other programs write them, before they become a Policy: it finds every
fault, not the first alone, and raises at none. What is right here makes a Policy that holds.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from schemas.ids import ModelName, TenantName
from schemas.policy import TIERS, Policy
from schemas.policy_keys import KEYS, NOT_KEYS, Key
from schemas.tunable import Scope

SCOPES: tuple[Scope, ...] = ("model", "tier", "tenant")
OVERRIDES_MAX = 10_000
_SHOWN_CHARS_MAX = 60
# Names that are longer than any key resemble none, and to find that out takes long.
_NAME_CHARS_MAX = 64

_NAMES: dict[Scope, TypeAdapter[Any]] = {
    "model": TypeAdapter(ModelName),
    "tenant": TypeAdapter(TenantName),
}
_POLICY = TypeAdapter(Policy)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        path: where it stands in the policy: a key, or "overrides", its place there, and the field.
        key: the name that is wrong. value: as it was given, in words.
        reason: why it is refused. bound: what the key takes, "" where that is not the matter.
    """

    path: tuple[str | int, ...]
    key: str
    value: str
    reason: str
    bound: str = ""

    def sentence(self) -> str:
        """Return the fault as one sentence without its full stop."""
        takes = f"; it takes {self.bound}" if self.bound else ""
        given = f" cannot be {self.value}" if self.value else ""
        return f"{self.key}{given}: {self.reason}{takes}"


def policy_values(policy: Policy) -> dict[str, Any]:
    """Return the policy as plain values, as JSON holds it, with every key."""
    values = _POLICY.dump_python(policy, mode="json")
    for name, key in KEYS.items():
        if name not in values:
            values[name] = list(key.default) if isinstance(key.default, tuple) else key.default
    return {one.name: values[one.name] for one in fields(Policy)}


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return the policy of values in which `faults` finds nothing.

    Raises:
        ValueError: they are no policy.
    """
    return _POLICY.validate_json(json.dumps(values))


def faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what is wrong with a policy's plain values; `kind` and `version` are not looked at."""
    for name, value in values.items():
        if name in KEYS:
            yield from _value_faults(KEYS[name], value, (name,), name)
        elif name == "overrides":
            yield from _override_faults(value)
        elif name not in NOT_KEYS:
            yield Fault((name,), _quoted(name), "", unknown(name))


def unknown(name: str) -> str:
    """Return a sentence on a name that is no key, with the key that it may have been meant for."""
    near = get_close_matches(name, KEYS, 1) if len(name) <= _NAME_CHARS_MAX else []
    hint = f"did you mean {near[0]}?" if near else "`headway config keys` lists them"
    return f"there is no such key; {hint}"


def shown(value: Any) -> str:
    """Return a value as the form writes it, cut where it is long."""
    if isinstance(value, str):
        text = _quoted(value)
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int):
        # To write out a number of many digits takes long, and may be refused.
        text = f"{value}" if value.bit_length() <= 4 * _SHOWN_CHARS_MAX else "a huge number"
    elif isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, list | tuple):
        items = cast("list[Any]", value)[: _SHOWN_CHARS_MAX // 2]
        nested = any(isinstance(one, list | tuple | dict) for one in items)
        text = "a list" if nested else "[" + ", ".join(shown(one) for one in items) + "]"
    else:
        text = "none" if value is None else _what(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"


def _quoted(text: str) -> str:
    most = _SHOWN_CHARS_MAX - len('"…"')
    plain = "".join(one if one.isprintable() else "�" for one in text[:most])
    return f'"{plain}"' if len(text) <= most else f'"{plain}…"'


def _value_faults(
    key: Key, value: Any, path: tuple[str | int, ...], said_as: str
) -> Iterator[Fault]:
    bound = f"{key.bound} ({key.unit})" if key.unit else key.bound
    if isinstance(value, str) and not value.isprintable():
        yield Fault(path, said_as, shown(value), "it holds a sign that cannot be shown", bound)
        return
    try:
        key.adapter.validate_python(tuple(value) if isinstance(value, list) else value)
    except ValidationError as error:
        yield Fault(path, said_as, shown(value), _reason(error, value), bound)


def _reason(error: ValidationError, value: Any) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    context = first.get("ctx", {})
    steps = [step for step in first["loc"] if isinstance(step, int)]
    subject = "it"
    if steps and steps[0] < len(value):
        value, subject = value[steps[0]], f"its value {steps[0] + 1}"
    match first["type"]:
        case "greater_than_equal":
            return f"{subject} is below {context['ge']:,}"
        case "less_than_equal":
            return f"{subject} is above {context['le']:,}"
        case "literal_error":
            return f"{subject} is none of them"
        case "string_too_short" | "string_too_long":
            return f"{subject} has {len(value):,} characters"
        case "too_short" | "too_long" | "missing":
            return f"it has {len(value):,} values"
        case _:
            return f"{subject} is {_what(value)}"


def _what(value: Any) -> str:
    """Return the kind of thing that a value is."""
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "a switch"),
        (int, "a whole number"),
        (float, "a number with a fraction"),
        (str, "a text"),
        ((list, tuple), "a list"),
        (dict, "a table"),
        (type(None), "no value"),
    )
    return next((words for kind, words in kinds if isinstance(value, kind)), "a date or time")


def _override_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, list):
        yield Fault(("overrides",), "overrides", "", f"they are a list, not {_what(value)}")
        return
    items = cast("list[Any]", value)
    if len(items) > OVERRIDES_MAX:
        reason = f"there are {len(items):,} of them, and at most {OVERRIDES_MAX:,} are kept"
        yield Fault(("overrides",), "overrides", "", reason)
        return
    places: dict[tuple[str, ...], int] = {}
    for index, one in enumerate(items):
        path = ("overrides", index)
        if not isinstance(one, dict):
            yield Fault(path, f"override {index + 1}", "", f"it is {_what(one)}, not a table")
            continue
        override = cast("dict[str, Any]", one)
        found = list(_one_override(override, path))
        yield from found
        if not found:
            place = (override["key"], *(str(override.get(name) or "") for name in SCOPES))
            first = places.setdefault(place, index)
            if first != index:
                name = f"{override['key']} {named(override)}"
                yield Fault((*path, "value"), name, "", "it is set twice there")


def named(override: Mapping[Any, Any]) -> str:
    """Return in words what an override is for: "for model x, tier batch"."""
    names = [f"{name} {override[name]}" for name in SCOPES if override.get(name) is not None]
    return "for " + ", ".join(names) if names else "everywhere"


def _one_override(one: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[Fault]:
    for name in one:
        if name not in {*SCOPES, "key", "value"}:
            yield Fault((*path, name), _quoted(name), "", "an override has no such field")
    wrong = list(_name_faults(one, path))
    yield from wrong
    key_name = one.get("key")
    if not isinstance(key_name, str) or "value" not in one:
        yield Fault(path, "an override", "", "it needs a key and a value")
        return
    place = "" if wrong else f" {named(one)}"
    key = KEYS.get(key_name)
    if key is None:
        yield Fault((*path, "value"), f"{_quoted(key_name)}{place}", "", unknown(key_name))
        return
    said_as = f"{key_name}{place}"
    used = [name for name in SCOPES if one.get(name) is not None]
    barred = [name for name in used if name not in key.scope]
    if not key.scope:
        reason = "it holds for the whole deployment and cannot be overridden"
        yield Fault((*path, "value"), said_as, "", reason)
    elif barred:
        reason = f"it cannot differ by {' or '.join(barred)}, only by {' or '.join(key.scope)}"
        yield Fault((*path, "value"), said_as, "", reason)
    elif not used:
        reason = "it names no model, tier or tenant; set the key itself"
        yield Fault((*path, "value"), said_as, "", reason)
    yield from _value_faults(key, one["value"], (*path, "value"), said_as)


def _name_faults(one: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[Fault]:
    for name in SCOPES:
        value = one.get(name)
        if value is None:
            continue
        if name == "tier":
            if value not in TIERS:
                bound = "one of " + ", ".join(TIERS)
                yield Fault((*path, name), name, shown(value), "there is no such tier", bound)
            continue
        try:
            _NAMES[name].validate_python(value, strict=True)
            usable = value.isprintable()
        except ValidationError:
            usable = False
        if not usable:
            yield Fault((*path, name), name, shown(value), f"it is no name of a {name}")
