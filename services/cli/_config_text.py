"""What `headway config` says: versions, changes and values as lines for people and as JSON.

Reads what it is given and prints nothing itself, apart from the tables.
"""

from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from schemas.policy import Override, Policy, policy_digest
from schemas.policy_check import SCOPES, named, policy_values
from schemas.policy_form import toml
from schemas.policy_history import Change, History, Refused, Version, changes
from schemas.policy_keys import KEYS, Key
from streams.policies import InForce, Standing

NOT_SET = "not set"
Place = tuple[str | None, str | None, str | None]


def place_of(override: Override) -> Place:
    """Return the (model, tier, tenant) that an override is for."""
    return override.model, override.tier, override.tenant


def place_text(place: Place) -> str:
    """Return " for model x, tier batch", or "" for everything."""
    return f" {named(dict(zip(SCOPES, place, strict=True)))}" if any(place) else ""


def value_text(key: str, value: Any) -> str:
    """Return a value with its unit."""
    unit = KEYS[key].unit
    return f"{toml(value)} {unit}" if unit else toml(value)


def change_text(change: Change) -> str:
    """Return "key for tier batch: 5000 → 30000 ms"."""
    absent = any(change.place) and not KEYS[change.key].nullable
    before, after = (
        NOT_SET if value is None and absent else toml(value)
        for value in (change.before, change.after)
    )
    unit = KEYS[change.key].unit
    unit = f" {unit}" if unit and after != NOT_SET else ""
    return f"{change.key}{place_text(change.place)}: {before} → {after}{unit}"


def change_json(change: Change) -> dict[str, Any]:
    """Return a change for programs."""
    model, tier, tenant = change.place
    return {
        "key": change.key,
        "model": model,
        "tier": tier,
        "tenant": tenant,
        "before": change.before,
        "after": change.after,
    }


def when(at_us: int) -> str:
    """Return a moment, in UTC."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def policy_name(policy: Policy, digest: str) -> str:
    """Return a policy's name, version and digest."""
    return f"policy {toml(policy.name)}, version {policy.version} ({digest})"


def origin_of(version: Version) -> str:
    """Return who set a version, when and why."""
    if version.offset is None:
        return version.why
    return f"set by {version.who} on {when(version.at_us)}: {version.why}"


def version_json(version: Version, before: Version | None) -> dict[str, Any]:
    """Return a version for programs, with what it changed."""
    told = changes(before.policy, version.policy) if before else []
    return {
        "version": version.policy.version,
        "name": version.policy.name,
        "digest": version.digest,
        "who": version.who,
        "why": version.why,
        "at": when(version.at_us) if version.offset is not None else None,
        "at_us": version.at_us if version.offset is not None else None,
        "based_on": version.based_on,
        "changes": [change_json(change) for change in told],
    }


def refused_json(refused: Refused) -> dict[str, Any]:
    """Return a refused record for programs."""
    asked = refused.asked
    return {
        "offset": refused.offset,
        "reason": refused.reason,
        "version": asked.policy.version if asked else None,
        "who": asked.who if asked else None,
        "why": asked.why if asked else None,
    }


def history_lines(history: History) -> list[str]:
    """Return the versions, the newest first, each with who, when, why and what it changed."""
    lines: list[str] = []
    pairs = list(zip([None, *history.versions], history.versions, strict=False))
    for before, version in reversed(pairs):
        lines.append(policy_name(version.policy, version.digest))
        lines.append(f"    {origin_of(version)}")
        if before is not None and version.based_on != before.policy.version:
            lines.append(f"    made from version {version.based_on}")
        if before is not None:
            told = changes(before.policy, version.policy)
            lines += [f"    {change_text(change)}" for change in told] or ["    no change"]
    return lines


def refused_lines(history: History) -> list[str]:
    """Return what was refused, the newest first."""
    lines: list[str] = []
    for refused in reversed(history.refused):
        whose = f" of {refused.asked.who} ({refused.asked.why})" if refused.asked else ""
        lines.append(f"refused: the record{whose} at offset {refused.offset} of headway.config")
        lines.append(f"    {refused.reason}")
    return lines


def cells_text(standing: Standing) -> str:
    """Return under which policy the cells decide, in a sentence."""
    active = standing.history.active
    spoke = [cell for cell in standing.cells if cell.version is not None]
    if not spoke:
        return "no cell has decided anything yet"
    behind = standing.behind
    if not behind:
        silent = len(standing.cells) - len(spoke)
        rest = f"; {silent} have decided nothing yet" if silent else ""
        return f"in force in {_counted(spoke)}{rest}"
    others = ", ".join(
        f"cell {cell.cell} under version {cell.version} ({cell.digest})" for cell in behind
    )
    lost = max(cell.version or 0 for cell in behind) > active.policy.version
    why = (
        "; the record of that version is gone from headway.config: set the policy anew"
        if lost
        else "; a cell that runs takes a new one at once, so see whether they all do"
    )
    return f"not in force everywhere: {others}{why}"


def _counted(cells: list[InForce]) -> str:
    return f"cell {cells[0].cell}" if len(cells) == 1 else f"all {len(cells)} cells"


def policy_json(policy: Policy) -> dict[str, Any]:
    """Return a policy for programs: its values, with its digest."""
    return {"digest": policy_digest(policy), **policy_values(policy)}


def keys_table(policy: Policy) -> Table:
    """Return a table of all keys with their values, and their defaults where they differ."""
    table = Table("key", "value", "unit", "default", box=None, pad_edge=False)
    values = policy_values(policy)
    for key in KEYS.values():
        value, default = toml(values[key.name]), toml(key.default)
        changed = value != default
        shown = Text(value, style="bold" if changed else "")
        table.add_row(Text(key.name), shown, Text(key.unit), Text(default if changed else ""))
    return table


def override_lines(policy: Policy) -> list[str]:
    """Return a line for each override."""
    return [
        f"{one.key}{place_text(place_of(one))} = {value_text(one.key, one.value)}"
        for one in policy.overrides
    ]


def key_json(key: Key) -> dict[str, Any]:
    """Return a key's declaration for programs."""
    return {
        "key": key.name,
        "text": key.text,
        "unit": key.unit,
        "takes": key.bound,
        "default": list(key.default) if isinstance(key.default, tuple) else key.default,
        "origin": key.origin,
        "scope": list(key.scope),
    }
