"""The form in which people write a policy: a TOML file, its reading, its writing, its schema. Pure.

The file is the whole policy: a key that it leaves out has its default. Overrides are tables that
say for what they hold, with the keys beside. Every fault is told at once, with its line.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from schemas.policy import TIERS, Policy
from schemas.policy_check import SCOPES, Fault, faults, policy_of, policy_values
from schemas.policy_keys import KEYS, NONE, NOT_KEYS, Key
from schemas.policy_pairs import contradictions

BASED_ON = "based_on"
OVERRIDE = "override"
_COLUMNS = 100
_NAME_LINE = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*=""")
_TABLE_LINE = re.compile(r"^\s*\[\[?\s*[\"']?([A-Za-z0-9_-]+)")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(slots=True)
class Form:
    """What a file says.

    Attributes:
        policy: with version 1, or None when something is wrong.
        based_on: the version that the file was written from, if it says so.
        faults: each with its line, from 1, or None where it has none of its own.
    """

    policy: Policy | None = None
    based_on: int | None = None
    faults: list[tuple[int | None, Fault]] = field(default_factory=list[tuple[int | None, Fault]])


def read(text: str) -> Form:
    """Return what a file says, or everything that is wrong with it."""
    form = Form()
    try:
        told = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        reason = _AT_LINE.sub("", str(error)).strip()
        at = _AT_LINE.search(str(error))
        fault = Fault((), "the file", "", f"it is no TOML: {reason}")
        form.faults.append((int(at[1]) if at else None, fault))
        return form
    lines = _Lines(text)
    values = dict(told)
    form.based_on = _based_on(values, form, lines)
    tables = values.pop(OVERRIDE, [])
    for name in [name for name in values if name in NOT_KEYS]:
        reason = "write [[override]] tables" if name == "overrides" else "Headway counts it"
        form.faults.append(
            (lines.of(-1, name), Fault((name,), name, "", f"leave it out: {reason}"))
        )
        del values[name]
    values = {name: _value(name, value) for name, value in values.items()}
    places: list[tuple[int, str]] = []
    if isinstance(tables, list):
        values["overrides"] = list(_overrides(cast("list[Any]", tables), places, form, lines))
    else:
        reason = "write it with two brackets, [[override]]"
        form.faults.append((lines.of(-1, OVERRIDE), Fault((OVERRIDE,), OVERRIDE, "", reason)))
    for fault in faults(values):
        one = (lines.of_fault(fault, places), fault)
        if all(
            one[0] != line or fault.sentence() != other.sentence() for line, other in form.faults
        ):
            form.faults.append(one)
    if not form.faults:
        policy = policy_of({"kind": "policy.v1", **values})
        form.faults += [(lines.of_fault(one, places), one) for one in contradictions(policy)]
        form.policy = None if form.faults else policy
    form.faults.sort(key=lambda one: one[0] or 0)
    return form


def write(policy: Policy, head: Iterable[str] = (), based_on: int | None = None) -> str:
    """Return the file of a policy, with every key explained; `head` are comment lines above it."""
    lines = [f"# {line}".rstrip() for line in head]
    if based_on is not None:
        lines += [
            "",
            "# The version that this file was written from. If another is in force when the file",
            "# is applied, it is refused; without this line it replaces whatever is in force.",
            f"{BASED_ON} = {based_on}",
        ]
    values = policy_values(policy)
    for key in KEYS.values():
        lines += ["", *(f"# {line}" for line in explained(key))]
        lines.append(f"{key.name} = {toml(values[key.name])}")
    lines += ["", *(f"# {line}".rstrip() for line in _OVERRIDES_EXPLAINED)]
    tables: dict[tuple[str | None, ...], list[str]] = {}
    for one in values["overrides"]:
        place = tuple(one[name] for name in SCOPES)
        tables.setdefault(place, []).append(f"{one['key']} = {toml(one['value'])}")
    for place, settings in tables.items():
        names = [f"{name} = {toml(of)}" for name, of in zip(SCOPES, place, strict=True) if of]
        lines += ["", f"[[{OVERRIDE}]]", *names, *settings]
    return "\n".join(lines).lstrip("\n") + "\n"


_OVERRIDES_EXPLAINED = (
    "Other values for a model, a tier, a tenant, or several of them together. Of two that fit, the",
    "one that names the tenant wins, then the one that names the model. For example:",
    "",
    f"    [[{OVERRIDE}]]",
    '    tenant = "acme"',
    "    attempts_max = 5",
)


def explained(key: Key) -> list[str]:
    """Return the lines of a key's explanation: what it does, unit, range, default, scope."""
    takes = f"{key.bound[0].upper()}{key.bound[1:]}"
    unit = f" ({key.unit})" if key.unit else ""
    scope = f"May differ by {', '.join(key.scope)}. " if key.scope else ""
    more = f"{takes}{unit}. {scope}Default: {toml(key.default)} ({key.origin})."
    return [*_wrapped(key.text), *_wrapped(more)]


def _wrapped(text: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > _COLUMNS - 2:
            yield line
            line = word
        else:
            line = f"{line} {word}".lstrip()
    yield line


def toml(value: Any) -> str:
    """Return a value of a key as TOML writes it."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in cast("list[Any]", value)) + "]"
    # JSON's texts, numbers and switches are TOML's too; only DEL has to be written otherwise.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def form_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors that check TOML by one."""
    names = {
        "model": {"type": "string", "description": "The model that it holds for."},
        "tier": {"enum": list(TIERS), "description": "The tier that it holds for."},
        "tenant": {"type": "string", "description": "The tenant that it holds for."},
    }
    scoped = {key.name: _schema_of(key) for key in KEYS.values() if key.scope}
    return {
        "title": "policy file",
        "description": "A policy as people write it, in TOML; a key that is left out is default.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            BASED_ON: {"type": "integer", "description": "The version it was written from."},
            **{key.name: _schema_of(key) | {"default": key.default} for key in KEYS.values()},
            OVERRIDE: {
                "type": "array",
                "description": "Other values for a model, tier or tenant.",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": names | scoped,
                    "anyOf": [{"required": [name]} for name in names],
                },
            },
        },
    }


def _schema_of(key: Key) -> dict[str, Any]:
    schema = dict(key.schema)
    if key.nullable:
        schema["anyOf"] = [
            {"const": NONE} if one.get("type") == "null" else one for one in schema["anyOf"]
        ]
    return {"description": " ".join(explained(key)), **schema}


def _value(name: str, value: Any) -> Any:
    key = KEYS.get(name)
    return None if key is not None and key.nullable and value == NONE else value


def _based_on(values: dict[str, Any], form: Form, lines: "_Lines") -> int | None:
    value = values.pop(BASED_ON, None)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    fault = Fault((BASED_ON,), BASED_ON, "", "it is the number of a version, or is left out")
    form.faults.append((lines.of(-1, BASED_ON), fault))
    return None


def _overrides(
    tables: list[Any], places: list[tuple[int, str]], form: Form, lines: "_Lines"
) -> Iterator[dict[str, Any]]:
    """Yield an override for each key of each table; `places` becomes where each one stands."""
    for index, one in enumerate(tables):
        table = cast("dict[str, Any]", one if isinstance(one, dict) else {})
        named = {name: table.get(name) for name in SCOPES}
        keys = [name for name in table if name not in SCOPES]
        if not keys:
            fault = Fault((OVERRIDE, index), f"[[{OVERRIDE}]]", "", "it sets no key")
            form.faults.append((lines.of(index, ""), fault))
        for name in keys:
            places.append((index, name))
            yield {**named, "key": name, "value": _value(name, table[name])}


class _Lines:
    """Where names stand in a file, by the table of overrides that they are in; -1 is none."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[int, str], int] = {}
        index = -1
        for number, line in enumerate(text.splitlines(), 1):
            table, name = _TABLE_LINE.match(line), _NAME_LINE.match(line)
            if table is not None and table[1] == OVERRIDE:
                index += 1
                self._lines.setdefault((index, ""), number)
                self._lines.setdefault((-1, OVERRIDE), number)
            elif table is not None:
                self._lines.setdefault((-1, table[1]), number)
            elif name is not None:
                said = next(one for one in name.groups() if one is not None)
                self._lines.setdefault((index, said), number)

    def of(self, index: int, name: str) -> int | None:
        """Return the line of a name, or of its table's head, or None."""
        return self._lines.get((index, name), self._lines.get((index, "")))

    def of_fault(self, fault: Fault, places: list[tuple[int, str]]) -> int | None:
        """Return the line of what is wrong, or None."""
        if fault.path[0] != "overrides" or len(fault.path) == 1:
            return self.of(-1, str(fault.path[0]))
        index, key = places[int(fault.path[1])]
        field_name = str(fault.path[-1])
        return self.of(index, field_name if field_name in SCOPES else key)
